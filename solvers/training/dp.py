"""Training plans by dynamic programming over the lattice of ideals, exact.

For a cap T on the time of every stage, a run over the lattice answers whether a plan exists;
bisection over T brackets the least one. Since the states are only (ideal, devices of each kind,
replicas) with the undominated ones kept, a cap costs milliseconds on layer graphs. A first bracket
comes from one topological order alone.

Complexity: per cap, pairs of nested ideals × degrees × undominated labels. Ideals from which the
units outside cannot be served by the devices left (Σ least t·p / T > devices) are not extended.

References
----------
The recurrence of Piper (NeurIPS 2021, section 4.1), decided for one cap at a time; its inner
knapsack is solved exactly instead of by a rule. Several kinds of devices are ours.
"""

from __future__ import annotations

import math

import numpy as np

from ...formulations.task import Task
from ...formulations.training.cheap_bounds import least_stage_time
from ...formulations.training.staging import state_staging
from ...instances import Solution, TrainingJob
from ...instances.common.quantities import show_bytes
from ..core.lattice import chain, list_ideals
from ..core.search import Search
from .planner import Planner, StageChoice

#: Relative width of the bracket at which the search ends.
CLOSE = 1e-9
#: Ideals that are listed at most; beyond, only one topological order is planned.
MOST_IDEALS = 3_000_000
#: Ideals up to which the least memory that would do is looked for over all of them.
FEW_IDEALS = 2_000
#: What proves bounds here.
ORIGIN = "dynamic program over ideals"


def training_dp(task: Task[TrainingJob], search: Search[Solution]) -> None:
    """Find the best training plan, and prove it."""
    _run(task, search, greedy=False)


def piper(task: Task[TrainingJob], search: Search[Solution]) -> None:
    """Plan with the authors' rule for configurations instead of the exact knapsack: a baseline."""
    _run(task, search, greedy=True)


def _run(task: Task[TrainingJob], search: Search[Solution], greedy: bool) -> None:
    staging = state_staging(task)
    if (reason := staging.why_no_size()) is not None:
        search.prove_infeasible(reason)
        return
    with search.phase("build"):
        line = Planner(task, staging, chain(np.arange(staging.size)), greedy)
    with search.phase("solve"):
        _minimise(line, search, exact=False)
    if search.should_stop():
        return
    with search.phase("build"):
        # an ideal is closed under successors here: plans grow from their end
        units = np.arange(staging.size)
        lattice = list_ideals(units, staging.edges[:, ::-1], MOST_IDEALS, search)
        if not lattice.complete:
            if not search.should_stop():
                search.note(
                    f"more than {MOST_IDEALS} ideals: the plan is the best of one topological "
                    "order, and others may be better"
                )
            return
        planner = Planner(task, staging, lattice, greedy)
    with search.phase("solve"):
        _minimise(planner, search, exact=not greedy)
        if search.best is None and not greedy and not search.should_stop() and not planner.gave_up:
            few = lattice.size <= FEW_IDEALS
            search.prove_infeasible(_why_infeasible(planner if few else line, search))
    if search.best is None and greedy and not search.should_stop():
        search.note("piper: no plan found by the greedy rule; others may exist")
    if planner.gave_up:
        search.note("a knapsack was too hard: the plan may not be the best one")


def _minimise(planner: Planner, search: Search[Solution], exact: bool) -> None:
    """Bracket the least cap; every plan found pulls the upper end down to its own maximum.

    Bounds are raised only if `exact`.
    """
    if float(np.max(np.min(planner.data.light, axis=0))) > planner.staging.capacity.max():
        return  # one layer alone does not fit
    if math.isinf(least_stage_time(planner.staging)):
        return  # or fits on no device that could take it
    low = least_stage_time(planner.staging)
    high = search.objective
    if math.isinf(high):
        chosen = planner.plan(math.inf, search)
        if chosen is None:
            return
        high = _offer(planner, chosen, search)
    failed, first = False, True
    while high > low * (1 + CLOSE) and not search.should_stop():
        # at first and close to the end, one look just below the best plan may decides it
        decides = not failed and (first or high <= low * 1.002)
        first = False
        within = high * (1 - CLOSE / 2) if decides else (low + high) / 2
        chosen = planner.plan(within, search)
        if chosen is not None:
            high = min(high, _offer(planner, chosen, search))
            failed = False
        elif search.should_stop():
            return
        else:
            low, failed = within, True
            if exact and not planner.gave_up:
                search.raise_bound(low, ORIGIN)


def _offer(planner: Planner, chosen: tuple[StageChoice, ...], search: Search[Solution]) -> float:
    solution, times = planner.configured(chosen)
    search.offer(solution)
    return max(times)


def _why_infeasible(planner: Planner, search: Search[Solution]) -> str:
    """Say which stage needs how many bytes too many, or that memory is not the reason."""
    staging = planner.staging
    chosen = planner.plan(math.inf, search, capacity=np.full(len(staging.kinds), np.inf))
    if chosen is None:
        return (
            f"no plan keeps the rules on {staging.count.sum()} devices, however much memory they "
            "have; allow more degrees, replicas, stages or devices"
        )
    memories = [planner.task.cluster.kinds[k].memory_bytes for k in staging.kinds.tolist()]
    if len(memories) > 1:
        pairs = zip(staging.count.tolist(), memories, strict=True)
        there = ", ".join(f"{n} devices of {size:.0f} bytes" for n, size in pairs)
        return f"no plan fits on {there}; give more memory or more devices"
    given = memories[0]
    low, need = given, _needed(planner, chosen)
    best = chosen
    while need > low + 1 and need > low * (1 + 1e-6) and not search.should_stop():
        tried = planner.plan(math.inf, search, capacity=np.array([(low + need) / 2]))
        if tried is None:
            low = (low + need) / 2
        else:
            best, need = tried, _needed(planner, tried)
    stage = max(best, key=lambda part: planner.least_memory(part)[0])
    ids = planner.staging.workload.ids
    nodes = sorted(int(v) for v in planner.staging.node_of[stage.units])
    terms = planner.least_memory(stage)[1]
    shown = ", ".join(f"{show_bytes(size)} {name}" for name, size in terms.items() if size)
    largest = max(terms, key=lambda name: terms[name])
    return (
        f"{show_bytes(given)} per device are too little: a plan is known that needs "
        f"{show_bytes(need)}, {show_bytes(need - given)} more; its largest stage, with nodes "
        f"{ids[nodes[0]]} to {ids[nodes[-1]]}, needs {shown}; most are {largest}"
    )


def _needed(planner: Planner, chosen: tuple[StageChoice, ...]) -> float:
    return max(planner.least_memory(part)[0] for part in chosen)
