"""A report as a table: a row for whatever the problem has."""

from __future__ import annotations

import pytest

import stagecut
from stagecut import DeviceMapping, Latency, PipelineJob, Throughput
from stagecut.instances import is_iteration


@pytest.mark.parametrize(
    ("problem", "column"),
    [(Throughput(), "load"), (Latency(), "start"), (PipelineJob(2, "1f1b"), "load")],
)
def test_devices_and_calls(problem: stagecut.Problem, column: str) -> None:
    name = "unet-training" if is_iteration(problem) else "unet"
    cluster = stagecut.accelerators_and_cpus(2)
    methods = {"latency": "greedy", "throughput": "greedy", "pipeline": "block-dp"}
    plan = stagecut.solve(name, cluster, problem, method=methods[problem.name]).plan
    assert plan is not None
    workload = stagecut.load(name)
    report = stagecut.evaluate(workload, cluster, problem, plan.solution)
    table = report.to_pandas()
    assert len(table) == len(report.calls or report.devices) > 0
    assert table[column].tolist() == [getattr(r, column) for r in report.calls or report.devices]


def test_stages_have_their_memory() -> None:
    workload = stagecut.training_layers(stagecut.load("unet-training"))
    cluster = stagecut.accelerators_and_cpus(2)
    problem = PipelineJob(microbatches=4, bandwidth=1e9)
    plan = stagecut.solve(workload, cluster, problem, method="equal-stages").plan
    assert plan is not None
    report = stagecut.evaluate(workload, cluster, problem, plan.solution)
    table = report.to_pandas()
    assert table["memory_bytes"].tolist() == [stage.memory_bytes for stage in report.stages]


def test_a_mapping_has_a_row_per_stage_and_a_broken_plan_has_none() -> None:
    workload = stagecut.load("gpt2-xl")
    problem = DeviceMapping(stagecut.topology("ring:4"), stages=2, replicas=2)
    plan = stagecut.solve(workload, problem=problem, method="layouts").plan
    assert plan is not None
    report = stagecut.evaluate(workload, plan.cluster, problem, plan.solution)
    assert report.to_pandas()["total_s"].shape == (2,)
    nothing = stagecut.runtime.Report(float("inf"), (), ("broken",))
    assert nothing.to_pandas().empty
