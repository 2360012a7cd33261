"""The path-interval bound where it must be the optimum."""

from __future__ import annotations

import math

import numpy as np
import pytest
from brute_latency import least_latency

from stagecut import Latency, Workload, accelerators_and_cpus
from stagecut.formulations.latency.graph import latency_graph
from stagecut.formulations.task import pose
from stagecut.solvers.latency import bound as bound_module
from stagecut.solvers.latency.bound import cut_data, path_bound


@pytest.mark.parametrize("block", range(10))
@pytest.mark.parametrize("calls", [1, 2, 3])
def test_on_chains_with_accelerators_to_spare_it_is_the_optimum(
    calls: int, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only calls that share a colour must share an accelerator."""
    for seed in range(6 * block, 6 * (block + 1)):
        draw = np.random.default_rng(seed)
        n = 4 if calls == 3 else 5
        workload = Workload(
            name="chain",
            ids=tuple(range(n)),
            edges=np.array([(v, v + 1) for v in range(n - 1)]),
            times={
                "accelerator": np.where(draw.random(n) < 0.2, math.inf, draw.random(n)),
                "cpu": 4 * draw.random(n),
            },
            memory_bytes=draw.integers(0, 4, n).astype(float),
            transfer=draw.random(n) * draw.integers(0, 2, n),
            colours=np.cumsum(draw.random(n) < 0.4),
        )
        cluster, problem = accelerators_and_cpus(n, 1, float(draw.integers(3, 8))), Latency(calls)
        task = pose(workload, cluster, problem)
        graph = latency_graph(task, whole_colours=calls == 1)
        best = least_latency(workload, cluster, problem)
        for at_once in (128, 2):
            monkeypatch.setattr(bound_module, "AT_ONCE", at_once)
            found = path_bound(task, graph, cut_data(task, graph), np.arange(graph.size), n * calls)
            assert found.value == pytest.approx(best, rel=1e-12)


def test_a_colour_that_one_call_cannot_hold_is_divided_among_two_of_its_accelerator() -> None:
    """A node that only the CPU runs lies between two of a colour, so that a call holds one."""
    for seed in range(5):
        draw = np.random.default_rng(seed)
        first, last, transfer = draw.random(3)
        workload = Workload(
            name="around the CPU",
            ids=(0, 1, 2),
            edges=np.array([(0, 1), (0, 2), (1, 2)]),
            times={
                "accelerator": np.array([first, math.inf, last]),
                "cpu": np.array([10.0, 0.0, 10.0]),
            },
            memory_bytes=np.ones(3),
            transfer=np.array([transfer, 0.0, 0.0]),
            colours=np.array([0, -1, 0]),
        )
        cluster, problem = accelerators_and_cpus(1, 1, 4.0), Latency(2)
        task = pose(workload, cluster, problem)
        graph = latency_graph(task, whole_colours=False)
        path = np.array([0, 2])  # around it
        found = path_bound(task, graph, cut_data(task, graph), path, 2)
        assert found.value <= least_latency(workload, cluster, problem) * (1 + 1e-12)
        assert found.value >= first + last
