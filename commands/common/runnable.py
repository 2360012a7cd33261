"""The cut nearest to a workload's own that `stagecut run` can run, chosen before it is planned."""

from __future__ import annotations

from ...instances import InputError, Workload
from ...instances.common.units import ON_NUMBERS
from .console import ERR


def with_kept_together(together: list[str] | None, workload: Workload) -> list[str] | None:
    """Return `--together` with what must share a device for a plan to run; say so, and why."""
    uncut, why = kept_together(workload)
    if not uncut:
        return together
    ERR.print(why)
    return [*(together or ()), uncut]


def kept_together(workload: Workload) -> tuple[str, str]:
    """Return what must share a device for a plan to run, as `--together` has it, and why.

    Both are empty if every plan can run: modules that no graph holds are single nodes already. A
    model whose outermost code depends on numbers has no border but its own.

    Raises
    ------
    InputError
        If the workload is of no PyTorch model.
    """
    made = workload.provenance
    if made.get("generator") != "stagecut.instances.pytorch":
        raise InputError(f"--runnable: {workload.name} is of no PyTorch model; profile one")
    if made.get("traced_by") != ON_NUMBERS:
        return "", ""
    return "*", (
        f"--runnable: {workload.name}: {made.get('torch_export_failed', '')}, so it is kept whole, "
        "on one device; move that code into a module of its own, which then runs as it is, and "
        "profile again to cut the rest"
    )
