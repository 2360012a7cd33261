"""`auto` has a plan before it waits for a compiler, whatever the problem."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from cold import CASES
from conformance import chain, task
from project import ROOT

from stagecut import Limits, PipelineJob, Throughput, accelerators_and_cpus, solve, verify
from stagecut.instances import Problem
from stagecut.solvers.throughput import auto

#: Solves until the first plan, and says whether a kernel was compiled by then.
SCRIPT = """
import sys
from conformance import task
from numba.core import event
from stagecut import solve

class Enough(Exception):
    pass

def stop(progress):
    if progress.point.objective < float("inf"):
        raise Enough

with event.install_recorder("numba:compile") as record:
    for problem in ("throughput", "latency", "stream", "mapping"):
        of = task(problem, [1.0, 2.0, 3.0, 1.0], room=float(sys.argv[1]))
        try:
            solve(of.workload, of.cluster, of.problem, on_progress=stop)
        except Enough:
            print(problem)
assert not record.buffer, record.buffer
"""


@pytest.mark.parametrize("room", ["inf", "8"])
def test_the_first_plan_compiles_nothing(room: str, tmp_path: Path) -> None:
    """With CPUs, and without them where every byte is needed; with no kernel compiled before."""
    tests = ROOT / "tests" / "support"
    paths = [str(ROOT / ".dev"), str(tests)]
    ran = subprocess.run(
        [sys.executable, "-c", SCRIPT, room],
        env={**os.environ, "NUMBA_CACHE_DIR": str(tmp_path), "PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.split() == ["throughput", "latency", "stream", "mapping"]


def test_relayed_data_has_a_first_plan_too() -> None:
    problem = Throughput("contiguous", relayed=True)
    workload = chain([1.0] * 6)
    result = solve(workload, accelerators_and_cpus(2), problem, limits=Limits(seconds=1e-9))
    assert result.plan is not None
    verify(workload, result.plan)


@pytest.mark.parametrize("large", [False, True])
@pytest.mark.parametrize("room", [float("inf"), 8.0, 4.0])
@pytest.mark.parametrize(
    "problem",
    [
        Throughput("contiguous"),
        Throughput("contiguous", relayed=True),
        Throughput("noncontiguous"),
        Throughput("noncontiguous", pipeline="gpipe"),
        PipelineJob(4),
        PipelineJob(4, schedule="gpipe"),
        PipelineJob(4, split="noncontiguous"),
    ],
    ids=lambda problem: f"{problem.name}-{problem.split}",
)
def test_no_time_at_all_gives_a_plan(
    problem: Problem, room: float, large: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of graphs of all sizes, where one device has room, where two have, and for the last byte."""
    monkeypatch.setattr(auto, "LARGE", 3 if large else auto.LARGE)
    workload = task("iteration", [7.0, 1.0, 2.0, 1.0]).workload
    cluster = accelerators_and_cpus(2, memory_bytes=room)
    result = solve(workload, cluster, problem, limits=Limits(seconds=1e-9), workers=1)
    assert result.plan is not None, result.notes
    verify(workload, result.plan)


#: Solves to the end and says whether a kernel was compiled.
WHOLE = """
from numba.core import event
from stagecut import DeviceMapping, Limits, load, solve, topology

with event.install_recorder("numba:compile") as record:
    problem = DeviceMapping(topology("mesh2d:2x2"), 2, 2, "both")
    result = solve(load("resnet50-training"), problem=problem, limits=Limits(gap=0.0))
print(result.status)
assert not record.buffer, record.buffer
"""


def test_a_mapping_to_few_devices_compiles_nothing(tmp_path: Path) -> None:
    """From partition to ties, with no kernel compiled before."""
    ran = subprocess.run(
        [sys.executable, "-c", WHOLE],
        env={**os.environ, "NUMBA_CACHE_DIR": str(tmp_path), "PYTHONPATH": str(ROOT / ".dev")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.split() == ["optimal"]


def test_plans_that_need_no_compiler_are_near_the_best(tmp_path: Path) -> None:
    """Of every problem: `auto` without kernels is within 2 × of a good method with them."""
    paths = [str(ROOT / ".dev"), str(ROOT / "tests" / "support")]
    ran = subprocess.run(
        [sys.executable, str(ROOT / "tests" / "support" / "cold.py")],
        env={**os.environ, "NUMBA_CACHE_DIR": str(tmp_path), "PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    cold = dict(zip(CASES, map(float, ran.stdout.split()), strict=True))
    for name, make in CASES.items():
        of = make()
        enough = Limits(seconds=60, gap=0.4)
        method = "max-load" if of.problem.name == "latency" else "auto"
        found = solve(of.workload, of.cluster, of.problem, method=method, limits=enough, workers=1)
        best = found.objective
        assert best is not None, name
        assert cold[name] <= 2 * best, name
