"""Method `joint`: partition and mapping together, by DPs over all cuts at prices of messages.

1. *Two phases*: a cut, then its mapping (`auto`).
2. *All cuts* (`formulations.mapping.all_cuts`): a DP over ideals at the least prices of the
   topology. Its value is a bound for all cuts and mappings, and its cut is mapped; the first
   mapping keeps stages in one block that share a block in the DP.
3. *Constructions*: for each, a DP at its own prices; its cut is offered on the same devices.
4. *Cut again*: a DP at the prices of the best mapping known, and descents, in turn; the best
   result is mapped again, until nothing improves.
5. The integer program of both (`formulations.mapping.joint`), on a few devices.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import product
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from pyomo.common.gc_manager import PauseGC

from ...formulations.mapping.all_cuts import (
    CROSSED,
    LeastPrices,
    Units,
    least_prices,
    partition_units,
    run_states,
    speed_counts,
    split_bytes,
)
from ...formulations.mapping.costs import MappingCosts, find_blocks
from ...formulations.mapping.joint import joint_data, joint_milp
from ...formulations.mapping.memory import (
    costs_of_cut,
    relative_slowdowns,
    stage_slowdowns,
    stage_speeds,
)
from ...formulations.task import Task
from ...instances import DeviceMapping, ReplicaPlacement, Solution
from ...instances.common.arrays import Bools, Floats, Ints
from ...instances.common.units import TIME_UNITS
from ...instances.model.stage_costs import parameter_bytes
from ..core.lattice import list_ideals
from ..core.milp_driver import IntegerProgram, integer_program, solve_program
from ..core.search import Clock, Search
from .annealing.costs import descend
from .auto import stage_times
from .cuts_kernel import StageEnds, add_stage
from .layouts import layouts, matched, runs_in_blocks
from .parameters import (
    ALL_CUTS_SHARE,
    CUT_BYTES,
    CUT_SHARE,
    CUTOFF_STEP,
    DESCENT_HEATS,
    DESCENT_STEPS,
    FIRST_CUTOFF,
    IDEAL_SLICE,
    JOINT_DEVICES,
    JOINT_PLACES,
    MOST_IDEALS,
    MOST_SPEEDS,
    ROUNDS,
    TWO_PHASE_SHARE,
    UNLIKE_ROUNDS,
)
from .partition import orders


@dataclass(frozen=True, eq=False)
class PricedIdeals:
    """All N ideals of a workload's units, by increasing work, with the sums that stages cost."""

    members: NDArray[np.uint64]  # (N, words): bits of the units
    unit_of: Ints  # (n,): unit of each node
    inside: Bools  # (N, U)
    work: Floats  # (N,): seconds of compute per batch, ascending
    held: Floats  # (N,): bytes of parameters
    split: Floats  # (N,): bytes of the tensors that the ideal splits


class StagePrices(NamedTuple):
    """Prices of a stage's compute, parameters and boundary in seconds per batch."""

    slow: Floats  # (K,): slowdown of devices of each speed
    reduced: Floats  # (2,): of a byte of parameters, with the ring within a block and across
    sent: Floats  # (B, N): of the boundary at each ideal, by its kind as of `run_states`


class StageStates(NamedTuple):
    """States of the DP over all cuts: the order in which stages may follow each other."""

    table: Ints  # (Q, K, 2, 3): as of `run_states`
    counts: list[list[tuple[int, ...]]]  # as of `speed_counts`

    @property
    def cells(self) -> int:
        """Values that the DP keeps of each ideal."""
        return len(self.table) * sum(map(len, self.counts))


class CutInRuns(NamedTuple):
    """Cut, and the runs of stages that it keeps together within blocks."""

    stage: Ints  # (n,): stage of each node
    runs: list[list[int]]  # the stages of each run; those for the fastest devices first


def priced_ideals(task: Task[DeviceMapping], clock: Clock) -> PricedIdeals | None:
    """Return the ideals; None if there are more than `MOST_IDEALS`, or it must stop."""
    unit_of, units = partition_units(task.workload)
    lattice = list_ideals(next(orders(units)), units.edges, MOST_IDEALS, clock)
    if not lattice.complete:
        return None
    inside = np.zeros((lattice.size, units.size), np.bool_)
    inside[:, lattice.order] = lattice.bits
    held = np.bincount(unit_of, weights=parameter_bytes(task.workload), minlength=units.size)
    work = task.problem.microbatches * (inside @ units.seconds)
    by_work = np.argsort(work, kind="stable")  # parts come first still
    inside = inside[by_work]
    return PricedIdeals(
        lattice.members[by_work],
        unit_of,
        inside,
        work[by_work],
        np.asarray(inside @ held, np.float64),
        split_bytes(task.workload, task.problem, units, inside),
    )


