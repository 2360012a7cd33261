"""Every bound of the search over chains is below the makespan of every chain that it is about."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from brute_iteration import SCHEDULES, training_case
from chains import random_line

import stagecut
from stagecut import InputError, Limits, PipelineJob
from stagecut.formulations.job.iteration_bounds import divide
from stagecut.formulations.job.line import line
from stagecut.formulations.job.orders import Chain, order_of
from stagecut.formulations.task import pose
from stagecut.instances.common.arrays import Floats
from stagecut.solvers.core.lattice import list_ideals
from stagecut.solvers.core.search import Search
from stagecut.solvers.job.iteration import exact
from stagecut.solvers.job.iteration.best_first import BestFirst, root
from stagecut.solvers.job.iteration.chains import MetChain
from stagecut.solvers.job.iteration.options import ChainOptions
from stagecut.solvers.job.iteration.stage_list import list_stages

ROUNDING = 1 + 1e-9


def never() -> Search[object]:
    """A search without limits."""
    return Search(Limits(), lambda _: math.inf)


def cases(part: int, most: int) -> Iterator[tuple[str, ChainOptions]]:
    """Small tasks with all their stages, for each number of stages that the schedule allows."""
    for seed in range(part, most, len(SCHEDULES)):
        rng = np.random.default_rng(seed)
        schedule = SCHEDULES[part]
        workload, cluster = training_case(rng, tight=seed % 3 == 0)
        if schedule == "interleaved":  # stages on one device would exchange data for nothing
            workload = replace(workload, transfer=np.zeros(workload.n))
        problem = PipelineJob(
            int(rng.integers(1, 6)),
            schedule,
            relayed=bool(rng.random() < 0.3),
            overlap=bool(rng.random() < 0.2),
        )
        try:
            statement = line(pose(workload, cluster, problem))
        except InputError:
            continue
        lattice = list_ideals(statement.orders[0], statement.graph.edges, 10_000, never())
        stages = list_stages(statement, lattice, math.inf, never())
        assert stages is not None
        for size in statement.sizes():
            chain = Chain(order_of(problem, size, statement.trains), problem.weight_share)
            yield (
                f"seed {seed}, {size} stages: {problem}",
                ChainOptions(statement, stages, chain, never()),
            )


def durations_of(paths: ChainOptions, chain: MetChain) -> Floats:
    """The durations of a chain's actions, shape (P, 4)."""
    stages, own = paths.stages, (list(chain.kinds), list(chain.stages))
    return paths.chain.durations(stages.forward[own], stages.backward[own], stages.compute[own])


