"""Random cases of every problem, and what each method says of them, against brute force.

A *variant* is a family of cases with a name: `VARIANTS[name](seed)` is the same case each time.
"""

from __future__ import annotations

import itertools
import math
import traceback
import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import get_args

import numpy as np
from brute import best_max_load
from brute_iteration import SCHEDULES, least_makespan, training_case
from brute_latency import least_latency
from brute_mapping import least_busiest_link, least_stage_time, place_for, stages_of
from brute_sharding import least_cost, random_problem, random_program
from cases import linked_case, random_case
from given_orders import random_devices, random_rows
from rules_cases import best_under_rules, with_rules
from training_cases import best_objective, random_training_case
from wide_cases import Where, seldom_wide, wide_case, widened, widened_program

from stagecut import (
    Cluster,
    InputError,
    Latency,
    Limits,
    PipelineJob,
    PlacementRules,
    Result,
    Throughput,
    VerificationError,
    Workload,
    accelerators_and_cpus,
    solve,
    verify,
)
from stagecut.instances import DeviceMapping, Problem, Split, stage_costs
from stagecut.instances.common.arrays import Floats
from stagecut.solvers import METHODS
from stagecut.solvers.core.search import OPTIMAL_GAP

#: Relative tolerance of bounds, and of objectives (rounding of sums).
BOUND, OBJECTIVE = 1e-6, 1e-9

#: Limits by method; seconds only end what hangs.
LIMITS = Limits(nodes=500, seconds=120.0)
ROUNDS = {"local-search": 10, "random": 10, "column-generation": 6, "lns": 10, "layouts": 4,
          "learned": 10}  # fmt: skip

#: What a method may say of a case, worst first; the first eight are defects.
WORDS = (
    "bound above the optimum",
    "optimal that is not",
    "infeasible that is feasible",
    "exception",
    "better than brute force",
    "refused by the verifier",
    "noted defect",
    "left behind",
    "no plan",
    "no bound",
    "feasible",
    "optimal",
    "infeasible",
    "method refuses",
)
DEFECTS = WORDS[:8]


@dataclass(frozen=True)
class Case:
    """A case and how to find its optimum (`inf`: infeasible)."""

    workload: Workload
    cluster: Cluster
    problem: Problem
    optimum: Callable[[], float]


#: Puts BIG numbers into a workload.
Widen = Callable[[Workload, np.random.Generator], Workload]


def _throughput(workload: Workload, cluster: Cluster, problem: Throughput) -> Case:
    return Case(workload, cluster, problem, partial(best_max_load, workload, cluster, problem))


def _drawn(seed: int, split: Split) -> Throughput:
    rng = np.random.default_rng([seed, 3])
    return Throughput(
        split=split,
        cpu_split="free" if rng.random() < 0.3 else "contiguous",
        pipeline="gpipe" if rng.random() < 0.3 else "pipedream",
        overlap=bool(rng.random() < 0.3),
    )


def _ordinary(split: Split, seed: int) -> Case:
    sizes = {"max_nodes": 7, "max_accelerators": 3, "max_kinds": 1 + seed % 2}
    return _throughput(*random_case(seed, **sizes), _drawn(seed, split))


def _relayed(seed: int) -> Case:
    case = _ordinary("contiguous", seed)
    problem = replace(case.problem, cpu_split="contiguous", relayed=True)  # type: ignore[type-var]
    return _throughput(case.workload, case.cluster, problem)  # type: ignore[arg-type]


def _linked(seed: int) -> Case:
    sizes = {"max_nodes": 7, "max_accelerators": 3, "max_kinds": 1 + seed % 2}
    split = tuple(Split)[seed % 3]
    return _throughput(*linked_case(seed, **sizes), _drawn(seed, split))


def _big(big: float, where: Where, scale: float, seed: int) -> Case:
    workload, cluster = wide_case(seed, big, where, scale)
    return _throughput(workload, cluster, Throughput(split=tuple(Split)[seed % 3]))


