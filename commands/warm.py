"""`stagecut warm`: compile ahead what large workloads need."""

from __future__ import annotations

from rich.progress import track

from .common.console import BAD_INPUT, ERR, OUT, end


def warm() -> None:
    """Compile what large workloads need, once per machine, so that no plan waits for it."""
    from ..api.warm import CASES
    from ..api.warm import warm as run_cases

    text = "compiling, once per machine"
    codes = list(track(run_cases(CASES), text, len(CASES), console=ERR, transient=True))
    OUT.print(f"{sum(code == 0 for code in codes)} of {len(codes)} cases solved, kernels compiled")
    end(BAD_INPUT if any(codes) else 0)