def chains(paths: ChainOptions) -> Iterator[tuple[MetChain, float]]:
    """Every chain that fits into memory, with its makespan by equation 1."""
    stages, size = paths.stages, paths.chain.order.stages
    count = (paths.line.count * paths.line.problem.chunks_per_device).tolist()

    def grow(ideal: int, numbers: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
        if len(numbers) == size:
            if ideal == stages.lattice.size - 1:
                yield numbers
            return
        for number in np.flatnonzero(stages.start == ideal).tolist():
            yield from grow(int(stages.end[number]), (*numbers, number))

    kinds: list[tuple[int, ...]] = [()]
    for _ in range(size):
        kinds = [(*own, k) for own in kinds for k in range(len(count)) if own.count(k) < count[k]]
    for numbers in grow(0, ()):
        for own in kinds:
            found = MetChain(math.inf, numbers, own)
            if paths.fits(np.array(numbers), np.array(own)):
                duration = durations_of(paths, found)
                engines = paths.stages.engine[list(own), list(numbers)]
                busiest = paths.chain.order.microbatches * float(engines.max())
                yield found, max(paths.chain.makespan(duration), busiest)


@pytest.mark.parametrize("part", range(5))
def test_divisible_work_is_a_bound_for_any_division(part: int) -> None:
    for seed in range(part, 60, 5):
        of, rng = random_line(seed), np.random.default_rng(seed)
        stages = len(of.forward)
        forward, compute = 7.0, 11.0 * (of.backward is not None)
        divided = divide(of.chain, forward, compute)
        for k in range(8):
            spread = 0.2 if k % 2 else 4.0  # uneven, and nearly even
            f, c = rng.dirichlet(np.full(stages, 1 / spread), 2) if stages > 1 else np.ones((2, 1))
            f, c = forward * f, compute * c
            duration = of.chain.durations(f, c, c)
            where = f"seed {seed}: {of.problem}"
            assert divided.bound <= of.chain.makespan(duration) * ROUNDING, where
            assert (divided.prices * duration).sum() <= of.chain.makespan(duration) * ROUNDING, (
                where
            )


@pytest.mark.parametrize("part", range(5))
def test_a_stage_costs_every_chain_that_has_it_what_is_said(part: int) -> None:
    seen = 0
    for where, paths in cases(part, 40):
        bounds = [
            [paths.least_makespan(s, k) for k in range(len(paths.line.kinds))]
            for s in range(paths.chain.order.stages)
        ]
        for found, makespan in chains(paths):
            for s, (number, k) in enumerate(zip(found.stages, found.kinds, strict=True)):
                assert bounds[s][k][number] <= makespan * ROUNDING, where
            seen += 1
    assert seen > 20


@pytest.mark.parametrize("part", range(5))
def test_bounds_of_a_number_of_stages_are_below_its_best_chain(part: int) -> None:
    """Divisible work."""
    infeasible = 0
    for where, paths in cases(part, 40):
        best = min((makespan for _, makespan in chains(paths)), default=math.inf)
        infeasible += math.isinf(best)
        assert root(paths, np.inf).bound <= best * ROUNDING, where
    if part == 0:
        assert infeasible


@pytest.mark.parametrize("part", range(5))
def test_best_first_bounds_all_chains_and_finds_the_best(part: int) -> None:
    """Also of unlike devices, and where stages share one."""
    seen = 0
    for where, paths in cases(part, 40):
        best = min((makespan for _, makespan in chains(paths)), default=math.inf)
        if paths.line.problem.overlap:
            continue  # equation 1 is below the definition then
        reach = best if math.isfinite(best) else 100.0
        for target in (0.9 * reach, 1.3 * reach):
            plans = root(paths, np.inf)
            bounds, met = [0.0], [target]

            def aim(met: list[float] = met) -> float:
                return min(met)

            def take(of: ChainOptions, found: MetChain, met: list[float] = met) -> None:
                if of.fits(np.array(found.stages), np.array(found.kinds)):
                    met.append(of.chain.makespan(durations_of(of, found)))

            search = BestFirst(aim, take, bounds.append)
            search.push(0.0, plans)
            while search.step():
                assert max(bounds) <= best * ROUNDING, where
            assert search.complete, where
            assert search.closed >= best / ROUNDING, where
        assert min(met[1:], default=math.inf) == pytest.approx(best, rel=1e-9), where
        seen += math.isfinite(best)
    assert seen > 3


@pytest.mark.parametrize("part", range(len(SCHEDULES)))
def test_stages_are_listed_that_a_chain_of_few_enough_can_have(part: int) -> None:
    """All that are in a chain of stages within the limit, and on two devices only its halves."""
    fewer = 0
    for name, paths in cases(part, 40):
        statement, lattice = paths.line, paths.stages.lattice
        every = paths.stages
        work = every.ahead.sum(axis=0)[every.end] - every.ahead.sum(axis=0)[every.start]
        most = 1.5 * float(work.max()) / max(2, statement.most_stages)
        listed = list_stages(statement, lattice, most, never())
        assert listed is not None
        kept = set(zip(listed.start.tolist(), listed.end.tolist(), strict=True))
        assert len(kept) <= int((work <= most).sum())
        fewer += len(kept) < int((work <= most * (1 - ROUNDING + 1)).sum())
        for found, _ in chains(paths):
            numbers = list(found.stages)
            if (work[numbers] <= most).all():
                pairs = zip(every.start[numbers].tolist(), every.end[numbers].tolist(), strict=True)
                assert kept.issuperset(pairs), name
    assert fewer > 3


def test_boundaries_are_annealed_where_ideals_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """No list of stages is needed for that, and the plan is near the optimum."""
    workload = stagecut.load("unet-training")
    cluster = stagecut.accelerators_and_cpus(4)
    best = stagecut.solve(workload, cluster, PipelineJob(8), limits=Limits(gap=0.01)).objective
    monkeypatch.setattr(exact, "IDEALS", 10)
    result = stagecut.solve(workload, cluster, PipelineJob(8), limits=Limits(nodes=1), workers=1)
    assert result.phases["annealing"] > 0
    assert result.objective <= 1.02 * best
    assert result.limit == "none"  # it ends by itself
