"""Mapping: definition, bounds and search against brute force over all permutations."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from stagecut import InputError, Limits, Workload, load_plan, save, solve, verify
from stagecut.formulations.mapping import bound
from stagecut.formulations.mapping.all_cuts import stage_objective
from stagecut.formulations.mapping.bound import (
    Verdict,
    fitting_test,
    stage_lower_bounds,
    threshold_bound,
)
from stagecut.formulations.mapping.costs import find_blocks, mapping_costs, stage_times
from stagecut.formulations.task import pose
from stagecut.instances import (
    DeviceMapping,
    ReplicaPlacement,
    Solution,
    StageCosts,
    Topology,
    accelerators_and_cpus,
    stage_costs,
    topology,
)
from stagecut.instances.common import kernel as kernels
from stagecut.instances.common.arrays import even_ends
from stagecut.instances.model.layers import Layers
from stagecut.instances.model.stage_costs import check_weights, parameter_bytes
from stagecut.instances.topologies import random_blocks
from stagecut.runtime import evaluate
from stagecut.runtime.pictures.graph import draw_mapping
from stagecut.runtime.verify.mapping import stage_reports
from stagecut.runtime.verify.report import MappingReport
from stagecut.solvers.core.search import Search
from stagecut.solvers.mapping import state as mapping_state
from stagecut.solvers.mapping.annealing.anneal_kernel import anneal, state_of
from stagecut.solvers.mapping.annealing.costs import (
    best_routes,
    sampled_splits,
    stage_times_cost,
    violations,
)
from stagecut.solvers.mapping.layouts import (
    cycle,
    first_mapping,
    layouts,
    matched,
    snake,
)
from stagecut.solvers.mapping.partition import balanced_partition, run_ends
from stagecut.solvers.mapping.state import SegmentTest

SHAPES = [(2, 2), (2, 3), (3, 2), (1, 4), (4, 1), (1, 1), (1, 5), (5, 1)]


def chain(seed: int, stages: int) -> Workload:
    """A chain of `stages` forward nodes, so that there is but one partition into stages."""
    rng = np.random.default_rng(seed)
    return Workload(
        name=f"chain {seed}",
        ids=tuple(range(stages)),
        edges=np.array([(v, v + 1) for v in range(stages - 1)]).reshape(-1, 2),
        times={"accelerator": rng.uniform(1.0, 3.0, stages)},
        memory_bytes=np.zeros(stages),
        transfer=None,
        output_bytes=rng.uniform(1e6, 50e6, stages),
        time_unit="ms",
        extra={"weight_bytes": rng.uniform(5e6, 100e6, stages)},
    )


def random_topology(seed: int, least: int) -> Topology:
    rng = np.random.default_rng(seed)
    spare = int(rng.integers(0, 2))
    kind = str(rng.choice(["uniform_dist", "random_blk_2", "ring", "islands", "mesh2d"]))
    if kind == "islands":
        return topology(f"islands:{(least + spare + 1) // 2}x2")
    if kind == "mesh2d":
        return topology(f"mesh2d:{(least + spare + 1) // 2}x2")
    if kind == "ring":
        return topology(f"ring:{least + spare}")
    return topology(f"{kind}:{least + spare}@seed={seed}")


def brute_force(costs: StageCosts, problem: DeviceMapping) -> float:
    """Least max stage time over all assignments, ring orders and matchings, by the definition."""
    s, r = problem.stages, problem.replicas
    best = math.inf
    devices = problem.topology.usable.tolist()
    permutations = list(itertools.permutations(range(r)))
    seen: dict[tuple[int, tuple[int, ...], tuple[int, ...]], float] = {}
    straight = np.tile(np.arange(r), (s - 1, 1))
    for chosen in itertools.permutations(devices, s * r):
        slots = np.array(chosen).reshape(s, r)
        if any(row[0] != min(row) for row in slots.tolist()) and problem.collective == "ring":
            continue  # a ring may begin anywhere
        worst = 0.0
        for t in range(s):
            following = tuple(slots[t + 1].tolist()) if t + 1 < s else ()
            key = (t, tuple(slots[t].tolist()), tuple(sorted(following)))
            if key not in seen:
                seen[key] = math.inf
                for p in permutations if following and problem.mode != "allr" else permutations[:1]:
                    sends = straight.copy()
                    if following:
                        order = np.argsort(slots[t + 1])
                        sends[t] = order[list(p)]
                    time = stage_reports(costs, problem, slots, sends)[t].total_s
                    seen[key] = min(seen[key], time)
            worst = max(worst, seen[key])
            if worst >= best:
                break
        best = min(best, worst)
    return best


@pytest.mark.parametrize("mode", ["p2p", "allr", "both"])
@pytest.mark.parametrize("shape", range(len(SHAPES)))
def test_equal_to_brute_force(mode: str, shape: int) -> None:
    stages, replicas = SHAPES[shape]
    workload = chain(shape, stages)
    collective = "cheapest" if shape % 2 and stages * replicas <= 6 else "ring"
    problem = DeviceMapping(
        random_topology(shape, stages * replicas),
        stages,
        replicas,
        mode,  # type: ignore[arg-type]
        microbatches=1 + shape % 3,
        collective=collective,  # type: ignore[arg-type]
    )
    costs = stage_costs(workload, np.arange(stages), stages)
    optimum = brute_force(costs, problem) * 1e3
    result = solve(workload, problem=problem, limits=Limits(nodes=8))
    assert result.plan is not None
    assert result.bound <= optimum * (1 + 1e-9)
    assert result.objective == pytest.approx(optimum, rel=1e-6)
    assert result.status == "optimal"
    verify(workload, result.plan)


def test_bytes_of_boundaries_are_sums_of_their_own_tensors() -> None:
    # beside 2.9e16 bytes, differences of sums would lose 0.3 bytes, and leave some below 0
    sizes = np.array([2.85523496e16, 2.85523496e7, 0.3, 2.85523496e16, 0.0])
    edges = np.array([(0, 1), (1, 2), (2, 3), (3, 4)])
    workload = Workload(
        "wide", (*range(5),), edges, {"accelerator": np.ones(5)}, np.zeros(5), None,
        output_bytes=sizes, time_unit="s",
    )  # fmt: skip
    assert stage_costs(workload, np.arange(5), 5).forward_bytes.tolist() == sizes[:4].tolist()
    assert stage_costs(workload, np.arange(5)[::-1], 5).backward_bytes.tolist() == (
        sizes[3::-1].tolist()
    )


@pytest.mark.parametrize("mode", ["p2p", "allr", "both"])
@pytest.mark.parametrize("seed", range(6))
def test_bounds_are_never_above_a_mapping(mode: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    kind = ["random_blk_1", "random_blk_2", "uniform_dist"][seed % 3]
    stages, replicas = [(4, 4), (2, 8), (8, 2)][seed // 2]
    workload = chain(seed, stages)
    place = topology(f"{kind}:{16 + seed % 2}@seed={seed}")
    problem = DeviceMapping(place, stages, replicas, mode, collective="ring")  # type: ignore[arg-type]
    costs = mapping_costs(stage_costs(workload, np.arange(stages), stages), problem)
    lower_bounds = stage_lower_bounds(costs)
    slots = rng.permutation(costs.size)[: stages * replicas].reshape(stages, replicas)
    state, order = state_of(costs, slots, matched(costs, slots)), best_routes(costs)
    low = float((costs.base + lower_bounds.transfer + lower_bounds.allreduce).max())
    best = math.inf
    for turn, factor in enumerate([2.0, 1.5, 1.2, 1.1, 1.05, 1.0]):
        target = low * factor
        upper_bounds = sampled_splits(costs, lower_bounds, target)
        cost = violations(costs, order, costs.island, upper_bounds, target)
        anneal(cost, state, 20_000, turn, 0.35, 0.1)
        times = stage_times(costs, state.slots(), matched(costs, state.slots()))
        best = min(best, float(times.max()))
    assert threshold_bound(costs, lower_bounds, best, lambda: False) <= best


@pytest.mark.parametrize("collective", ["ring", "cheapest"])
@pytest.mark.parametrize("mode", ["p2p", "allr", "both"])
@pytest.mark.parametrize("seed", range(4))
def test_block_bounds_are_never_above_the_optimum(seed: int, mode: str, collective: str) -> None:
    stages, replicas = [(2, 3), (3, 2), (2, 2), (6, 1)][seed]
    rng = np.random.default_rng(seed)
    block = np.sort(np.arange(stages * replicas + 1) % 3)
    place = random_blocks("blocks", len(block), block, rng)
    workload = chain(seed + 10, stages)
    problem = DeviceMapping(place, stages, replicas, mode, collective=collective)  # type: ignore[arg-type]
    stage = stage_costs(workload, np.arange(stages), stages)
    costs = mapping_costs(stage, problem)
    found = find_blocks(costs)
    assert (found == block).all() or not (costs.boundary.any() or costs.ring.any())
    optimum = brute_force(stage, problem)
    lower_bounds = stage_lower_bounds(costs)
    for test in (fitting_test, SegmentTest(costs, found)):
        assert test(costs, lower_bounds, optimum * (1 + 1e-9)) is Verdict.FEASIBLE
        bound = threshold_bound(costs, lower_bounds, 2 * optimum, lambda: False, test)
        assert bound <= optimum * (1 + 1e-9)


@pytest.mark.parametrize("seed", range(6))
def test_bounds_by_neighbours_are_no_higher(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of many devices, which are never matched, against those of few."""
    problem = DeviceMapping(topology(f"uniform_dist:12@seed={seed}"), 3, 4, "both")
    costs = mapping_costs(stage_costs(chain(seed, 3), np.arange(3), 3), problem)
    exact = stage_lower_bounds(costs)
    monkeypatch.setattr(bound, "MAX_MATCHED_DEVICES", 1)
    weaker = stage_lower_bounds(costs)
    for one, other in ((weaker.transfer, exact.transfer), (weaker.allreduce, exact.allreduce)):
        assert (one <= other).all()
        assert other.any() == one.any()


