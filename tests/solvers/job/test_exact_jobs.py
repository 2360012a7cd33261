"""The search finds the best of all plans of small jobs, and no bound is above one."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from brute_job import (
    all_layouts,
    alternating_job,
    best_of_all,
    bytes_needed,
    host_job,
    large_job,
    mixed_job,
    odd_job,
    point_of,
    profiled_job,
    rank_fits,
    sharded_job,
    small_job,
    uneven_job,
    unlike_memory,
)

from stagecut.api.estimate import estimate
from stagecut.api.job import job_costs, solve_job
from stagecut.formulations.job.bounds import first_bounds
from stagecut.formulations.job.rates import rates
from stagecut.formulations.job.space import job_space
from stagecut.instances import InputError, VerificationError
from stagecut.instances.costs.clusters import training_cluster
from stagecut.instances.costs.description import (
    Block,
    Measured,
    ModelDescription,
    ProfiledLayer,
)
from stagecut.instances.costs.hardware import TrainingCluster
from stagecut.instances.costs.layout import Layout
from stagecut.instances.costs.memory import rank_memory
from stagecut.instances.costs.models import shipped_model
from stagecut.instances.costs.stages import device_memory
from stagecut.instances.job.plan import Reason
from stagecut.instances.job.problem import TrainingJob
from stagecut.runtime.estimate import iteration_times
from stagecut.runtime.verify.bounds.layout_probes import Probes
from stagecut.runtime.verify.bounds.layout_rows import PointRefutation
from stagecut.runtime.verify.layouts import check_job_bound, verify_job_plan
from stagecut.solvers import Limits
from stagecut.solvers.job.search import search_job


def check(seed: int, job_of: Callable[[random.Random], Any] = small_job, gap: float = 1e-6) -> str:
    """Compare one random job with brute force; return what it was."""
    draw = random.Random(seed)
    model, cluster, job = job_of(draw)
    every = list(all_layouts(model, cluster, job))
    if not every:
        with pytest.raises(InputError, match="no layout of"):
            job_space(model, cluster, job)
        return "empty"
    sizes = [bytes_needed(model, draw.choice(every)) for _ in range(40)]
    limit = min(float(np.quantile(sizes, draw.choice((0.02, 0.2, 0.6, 1.0)))), 79e9)
    job = replace(job, memory_bytes=limit)
    if len(cluster.nodes) > 1 and draw.random() < 0.7:
        cluster, limit = unlike_memory(draw, cluster, limit / 0.7), limit / 0.7
        job = replace(job, memory_bytes=None)
    prices = job_costs(model, cluster, job).prices
    least, by_point = best_of_all(model, cluster, job, limit)
    space = job_space(model, cluster, job)

    def judge(layouts: list[Layout]) -> np.ndarray:
        seconds = np.array([one.seconds for one in iteration_times(layouts, prices)])
        fits = [rank_fits(model, cluster, layout, limit) for layout in layouts]
        return np.where(fits, seconds, np.inf)

    found = search_job(space, prices, judge, gap=gap, deadline=time.monotonic() + 60)
    first = first_bounds(space, rates(space, prices), prices)
    for point in range(len(space)):
        layout = space.layout(point)
        true = by_point.get(layout, np.inf)
        if job.counts_layers(layout) and not model.mtp:
            plain = replace(layout, recompute=frozenset(), recompute_layers=None)
            true = min(true, by_point.get(plain, np.inf))
        assert first[point] <= true * (1 + 1e-9), (seed, layout)
        assert found.bound[point] <= true * (1 + 1e-5), (seed, layout)
    assert found.least_bound <= least * (1 + 1e-6), seed
    open_points = [p for p, why in enumerate(found.reason) if why is Reason.OPEN]
    assert (found.bound[open_points] < found.threshold).all(), seed  # others are ruled out
    known = {point_of(layout) for layout in every}
    assert all(
        replace(space.layout(point), stage_layers=()) in known for point in range(len(space))
    )
    if np.isinf(least):
        assert found.best is None, seed
        return "infeasible"
    if Reason.OPEN in found.reason and found.least_bound < found.seconds * (1 - gap):
        return "open"
    assert least * (1 - 1e-9) <= found.seconds <= least * (1 + 2 * gap), (seed, found.best)
    return str(job.launcher)


@pytest.mark.parametrize("seed", range(6))
def test_the_best_of_all_plans(seed: int) -> None:
    """Equal to brute force, with and without memory that binds."""
    assert check(seed) != "open"


@pytest.mark.parametrize("seed", [73, *range(9)])
def test_odd_jobs(seed: int) -> None:
    """The same for odd batches and sequences, encoders, predictions, one layer."""
    assert check(seed, odd_job) != "open"


@pytest.mark.parametrize("seed", range(6))
def test_layers_that_alternate(seed: int) -> None:
    """Stages have as many layers of each type as the order of types has between their ends."""
    assert check(seed, alternating_job) != "open"


@pytest.mark.parametrize("seed", [2, 3, pytest.param(5, marks=pytest.mark.slow), 8])
def test_chunks_that_are_not_even(seed: int) -> None:
    """Chunks of three layers or more whose number divides none, and microbatches of all sizes."""
    model, cluster, job = uneven_job(random.Random(seed))
    space = job_space(model, cluster, job)
    assert any(model.layers % n and (model.layers + 2) % n for n in 2 * space.chunks)
    assert check(seed, uneven_job) != "open"


def test_embedding_and_head_of_a_v_are_on_one_rank() -> None:
    """Nothing is sent between tied ones there, whatever other schedules send."""
    assert check(43, alternating_job) == "torchtitan"


def test_a_plan_that_does_not_fit_leads_to_one_beside_it() -> None:
    """Memory's rows count less than what sharded weights need in one pass."""
    assert check(51, large_job) == "stagecut"