def least_stage_prices(
    task: Task[DeviceMapping], ideals: PricedIdeals, units: Units
) -> tuple[list[StagePrices], StageStates] | None:
    """Return the least prices of the topology for every stage, and the states of the DP.

    Fewer speeds are told apart if the DP takes more than `CUT_BYTES`; None if it does with one.
    """
    stages, most = task.problem.stages, MOST_SPEEDS
    alone = task.problem.replicas == 1 or task.problem.mode == "p2p"
    while most:
        slow, counts = stage_speeds(task, most)
        prices = least_prices(task, units, slow)
        kept = len(prices.runs) > 1
        paired = not alone and prices.across[2] > prices.across[1]
        table = run_states(prices.runs, stages, alone=alone, paired=paired)
        table = np.broadcast_to(table, (len(table), len(slow), 2, 3))
        states = StageStates(table, speed_counts(counts, stages, slower=kept))
        if states.cells * len(ideals.work) * np.dtype(np.int32).itemsize <= CUT_BYTES:
            one = StagePrices(slow, np.array(prices.reduced), prices.boundary(ideals.split))
            return [one] * stages, states
        most //= 2
    return None


def prices_of(
    task: Task[DeviceMapping],
    costs: MappingCosts,
    ideals: PricedIdeals,
    slots: Ints,
    sends_to: Ints,
) -> list[StagePrices]:
    """Return the prices of the stages of a mapping; all-reduces are rings without latency."""
    problem, found = task.problem, []
    r, m, slow = problem.replicas, problem.microbatches, relative_slowdowns(task)
    messages = m * (1 + bool(problem.gradients and task.workload.backward.any()))
    for s, row in enumerate(slots):
        reduced, sent = 0.0, np.zeros(len(ideals.split))
        if problem.mode != "p2p" and r > 1:
            reduced = 2 * (r - 1) / r * float(costs.inverse[row, np.roll(row, -1)].max())
        if problem.mode != "allr" and s + 1 < costs.stages:
            pairs = row, slots[s + 1, sends_to[s]]
            times = messages * costs.latency[pairs][:, None]
            times = times + m * costs.inverse[pairs][:, None] * ideals.split
            sent = np.where(ideals.split > 0, times.max(axis=0), 0.0)
        own = slow[row].max(keepdims=True)
        found.append(StagePrices(own, np.array([reduced, reduced]), sent[None]))
    return found


def best_cut(
    task: Task[DeviceMapping],
    ideals: PricedIdeals,
    prices: list[StagePrices],
    states: StageStates,
    cutoff: float,
    clock: Clock,
) -> tuple[float, CutInRuns | None]:
    """Return the longest stage of the best cut below a cutoff, in seconds, and that cut.

    The cutoff and None if no cut is below it; 0 and None if the clock stops the search.
    """
    problem, size = task.problem, len(ideals.work)
    table = np.ascontiguousarray(states.table)
    shape, speeds = (size, len(table)), table.shape[1]
    layer = {states.counts[0][0]: np.full(shape, np.inf)}  # by stages of each speed
    layer[states.counts[0][0]][0, 0] = 0.0
    back: list[dict[tuple[int, ...], NDArray[np.int32]]] = []
    for s in range(problem.stages):
        last = s == problem.stages - 1
        after = {then: np.full(shape, cutoff) for then in states.counts[s + 1]}
        came = {then: np.full(shape, -1, np.int32) for then in states.counts[s + 1]}
        sent = np.zeros_like(prices[s].sent) if last else prices[s].sent
        slow = np.min([price.slow for price in prices[s:]], axis=0)
        for (used, before), k in product(layer.items(), range(speeds)):
            then = (*used[:k], used[k] + 1, *used[k + 1 :])
            left = [np.subtract(all_, then) for all_ in states.counts[-1]]
            room = max(((of / slow).sum() for of in left if (of >= 0).all()), default=-1.0)
            if then not in after or room < 0:
                continue
            # what is left to the later stages has to fit into them
            enough = ideals.work[-1] - cutoff * float(room) * (1 + 1e-9)
            begin = size - 1 if last else max(1, int(np.searchsorted(ideals.work, enough)))
            reached = np.flatnonzero(before.min(axis=1) < cutoff)
            ends = StageEnds(
                ideals.members, float(prices[s].slow[k]) * ideals.work, ideals.held, sent,
                prices[s].reduced, table, k, problem.overlap,
            )  # fmt: skip
            for low in range(begin, size - (not last), IDEAL_SLICE):
                high = min(low + IDEAL_SLICE, size - (not last))
                add_stage(ends, reached, before, after[then], came[then], low, high)
                if clock.should_stop():
                    return 0.0, None
        layer = {then: np.where(came[then] >= 0, value, np.inf) for then, value in after.items()}
        back.append(came)
    longest, used, state = min(
        (float(value[-1].min()), used, int(value[-1].argmin())) for used, value in layer.items()
    )
    if not np.isfinite(longest):
        return cutoff, None
    stage, at = np.zeros(ideals.inside.shape[1], np.int64), size - 1
    runs: list[tuple[int, list[int]]] = []  # with their speeds, the last one first
    for s in reversed(range(problem.stages)):
        stage[ideals.inside[at]] = s
        link, k = divmod(int(back[s][used][at, state]), speeds)
        if state < CROSSED or not runs:
            runs.append((k, []))
        runs[-1][1].insert(0, s)
        at, state = divmod(link, len(table))
        used = (*used[:k], used[k] - 1, *used[k + 1 :])
    return longest, CutInRuns(stage[ideals.unit_of], [run for _, run in sorted(runs)])


