"""Two stages on each device: pairs, their bounds, and the boundaries that annealing moves."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cache

import numpy as np
import pytest
from brute_iteration import placements, training_case

from stagecut import Cluster, InputError, Limits, PipelineJob, Workload, evaluate
from stagecut.formulations.job.iteration_bounds import divide
from stagecut.formulations.job.line import line, most_between
from stagecut.formulations.job.orders import Chain, order_of
from stagecut.formulations.task import pose
from stagecut.instances import PipelinePlacement
from stagecut.instances.common.arrays import Ints
from stagecut.solvers.core.lattice import Lattice, list_ideals
from stagecut.solvers.core.search import Search
from stagecut.solvers.job.iteration.annealing import anneal, equal_parts
from stagecut.solvers.job.iteration.by_device import pair_graph as pair_graphs
from stagecut.solvers.job.iteration.by_device.options import OptionGraph, Pairs
from stagecut.solvers.job.iteration.by_device.pair_graph import pair_graph
from stagecut.solvers.job.iteration.by_device.search import STEP, Tree, next_step
from stagecut.solvers.job.iteration.stage_list import StageList, StagePaths, list_stages

ROUNDING = 1 + 1e-9
CASES = 24


def never() -> Search[object]:
    """A search without limits."""
    return Search(Limits(), lambda _: math.inf)


def cases(seeds: range) -> Iterator[tuple[str, Workload, Cluster, PipelineJob, Pairs]]:
    """Small tasks with two stages on each device, for each number of devices."""
    for seed in seeds:
        rng = np.random.default_rng(seed)
        workload, cluster = training_case(rng, tight=seed % 3 == 0, kinds=1)
        relayed = bool(rng.random() < 0.3)
        problem = PipelineJob(int(rng.choice([2, 4])), "interleaved", relayed=relayed)
        try:
            statement = line(pose(workload, cluster, problem))
        except InputError:
            continue
        if not statement.exact:
            continue
        lattice = list_ideals(statement.orders[0], statement.graph.edges, 10_000, never())
        for size in statement.sizes():
            alone = size == 2
            near = most_between(statement.graph) < size // 2 - 1
            near |= problem.relayed
            all_nets = np.full_like(near, not alone)
            lists = []
            for paid in (near & all_nets, all_nets):
                listed = list_stages(statement, lattice, math.inf, never(), paid)
                assert listed is not None
                lists.append(listed.keep(np.argsort(listed.end, kind="stable")))
            chain = Chain(order_of(problem, size, statement.trains), problem.weight_share)
            pairs = Pairs(StagePaths(statement, lists[0], chain, never()), lists[1])
            yield f"seed {seed}, {size} stages", workload, cluster, problem, pairs


def best_of(workload: Workload, cluster: Cluster, problem: PipelineJob, stages: int) -> float:
    """Return the least makespan of plans with so many stages, by trying all."""
    best = math.inf
    for plan in placements(workload, cluster, problem):
        if int(plan.stage.max()) + 1 == stages:
            report = evaluate(workload, cluster, problem, plan)
            best = min(best, report.objective if not report.violations else math.inf)
    return best


def graphs(pairs: Pairs, target: float) -> Iterator[OptionGraph]:
    """The pairs of each meeting ideal."""
    last = pairs.paid.lattice.size - 1
    forward, compute = pairs.paths.stages.ahead[:, -1].tolist()
    divided = divide(pairs.paths.chain, forward, compute).prices
    prices = np.zeros((1 + pairs.devices, *divided.shape))  # paths on one device, and a mixture
    prices[0], prices[1:, :, :2] = divided, pairs.on_device[:, 0]
    every = np.ones((pairs.paths.chain.order.stages, len(pairs.keys)), np.bool_)
    for meet in range(1, last):
        graph = pair_graph(pairs, meet, target, prices, every, 100_000)
        assert graph is not None
        yield graph


def chains(graph: OptionGraph, allowed: Ints, state: int = 0, d: int = 0) -> Iterator[list[int]]:
    """Every path of options."""
    if d == len(graph.begin) - 1:
        yield []
        return
    for option in allowed:
        if graph.layer[option] == d and graph.source[option] == state:
            for rest in chains(graph, allowed, int(graph.sink[option]), d + 1):
                yield [int(option), *rest]


def makespan(graph: OptionGraph, chain: Chain, options: list[int]) -> float:
    """Execute a path of options."""
    duration = np.zeros((chain.order.stages, 4))
    duration[:, :2] = graph.duration[options].transpose(1, 0, 2).reshape(-1, 2)
    return chain.makespan(duration)


def least_listed(pairs: Pairs, target: float) -> float:
    """Return the least makespan of the chains of all graphs for a target."""
    met = math.inf
    for graph in graphs(pairs, target):
        every = np.arange(len(graph.layer))
        own = [makespan(graph, pairs.paths.chain, options) for options in chains(graph, every)]
        met = min([met, *own])
    return met


@cache
def solved_cases() -> list[tuple[str, Pairs, float]]:
    """Cases with their least makespan, `inf` where nothing fits."""
    return [
        (where, pairs, best_of(workload, cluster, problem, pairs.paths.chain.order.stages))
        for where, workload, cluster, problem, pairs in cases(range(CASES))
    ]


@pytest.mark.parametrize("above", [1e-6, 0.1])
def test_pairs_below_a_target_are_all_listed_and_their_times_are_those_of_the_simulator(
    above: float,
) -> None:
    for where, pairs, best in solved_cases():
        target = best * (1 + above) if math.isfinite(best) else 1e6
        assert least_listed(pairs, target) == pytest.approx(best), where
    assert len(solved_cases()) > 20


@pytest.mark.parametrize(("where", "part"), [(Pairs, "times"), (pair_graphs, "_least_by")])
def test_a_bound_that_is_a_fifth_too_high_loses_the_best_chain(
    where: object, part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = getattr(where, part)
    monkeypatch.setattr(where, part, lambda *given: 1.2 * honest(*given))
    assert any(
        least_listed(pairs, best * (1 + 1e-6)) > best * ROUNDING
        for _, pairs, best in solved_cases()
        if math.isfinite(best)
    )


def test_where_more_pairs_are_left_than_may_be_listed_there_is_no_graph() -> None:
    pairs = next(pairs for _, pairs, _ in solved_cases() if pairs.devices > 1)
    stages, last = pairs.paths.chain.order.stages, pairs.paid.lattice.size - 1
    every = np.ones((stages, len(pairs.keys)), np.bool_)
    prices = np.zeros((1, stages, 4))
    assert any(pair_graph(pairs, meet, 1e6, prices, every, 1) is None for meet in range(1, last))


def test_prices_bound_the_chains_of_a_graph_and_of_both_halves() -> None:
    seen = 0
    for where, _, _, _, pairs in cases(range(CASES)):
        chain = pairs.paths.chain
        for graph in graphs(pairs, 1e6):
            every = np.arange(len(graph.layer))
            if not len(every):
                continue
            tree = Tree(graph, chain)
            paths, none = (
                np.zeros((1, chain.order.stages, 4)),
                np.zeros((0, pairs.devices), np.int64),
            )
            for options in (every, *(tree.halves(every, paths[0], none) or ())):
                times = [makespan(graph, chain, own) for own in chains(graph, options)]
                best = min(times, default=math.inf)
                if not times or not len(options):
                    continue
                target = best * 1.05
                refined = tree.refine(options, paths, none, target, 8)
                assert refined.bound <= best * ROUNDING, where
                kept = [makespan(graph, chain, own) for own in chains(graph, refined.alive)]
                assert sum(t < target for t in times) == sum(t < target for t in kept), where
                seen += 1
    assert seen > 50


def test_halves_of_options_are_all_of_them() -> None:
    for where, _, _, _, pairs in cases(range(6)):
        for graph in graphs(pairs, 1e6):
            every = np.arange(len(graph.layer))
            if not len(every):
                continue
            tree = Tree(graph, pairs.paths.chain)
            none = np.zeros((0, pairs.devices), np.int64)
            halves = tree.halves(every, np.ones((pairs.paths.chain.order.stages, 4)), none)
            if halves is None:  # all of a device's options take equally long
                for own in np.split(graph.duration, graph.begin[1:-1]):
                    assert np.allclose(own, own[:1]), where
                continue
            assert np.array_equal(np.union1d(*halves), every), where
            assert max(map(len, halves)) < len(every), where


def _placed(lattice: Lattice, pairs: Pairs, ideals: Ints) -> PipelinePlacement:
    stage = np.zeros(pairs.paths.line.graph.size, np.int64)
    for s in range(len(ideals) - 1):
        inside = np.setdiff1d(lattice.units(int(ideals[s + 1])), lattice.units(int(ideals[s])))
        stage[lattice.order[inside]] = s
    size = (len(ideals) - 1) // 2
    return PipelinePlacement(pairs.paths.line.graph.expand(stage), tuple(range(size)) * 2)


def test_annealing_finds_chains_whose_makespan_is_the_simulators() -> None:
    seen = same = 0
    for where, workload, cluster, problem, pairs in cases(range(CASES)):
        stages: StageList = pairs.paid
        chain, lattice = pairs.paths.chain, stages.lattice
        start = equal_parts(pairs.paths.line, lattice, chain.order.stages)
        if start is None:
            continue
        kinds, steps = (0,) * pairs.devices, 1 + seen % 2
        found = list(anneal(pairs.paths.line, lattice, chain, kinds, start, 0, steps))
        if not found:
            continue
        value, ideals = min(found, key=lambda one: one[0])
        report = evaluate(workload, cluster, problem, _placed(lattice, pairs, ideals))
        assert not report.violations, where
        assert report.objective == pytest.approx(value), where
        best = best_of(workload, cluster, problem, chain.order.stages)
        same += value <= best * ROUNDING
        seen += 1
    assert seen > 10
    assert same >= 0.9 * seen


def test_a_step_towards_a_gap_is_smaller_where_little_time_is_left() -> None:
    assert next_step(1.0, math.inf) == next_step(1.0, 100.0) == next_step(0.0, 1.0) == STEP
    steps = [next_step(took, 30.0) for took in (1.0, 8.0, 15.0, 25.0, 60.0)]
    assert steps == sorted(steps)
    assert STEP == steps[0] < steps[2] < steps[-1] < 1
