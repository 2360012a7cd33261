"""What results say of themselves: reasons that hold, and bounds that what is proved caps."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace

import pytest
from conformance import task

import stagecut
from stagecut import DeviceMesh, InputError, Limits, Link, PipelineJob, Sharding
from stagecut.api.explain import _long_first
from stagecut.api.gain import gain
from stagecut.api.remedies import MORE, NO_LIMIT, NOTHING, Remedy, _capped


def test_a_mesh_that_divides_nothing_is_the_reason() -> None:
    of = task("sharding")
    assert isinstance(of.problem, Sharding)
    problem = replace(of.problem, mesh=DeviceMesh((7919,), (Link(0.0, 1e9),)))
    result = stagecut.solve(of.workload, problem=problem, limits=Limits(seconds=30))
    gained = gain(of.workload, result)
    assert gained is not None
    assert "no operator can be divided among 7919 devices" in gained.text("s")


def test_what_is_no_cluster_or_problem_is_refused_in_one_line() -> None:
    one, cluster = stagecut.load("resnet50"), stagecut.accelerators_and_cpus(1)
    for arguments, said in (
        ((one, 2), r"^cluster: 2; give a Cluster"),
        ((one, "h100:8"), r'^cluster: "h100:8"; give a Cluster'),
        ((one, cluster, "throughput"), r'^problem: "throughput"; give one'),
    ):
        with pytest.raises(InputError, match=said):
            stagecut.solve(*arguments)


def test_estimates_and_models_are_shown_in_a_line() -> None:
    layout = stagecut.Layout(data=8, global_batch=8, sequence=4096, zero=3)
    found = stagecut.estimate("llama3-8b", layout, "h100:8")
    assert repr(found).startswith("Estimate(model=llama3-8b, devices=8 h100-sxm, layout=DP 8, ")
    assert repr(found.model).startswith("ModelDescription(name=llama3-8b, parameters=8030261248, ")
    assert max(len(repr(found)), len(repr(found.model))) < 250


def test_more_memory_promises_no_more_than_no_limit() -> None:
    found = [
        Remedy(f"25 % {MORE} (1 GiB)", 10.0, 5.5),
        Remedy(NO_LIMIT, 10.0, 10.0),
        Remedy("one more device", 8.0, 6.0),
    ]
    assert [remedy.bound for remedy in _capped(found, 0.0)] == [10.0, 10.0, 6.0]
    alone = [Remedy(f"25 % {MORE} (1 GiB)", 10.0, -math.inf)]
    assert _capped(alone, 0.0) == tuple(alone)
    again = Remedy(NOTHING, 12.0, 6.0)
    assert [remedy.bound for remedy in _capped([*found, again], 11.0)][-1] == 11.0
    assert [remedy.bound for remedy in _capped([*found, again], 0.0)][-1] == 10.0


def test_a_long_first_stage_is_explained_by_few_microbatches() -> None:
    workload = stagecut.load("llama3-8b-training")
    cluster = stagecut.accelerators_and_cpus(8, memory_bytes=math.inf)
    result = stagecut.solve(workload, cluster, PipelineJob(8), limits=Limits(gap=0.001, seconds=60))
    assert result.plan is not None
    said = stagecut.explain(workload, result.plan, seconds=0.0)
    assert any("with few microbatches (8 in 8 stages)" in line for line in said.reasons), said


def test_a_long_first_stage_before_stages_of_no_time_needs_no_sentence() -> None:
    loads = tuple(SimpleNamespace(name="a device", nodes=(0,), busy=busy) for busy in (1.0, 0.0))
    assert not list(_long_first(PipelineJob(4), loads))  # type: ignore[arg-type]
    loads[1].busy = 1 / 376
    (said,) = _long_first(PipelineJob(4), loads)  # type: ignore[arg-type]
    assert "is busy 376 times as long as any other" in said
