"""`auto` for latency never ends behind what it could have started from."""

from __future__ import annotations

from dataclasses import replace

from stagecut import Latency, Limits, load, solve
from stagecut.instances import Cluster


def test_auto_is_no_worse_than_the_split_for_throughput() -> None:
    """A training graph that memory spreads over accelerators: greedy finds nothing there."""
    workload = load("gpt2-xl-training")
    assert workload.cluster is not None
    kinds = tuple(k if k.host else replace(k, memory_bytes=20 * 2.0**30)
                  for k in workload.cluster.kinds)  # fmt: skip
    cluster = Cluster(kinds, workload.cluster.links)
    problem = Latency(calls=2)
    start = solve(workload, cluster, problem, method="max-load")
    assert start.objective is not None
    gap = 1 - 0.999 * start.bound / start.objective  # auto stops when its plan is as good
    result = solve(workload, cluster, problem, limits=Limits(gap=gap, seconds=60))
    assert result.objective is not None
    assert result.objective <= start.objective * (1 + 1e-9)