def joint(task: Task[DeviceMapping], search: Search[Solution]) -> None:
    """Cut and map together, with a bound that holds for all cuts.

    Collectives are rings, and the cluster has no links.
    """
    _two_phases(task, search)
    if search.should_stop() or search.best is None:
        return
    _all_cuts(task, search)
    if search.is_over():
        return
    _, units = partition_units(task.workload)
    few = len(task.problem.topology.usable) <= JOINT_DEVICES
    if few and units.size * task.problem.stages <= JOINT_PLACES:
        solve_program(
            lambda: _joint_program(task, search),
            search,
            solver=task.solver,
            gap=min(search.limits.least_gap, 1e-7),
        )


def _joint_program(task: Task[DeviceMapping], search: Search[Solution]) -> IntegerProgram[Solution]:
    """Return the program of both, to be started from the incumbent."""
    problem = task.problem
    unit = TIME_UNITS[task.workload.time_unit]
    known = 0 < search.objective < math.inf
    per_s = 1000.0 / (search.objective * unit) if known else 1000.0
    with PauseGC():
        stated = joint_milp(joint_data(task), problem, per_s)
    return integer_program(
        stated,
        search.best,
        origin="partition and mapping",
        infeasible="no partition into stages keeps the rules",
    )


def _two_phases(task: Task[DeviceMapping], search: Search[Solution]) -> None:
    """Offer the plan of `auto`; its bound holds for one cut alone, and is left out."""
    limits = replace(search.limits, nodes=ROUNDS, gap=0.0)
    inner = Search(limits, search.judge, within=search.part(TWO_PHASE_SHARE))
    with search.phase("two phases"):
        stage_times(task, inner)
    if inner.best is not None:
        search.offer(inner.best)
        search.note(
            f"partition first, mapping after: {inner.objective:.6g} {task.workload.time_unit}"
        )
    elif inner.infeasible_because is not None:
        search.prove_infeasible(inner.infeasible_because)


def _all_cuts(task: Task[DeviceMapping], search: Search[Solution]) -> None:
    """Raise the bound over all cuts, and improve cut and mapping in turn."""
    unit_of, units = partition_units(task.workload)
    unit = TIME_UNITS[task.workload.time_unit]
    with search.phase("least prices"):
        prices = least_prices(task, units, np.ones(1))
        held = np.bincount(
            unit_of, weights=parameter_bytes(task.workload), minlength=units.size
        ).astype(np.float64)
        shared = _shared_out(task, task.problem.microbatches * units.seconds, prices, held)
        search.raise_bound(shared * (1 - 1e-9) / unit, "work and all-reduces, all cuts")
    with search.phase("all cuts"):
        ideals = priced_ideals(task, search)
        if ideals is None:
            search.note("all cuts: too many ideals; the bound is that of the work shared out")
            return
        at_least = least_stage_prices(task, ideals, units)
        if at_least is None:
            search.note("all cuts: too much memory; the bound is that of the work shared out")
            return
        step, cutoff, cut = FIRST_CUTOFF, shared, None
        clock = search.part(ALL_CUTS_SHARE)
        while cut is None and cutoff < search.objective * unit and not clock.should_stop():
            # a low cutoff admits few stages, and so leaves the DP little to do
            cutoff = min(search.objective * unit, cutoff * (1 + step) or math.inf)
            value, cut = best_cut(task, ideals, *at_least, cutoff, clock)
            search.raise_bound(value * (1 - 1e-9) / unit, "all cuts at least prices")
            step = CUTOFF_STEP
    if cut is not None:
        _map(task, search, _first_of(task, search, cut))
    with search.phase("cuts of constructions"):
        _cut_constructions(task, search, ideals)
    while not search.is_over():
        before = search.objective
        with search.phase("cut again"):
            _cut_again(task, search, ideals)
        _map(task, search, _incumbent(search))
        if search.objective >= before * (1 - 1e-9):
            return


