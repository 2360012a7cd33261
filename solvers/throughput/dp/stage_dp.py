"""The dynamic program over a given lattice of ideals: tables in, best chain of stages out."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ....formulations.throughput.ideals import Criterion, IdealPipeline, Row
from ....instances.common.arrays import Bools, Floats, Ints
from ...core.lattice import Lattice, incidence_of
from ...core.search import Clock
from . import kernel
from .kernel import LatticeLanes, LatticeNets, LatticeSteps, LatticeTable, OpenStates, StateCapacity

#: Pairs of ideals between two looks at the clock: about a tenth of a second.
SLICE = 2_000_000

#: Ideals between two looks at the clock while their reach is found.
BLOCK = 500_000

#: Share by which the reach of devices is widened, so that rounding cuts nothing.
SLACK = 1e-9

#: Seconds of work on one number of devices after which the time still needed is projected.
TRIAL_SECONDS = 1.0


@dataclass(frozen=True, eq=False)
class ChainFound:
    """What the dynamic program returns."""

    # whether it came to its end. If so, and without plan, nothing keeps to the limits.
    complete: bool
    value: float = np.inf  # least maximum of the criterion that was minimised; `inf` without plan
    # (U,): for each unit of the pipeline the device, numbered kind by kind in the order of
    # `IdealPipeline.kinds`; None without plan
    device_of_unit: Ints | None = None
    order: tuple[int, ...] = ()  # those devices stage by stage
    pairs: int = 0  # pairs of ideals visited
    reachable: int = 0  # ideals that a plan within the limits may pass
    # if it gave up because the deadline is out of reach: what it would have taken; else 0
    projected_seconds: float = 0.0


@dataclass(frozen=True, eq=False)
class DeviceStates:
    """How many devices of each kind are used, s = (s_1, …, s_K), as one number Σ stride · s."""

    stride: NDArray[np.int64]  # (K,)
    used: NDArray[np.int64]  # used, left: (S, K)
    left: NDArray[np.int64]


def states_of(count: Ints) -> DeviceStates:
    """Return all states of a cluster with `count` devices of each kind."""
    stride = np.concatenate([[1], np.cumprod(count + 1)[:-1]])
    used = np.arange(int(np.prod(count + 1)))[:, None] // stride % (count + 1)
    return DeviceStates(stride, used, count - used)


def bytes_needed(ideals: int, lattice: Lattice, states: int) -> int:
    """Return the memory for as many `ideals` as given, with steps as in `lattice`."""
    steps = len(lattice.to) / lattice.size
    return int(ideals * (8 * lattice.members.shape[1] + 8 * steps + 60 + 16 * states))


def least_maximum(
    pipe: IdealPipeline,
    lattice: Lattice,
    minimise: Criterion,
    limits: Mapping[Criterion, float],
    search: Clock,
    floor: float = 0.0,
) -> ChainFound:
    """Find the chain of stages with the least maximum of one criterion, below its limit.

    Every stage keeps the limits of the other criteria, and the memory. Maxima up to `floor` count
    as equal. Devices are put to use one by one: when plans with j devices are extended, all of them
    are known. Memory is linear in ideals × states; time in the pairs of ideals, the smaller one
    worth extending, whose difference keeps to the limits.
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
    steps = _steps(lattice)
    lanes = _lanes(rows, lattice, upper_bounds, minimise)
    nets = LatticeNets(*incidence_of(pipe.graph.pins, lattice.order))
    split = np.zeros((lattice.size if pipe.relayed else 0, lanes.net_weight.shape[1]))
    if pipe.relayed:
        kernel.splits(steps, nets, lanes.net_weight, split)
        lanes = lanes._replace(net_weight=lanes.net_weight[:0])
        nets = LatticeNets(*incidence_of((), lattice.order))
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
            if not timed:  # what is interpreted or compiled tells nothing about the rest
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


def _table(alive: Bools, reachable: Bools, limit: float) -> LatticeTable:
    """Return what is known at the beginning: the empty ideal."""
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


def _steps(lattice: Lattice) -> LatticeSteps:
    return LatticeSteps(lattice.members, lattice.start, lattice.unit, lattice.to)


def _left(table: LatticeTable, now: Ints, ideal: int, devices: int) -> float:
    """Return how many times the work up to an ideal is left, for this device and so many more."""
    extended = np.logical_or.reduce(table.keep[:, now], axis=1)
    done = extended[: table.row[:ideal].max(initial=-1) + 1].sum()
    return float((extended.sum() - done + devices * extended.sum()) / max(done, 1))


def _windows(
    rows: list[Row], lattice: Lattice, upper_bounds: Floats, states: DeviceStates, search: Clock
) -> Bools | None:
    """Return for each ideal and state whether the devices used, and those left, can do the work.

    Work is measured in each row and by each kind's times in turn; a device of another kind takes
    as much of it as a fractional knapsack allows. Every device of a plan keeps to the bounds, so
    an ideal that s devices hold has no more work than they can take together. None if the search
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
                takes.append([knapsack(weight, size, room) for size, room in pairs])
    weight = np.array(weights).reshape(len(weights), len(lattice.order))
    take = np.array(takes).reshape(len(takes), len(states.stride))
    total = weight.sum(axis=1)
    capacity = StateCapacity(
        weight,
        total,
        used=take @ states.used.T + SLACK * total[:, None],
        left=take @ states.left.T + SLACK * total[:, None],
    )
    inside = np.zeros((lattice.size, len(weight)))
    alive = np.ones((lattice.size, len(states.used)), np.bool_)
    steps = _steps(lattice)
    for first in range(0, lattice.size, BLOCK):
        if search.should_stop():
            return None
        kernel.windows(first, min(first + BLOCK, lattice.size), steps, capacity, inside, alive)
    return alive


def knapsack(weight: Floats, size: Floats, room: float) -> float:
    """Return the most weight that fits into `room` (and a little more) if the last item is cut."""
    return float(knapsack_shares(weight, size, room) @ weight)


def knapsack_shares(weight: Floats, size: Floats, room: float) -> Floats:
    """Return how much of each item a knapsack takes if the last one is cut."""
    room *= 1 + SLACK  # else rounding of large sizes cuts small ones off
    share = np.zeros(len(weight))
    share[(size == 0) & (weight > 0)] = 1.0
    some = np.flatnonzero((weight > 0) & (size > 0) & (size <= room) & np.isfinite(size))
    some = some[np.argsort(-weight[some] / size[some], kind="stable")]
    share[some] = np.clip((room - (np.cumsum(size[some]) - size[some])) / size[some], 0.0, 1.0)
    return share


def _lanes(
    rows: list[Row], lattice: Lattice, upper_bounds: Floats, minimise: Criterion
) -> LatticeLanes:
    """Return the rows by kind, without those that cannot bind."""
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

    Follows the stages from the full ideal back to the empty one.
    """
    device = np.full(len(lattice.order), -1)
    ideal = lattice.size - 1
    first = np.concatenate([[0], np.cumsum(pipe.count)])
    used: list[int] = []
    while ideal > 0:
        row = table.row[ideal]
        before, kind = int(table.origin[row, state]), int(table.by[row, state])
        stage = np.setdiff1d(lattice.units(ideal), lattice.units(before), assume_unique=True)
        device[lattice.order[stage]] = first[kind] + states.used[state, kind] - 1
        if len(stage):
            used.append(int(first[kind] + states.used[state, kind] - 1))
        ideal, state = before, state - int(states.stride[kind])
    return device, tuple(reversed(used))