def _any_split(seed: int) -> Case:
    """A case of any split with BIG numbers anywhere, and any rule."""
    case = _ordinary(tuple(Split)[seed % 3], seed)
    workload = widened(case.workload, np.random.default_rng([seed, 5]))
    return _throughput(workload, case.cluster, case.problem)  # type: ignore[arg-type]


def _latency(calls: int, wide: bool, seed: int) -> Case:
    make = linked_case if seed % 5 == 0 else random_case
    accelerators = 3 if calls == 1 else 2
    workload, cluster = make(
        seed, max_nodes=7 - calls, max_accelerators=accelerators, max_kinds=1 + seed % 2
    )
    if wide:
        workload = widened(workload, np.random.default_rng([seed, 5]))
    problem = Latency(calls)
    return Case(workload, cluster, problem, partial(least_latency, workload, cluster, problem))


def _training(wide: bool, seed: int) -> Case:
    kinds = 1 + (seed % 3 == 0)
    sizes = {"max_nodes": 4, "max_devices": 3} if kinds > 1 else {}
    workload, cluster, problem = random_training_case(seed, kinds=kinds, **sizes)
    if wide:
        workload = widened(workload, np.random.default_rng([seed, 5]))
    return Case(workload, cluster, problem, partial(best_objective, workload, cluster, problem))


def _iteration(
    schedule: str | None,
    split: str,
    seed: int,
    *,
    change: Widen | None = None,
) -> Case:
    """A case of any rule; memory may bind in a third. Default: schedules in turn."""
    rng = np.random.default_rng([seed, 9])
    others = [s for s in SCHEDULES if s != "interleaved" or split == "contiguous"]
    schedule = schedule or others[seed % len(others)]
    interleaved, contiguous = schedule == "interleaved", split == "contiguous"
    if rng.random() < 0.3 and not interleaved:
        sizes = {"max_nodes": 5, "max_accelerators": 2, "max_kinds": 1 + seed % 2}
        workload, cluster = random_case(seed, **sizes)
    else:
        inference = bool(rng.random() < 0.15) and not interleaved
        workload, cluster = training_case(rng, inference=inference, tight=seed % 3 == 0)
    if change is not None:
        workload = change(workload, rng)
    microbatches = int(rng.integers(1, 6))
    rows: tuple[str, ...] = ()
    if schedule == "given":
        device = random_devices(rng, cluster.size, int(rng.integers(1, 5)))
        rows = random_rows(rng, device, microbatches, bool(workload.backward.any()))
    problem = PipelineJob(
        microbatches,
        schedule,
        split,
        relayed=bool(rng.random() < 0.25) and contiguous,
        overlap=bool(rng.random() < 0.2),
        placement_rules=PlacementRules(max_stages=2 if rng.random() < 0.15 and not rows else None),
        weight_share=float(rng.choice([0.5, 0.3, 1.0])),
        actions=rows,
    )
    return Case(workload, cluster, problem, partial(least_makespan, workload, cluster, problem))


def _enlarged(big: float, scale: float, workload: Workload, rng: np.random.Generator) -> Workload:
    """Return the workload with BIG in place of a third of its times and transfers; all scaled."""

    def drawn(numbers: Floats) -> Floats:
        return scale * np.where(rng.random(len(numbers)) < 0.35, big, numbers)

    assert workload.transfer is not None
    times = {kind: drawn(numbers) for kind, numbers in workload.times.items()}
    return replace(workload, times=times, transfer=drawn(workload.transfer))


SHAPES = [(1, 2), (1, 3), (2, 1), (2, 2), (2, 3), (3, 1), (3, 2), (4, 1), (1, 5), (5, 1)]