def _incumbent(search: Search[Solution]) -> ReplicaPlacement:
    """Return the best mapping known, which exists from the two phases on."""
    best = search.best
    assert isinstance(best, ReplicaPlacement)
    return best


def _shared_out(
    task: Task[DeviceMapping], compute: Floats, prices: LeastPrices, held: Floats
) -> float:
    """Return (2) of `all_cuts` in seconds, given compute and parameters of each unit."""
    slow = stage_slowdowns(task)
    reduced = np.zeros(len(held)) if task.problem.overlap else prices.reduced[0] * held
    longest = float((slow[0] * compute + reduced).max(initial=0.0))
    most = float(relative_slowdowns(task).max())
    return max(longest, float((compute + reduced / most).sum()) / float((1 / slow).sum()))


def _cut_constructions(
    task: Task[DeviceMapping], search: Search[Solution], ideals: PricedIdeals
) -> None:
    """Offer the best cuts for the constructions, for unlike devices in all rotations of stages."""
    stage = _incumbent(search).stage
    costs, clock = costs_of_cut(task, stage), search.part(CUT_SHARE)
    for slots, _ in layouts(costs):
        turns = product((slots, slots[::-1]), range(costs.stages)) if costs.unlike else [(slots, 0)]
        for order, k in turns:
            if clock.should_stop() or search.is_over():
                return
            turned = np.roll(order, k, axis=0)
            found = costs.read_back(stage, turned, matched(costs, turned))
            _cut_for(task, search, ideals, found, clock)


def _cut_again(task: Task[DeviceMapping], search: Search[Solution], ideals: PricedIdeals) -> None:
    """Cut the incumbent again and descend from it, in turn."""
    before = None
    for turn in range(UNLIKE_ROUNDS):
        best = _incumbent(search)
        if best is not before:
            _cut_for(task, search, ideals, best, search)
        if search.is_over():
            return
        before = best = _incumbent(search)
        costs, heat = costs_of_cut(task, best.stage), DESCENT_HEATS[turn % len(DESCENT_HEATS)]
        at, seed = costs.numbers(best.slots), search.limits.seed + turn
        slots, _ = descend(costs, at, best.sends_to, DESCENT_STEPS, seed, hot=heat)
        search.offer(costs.read_back(best.stage, slots, matched(costs, slots)))


def _cut_for(
    task: Task[DeviceMapping],
    search: Search[Solution],
    ideals: PricedIdeals,
    known: ReplicaPlacement,
    clock: Clock,
) -> None:
    """Offer the best cut for a mapping's devices, matchings and rings."""
    costs = costs_of_cut(task, known.stage)
    prices = prices_of(task, costs, ideals, costs.numbers(known.slots), known.sends_to)
    cutoff = search.objective * TIME_UNITS[task.workload.time_unit]
    one = np.array([task.problem.stages])
    states = StageStates(
        run_states(one, one[0], alone=False), speed_counts(one, one[0], slower=False)
    )
    _, cut = best_cut(task, ideals, prices, states, cutoff, clock)
    if cut is not None:
        search.offer(ReplicaPlacement(cut.stage, known.slots, known.sends_to))


def _first_of(
    task: Task[DeviceMapping], search: Search[Solution], cut: CutInRuns
) -> ReplicaPlacement:
    """Return a mapping of a cut, its runs placed in blocks, after a descent."""
    costs = costs_of_cut(task, cut.stage)
    slots = runs_in_blocks(costs, find_blocks(costs), cut.runs)
    seed = search.limits.seed
    slots, _ = descend(costs, slots, matched(costs, slots), DESCENT_STEPS, seed)
    return costs.read_back(cut.stage, slots, matched(costs, slots))


def _map(task: Task[DeviceMapping], search: Search[Solution], first: ReplicaPlacement) -> None:
    """Improve a mapping of its own stages, and offer the result."""
    costs = costs_of_cut(task, first.stage)
    limits = replace(search.limits, nodes=UNLIKE_ROUNDS if costs.unlike else ROUNDS, gap=0.0)
    inner = Search(limits, search.judge, within=search.part(CUT_SHARE))
    if inner.offer(first) or inner.offer(costs.read_back(first.stage, *next(layouts(costs)))):
        with search.phase("mapping of a cut"):
            stage_times(task, inner)
        if inner.best is not None:
            search.offer(inner.best)
