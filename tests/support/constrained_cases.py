"""Small cases of all problems, with a random constraint that a user adds, against brute force."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import pyomo.environ as pyo
import pytest
from brute_iteration import SCHEDULES, training_case
from brute_mapping import place_for
from brute_sharding import Lies, every_sharding, random_problem, random_program
from cases import random_case
from mapping_joint_cases import network
from rules_cases import solutions
from training_cases import every_plan, random_training_case

import stagecut
from stagecut import (
    DeviceMapping,
    InfeasibleError,
    Latency,
    Limits,
    PipelineJob,
    Throughput,
)
from stagecut.instances import ReplicaPlacement

EXACT = Limits(gap=0.0, seconds=60)

#: The place of each thing, as a formulation calls it.
Places = Sequence[str]


@dataclass(frozen=True, eq=False)
class SmallCase:
    """A case, its formulation, and all its solutions.

    Parameters
    ----------
    workload, cluster, problem, name
        As of `stagecut.formulation`.
    tried
        Places and objective of every solution; `inf` if it breaks a rule.
    places
        Returns the places of a solution.
    """

    workload: Any
    cluster: Any
    problem: Any
    name: str
    tried: Iterable[tuple[Places, float]]
    places: Callable[[Any], Places]

    def formulation(self) -> stagecut.Formulation:
        return stagecut.formulation(self.workload, self.cluster, self.problem, self.name)


def _judged(
    workload: Any,
    cluster: Any,
    problem: Any,
    every: Iterable[Any],
    places: Callable[[Any], Places],
) -> Iterator[tuple[Places, float]]:
    for solution in every:
        report = stagecut.evaluate(workload, cluster, problem, solution)
        yield places(solution), math.inf if report.violations else report.objective


def throughput_case(seed: int) -> SmallCase:
    split = ("noncontiguous", "contiguous", "per-device")[seed % 3]
    workload, cluster = random_case(seed, max_nodes=5, max_cores=1, max_kinds=1 + seed % 2)
    problem = Throughput(split, overlap=seed % 4 == 0, cpu_split=("free", "contiguous")[seed % 2])

    def places(solution: Any) -> Places:
        return [cluster.devices[d].name for d in solution.device.tolist()]

    tried = _judged(workload, cluster, problem, solutions(workload, cluster, problem), places)
    return SmallCase(workload, cluster, problem, "by-device", tried, places)


def latency_case(seed: int) -> SmallCase:
    workload, cluster = random_case(seed, max_nodes=4, max_cores=1, max_kinds=1 + seed % 2)
    problem = Latency(1 + seed % 2)

    def place(device: int, call: int) -> str:
        if call < 0:
            return "CPUs"
        name = cluster.devices[device].name
        return f"{name}, call {call}" if problem.calls > 1 else name

    def places(solution: Any) -> Places:
        return list(map(place, solution.device.tolist(), solution.call.tolist()))

    tried = _judged(workload, cluster, problem, solutions(workload, cluster, problem), places)
    name = ("big-m", "potentials")[seed // 2 % 2]
    return SmallCase(workload, cluster, problem, name, tried, places)


def iteration_case(seed: int) -> SmallCase:
    workload, cluster = training_case(np.random.default_rng(seed), kinds=1)
    schedule = SCHEDULES[seed % len(SCHEDULES)]
    problem = PipelineJob(2, schedule)

    def places(solution: Any) -> Places:
        return [f"stage {s}" for s in solution.stage.tolist()]

    tried = _judged(workload, cluster, problem, solutions(workload, cluster, problem), places)
    return SmallCase(workload, cluster, problem, "actions", tried, places)


def stream_case(seed: int) -> SmallCase:
    case = random_training_case(seed, max_nodes=4, max_devices=3, kinds=1 + seed % 2)
    workload = case[0]

    def placed(stages: Sequence[Iterable[int]]) -> Places:
        of = {v: s for s, nodes in enumerate(stages) for v in nodes}
        return [f"stage {of[v]}" for v in range(workload.n)]

    tried = ((placed(stages), time) for stages, time in every_plan(*case))
    return SmallCase(
        *case, "slots", tried, lambda plan: placed([stage.nodes for stage in plan.stages])
    )


def mapping_case(seed: int) -> SmallCase:
    rng = np.random.default_rng([seed, 5])
    n, backward = int(rng.integers(3, 5)), seed % 2 == 1
    stages, replicas = ((2, 1), (2, 2), (3, 1), (1, 2))[seed % 4]
    workload = network(rng, n, backward=backward)
    problem = DeviceMapping(
        place_for(rng, stages * replicas, 4),
        stages,
        replicas,
        ("p2p", "allr", "both")[seed % 3],  # type: ignore[arg-type]
        microbatches=1 + seed % 3,
        collective="ring",
        overlap=bool(rng.random() < 0.3),
    )
    cluster = stagecut.accelerators_and_cpus(problem.topology.size, cpus=0)
    usable = problem.topology.usable.tolist()

    def places(mapping: Any) -> Places:
        of = {d: f"stage {s}" for s, row in enumerate(mapping.slots.tolist()) for d in row}
        return [of.get(d, "") for d in usable]

    def every() -> Iterator[ReplicaPlacement]:
        same = np.tile(np.arange(replicas), (stages - 1, 1))  # orders in rows make all matchings
        for cut in itertools.product(range(stages), repeat=n):
            stage = np.array([*cut, *cut[::-1]][: workload.n])
            if len(set(cut)) == stages:
                for chosen in itertools.permutations(usable, stages * replicas):
                    yield ReplicaPlacement(stage, np.reshape(chosen, (stages, replicas)), same)

    tried = _judged(workload, cluster, problem, every(), places)
    return SmallCase(workload, cluster, problem, "joint", tried, places)


def sharding_case(seed: int) -> SmallCase | None:
    """Return a case, None if brute force would take too long."""
    rng = np.random.default_rng(seed)
    workload, problem = random_program(rng, most=4), random_problem(rng)
    every = every_sharding(workload, problem)
    if every is None:
        return None

    def said(lies: Lies) -> str:
        return ",".join("x".join(axes) for axes in lies) or "makes nothing"

    program = workload.program
    assert program is not None

    def places(sharding: Any) -> Places:
        found = []
        for operator, row in zip(program.operators, sharding.signature.tolist(), strict=True):
            sides = [operator.signatures[k].text.split("->")[1].split(",") for k in row]
            found.append(said(list(zip(*sides, strict=True))))
        return found

    tried = (
        ([said(lies) for lies in made], cost if fits() else math.inf) for made, cost, fits in every
    )
    name = ("compact", "flows")[seed % 2]
    return SmallCase(workload, None, problem, name, tried, places)


MAKERS: dict[str, Callable[[int], SmallCase | None]] = {
    "throughput": throughput_case,
    "latency": latency_case,
    "iteration": iteration_case,
    "stream": stream_case,
    "mapping": mapping_case,
    "sharding": sharding_case,
}


@dataclass(frozen=True, eq=False)
class Drawn:
    """A case, the constraint Σ weight at place ≤ most, and the least objective without and with."""

    case: SmallCase
    place: str
    weight: tuple[int, ...]
    most: int
    free: float
    best: float

    def there(self, places: Places) -> int:
        """Return the weight at the place."""
        return sum(w for w, at in zip(self.weight, places, strict=True) if at == self.place)


@lru_cache(maxsize=1)
def drawn(problem: str, seed: int) -> Drawn | None:
    """Return a case with a random constraint; None if brute force would take too long.

    Without a weight where no program can be stated, as something fits nowhere.
    """
    case = MAKERS[problem](seed)
    if case is None:
        return None
    try:
        f = case.formulation()
    except InfeasibleError:
        assert all(math.isinf(value) for _, value in case.tried), f"{problem} seed {seed}"
        return Drawn(case, "", (), 0, math.inf, math.inf)
    rng = np.random.default_rng([seed, 8])
    place = str(rng.choice(f.places))
    weight = tuple(rng.integers(1, 4, len(f.things)).tolist())
    found = Drawn(case, place, weight, int(rng.integers(0, sum(weight) + 1)), math.inf, math.inf)
    free = best = math.inf
    for places, value in case.tried:
        free = min(free, value)
        if value < best and found.there(places) <= found.most:
            best = value
    return Drawn(case, place, weight, found.most, free, best)


def check_against_brute_force(problem: str, seed: int, solver: str = "highs") -> bool | None:
    """Compare a case, without and with a random constraint.

    False if no solution keeps that, None if brute force would take too long.
    """
    asked = drawn(problem, seed)
    if asked is None:
        return None
    if not asked.weight:
        return False
    f = asked.case.formulation()
    where = f"{problem} seed {seed} by {solver}: {asked.case.problem}, "
    where += f"{asked.place} {asked.weight} <= {asked.most}"
    _check(f, solver, asked.free, where)
    f = asked.case.formulation()  # without the values of that solve, which would be its start
    held = zip(asked.weight, f.things, strict=True)
    f.model.added = pyo.Constraint(
        expr=sum(w * f.at(thing, asked.place) for w, thing in held) <= asked.most
    )
    result = _check(f, solver, asked.best, f"{where}, with it")
    if result.plan is None:
        return False
    assert "under user constraints" in result.bound_origin, where
    assert asked.there(asked.case.places(result.plan.solution)) <= asked.most, where
    return True


def _check(f: stagecut.Formulation, solver: str, best: float, where: str) -> stagecut.Result:
    result = f.solve(solver, limits=EXACT)
    where = f"{where}: {result} {result.notes}"
    if math.isinf(best):
        assert result.plan is None, where
        assert result.status == "infeasible", where
    else:
        assert result.objective == pytest.approx(best, rel=1e-6, abs=1e-12), where
        assert result.bound <= best * (1 + 1e-9) + 1e-15, where
    return result