@pytest.mark.parametrize("seed", range(2))
def test_annealing_is_the_same_interpreted_and_compiled(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = DeviceMapping(topology(f"random_blk_2:12@seed={seed}"), 3, 4, "both")
    costs = mapping_costs(stage_costs(chain(seed, 3), np.arange(3), 3), problem)
    lower_bounds, (slots, sends_to) = stage_lower_bounds(costs), next(iter(layouts(costs)))
    target = 1.1 * float((costs.base + lower_bounds.transfer + lower_bounds.allreduce).max())
    monkeypatch.setattr(kernels, "_taken", 0)
    found = []
    for turns in (kernels.ITERATIONS, 0):
        monkeypatch.setattr(kernels, "ITERATIONS", turns)
        monkeypatch.setattr(kernels, "ITERATIONS_PER_BYTE", turns)
        for cost in (
            violations(
                costs,
                best_routes(costs),
                find_blocks(costs),
                sampled_splits(costs, lower_bounds, target),
                target,
            ),
            stage_times_cost(costs, target),
        ):
            state = state_of(costs, slots, sends_to)
            anneal(cost, state, 60, seed, 1.0, 0.1)
            found.append((state.slot.tolist(), state.sends_to.tolist(), cost.current.tolist()))
    assert found[:2] == found[2:]


def test_blocks_are_found_in_the_links_whatever_the_islands_say() -> None:
    rng = np.random.default_rng(3)
    block = rng.permutation(np.arange(20) % 4)
    place = replace(random_blocks("blocks", 20, block, rng), island=np.zeros(20, np.int64))
    problem = DeviceMapping(place, 4, 5, "both")
    costs = mapping_costs(stage_costs(chain(0, 4), np.arange(4), 4), problem)
    found = find_blocks(costs)
    assert ((found[:, None] == found[None, :]) == (block[:, None] == block[None, :])).all()
    for name in ("uniform_dist:20", "torus2d:4x5"):
        costs = mapping_costs(
            stage_costs(chain(0, 4), np.arange(4), 4), DeviceMapping(topology(name), 4, 5, "both")
        )
        assert not find_blocks(costs).any()


def test_columns_of_equal_islands_are_proven_optimal() -> None:
    problem = DeviceMapping(topology("islands:8x4"), 8, 4, "both", collective="ring")
    result = solve(chain(4, 8), problem=problem, limits=Limits(nodes=2))
    assert result.status == "optimal"


@pytest.mark.parametrize("seed", range(4))
def test_arrays_agree_with_the_definition(seed: int) -> None:
    rng = np.random.default_rng(seed)
    stages, replicas = [(3, 4), (4, 2), (2, 1), (2, 5)][seed]
    place = topology(["torus2d:4x4", "islands:4x4", "dragonfly:3x3x2", "uniform_dist:12"][seed])
    workload = chain(seed, stages)
    problem = DeviceMapping(place, stages, replicas, "both", microbatches=3, collective="ring")
    costs = stage_costs(workload, np.arange(stages), stages)
    slots = rng.permutation(place.size)[: stages * replicas].reshape(stages, replicas)
    sends = np.array([rng.permutation(replicas) for _ in range(stages - 1)]).reshape(-1, replicas)
    reports = stage_reports(costs, problem, slots, sends)
    fast = stage_times(mapping_costs(costs, problem), slots, sends)
    assert fast == pytest.approx([report.total_s for report in reports], rel=1e-12)
    cheapest = DeviceMapping(place, stages, replicas, "both", microbatches=3)
    for one, other in zip(stage_reports(costs, cheapest, slots, sends), reports, strict=True):
        assert one.allreduce_s <= other.allreduce_s


def test_gradients_are_charged_to_the_receiver() -> None:
    workload = Workload(
        name="training",
        ids=tuple(range(4)),
        edges=np.array([(0, 1), (1, 2), (2, 3)]),
        times={"accelerator": np.ones(4)},
        memory_bytes=np.zeros(4),
        transfer=None,
        output_bytes=np.array([1e6, 0.0, 3e6, 0.0]),
        backward=np.array([False, False, True, True]),
        colours=np.array([0, 1, 1, 0]),
        time_unit="ms",
    )
    costs = stage_costs(workload, np.array([0, 1, 1, 0]), 2)
    assert costs.forward_bytes.tolist() == [1e6]
    assert costs.backward_bytes.tolist() == [3e6]
    problem = DeviceMapping(topology("ring:2"), 2, 1, "p2p", microbatches=2)
    first, second = stage_reports(costs, problem, np.array([[0], [1]]), np.array([[0]]))
    assert first.total_s == pytest.approx(2 * (2e-3 + 2e-6 + 4e6 / 50e9))
    assert second.total_s == pytest.approx(2 * 2e-3)


@pytest.mark.parametrize("mode", ["p2p", "allr"])
@pytest.mark.parametrize(
    ("name", "stages", "replicas"),
    [
        ("mesh2d:4x4", 4, 4),
        ("mesh2d:8x8", 16, 4),
        ("torus2d:8x8", 4, 16),
        ("mesh3d:4x4x4", 8, 8),
        ("torus3d:8x8x8", 4, 128),
    ],
)
def test_grids_are_proven_at_once(mode: str, name: str, stages: int, replicas: int) -> None:
    problem = DeviceMapping(topology(name), stages, replicas, mode, collective="ring")  # type: ignore[arg-type]
    result = solve(chain(1, stages), problem=problem, method="layouts")
    assert result.status == "optimal"


@pytest.mark.parametrize("sides", [(4,), (2, 3), (3, 4), (2, 3, 4), (5, 2, 2)])
def test_snakes_and_cycles(sides: tuple[int, ...]) -> None:
    size = math.prod(sides)
    places = list(np.ndindex(*sides))

    def apart(a: int, b: int) -> int:
        return sum(abs(x - y) for x, y in zip(places[a], places[b], strict=True))

    path = snake(sides).tolist()
    assert sorted(path) == list(range(size))
    assert all(apart(a, b) == 1 for a, b in itertools.pairwise(path))
    ring = cycle(sides)
    if ring is not None:
        order = ring.tolist()
        assert sorted(order) == list(range(size))
        assert all(apart(a, b) == 1 for a, b in zip(order, order[1:] + order[:1], strict=True))
    assert (ring is None) == (len(sides) == 1 and size > 2)


def test_layouts_are_mappings() -> None:
    problem = DeviceMapping(topology("islands:4x4"), 2, 8, "both")
    costs = mapping_costs(stage_costs(chain(0, 2), np.arange(2), 2), problem)
    found = 0
    for slots, sends in layouts(costs):
        assert len(set(slots.ravel().tolist())) == 16
        assert all(sorted(row) == list(range(8)) for row in sends.tolist())
        found += 1
    assert found >= 3


def test_the_verifier_sees_every_fault() -> None:
    workload = chain(3, 2)
    place = topology("ring:5@exclude=4")
    problem = DeviceMapping(place, 2, 2, "both")
    cluster = solve(workload, problem=problem).plan.cluster  # type: ignore[union-attr]
    good = ReplicaPlacement(np.array([0, 1]), np.array([[0, 1], [2, 3]]), np.array([[0, 1]]))
    assert not evaluate(workload, cluster, problem, good).violations
    for stage, slots, sends, says in (
        ([0, 1], [[0, 1], [2, 4]], [[0, 1]], "excluded"),
        ([0, 1], [[0, 1], [2, 2]], [[0, 1]], "used twice"),
        ([0, 1], [[0, 1], [2, 9]], [[0, 1]], "not one of"),
        ([0, 1], [[0, 1], [2, 3]], [[0, 0]], "does not send"),
        ([1, 0], [[0, 1], [2, 3]], [[0, 1]], "before"),
        ([0, 2], [[0, 1], [2, 3]], [[0, 1]], "stage is not"),
        ([0, 1], [[0, 1, 2]], [[0, 1]], "shapes"),
    ):
        bad = ReplicaPlacement(np.array(stage), np.array(slots), np.array(sends))
        report = evaluate(workload, cluster, problem, bad)
        assert report.objective == math.inf or report.violations
        assert says in " ".join(report.violations)


def test_same_seed_same_plan() -> None:
    problem = DeviceMapping(topology("uniform_dist:20"), 4, 5, "both", collective="ring")
    one, two = (
        solve(chain(5, 4), problem=problem, limits=Limits(nodes=4, seed=3)) for _ in range(2)
    )
    assert one.plan is not None
    assert two.plan is not None
    assert (one.plan.solution.slots == two.plan.solution.slots).all()  # type: ignore[union-attr]


@pytest.mark.parametrize("mode", ["p2p", "allr", "both"])
def test_milp_agrees(mode: str) -> None:
    problem = DeviceMapping(topology("uniform_dist:6@seed=2"), 2, 3, mode, collective="ring")  # type: ignore[arg-type]
    workload = chain(7, 2)
    limits = Limits(seconds=60)
    one = solve(workload, problem=problem, method="milp", limits=limits)
    other = solve(workload, problem=problem, limits=limits)
    assert one.plan is not None
    assert one.objective == pytest.approx(other.objective, rel=1e-6)
    assert one.status == "optimal"


@pytest.mark.parametrize("name", ["torus2d:3x3", "mesh3d:2x2x2", "islands:4x2", "ring:7"])
def test_picture(name: str, tmp_path: Path) -> None:
    workload = chain(2, 3)
    problem = DeviceMapping(topology(name), 3, 2, "both")
    plan = solve(workload, problem=problem, method="layouts").plan
    assert plan is not None
    assert isinstance(plan.solution, ReplicaPlacement)
    report = evaluate(workload, plan.cluster, problem, plan.solution)
    assert isinstance(report, MappingReport)
    assert report.busiest_link is not None
    draw_mapping(problem, plan.solution, report, tmp_path / "map.png")
    assert (tmp_path / "map.png").stat().st_size > 10_000


def test_plans_survive_files(tmp_path: Path) -> None:
    workload = chain(2, 3)
    problem = DeviceMapping(topology("islands:4x2@exclude=1"), 3, 2, "both", microbatches=4)
    plan = solve(workload, problem=problem, limits=Limits(nodes=2)).plan
    assert plan is not None
    save(plan, tmp_path / "plan.json", workload)
    back = load_plan(tmp_path / "plan.json", workload)
    verify(workload, back)
    assert (back.objective, back.bound) == (plan.objective, plan.bound)
    assert isinstance(back.problem, DeviceMapping)
    assert back.problem.topology.fingerprint == problem.topology.fingerprint


@pytest.mark.parametrize("coefficient", [0.0, 1e-10])
@pytest.mark.parametrize("seed", range(6))
def test_partition_equals_brute_force_on_chains(seed: int, coefficient: float) -> None:
    workload = chain(seed, 7)
    best = math.inf
    for ends in itertools.combinations(range(1, 7), 2):
        stage = np.searchsorted(ends, np.arange(7), side="right")
        best = min(best, stage_objective(stage_costs(workload, stage, 3), coefficient))
    found = stage_costs(workload, balanced_partition(workload, 3, coefficient), 3)
    assert stage_objective(found, coefficient) == pytest.approx(best, rel=1e-5)


@pytest.mark.parametrize("seed", range(8))
def test_ends_of_runs_against_all_ends(seed: int) -> None:
    rng = np.random.default_rng(seed)
    total = np.concatenate([[0.0], np.cumsum(rng.integers(0, 5, 8))]).astype(np.float64)
    cut = np.append(rng.integers(0, 3, 8), 0).astype(np.float64)
    for stages, target in itertools.product((1, 2, 3, 5), range(1, 14)):
        able = [
            ends
            for ends in itertools.combinations(range(1, 9), stages)
            if ends[-1] == 8
            and all(
                total[j] - total[i] + cut[j] <= target for i, j in itertools.pairwise((0, *ends))
            )
        ]
        found = run_ends(total, cut, float(target), stages)
        assert tuple(found.tolist()) in able if able else not len(found)


def test_partition_of_a_large_graph() -> None:
    rng = np.random.default_rng(1)
    ends = [(max(0, v - int(rng.integers(1, 20))), v) for v in range(1, 2000) for _ in range(2)]
    workload = Workload(
        name="large",
        ids=tuple(range(2000)),
        edges=np.array(ends),
        times={"accelerator": rng.lognormal(0, 1, 2000)},
        memory_bytes=np.zeros(2000),
        transfer=None,
        output_bytes=rng.lognormal(14, 1, 2000),
        time_unit="us",
    )
    stage = balanced_partition(workload, 16)
    assert (stage[workload.edges[:, 0]] <= stage[workload.edges[:, 1]]).all()
    assert set(stage.tolist()) == set(range(16))
    seconds = stage_costs(workload, stage, 16).compute_s
    assert seconds.max() < 1.05 * max(seconds.mean(), 1e-6 * workload.times["accelerator"].max())


def test_all_reduces_need_to_know_the_weights() -> None:
    workload = replace(chain(0, 2), extra={})
    problem = DeviceMapping(topology("ring:4"), 2, 2, "both")
    with pytest.raises(InputError, match="no node says its weight_bytes"):
        solve(workload, problem=problem)
    for nothing_to_reduce in (replace(problem, mode="p2p"), replace(problem, replicas=1)):
        assert solve(workload, problem=nothing_to_reduce).status == "optimal"


def test_layers_say_their_weights() -> None:
    layers = Layers(
        node=[0, 0, 1], degree=[2, 1, 2], label=("a", "b", "c"), recomputes=[False] * 3,
        time=[1.0] * 3, weight_bytes=[3e6, 5e6, 4e6], bytes_per_microbatch=[0.0] * 3,
        fixed_bytes=[0.0] * 3, edge_bytes=[0.0], sync_bytes=({},) * 3,
    )  # fmt: skip
    workload = replace(chain(0, 2), extra={}, layers=layers)
    assert parameter_bytes(workload).tolist() == [5e6, 8e6]
    check_weights(workload, DeviceMapping(topology("ring:4"), 2, 2, "both"))


@pytest.mark.parametrize("method", ["auto", "layouts", "milp", "joint"])
@pytest.mark.parametrize("mode", ["p2p", "allr", "both"])
def test_one_device_without_links(mode: str, method: str) -> None:
    for name in ("mesh2d:1x1", "uniform_dist:1"):
        problem = DeviceMapping(topology(name), 1, 1, mode, collective="ring")  # type: ignore[arg-type]
        assert solve(chain(0, 1), problem=problem, method=method).status == "optimal"
        links = replace(problem, objective="busiest-link")
        if method != "joint":
            assert solve(chain(0, 1), problem=links, method=method).bound == 0


@pytest.mark.parametrize("collective", ["ring", "cheapest"])
def test_stages_that_take_no_time(collective: str) -> None:
    """Links without latency and with any bandwidth: a target may be 0."""
    place = topology("uniform_dist:6")
    place = replace(place, latency_s=np.zeros(len(place.links)))
    workload = replace(chain(0, 2), times={"accelerator": np.zeros(2)})
    for free in (np.full(len(place.links), np.inf), np.array([np.inf, 1e9] * len(place.links))):
        links = replace(place, bytes_per_s=free[: len(place.links)])
        problem = DeviceMapping(links, 2, 2, "both", collective=collective)  # type: ignore[arg-type]
        result = solve(workload, problem=problem, limits=Limits(nodes=4))
        optimum = brute_force(stage_costs(workload, np.arange(2), 2), problem) * 1e3
        assert result.objective == pytest.approx(optimum, abs=1e-12)


@pytest.mark.parametrize("name", ["mesh2d:4x4", "islands:64x8", "torus3d:8x8x8"])
@pytest.mark.parametrize("objective", ["stage-time", "busiest-link"])
def test_there_is_a_mapping_whatever_the_time(name: str, objective: str) -> None:
    place = topology(name)
    stages = place.size // 8
    problem = DeviceMapping(place, stages, 8, "both", objective=objective)  # type: ignore[arg-type]
    workload = chain(1, 2 * stages)
    result = solve(workload, problem=problem, limits=Limits(seconds=1e-9))
    assert result.plan is not None
    assert result.limit == "time"
    verify(workload, result.plan)


def test_a_first_mapping_where_there_is_none() -> None:
    place = topology("uniform_dist:12")
    problem = DeviceMapping(place, 3, 4, "both")
    workload = chain(2, 7)
    task = pose(workload, accelerators_and_cpus(12), problem, None, None)

    def judge(solution: Solution) -> float:
        report = evaluate(workload, task.cluster, problem, solution)
        return math.inf if report.violations else report.objective

    late: Search[Solution] = Search(Limits(seconds=1e-9), judge)
    first_mapping(task, late)
    assert late.best is not None
    known: Search[Solution] = Search(Limits(), lambda _: 0.0)
    known.offer(late.best)
    first_mapping(task, known)
    assert known.best is late.best
    for seconds, stages in (([1.0, 1, 1, 1], 2), ([9.0, 0, 0, 0], 3), ([0.0, 0, 0, 9], 4)):
        ends = even_ends(np.cumsum(seconds), stages)
        assert ends[-1] == 4
        assert (np.diff(ends, prepend=0) > 0).all()


def test_the_method_is_what_found_the_mapping() -> None:
    easy = DeviceMapping(topology("mesh2d:4x4"), 4, 4, "p2p")
    assert solve(chain(1, 4), problem=easy).method == "layouts"
    hard = DeviceMapping(topology("uniform_dist:12@seed=1"), 3, 4, "both", collective="ring")
    result = solve(chain(1, 3), problem=hard)
    assert result.method in ("annealing", "exact")
    assert result.plan is not None
    assert result.plan.method == result.method


@pytest.mark.parametrize("collective", ["ring", "cheapest"])
def test_a_better_first_mapping_brings_its_stages(
    collective: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bound is for the stages of the plan, whichever cut it has."""
    workload = chain(3, 6)
    monkeypatch.setattr(mapping_state, "_stages_of", lambda *_: np.array([0, 1, 1, 1, 1, 1]))
    problem = DeviceMapping(topology("ring:4"), 2, 2, "both", collective=collective)  # type: ignore[arg-type]
    result = solve(workload, problem=problem)
    assert result.plan is not None
    solution = result.plan.solution
    assert isinstance(solution, ReplicaPlacement)
    assert 1 < (solution.stage == 0).sum() < 5
    optimum = brute_force(stage_costs(workload, solution.stage, 2), problem) * 1e3
    assert result.bound <= optimum * (1 + 1e-9)
    assert result.objective == pytest.approx(optimum, rel=2e-6)


def test_what_the_busiest_link_does_not_know() -> None:
    place = topology("ring:4")
    links = DeviceMapping(place, 2, 2, objective="busiest-link")
    assert links.collective == "ring"
    assert DeviceMapping(place, 2, 2).collective == "cheapest"
    with pytest.raises(InputError, match="leave overlap out"):
        DeviceMapping(place, 2, 2, objective="busiest-link", overlap=True)
    with pytest.raises(InputError, match="leave collective out"):
        DeviceMapping(place, 2, 2, objective="busiest-link", collective="cheapest")


def test_wrong_input() -> None:
    with pytest.raises(InputError, match="need 6 devices"):
        DeviceMapping(topology("ring:5"), 2, 3)
    with pytest.raises(InputError, match="replicas"):
        DeviceMapping(topology("ring:5"), 2, 0)
    with pytest.raises(InputError, match="mode"):
        DeviceMapping(topology("ring:5"), 2, 2, "all")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="can be cut into 2 at most"):
        solve(chain(0, 2), problem=DeviceMapping(topology("ring:5"), 3, 1))