@pytest.mark.parametrize("seed", [33, 95, 111])
def test_experts_that_tensor_ranks_hold_whole(seed: int) -> None:
    """Nothing has replicas but experts, whose copies ZeRO divides."""
    check(seed, odd_job)


@pytest.mark.parametrize("seed", [0, 2, 3, 4])
def test_profiled_models(seed: int) -> None:
    """Of models that were measured for some tensor degrees, those alone are in the space."""
    assert check(seed, profiled_job) != "open"


def test_a_profile_from_a_faster_device_leaves_true_bounds() -> None:
    """Layers that were measured at more operations per second than the cluster's peak."""

    def fast(draw: random.Random) -> tuple[ModelDescription, TrainingCluster, TrainingJob]:
        model, cluster, job = profiled_job(draw)
        layers = [block.profiled for block in model.blocks if block.profiled is not None]
        blocks = tuple(Block(profiled=replace(layer, flops=1e15)) for layer in layers)
        return replace(model, blocks=blocks), cluster, job

    assert check(0, fast) != "open"


@pytest.mark.parametrize("seed", range(4))
def test_sharded_weights_beside_collectives(seed: int) -> None:
    """Traffic that shares links with a layer's collectives is hidden by the rest alone."""
    assert check(seed, sharded_job) != "open"


@pytest.mark.parametrize(
    "seed", [1, 3, 8, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (5, 25, 30))]
)
def test_parts_in_host_memory(seed: int) -> None:
    """Parts of activations, weights and optimizer state there, with slow links to it at times."""
    assert check(seed, host_job) != "open"


@pytest.mark.parametrize("seed", range(9))
def test_a_wide_gap_leaves_true_bounds(seed: int) -> None:
    """A search that is content with 2 % claims no more of any point than it has proved."""
    check(seed, gap=0.02)


def test_any_gap_is_enough() -> None:
    """With a gap of 1 nothing is solved once there is a plan, and bounds stay true."""
    check(0, gap=1.0)


