"""What a call compiles: what it needs for the gap asked for; beyond it, a later call does."""

from __future__ import annotations

import numpy as np
import pytest

from stagecut import Limits, Throughput, load
from stagecut.api.common import Judge, with_defaults
from stagecut.formulations.task import Task, pose
from stagecut.instances import Solution
from stagecut.instances.common import kernel as kernels
from stagecut.instances.common.kernel import kernel
from stagecut.solvers import Search
from stagecut.solvers.core.session import solve_in_session
from stagecut.solvers.throughput.baselines import greedy


@kernel
def to_come_near(seen):
    """Count in `seen`."""
    for i in range(len(seen)):
        seen[i] += 1


@kernel
def to_go_on(seen):
    """Count in `seen`, twice."""
    for i in range(len(seen)):
        seen[i] += 2


def run(task: Task[Throughput], search: Search[Solution]) -> None:
    to_come_near(np.zeros(100))
    greedy(task, search)
    search.raise_bound(search.objective * 0.995, "a test")
    to_go_on(np.zeros(100))
    search.raise_bound(search.objective, "a test")


@pytest.mark.parametrize("first", [True, False])
def test_a_call_that_compiled_stops_at_the_gap_asked_for(
    monkeypatch: pytest.MonkeyPatch, first: bool
) -> None:
    monkeypatch.setattr(kernels, "ITERATIONS", 1)
    monkeypatch.setattr(kernels, "ITERATIONS_PER_BYTE", 0)
    for one, cached in ((to_come_near, not first), (to_go_on, False)):
        monkeypatch.setattr(one, "ready", False)
        monkeypatch.setitem(one.__dict__, "_cached", cached)
    workload, cluster, problem = with_defaults(load("gpt2-xl"), None, Throughput())
    task = pose(workload, cluster, problem, None, {})
    judge = Judge(workload, cluster, problem)
    search: Search[Solution] = Search(Limits(gap=0.01, cheap_gap=1e-4, seconds=600), judge)
    solve_in_session(run, task, search)
    assert to_come_near.ready
    assert to_go_on.ready is not first
    assert search.gap <= 0.01
    assert search.status == ("feasible" if first else "optimal")
