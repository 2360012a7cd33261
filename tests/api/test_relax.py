"""Relaxations are bounds, and what they say of their programs is true."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from brute_sharding import random_problem, random_program

import stagecut
from stagecut import InfeasibleError, InputError, Latency, Limits, Throughput

GIB = 2**30


def small(seed: int, n: int = 7) -> stagecut.Workload:
    """A random graph of a few nodes."""
    rng = np.random.default_rng(seed)
    times, moved = rng.integers(1, 6, n) / 1.0, rng.integers(0, 4, n) / 1.0
    nodes = pd.DataFrame({"time_accelerator": times, "transfer": moved, "memory_bytes": 1.0})
    ends = [(a, b) for a in range(n) for b in range(a + 1, n) if rng.random() < 0.35]
    edges = pd.DataFrame(ends or [(0, 1)], columns=["source", "target"])
    return stagecut.from_pandas(nodes, edges, name="small", time_unit="ms")


@pytest.mark.parametrize("seed", range(6))
def test_relaxations_of_throughput_are_bounds_in_their_order(seed: int) -> None:
    workload, problem = small(seed), Throughput("noncontiguous")
    cluster = stagecut.accelerators_and_cpus(3, cpus=0, memory_bytes=4.0)
    optimum = stagecut.solve(
        workload, cluster, problem, method="milp", limits=Limits(gap=0)
    ).objective
    assert optimum is not None
    found = {
        name: stagecut.relax(workload, cluster, problem, name)
        for name in ("compact", "all-sets", "set-partitioning")
    }
    strong = found["set-partitioning"]
    assert found["all-sets"].bound <= strong.bound * (1 + 1e-9)
    assert found["compact"].bound <= optimum * (1 + 1e-9)
    assert strong.bound <= optimum * (1 + 1e-9)
    if strong.fractional == 0:  # a placement: then it is an optimal one
        assert strong.bound == pytest.approx(optimum)
    for relaxation in found.values():
        assert relaxation.shares.sum(axis=1).to_numpy() == pytest.approx(np.ones(workload.n))
        assert relaxation.whole <= relaxation.columns
        assert "(1)" in relaxation.statement


@pytest.mark.parametrize(
    ("problem", "formulation"),
    [
        (Latency(1), "big-m"), (Latency(1), "potentials"),
        (stagecut.PipelineJob(4, "1f1b"), "actions"),
    ],
)  # fmt: skip
def test_relaxations_are_below_plans(problem: stagecut.Problem, formulation: str) -> None:
    name = "unet" if isinstance(problem, Latency) else "unet-training"
    cluster = stagecut.accelerators_and_cpus(3, cpus=0, memory_bytes=2 * GIB)
    found = stagecut.relax(name, cluster, problem, formulation)
    plan = stagecut.solve(name, cluster, problem, limits=Limits(gap=0.5))
    assert plan.objective is not None
    assert 0 <= found.bound <= plan.objective * (1 + 1e-9)
    assert found.shares.sum(axis=1).to_numpy() == pytest.approx(np.ones(len(found.shares)))


def test_training_and_mapping_have_relaxations() -> None:
    layers = stagecut.training_layers(stagecut.load("unet-training"))
    cluster = stagecut.accelerators_and_cpus(4, cpus=0, memory_bytes=2 * GIB)
    problem = stagecut.PipelineJob(microbatches=16, bandwidth=25e9)
    slots = stagecut.relax(layers, cluster, problem)
    best = stagecut.solve(layers, cluster, problem, method="dp").objective
    assert best is not None
    assert 0 < slots.bound <= best
    mapping = stagecut.DeviceMapping(
        stagecut.topology("islands:2x2"), 2, 2, microbatches=4, collective="ring"
    )
    joint = stagecut.relax("semantic-fpn-training", problem=mapping)
    assert joint.shares.shape == (4, 2)
    objective = stagecut.solve("semantic-fpn-training", problem=mapping, method="joint").objective
    assert objective is not None
    assert 0 < joint.bound <= objective * (1 + 1e-9)


@pytest.mark.parametrize("seed", range(4))
def test_relaxations_of_shardings_are_bounds_in_their_order(seed: int) -> None:
    rng = np.random.default_rng(seed)
    workload, problem = random_program(rng), random_problem(rng)
    best = stagecut.solve(workload, problem=problem, method="elimination").objective
    assert best is not None
    compact, flows = (
        stagecut.relax(workload, problem=problem, name=name) for name in ("compact", "flows")
    )
    assert compact.bound <= flows.bound * (1 + 1e-6) + 1e-12
    assert flows.bound <= best * (1 + 1e-6) + 1e-12
    for found in (compact, flows):
        assert found.shares.sum(axis=1).to_numpy() == pytest.approx(np.ones(len(found.shares)))


def test_what_cannot_be_relaxed_is_said() -> None:
    problem = Throughput("noncontiguous")
    with pytest.raises(InputError, match="use one of compact, by-device, set"):
        stagecut.relax("gpt2-xl", None, problem, "nonsense")
    with pytest.raises(InputError, match="too many sets to list"):
        stagecut.relax("gpt2-xl", None, problem, "set-partitioning")
    tiny = stagecut.accelerators_and_cpus(2, cpus=0, memory_bytes=3.0)
    with pytest.raises(InfeasibleError, match="even in parts"):
        stagecut.relax(small(0), tiny, problem, "set-partitioning")


@pytest.mark.parametrize("split", [True, False])
@pytest.mark.parametrize("seed", range(3))
def test_relaxations_of_schedules_are_bounds(seed: int, split: bool) -> None:
    rng = np.random.default_rng(seed)
    forward, backward = rng.uniform(1, 4, (2, 3)).tolist()
    stages = stagecut.runtime.simulate.chain(
        forward, backward, send=[0.5] * 3, activation_bytes=[1.0] * 3
    )
    limit = [2.0] * 3
    weak = stagecut.api.relax_schedule(stages, 3, activation_bytes=limit, split=split)
    best = stagecut.best_schedule(stages, 3, activation_bytes=limit, split=split)
    assert best.status == "optimal"
    assert weak.bound <= best.objective * (1 + 1e-6)
    assert weak.whole < weak.columns
    assert "(4)" in weak.statement
    assert weak.shares.sum(axis=1).to_numpy() == pytest.approx(np.ones(len(weak.shares)))
    assert weak.passes is not None
    for name, row in weak.passes.iterrows():  # a microbatch passes the stages in order
        following = f"{int(str(name)[0]) + 1}{str(name)[1:]}"
        if "F" in str(name) and following in weak.passes.index:
            assert weak.passes.loc[following, "begin"] >= row["end"] - 1e-6
    picture = stagecut.runtime.pictures.plot_passes(weak.passes)
    devices = [label.get_text() for label in picture.axes[0].get_yticklabels()]
    assert [name for name in devices if name] == ["device 0", "device 1", "device 2"]


def test_a_schedule_without_memory_has_no_relaxation() -> None:
    stages = stagecut.runtime.simulate.chain([1.0], [1.0], activation_bytes=[2.0])
    with pytest.raises(InfeasibleError, match="too small"):
        stagecut.api.relax_schedule(stages, 2, activation_bytes=[1.0])