@pytest.mark.parametrize(
    "nodes", [pytest.param("h100:8x2+a100:8x2", marks=pytest.mark.slow), "a100:8+h100:8"]
)
def test_stages_are_as_long_as_their_nodes_are_fast(nodes: str) -> None:
    """Work on the nodes that it lies on refutes nearly all points, in search and check alike."""
    job = TrainingJob(global_batch=128, sequence=8192)
    found = solve_job("llama3-8b", nodes, job, limits=Limits(seconds=60.0, gap=1e-3))
    assert found.plan is not None
    assert found.status == "optimal"
    layers = found.plan.layout.stage_layers
    assert (layers[0] > layers[-1]) == nodes.startswith("h100")
    checked = check_job_bound(found.plan)
    assert checked.points > 1000
    assert checked.programs < 200


def test_each_rank_fills_its_own_devices() -> None:
    """A rank on larger devices holds more than the smallest ones have; all with these are slower.

    The check of the bound takes the same memory, and an estimate says that the plan fits.
    """
    job = TrainingJob(global_batch=64, sequence=4096, tensor=(1, 2), context=1)
    nodes = "h100:8+a100-40gb:8"
    found = solve_job("llama3-8b", nodes, job, limits=Limits(seconds=60.0, gap=1e-3)).plan
    assert found is not None
    check_job_bound(found)
    has = device_memory(found.layout, found.cluster)
    needs = [rank_memory(found.model, found.layout, rank).needed for rank in range(len(has))]
    small = min(has)
    assert max(needs) > small
    assert all(bytes_ <= room for bytes_, room in zip(needs, has, strict=True))
    assert estimate(found.model, found.layout, found.cluster).fits
    least = solve_job("llama3-8b", nodes, replace(job, memory_bytes=small)).plan
    assert least is not None
    assert found.seconds < least.bound
    turned = replace(found, cluster=training_cluster("a100-40gb:8+h100:8"))
    assert not estimate(turned.model, turned.layout, turned.cluster).fits
    with pytest.raises(VerificationError, match="costs"):
        verify_job_plan(turned)
    layers = tuple(reversed(found.layout.stage_layers))
    forged = replace(found.layout, stage_layers=layers, recompute_layers=0)
    (seconds,) = iteration_times([forged], job_costs(found.model, nodes, job).prices)
    with pytest.raises(VerificationError, match="memory"):
        verify_job_plan(replace(found, layout=forged, seconds=seconds.seconds))


@pytest.mark.parametrize("seed", range(8))
def test_nodes_of_two_kinds(seed: int) -> None:
    """Each stage takes what it takes on its nodes; on both kinds, what the slower one takes."""
    assert check(seed, mixed_job) != "open"


#: Kind of random job and seed, and memory: points where every layer recomputes the same modules,
#: where exposed traffic is a step function, and where nothing is within the gap.
PROVED: tuple[tuple[Callable[[random.Random], Any], int, float], ...] = (
    (small_job, 264, 79e9),
    (odd_job, 43, 5e9),
    (profiled_job, 9, 5e9),
    (profiled_job, 85, 5e9),
    (profiled_job, 139, 5e9),
    (profiled_job, 212, 5e9),
    (mixed_job, 3, 79e9),
    (mixed_job, 5, 40e9),
    (mixed_job, 17, 13.2e9),
    (sharded_job, 1, 79e9),
    (sharded_job, 4, 20e9),
    (uneven_job, 2, 79e9),
)
#: The same, over a second each.
PROVED_LONG = ((small_job, 11, 20e9), (mixed_job, 106, 79e9), (uneven_job, 3, 79e9))  # fmt: skip


@pytest.mark.parametrize(
    ("job_of", "seed", "limit"),
    [*PROVED, *(pytest.param(*one, marks=pytest.mark.slow) for one in PROVED_LONG)],
)
def test_bounds_of_random_jobs_are_proved_again(
    job_of: Callable[[random.Random], Any], seed: int, limit: float
) -> None:
    """The bound of every plan is accepted, and refused where it is above the optimum."""
    model, cluster, job = job_of(random.Random(seed))
    job = replace(job, memory_bytes=limit)
    found = solve_job(model, cluster, job, limits=Limits(seconds=60.0, gap=1e-4))
    assert found.plan is not None
    check_job_bound(found.plan)
    _, by_point = best_of_all(model, cluster, job, limit)
    probes = Probes(job, job_costs(model, cluster, job).prices)
    for layout, seconds in by_point.items():
        if layout.pipeline == 1:
            continue
        assert not PointRefutation(probes, layout).refuted(seconds * (1 + 1e-5)), layout


