"""`stagecut warm`: kernels of large workloads, compiled ahead."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed

from rich.progress import track

from ..instances import StagecutError
from ..instances.common.kernel import NOT_KEPT
from ..solvers.core.limits import usual_count
from ..solvers.core.processes import python_process
from .common.console import BAD_INPUT, ERR, OUT, end

#: Commands that between them call the kernels of each problem.
CASES: tuple[tuple[str, ...], ...] = (
    ("solve", "bert-large-operators", "--split", "noncontiguous", "--time-limit", "120"),
    ("solve", "resnet50", "--problem", "latency", "--time-limit", "120"),
    ("solve", "gpt2-xl-training", "--microbatches", "8", "--time-limit", "120"),
    ("solve", "semantic-fpn", "--split", "contiguous", "--time-limit", "120"),
    (
        "solve",
        "gpt2-xl-training",
        "--problem",
        "mapping",
        "--cluster",
        "mesh2d:2x4",
        "--set",
        "stages=4,replicas=2",
    ),
)

#: Exit code of a solved case whose compiled kernels could not be stored.
_LOST = 9

_RUN = f"""
import sys
from stagecut.instances.common.kernel import compile_at_once, unkept
from stagecut.cli import run_command
compile_at_once()
sys.exit(run_command(sys.argv[1:]) or {_LOST} * unkept())
"""


def run_cases(cases: Sequence[Sequence[str]]) -> Iterator[int]:
    """Solve the cases, each in a process of its own, one per processor at a time; yield exit codes.

    StagecutError if compiled kernels cannot be stored.
    """
    with ThreadPoolExecutor(usual_count()) as pool:
        cases_run = [pool.submit(_run, case) for case in cases]
        for done in as_completed(cases_run):
            if done.result() == _LOST:
                pool.shutdown(cancel_futures=True)
                raise StagecutError(NOT_KEPT)
            yield done.result()


def _run(case: Sequence[str]) -> int:
    command, environment = python_process("-c", _RUN, *case)
    return subprocess.run(
        command,
        check=False,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ).returncode


def warm() -> None:
    """Compile what large workloads need, once per machine, so that no plan waits for it."""
    text = "compiling, once per machine"
    codes = list(track(run_cases(CASES), text, len(CASES), console=ERR, transient=True))
    OUT.print(f"{sum(code == 0 for code in codes)} of {len(codes)} cases solved, kernels compiled")
    end(BAD_INPUT if any(codes) else 0)