def _mapping(objective: str, widen: Widen | None, seed: int) -> Case:
    rng = np.random.default_rng([seed, 7])
    of_links = objective == "busiest-link"
    stages, replicas = SHAPES[seed % 4 if of_links else seed % len(SHAPES)]
    problem = DeviceMapping(
        place_for(rng, stages * replicas, 5 if of_links else 7),
        stages,
        replicas,
        ("p2p", "allr", "both")[int(rng.integers(3))],  # type: ignore[arg-type]
        microbatches=int(rng.integers(1, 4)),
        gradients=bool(rng.integers(2)),
        collective="ring" if rng.random() < 0.6 else None,
        objective=objective,  # type: ignore[arg-type]
        overlap=bool(rng.random() < 0.25) and not of_links,
    )
    workload = stages_of(rng, stages)
    if widen is not None:
        workload = widen(workload, rng)
    least = least_busiest_link if of_links else least_stage_time

    def optimum() -> float:
        return 1e3 * least(stage_costs(workload, np.arange(stages), stages), problem)

    return Case(workload, accelerators_and_cpus(problem.topology.size), problem, optimum)


def _sharding(tight: bool, wide: bool, seed: int) -> Case:
    """A random tensor program, its memory in half of the cases a part of what the optimum holds."""
    for attempt in itertools.count():  # until there are few enough shardings to try them all
        rng = np.random.default_rng([seed, attempt, 18])
        workload, problem = random_program(rng), random_problem(rng)
        if wide:
            workload = widened_program(workload, rng)
        if tight:
            assert workload.program is not None
            size = sum(tensor.size_bytes for tensor in workload.program.tensors)
            problem = replace(problem, memory_bytes=float(rng.choice([0.2, 0.5, 0.9])) * size)
        optimum = least_cost(workload, problem)
        if optimum is not None:
            cluster = accelerators_and_cpus(problem.mesh.size)
            return Case(workload, cluster, problem, partial(float, optimum))
    raise AssertionError


BIGS = (1.0, 1e3, 1e5, 1e7, 1e8, 1e10, 1e12, 1e15)

ORDINARY: dict[str, Callable[[int], Case]] = {
    **{f"throughput {split}": partial(_ordinary, split) for split in Split},
    "throughput relayed": _relayed,
    "throughput links": _linked,
    "latency 1 call": partial(_latency, 1, False),
    "latency 2 calls": partial(_latency, 2, False),
    **{
        f"iteration {schedule}": partial(_iteration, schedule, "contiguous")
        for schedule in (*SCHEDULES, "given")
    },
    "iteration per-device": partial(_iteration, None, "per-device"),
    "iteration noncontiguous": partial(_iteration, None, "noncontiguous"),
    "training": partial(_training, False),
    "mapping stage-time": partial(_mapping, "stage-time", None),
    "mapping busiest-link": partial(_mapping, "busiest-link", None),
    "sharding": partial(_sharding, False, False),
    "sharding in little memory": partial(_sharding, True, False),
}

WIDE: dict[str, Callable[[int], Case]] = {
    **{
        f"BIG {big:g} {where}": partial(_big, big, where, 1.0)
        for big, where in itertools.product(BIGS, get_args(Where))
    },
    **{f"scale {scale:g}": partial(_big, 1.0, "all", scale) for scale in (1e-12, 1e12)},
    **{f"scale {scale:g} BIG": partial(_big, 1e5, "all", scale) for scale in (1e-12, 1e12)},
    **{
        f"iteration BIG {big:g}": partial(
            _iteration, None, "contiguous", change=partial(_enlarged, big, 1.0)
        )
        for big in BIGS
    },
    **{
        f"iteration scale {scale:g}": partial(
            _iteration, None, "contiguous", change=partial(_enlarged, 1.0, scale)
        )
        for scale in (1e-12, 1e12)
    },
    "wide throughput": _any_split,
    "wide iteration": partial(_iteration, None, "contiguous", change=widened),
    "wide latency": partial(_latency, 1, True),
    "wide latency 2 calls": partial(_latency, 2, True),
    "wide training": partial(_training, True),
    "wide mapping": partial(_mapping, "stage-time", widened),
}


def _ranges(variant: str, seed: int) -> Case:
    """An ordinary case with BIG numbers anywhere."""
    case = ORDINARY[variant](seed)
    workload = seldom_wide(case.workload, np.random.default_rng([seed, 6]))
    least = case.optimum.func  # type: ignore[attr-defined]
    return replace(
        case, workload=workload, optimum=partial(least, workload, case.cluster, case.problem)
    )