def test_a_path_that_the_solver_keeps_to_its_tolerance_hides_no_other() -> None:
    """The check of a bound at a gap of 1e-6 asks for new paths, not for those that it has."""
    base = shipped_model("deepseek-v2-lite")
    model = replace(base, name="even", blocks=base.blocks[-1:] * 15)
    job = TrainingJob(
        global_batch=5, sequence=512, launcher="any", tensor=1, context=1, pipeline=4, data=1,
        expert=1, microbatch=1, zero=1, schedules=("zb-v",), recompute=(frozenset({"full"}),),
    )  # fmt: skip
    cluster = "h100:1x4,network=2GB/s,latency=30us"
    found = solve_job(model, cluster, job, limits=Limits(seconds=60.0, gap=1e-6))
    assert found.plan is not None
    assert check_job_bound(found.plan).programs == 2


def test_on_slower_nodes_the_longer_pass_hides_host_memory() -> None:
    """Where W takes longer too, it hides more of what comes from there than the fastest node's."""
    model, cluster, job = host_job(random.Random(36))  # on two kinds of nodes
    costs = job_costs(model, cluster, job)
    point = replace(
        job.template, pipeline=2, chunks=2, data=2, schedule="zb-v", offload_weights=1.0
    )
    (seconds,) = costs.judge([replace(point, stage_layers=(1, 1, 1, 1))])
    refutation = PointRefutation(Probes(job, costs.prices), point)
    assert refutation.refuted(seconds * 0.9)
    assert not refutation.refuted(seconds * (1 + 1e-5))


@pytest.mark.parametrize(("layers", "ranks", "microbatches"), [(5, 2, 2), (11, 4, 2), (9, 3, 2)])
def test_a_plan_below_the_bubble_of_equal_stages(
    layers: int, ranks: int, microbatches: int
) -> None:
    """Fewer layers on the last rank take less than (M + p - 1) W / p, which is no bound."""
    forward, weights = 0.5, 10**6
    measured = Measured(1, forward, 2 * forward, 1.0, 1e8, 1e7)
    block = Block(profiled=ProfiledLayer(weights, 3e9, (measured,)))
    base = shipped_model("gpt2")
    model = replace(
        base, name="equal", blocks=(block,) * layers, vocabulary=0, head=False, tied=False
    )
    job = TrainingJob(
        global_batch=microbatches, sequence=1, tensor=1, pipeline=ranks, data=1, chunks=1,
        schedules=("1f1b",), recompute=(),
    )  # fmt: skip
    cluster = training_cluster(f"h100:{ranks}")
    costs = job_costs(model, cluster, job)
    found = solve_job(model, cluster, job, limits=Limits(seconds=60.0, gap=1e-6))
    assert found.plan is not None
    (stage, *others) = iteration_times([found.plan.layout], costs.prices)[0].stages
    work = sum(one.forward + one.backward for one in (stage, *others))
    equal_stages = (microbatches + ranks - 1) * work / ranks
    assert found.plan.seconds < equal_stages * (1 - 1e-3)
    best, _ = best_of_all(model, cluster, job, 79e9)
    assert found.plan.seconds == pytest.approx(best, rel=1e-9)
    space = job_space(model, cluster, job)
    first = first_bounds(space, rates(space, costs.prices), costs.prices)
    assert 0.9 * best < first.max() <= best
    assert found.plan.bound <= best
    check_job_bound(found.plan)
    point = PointRefutation(Probes(job, costs.prices), space.layout(0))
    assert not point.refuted(best * (1 + 1e-6))
