"""Contiguous splits of least max-load by dynamic programming over ideals.

A contiguous split is a chain of ideals, from the empty set to all units, whose differences are the
stages. `least_maximum` finds the best chain of a given lattice: of all ideals if memory and time
allow, which proves optimality, or of the prefixes of a single topological order.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import psutil
from numpy.typing import NDArray

from ...formulations.task import Task
from ...formulations.throughput.hypergraph import Incidence, incidence, layer_units
from ...formulations.throughput.ideals import Criterion, IdealPipeline, Row, pipeline
from ...formulations.throughput.infeasible import memories, why_infeasible
from ...instances import InputError, Placement, Solution, Throughput, VerificationError
from ...instances.common.arrays import Bools, Floats, Ints
from ..core.lattice import Lattice, chain, count_ideals, list_ideals
from ..core.search import Clock, Search
from . import dp_kernel as kernel
from .dp_kernel import LatticeLanes, LatticeSteps, LatticeTable, OpenStates

#: Pairs of ideals between two polls of the clock, and pairs of ideals and pins handled together:
#: some hundredths of a second.
SLICE = 500_000

#: Relative widening of what devices can hold, so that rounding excludes no plan.
SLACK = 1e-9

#: Seconds of work on one number of devices after which the remaining time is projected.
TRIAL_SECONDS = 1.0


@dataclass(frozen=True, eq=False)
class ChainFound:
    """Result of the dynamic program: a chain of stages, with its value and the work done."""

    # whether it ran to its end; if so, and without a plan, no plan keeps the limits
    complete: bool
    value: float = np.inf  # least maximum of the minimised criterion; `inf` without a plan
    # (U,): device of each unit of the pipeline, numbered kind by kind in the order of
    # `IdealPipeline.kinds`; None without a plan
    device_of_unit: Ints | None = None
    order: tuple[int, ...] = ()  # those devices stage by stage
    pairs: int = 0  # pairs of ideals visited
    reachable: int = 0  # ideals that a plan within the limits may pass
    # time it would have taken, if it gave up as that is beyond the deadline; else 0
    projected_seconds: float = 0.0


@dataclass(frozen=True, eq=False)
class DeviceStates:
    """All states: numbers s = (s_1, …, s_K) of devices in use of each kind, coded Σ stride · s."""

    stride: NDArray[np.int64]  # (K,)
    used: NDArray[np.int64]  # used, left: (S, K)
    left: NDArray[np.int64]


def states_of(count: Ints) -> DeviceStates:
    """Return all states of a cluster with `count` devices of each kind."""
    stride = np.concatenate([[1], np.cumprod(count + 1)[:-1]])
    used = np.arange(int(np.prod(count + 1)))[:, None] // stride % (count + 1)
    return DeviceStates(stride, used, count - used)


def least_maximum(
    pipe: IdealPipeline,
    lattice: Lattice,
    minimise: Criterion,
    limits: Mapping[Criterion, float],
    search: Clock,
    floor: float = 0.0,
) -> ChainFound:
    """Find the chain of stages with the least maximum of one criterion, below that one's limit.

    Every stage keeps the limits of the other criteria, and the memory. Maxima up to `floor` count
    as equal. Devices are added one by one: all plans with j devices are known before any of them is
    extended. Memory is linear in ideals × states; time in the pairs of nested ideals whose
    difference keeps the limits, the smaller one with a plan worth extending.
    """
    rows = [row for row in pipe.rows if row.criterion in limits or row.criterion == "memory"]
    upper_bounds = np.array(
        [np.minimum(row.room, limits.get(row.criterion, np.inf)) for row in rows]
    )
    states = states_of(pipe.count)
    alive = _windows(rows, lattice, upper_bounds, states, search)
    if alive is None:
        return ChainFound(False)
    reachable = np.logical_or.reduce(alive, axis=1)
    if not (reachable[0] and reachable[-1]):
        return ChainFound(True, reachable=int(reachable.sum()))
    table = _table(alive, reachable, limits[minimise])
    floor = min(floor, np.finfo(float).max)
    steps = LatticeSteps(lattice.members, lattice.start, lattice.unit, lattice.to)
    lanes = _lanes(rows, lattice, upper_bounds, minimise)
    nets = incidence(pipe.graph.pins, lattice.order)
    split = np.zeros((0, lanes.net_weight.shape[1]))
    if pipe.relayed:
        split = _cuts(lattice, nets, lanes.net_weight)
        lanes = lanes._replace(net_weight=lanes.net_weight[:0])
        nets = incidence((), lattice.order)
    yields = pipe.yielding[lattice.order]
    pairs, devices = 0, int(pipe.count.sum())
    gave_up = ChainFound(False, reachable=len(table.value))
    for total in range(devices):
        now = np.flatnonzero(states.used.sum(axis=1) == total)
        open_states = OpenStates(now, states.stride, states.left > 0)
        for state in now.tolist():
            if search.should_stop():
                return replace(gave_up, pairs=pairs)
            kernel.undominated(
                steps, table, state, states.stride, states.used[state], yields,
                limits[minimise], floor,
            )  # fmt: skip
        began, ideal = time.monotonic(), 0
        while ideal < lattice.size - 1:
            timed = kernel.relax.ready
            ideal, more = kernel.relax(ideal, SLICE, steps, table, open_states, lanes, nets, split)
            pairs += more
            if not timed:  # interpretation and compilation say nothing about the rest
                began = time.monotonic()
            spent = time.monotonic() - began
            if spent > TRIAL_SECONDS:
                projected = spent * _left(table, now, ideal, devices - total - 1)
                if projected > 2 * search.seconds_left:
                    return replace(gave_up, pairs=pairs, projected_seconds=projected)
            if search.should_stop():
                return replace(gave_up, pairs=pairs)
    final = np.where(table.origin[-1] >= 0, table.value[-1], np.inf)
    best = int(final.argmin())
    if np.isinf(final[best]):
        return ChainFound(True, pairs=pairs, reachable=len(table.value))
    device, stages = _read_back(pipe, lattice, states, table, best)
    return ChainFound(True, float(final[best]), device, stages, pairs, len(table.value))


def _cuts(lattice: Lattice, nets: Incidence, weight: Floats) -> Floats:
    """Return the weight, (E, C), of the nets that each ideal splits, shape (N, C)."""
    cuts = np.zeros((lattice.size, weight.shape[1]))
    pins = np.diff(nets.net_ptr)
    count = 1 + SLICE // max(1, len(nets.net_pins))
    for first in range(0, lattice.size if len(pins) else 0, count):
        some = slice(first, first + count)
        bits = np.unpackbits(lattice.members[some].view(np.uint8), axis=1, bitorder="little")
        held = np.add.reduceat(bits[:, nets.net_pins], nets.net_ptr[:-1], axis=1, dtype=np.int64)
        cuts[some] = ((held > 0) & (held < pins)) @ weight
    return cuts


def _table(alive: Bools, reachable: Bools, limit: float) -> LatticeTable:
    """Return the initial table, in which only the empty ideal has a plan."""
    value = np.where(alive[reachable], limit, -1.0)
    table = LatticeTable(
        row=np.where(reachable, np.cumsum(reachable) - 1, -1),
        value=value,
        origin=np.full(value.shape, -1, np.int32),
        by=np.zeros(value.shape, np.int8),
        keep=np.zeros(value.shape, np.bool_),
    )
    table.value[0, 0], table.origin[0, 0] = 0.0, 0
    return table


def _left(table: LatticeTable, now: Ints, ideal: int, devices: int) -> float:
    """Return the remaining work, for this device and `devices` more, relative to that done."""
    extended = np.logical_or.reduce(table.keep[:, now], axis=1)
    done = extended[: table.row[:ideal].max(initial=-1) + 1].sum()
    return float((extended.sum() - done + devices * extended.sum()) / max(done, 1))


def _windows(
    rows: list[Row], lattice: Lattice, upper_bounds: Floats, states: DeviceStates, search: Clock
) -> Bools | None:
    """Return for each ideal and state whether devices used can hold it, and those left the rest.

    Work is measured by each row and each kind's times in turn; a device of another kind can take as
    much of it as a fractional knapsack allows. Every device of a plan keeps the bounds, so an ideal
    held by the devices of a state has no more work than they can take together. None if the search
    must stop.
    """
    weights, takes = [], []
    for row, cap in zip(rows, upper_bounds, strict=True):
        cheapest = row.unit.min(axis=0)
        for times in row.unit:
            weight = np.where(np.isinf(times), cheapest, times)
            if np.isfinite(weight).all() and weight.any():
                weights.append(weight[lattice.order])
                pairs = zip(row.unit, cap, strict=True)
                takes.append(np.array([knapsack(weight, size, room) for size, room in pairs]))
    alive = np.ones((lattice.size, len(states.used)), np.bool_)
    for weight, take in zip(weights, takes, strict=True):
        inside, total = lattice.sums(weight), float(weight.sum())
        used, left = (own @ take + SLACK * total for own in (states.used, states.left))
        for s in range(len(used)):
            if search.should_stop():
                return None
            alive[:, s] &= (inside <= used[s]) & (total - inside <= left[s])
    return alive


def knapsack(weight: Floats, size: Floats, room: float) -> float:
    """Return the greatest weight that fits into `room` (and a little more), the last item cut."""
    return float(knapsack_shares(weight, size, room) @ weight)


def knapsack_shares(weight: Floats, size: Floats, room: float) -> Floats:
    """Return the share of each item that a fractional knapsack takes, the last item cut."""
    room *= 1 + SLACK  # otherwise rounding of large sizes excludes small ones
    share = np.zeros(len(weight))
    share[(size == 0) & (weight > 0)] = 1.0
    some = np.flatnonzero((weight > 0) & (size > 0) & (size <= room) & np.isfinite(size))
    some = some[np.argsort(-weight[some] / size[some], kind="stable")]
    share[some] = np.clip((room - (np.cumsum(size[some]) - size[some])) / size[some], 0.0, 1.0)
    return share


def _lanes(
    rows: list[Row], lattice: Lattice, upper_bounds: Floats, minimise: Criterion
) -> LatticeLanes:
    """Return the rows by kind, without those that cannot be binding."""
    lanes: list[tuple[int, float, Row]] = [
        (k, min(float(cap[k]), float(np.finfo(float).max)), row)
        for row, cap in zip(rows, upper_bounds, strict=True)
        for k in range(len(cap))
        if row.criterion == minimise or not row.unit[k].sum() + 2 * row.net[k].sum() <= cap[k]
    ]
    lanes.sort(key=lambda lane: not lane[2].net[lane[0]].any())
    charged = sum(bool(row.net[k].any()) for k, _, row in lanes)
    return LatticeLanes(
        np.array([k for k, _, _ in lanes]),
        np.array([cap for _, cap, _ in lanes]),
        np.array([row.criterion == minimise for _, _, row in lanes]),
        np.ascontiguousarray(np.array([row.unit[k][lattice.order] for k, _, row in lanes]).T),
        np.ascontiguousarray(np.array([row.net[k] for k, _, row in lanes])[:charged].T),
    )


def _read_back(
    pipe: IdealPipeline, lattice: Lattice, states: DeviceStates, table: LatticeTable, state: int
) -> tuple[Ints, tuple[int, ...]]:
    """Return the device of each unit, and the devices in use by stage.

    Reads the stages from the full ideal back to the empty one.
    """
    device = np.full(len(lattice.order), -1)
    ideal = lattice.size - 1
    first = np.concatenate([[0], np.cumsum(pipe.count)])
    used: list[int] = []
    while ideal > 0:
        row = table.row[ideal]
        before, kind = int(table.origin[row, state]), int(table.by[row, state])
        stage = lattice.between(before, ideal)
        device[lattice.order[stage]] = first[kind] + states.used[state, kind] - 1
        if len(stage):
            used.append(int(first[kind] + states.used[state, kind] - 1))
        ideal, state = before, state - int(states.stride[kind])
    return device, tuple(reversed(used))


#: Ideals that are listed without counting first; beyond, at most as many classes are counted.
LISTED_AT_ONCE = 300_000

#: Note on the plan if ideals are not listed.
FALLBACK = "the plan is the best of some topological orders"

#: Ideals per unit, and bytes of all ideals, up to which ideals are few.
FEW_IDEALS, FEW_BYTES = 8, 1 << 30

#: Share of the free memory that a lattice and its tables may take.
MEMORY_SHARE = 0.6

#: Relative distance within which two objectives count as equal: rounding of sums.
SAME = 1e-11

#: Relative distance within which the verifier must confirm a plan's value.
CLAIM_TOLERANCE = 1e-9

#: Share of a limit below which a plan is evaluated again, with its own load as the limit.
PRECISE = 1e-3

ORIGIN = "dp over ideals"


@dataclass
class LatticeWork:
    """Work done by the dynamic program, for notes and benchmarks."""

    reachable: int = 0
    pairs: int = 0
    projected_seconds: float = 0.0
    refuted: float = 0.0  # proved lower bound on the plans of the lattice

    def add(self, found: ChainFound) -> None:
        """Add the work of one run."""
        self.reachable = max(self.reachable, found.reachable)
        self.pairs += found.pairs
        self.projected_seconds = max(self.projected_seconds, found.projected_seconds)


@dataclass(frozen=True, eq=False)
class _LatticeRun:
    """A search on a lattice; if it contains every plan (`proves`), its minimum is a bound."""

    task: Task[Throughput]
    pipe: IdealPipeline
    lattice: Lattice
    search: Search[Solution]
    proves: bool = False
    work: LatticeWork = field(default_factory=LatticeWork)

    @cached_property
    def weight(self) -> float:
        """Sum of all times and transfers: the scale of rounding errors if no limit gives one."""
        rows = [row for row in self.pipe.rows if row.criterion != "memory"]
        return float(sum(row.unit[np.isfinite(row.unit)].sum() + 2 * row.net.sum() for row in rows))

    def find(
        self, minimise: Criterion, limits: dict[Criterion, float], floor: float = 0.0
    ) -> ChainFound:
        """Run the dynamic program and offer its plan."""
        found = least_maximum(self.pipe, self.lattice, minimise, limits, self.search, floor)
        self.work.add(found)
        if found.device_of_unit is not None:
            devices = [np.flatnonzero(self.task.costs.kind_of == kind) for kind in self.pipe.kinds]
            placement = np.concatenate(devices)[found.device_of_unit]
            order = tuple(np.concatenate(devices)[list(found.order)].tolist())
            self.search.offer(
                Placement(self.pipe.graph.expand(placement), order if self.pipe.relayed else ())
            )
            slack = CLAIM_TOLERANCE * max(found.value, min(limits[minimise], self.weight))
            summed = self.task.problem.pipeline == "pipedream" and not self.task.cluster.links
            if self.search.objective > (found.value + slack if summed else np.finfo(float).max):
                raise VerificationError(
                    f"dp: it claims max-load {found.value!r}, which the verifier does not "
                    "confirm: a defect of Stagecut; report it"
                )
        return found


def ideal_dp(task: Task[Throughput], search: Search[Solution]) -> None:
    """Find the optimum over contiguous splits; it is a bound if only these are asked for.

    Dynamic programs along single orders first give an incumbent, with which the lattice is cut. If
    the lattice is too large for the memory or the time left, a note says so, and the plan is that
    of these orders.
    """
    pipe = linearised(task, search)
    if pipe is None or search.should_stop():
        return
    with search.phase("list ideals"):
        lattice = all_ideals(pipe, search)
    if lattice is None:
        return
    run = _LatticeRun(task, pipe, lattice, search, proves=ideals_alone(task))
    with search.phase("dp"):
        least = _solve(run)
    if run.work.projected_seconds:
        seconds = f"{run.work.projected_seconds:.0f} s more, {search.seconds_left:.0f} s are left"
        search.note(f"dp: {lattice.size} ideals would take some {seconds}; {FALLBACK}")
    if least is None:
        if run.proves and run.work.refuted > 0:
            search.raise_bound(run.work.refuted, ORIGIN)
        return
    search.note(
        f"dp: {lattice.size} ideals, {run.work.reachable} in reach of a plan as good as the "
        f"first, {run.work.pairs} pairs visited"
    )
    if not run.proves:
        search.note("dp: it looks at contiguous splits only, so it proves no bound for others")
    elif math.isinf(least):
        search.prove_infeasible(
            f"no contiguous split fits: {memories(task)}; give more memory or more devices"
        )
    else:
        search.raise_bound(least, ORIGIN)


def linearised_dp(task: Task[Throughput], search: Search[Solution]) -> None:
    """Find the best contiguous splits of a few topological orders: fast, and often optimal."""
    linearised(task, search)


def pipedream(task: Task[Throughput], search: Search[Solution]) -> None:
    """Merge parallel branches into layers as PipeDream does, and split the remaining path."""
    ids = {str(node): node for node in task.workload.ids}
    skipped = [text for text in task.options.get("skip", "").split("+") if text]
    for text in skipped:
        if text not in ids:
            raise InputError(f"method pipedream: skip: {task.workload.name} has no node {text}")
    linearised(task, search, layer_units(task, [ids[text] for text in skipped]))
    if search.best is None and not search.should_stop():
        search.note("pipedream: no plan found on the path that merging leaves; others may exist")


def contracted_dp(
    task: Task[Throughput], search: Search[Solution], units: Ints, *, any_order: bool = False
) -> None:
    """Offer the best plan that keeps the given units together; prove no bound.

    If the units, shape (n,), have many ideals, only those along one order are used: by unit number,
    if that is topological or `any_order`, in which case plans need not be contiguous.
    """
    pipe = pipeline(task, units, any_order=any_order)
    numbered = (pipe.graph.edges[:, 0] < pipe.graph.edges[:, 1]).all()
    order = np.arange(pipe.graph.size) if numbered else pipe.orders[0]
    lattice = few_ideals(pipe, search) or chain(order)
    _solve(_LatticeRun(task, pipe, lattice, search), coarse=math.isinf(search.objective))


def few_ideals_dp(task: Task[Throughput], search: Search[Solution]) -> None:
    """Find the optimum over contiguous splits, as `ideal_dp`, if the units have few ideals."""
    if not ideals_alone(task):
        return
    pipe = pipeline(task)
    lattice = few_ideals(pipe, search)
    least = _solve(_LatticeRun(task, pipe, lattice, search)) if lattice is not None else None
    if least is not None and math.isfinite(least):
        search.raise_bound(least, ORIGIN)


def linearised(
    task: Task[Throughput], search: Search[Solution], units: Ints | None = None
) -> IdealPipeline | None:
    """Offer the best splits of some topological orders; None if infeasibility is proved."""
    with search.phase("build"):
        pipe = pipeline(task, units)
        reason = why_infeasible(task)  # proofs by colour hold for every split and explain better
        if reason is None and units is None and ideals_alone(task):
            reason = why_infeasible(task, pipe.graph)
    if reason is not None:
        search.prove_infeasible(reason)
        return None
    with search.phase("linearised dp"):
        for order in pipe.orders:
            if search.should_stop():
                break
            _solve(_LatticeRun(task, pipe, chain(order), search), coarse=order is pipe.orders[0])
    return pipe


def ideals_alone(task: Task[Throughput]) -> bool:
    """Whether every plan asked for is a chain of ideals."""
    problem, costs = task.problem, task.costs
    cores = bool(costs.count[costs.host].any())
    return problem.split == "contiguous" and (problem.cpu_split == "contiguous" or not cores)


def _solve(run: _LatticeRun, coarse: bool = False) -> float | None:
    """Offer the best plan of a lattice if it beats the incumbent; return the least objective.

    It is that of the lattice's plans, or the incumbent's if lower; `inf` if there is no plan; None
    if the search had to stop. If `coarse`, the incumbent may be far from the best plan.
    """
    if run.task.cluster.links:
        return _solve_linked(run)
    if run.task.problem.pipeline == "gpipe":
        return _solve_gpipe(run)
    search, work = run.search, run.work
    for target in _targets(run, coarse):
        found = run.find("load", {"load": target}, floor=target)
        if not found.complete:
            return None
        if found.device_of_unit is not None:
            break
        work.refuted = target
    else:
        return search.objective
    work.refuted = max(work.refuted, _share(run.pipe))
    limit = math.inf
    while search.objective < limit * PRECISE:  # loads are exact only relative to the limit
        limit = search.objective
        found = run.find("load", {"load": limit}, floor=work.refuted)
        if not found.complete:
            return None
    return min(found.value, search.objective)


def _solve_linked(run: _LatticeRun) -> float | None:
    """Offer the plans that are best if links between devices are ignored; return a lower bound.

    The dynamic program ignores links: what it minimises is never above the true objective, by which
    incumbents are judged.
    """
    if run.task.problem.pipeline == "gpipe":
        total = 0.0
        passes: tuple[Criterion, ...] = ("forward", "backward")
        for one in passes:
            found = run.find(one, {one: run.search.objective})
            if not found.complete:
                return None
            total += found.value  # `inf` if no plan is better than the incumbent
        return min(total, run.search.objective)
    for target in _targets(run, coarse=True):
        found = run.find("load", {"load": target}, floor=run.work.refuted)
        if not found.complete:
            return None
        if found.device_of_unit is not None:
            return found.value
        run.work.refuted = target
    return run.search.objective


def _solve_gpipe(run: _LatticeRun) -> float | None:
    """Minimise max forward + max backward, by minimising each in turn under a limit on the other.

    Suppose every plan better than the incumbent U has max forward ≥ f and max backward ≥ b. Then it
    has max forward < U − b. The least max backward under that limit is a better b (or there is no
    better plan); then likewise with the two exchanged. Each turn rules out the plan that it found.
    """
    search = run.search
    if math.isinf(search.objective):
        for target in _targets(run, coarse=True):
            found = run.find("load", {"load": target}, floor=target)
            if not found.complete:
                return None
            if found.device_of_unit is not None:
                break
        else:
            return math.inf
    least: dict[Criterion, float] = {"forward": 0.0, "backward": 0.0}
    one: Criterion = "backward"
    other: Criterion = "forward"
    while search.objective > sum(least.values()):
        limits = {
            one: search.objective - least[other],
            other: (search.objective - least[one]) * (1 - SAME),
        }
        found = run.find(one, limits, floor=least[one])
        if not found.complete:
            return None
        if found.device_of_unit is None:
            break
        least[one] = found.value
        run.work.refuted = min(sum(least.values()), search.objective)
        one, other = other, one
    return search.objective


def _targets(run: _LatticeRun, coarse: bool) -> list[float]:
    """Return max-loads to try as limits, one after the other, until a plan keeps one.

    The last one is the incumbent's. Low limits are refuted quickly, so they come first if there is
    no incumbent or it may be poor; those far above the optimum come last.
    """
    last = run.search.objective
    if math.isfinite(last) and not coarse:
        return [last]
    share = _share(run.pipe)
    steps = [share * (1 + 0.1 * 2**i) for i in range(8)]
    return [target for target in steps if 0 < target < last] + [last]


def _share(pipe: IdealPipeline) -> float:
    """Return an even share of all work over the devices, by the least time of each unit."""
    time = np.array([row.unit for row in pipe.rows if row.criterion == "load"])
    return float(time.min(axis=(0, 1)).sum() / pipe.count.sum())


def few_ideals(pipe: IdealPipeline, search: Search[Solution]) -> Lattice | None:
    """Return the lattice; None if it has many ideals per unit, or takes much memory."""
    units = pipe.graph.size
    most = min(FEW_IDEALS * units, FEW_BYTES // (units // 8 + 1))
    if any(_most_ready(order, pipe.graph.edges) > math.log2(most) for order in pipe.orders):
        return None
    lattice = list_ideals(pipe.orders[0], pipe.graph.edges, most, search)
    return lattice if lattice.complete else None


def _most_ready(order: Ints, edges: Ints) -> int:
    """Return the most units that are ready together along an order; any subset gives an ideal."""
    size = len(order)
    rank = np.empty(size, np.int64)
    rank[order] = np.arange(size)
    ready = np.zeros(size, np.int64)
    np.maximum.at(ready, rank[edges[:, 1]], rank[edges[:, 0]] + 1)
    opens, closes = np.bincount(ready, minlength=size), np.ones(size, np.int64)
    return int((np.cumsum(opens) - np.cumsum(closes)).max() + 1)


def all_ideals(pipe: IdealPipeline, search: Search[Solution]) -> Lattice | None:
    """List the ideals if memory and time allow; otherwise return None with a note on why not."""
    order, edges = pipe.orders[0], pipe.graph.edges
    began = search.seconds
    lattice = list_ideals(order, edges, LISTED_AT_ONCE, search)
    if lattice.complete or search.should_stop():
        return lattice if lattice.complete else None
    seconds = (search.seconds - began) / lattice.size
    # bytes of an ideal: its bits, its steps, and its rows of the tables
    states, steps = len(states_of(pipe.count).used), len(lattice.to) / lattice.size
    needed = 8 * lattice.members.shape[1] + 8 * steps + 60 + 16 * states
    most = int(MEMORY_SHARE * psutil.virtual_memory().available / needed)
    number, counted = count_ideals(len(order), edges, LISTED_AT_ONCE)
    least = "" if counted else "at least "
    if number <= most:
        if number * seconds > search.seconds_left:
            search.note(
                f"dp: listing {least}{number:.4g} ideals takes {number * seconds:.3g} s, and "
                f"{search.seconds_left:.3g} s are left; {FALLBACK}"
            )
            return None
        lattice = list_ideals(order, edges, most, search, number if counted else LISTED_AT_ONCE)
        if lattice.complete or search.should_stop():
            return lattice if lattice.complete else None
        number, least = lattice.size, "at least "
    search.note(
        f"dp: {least}{number:.4g} ideals take {least}{number * needed / 2**30:.3g} GiB, "
        f"more than is free; {FALLBACK}"
    )
    return None
