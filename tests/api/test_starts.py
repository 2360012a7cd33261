"""A plan is a start for clusters of other numbers and memories, if they have its devices."""

from __future__ import annotations

import numpy as np
import pytest
from cases import random_case

from stagecut import (
    Cluster,
    DeviceKind,
    InputError,
    Latency,
    Limits,
    PipelineJob,
    Throughput,
    accelerators_and_cpus,
    load,
    solve,
    training_layers,
)
from stagecut.instances import CallPlacement, PipelinePlacement, Placement
from stagecut.instances.model.solution import on_cluster


def test_with_another_memory_and_more_devices_nothing_is_searched() -> None:
    workload = load("gpt2-xl")
    problem = Throughput("contiguous")
    plan = solve(workload, accelerators_and_cpus(2), problem).plan
    assert plan is not None
    for cluster in (
        accelerators_and_cpus(2, memory_bytes=40 * 2.0**30),
        accelerators_and_cpus(3, cpus=1),
    ):
        again = solve(
            workload, cluster, problem, start=plan, method="greedy", limits=Limits(nodes=0)
        )
        assert again.objective is not None
        assert again.objective <= plan.objective


def test_one_that_does_not_fit_is_not_used() -> None:
    workload = load("gpt2-xl")
    plan = solve(workload, accelerators_and_cpus(2), Throughput(), method="single").plan
    small = accelerators_and_cpus(2, memory_bytes=float(workload.memory_bytes.sum()) * 0.7)
    result = solve(workload, small, Throughput(), start=plan, method="greedy")
    assert "the start breaks a rule of this problem and was not used" in result.notes
    assert result.plan is not None


def test_devices_that_are_not_there() -> None:
    workload = load("gpt2-xl")
    plan = solve(workload, accelerators_and_cpus(3), Throughput("contiguous")).plan
    with pytest.raises(InputError, match="start: it uses accelerator 2, which the cluster has not"):
        solve(workload, accelerators_and_cpus(2), Throughput("contiguous"), start=plan)
    layers = training_layers(load("gpt2-xl-training"))
    assert layers.cluster is not None
    problem = PipelineJob(microbatches=4, bandwidth=1e9)
    staged = solve(layers, layers.cluster, problem, method="equal-stages").plan
    with pytest.raises(InputError, match="start: the cluster has no a100-80gb; plan without it"):
        solve(layers, accelerators_and_cpus(4), problem, start=staged)


@pytest.mark.parametrize("seed", range(20))
def test_devices_keep_kind_and_number(seed: int) -> None:
    workload, cluster = random_case(seed, max_kinds=2)
    device = np.random.default_rng(seed).integers(0, cluster.size, workload.n)
    larger = Cluster(
        tuple(
            DeviceKind(kind.name, kind.count + 2, host=kind.host)
            for kind in reversed(cluster.kinds)
        )
    )
    moved = on_cluster(Placement(device), cluster, larger).device
    back = on_cluster(Placement(moved), larger, cluster).device
    assert back.tolist() == device.tolist()
    for a, b in zip(device.tolist(), moved.tolist(), strict=True):
        assert (
            cluster.kinds[cluster.devices[a].kind].name == larger.kinds[larger.devices[b].kind].name
        )
    calls = on_cluster(CallPlacement(device, np.zeros(workload.n)), cluster, larger)
    assert calls.device.tolist() == moved.tolist()
    stages = on_cluster(PipelinePlacement(device, range(cluster.size)), cluster, larger)
    assert stages.device.tolist() == moved.tolist()


def test_latency_goes_on_from_its_start() -> None:
    workload = load("gpt2-xl")
    plan = solve(workload, accelerators_and_cpus(2), Latency(), method="greedy").plan
    assert plan is not None
    again = solve(workload, accelerators_and_cpus(3), Latency(), start=plan, method="greedy")
    assert again.objective is not None
    assert again.objective <= plan.objective
