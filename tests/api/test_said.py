"""What results say of themselves: reasons that hold, and bounds that what is proved caps."""

from __future__ import annotations

import math
from dataclasses import replace

from conformance import task

import stagecut
from stagecut import DeviceMesh, Limits, Link, PipelineJob, Sharding
from stagecut.api.explain.remedies import MORE, NO_LIMIT, Remedy, _capped
from stagecut.api.gain import gain


def test_a_mesh_that_divides_nothing_is_the_reason() -> None:
    of = task("sharding")
    assert isinstance(of.problem, Sharding)
    problem = replace(of.problem, mesh=DeviceMesh((7919,), (Link(0.0, 1e9),)))
    result = stagecut.solve(of.workload, problem=problem, limits=Limits(seconds=30))
    gained = gain(of.workload, result)
    assert gained is not None
    assert "no operator can be divided among 7919 devices" in gained.text("s")


def test_more_memory_promises_no_more_than_no_limit() -> None:
    found = [
        Remedy(f"25 % {MORE} (1 GiB)", 10.0, 5.5),
        Remedy(NO_LIMIT, 10.0, 10.0),
        Remedy("one more device", 8.0, 6.0),
    ]
    assert [remedy.bound for remedy in _capped(found)] == [10.0, 10.0, 6.0]
    alone = [Remedy(f"25 % {MORE} (1 GiB)", 10.0, -math.inf)]
    assert _capped(alone) == tuple(alone)


def test_a_long_first_stage_is_explained_by_few_microbatches() -> None:
    workload = stagecut.load("llama3-8b-training")
    cluster = stagecut.accelerators_and_cpus(8, memory_bytes=math.inf)
    result = stagecut.solve(workload, cluster, PipelineJob(8), limits=Limits(gap=0.01, seconds=60))
    assert result.plan is not None
    said = stagecut.explain(workload, result.plan, seconds=0.0)
    assert any("with few microbatches (8 in 8 stages)" in line for line in said.reasons), said