#: Cases of every problem with numbers of 1 and of 1e3 to 1e17, for every solver by name.
RANGES: dict[str, Callable[[int], Case]] = {
    **{
        f"ranges {name}": partial(_ranges, name)
        for name in ORDINARY
        if name.startswith(("throughput", "latency"))
    },
    "ranges iteration": partial(_iteration, None, "contiguous", change=seldom_wide),
    "ranges iteration per-device": partial(_iteration, None, "per-device", change=seldom_wide),
    "ranges iteration noncontiguous": partial(
        _iteration, None, "noncontiguous", change=seldom_wide
    ),
    "ranges training": partial(_ranges, "training"),
    "ranges mapping": partial(_mapping, "stage-time", seldom_wide),
    "ranges busiest-link": partial(_mapping, "busiest-link", seldom_wide),
    "ranges sharding": partial(_sharding, False, True),
    "ranges sharding in little memory": partial(_sharding, True, True),
}


def _ruled(variant: str, seed: int) -> Case:
    """A small case of a variant with placement rules."""
    case = ORDINARY[variant](seed)
    problem = with_rules(seed, case.workload, case.cluster, case.problem)
    brute = best_objective if variant == "training" else best_under_rules
    least = partial(brute, case.workload, case.cluster, problem)
    return Case(case.workload, case.cluster, problem, least)


RULED: dict[str, Callable[[int], Case]] = {
    f"rules {name}": partial(_ruled, name)
    for name in ORDINARY
    if not name.startswith(("mapping", "sharding"))  # they have no placement rules
}

VARIANTS = ORDINARY | WIDE | RULED | RANGES


def case_of(variant: str, seed: int) -> Case:
    """Return case `seed` of a variant; variants share no seeds of their generators."""
    return VARIANTS[variant](zlib.crc32(variant.encode()) % 2**20 * 10_000 + seed)


@dataclass(frozen=True)
class Word:
    """What a method said of a case, one of `WORDS`, and the details if it is a defect."""

    word: str
    detail: str = ""


def ask(case: Case, method: str, optimum: float) -> Word:
    """Solve a case by a method and compare with the optimum."""
    limits = replace(LIMITS, nodes=ROUNDS.get(method, LIMITS.nodes))
    try:
        result = solve(case.workload, case.cluster, case.problem, method=method, limits=limits)
    except InputError as refusal:
        return Word("method refuses", str(refusal))
    except Exception as failure:
        last = traceback.extract_tb(failure.__traceback__)[-1]
        return Word(
            "exception", f"{type(failure).__name__}: {failure} ({last.filename}:{last.lineno})"
        )
    return judged(case, result, optimum)


def judged(case: Case, result: Result, optimum: float) -> Word:
    """Compare what `solve` returned with the optimum."""
    found = math.inf if result.objective is None else result.objective
    detail = f"{result.status} {found!r}, bound {result.bound!r} ({result.bound_origin}); "
    detail += f"optimum {optimum!r}"
    if result.bound > optimum * (1 + BOUND):
        return Word(WORDS[0], detail)
    if result.status == "optimal" and found > optimum * (1 + BOUND + OPTIMAL_GAP):
        return Word(WORDS[1], detail)
    if result.status == "infeasible" and math.isfinite(optimum):
        return Word(WORDS[2], f"{result.reason}; {detail}")
    if found < optimum * (1 - OBJECTIVE):
        return Word(WORDS[4], detail)
    if result.plan is not None:
        try:
            verify(case.workload, result.plan)
        except VerificationError as failure:
            return Word(WORDS[5], f"{failure}; {detail}")
    for note in result.notes:
        if "defect" in note:
            return Word(WORDS[6], f"{note}; {detail}")
        if "left behind" in note:
            return Word(WORDS[7], detail)
    if result.status == "no solution":
        return Word("no plan", detail)
    if result.status == "feasible" and not result.bound > 0 < optimum:
        return Word("no bound", detail)
    return Word(result.status)


def methods_of(case: Case) -> list[str]:
    """Return the methods of the case's problem."""
    return list(METHODS[case.problem.name])
