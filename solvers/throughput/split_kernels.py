"""Kernels that divide the units of two devices anew, by label setting along a frontier."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ...formulations.throughput.hypergraph import Incidence
from ...instances.common.arrays import Bools, Floats, Ints
from ...instances.common.kernel import inner, kernel

#: Most labels extended for one split, which take some 0.2 s.
MOST_WORK = 10_000_000

#: Buckets of A's load, each of which keeps one label per state.
BUCKETS = 1000

#: Weights t of A's load in the bounds on completions; B's load is weighted 1 − t.
TILTS = (0.5, 0.3, 0.7, 0.1, 0.9)


class DevicePair(NamedTuple):
    """Two devices A and B, with the costs of units, (U,), and nets, (E,), on each."""

    a: int
    b: int
    compute_a: Floats
    compute_b: Floats
    weight_a: Floats
    weight_b: Floats
    memory: Floats
    room_a: float
    room_b: float


class PairLayers(NamedTuple):
    """Frontier of the free units: states, and the costs of steps, as `build` returns them."""

    ptr: Ints
    step: Ints
    cost_a: Floats
    cost_b: Floats


class Fixed(NamedTuple):
    """Loads and bytes of two devices without their free units, and counts of pins by net, (E,)."""

    load_a: float
    load_b: float
    memory_a: float
    memory_b: float
    least_compute: float  # sum over the free units of the lesser compute time
    pins_left: Ints  # number of free pins
    fixed: Ints  # bit 1: has a fixed pin on A; bit 2: on B
    outside: Bools  # has a pin on another device


class SplitQuery(NamedTuple):
    """Question to the label setting for one pair: a split with both loads below a limit."""

    pair: DevicePair
    layers: PairLayers
    bounds: Floats  # as `completion_bounds` returns it
    most: float  # both loads must stay below it
    least_sum: bool  # whether the sum of the loads is minimised, else their maximum


class Grid(NamedTuple):
    """Labels of one layer by state and bucket of A's load: (S, buckets + 1), and by state: (S,)."""

    load_a: Floats
    load_b: Floats  # `inf`: no label
    memory_a: Floats
    origin: Ints  # 2·(previous label) + (1 if the unit is on A)
    low: Ints  # buckets in use of each state
    high: Ints


def held_by(
    where: Ints, free: Bools, pair: DevicePair, order: Ints, shape: Incidence
) -> tuple[Ints, Fixed]:
    """Return the free units of two devices, in order, and the loads without them.

    `where` and `free`, shape (U,), are the device of each unit, and whether it may move; those that
    may are on the two devices.
    """
    on_a, on_b = (where == pair.a) & ~free, (where == pair.b) & ~free
    left = np.add.reduceat(free[shape.net_pins], shape.net_ptr[:-1], dtype=np.int64)
    in_a, in_b, outside = (
        np.logical_or.reduceat(some[shape.net_pins], shape.net_ptr[:-1])
        for some in (on_a, on_b, ~(on_a | on_b | free))
    )
    cut_a, cut_b = in_a & (outside | in_b), in_b & (outside | in_a)
    return order[free[order]], Fixed(
        load_a=float(pair.compute_a[on_a].sum() + pair.weight_a[cut_a].sum()),
        load_b=float(pair.compute_b[on_b].sum() + pair.weight_b[cut_b].sum()),
        memory_a=float(pair.memory[on_a].sum()),
        memory_b=float(pair.memory[on_b].sum()),
        least_compute=float(np.minimum(pair.compute_a, pair.compute_b)[free].sum()),
        pins_left=left,
        fixed=in_a + 2 * in_b,
        outside=outside,
    )


def completion_bounds(units: Ints, pair: DevicePair, layers: PairLayers) -> Floats:
    """Return lower bounds on t·(load of A) + (1 − t)·(load of B) from each state to the end.

    Shape (len(TILTS), S + 1), one row for each weight t.
    """
    bounds = np.zeros((len(TILTS), layers.ptr[len(units)] + 1))
    _completion_bounds(units, pair, layers, bounds)
    return bounds


@kernel
def _completion_bounds(units, pair, layers, bounds):
    """Write the bounds of `completion_bounds`."""
    ptr, step, cost_a, cost_b = layers
    compute_a, compute_b = pair.compute_a, pair.compute_b
    for i in range(len(units) - 1, -1, -1):
        v = units[i]
        for x in range(ptr[i], ptr[i + 1]):
            for r in range(len(TILTS)):
                t = TILTS[r]
                to_a, to_b = np.inf, np.inf
                if step[x, 1] >= 0:
                    to_a = t * (compute_a[v] + cost_a[x, 1]) + (1 - t) * cost_b[x, 1]
                    to_a += bounds[r, step[x, 1]]
                if step[x, 0] >= 0:
                    to_b = t * cost_a[x, 0] + (1 - t) * (compute_b[v] + cost_b[x, 0])
                    to_b += bounds[r, step[x, 0]]
                bounds[r, x] = min(to_a, to_b)


def split_pair(where: Ints, units: Ints, held: Fixed, query: SplitQuery) -> int:
    """Divide the free units of two devices anew, at the least objective found by label setting.

    Write `where` and return 1; or return 0 if there is no split, −1 if the labels exceed
    `MOST_WORK`.

    Labels are the loads of feasible partial splits; of two in the same bucket of A's load, the one
    with less load on B is kept. A label is dropped if no completion has both loads below
    `query.most`.
    """
    widest = int(np.diff(query.layers.ptr).max())
    shape = widest, BUCKETS + 1
    grid = Grid(
        np.empty(shape), np.full(shape, np.inf), np.empty(shape), np.empty(shape, np.int64),
        np.full(widest, BUCKETS + 1), np.full(widest, -1),
    )  # fmt: skip
    first = np.zeros((2, widest + 1), np.int64)
    first[0, 1] = 1
    ends = np.zeros(len(units) + 2, np.int64)
    ends[1] = 1
    start = np.array([held.load_a]), np.array([held.load_b]), np.array([held.memory_a])
    memory = held.memory_a + held.memory_b
    code: int = _split(where, units, query, start, memory, (grid, first, ends))
    return code


@kernel
def _split(where, units, query, labels, memory, scratch):
    """Split as `split_pair` says, from the first label; `memory` is that of the fixed units.

    `scratch` is allocated by the caller, as each new type of array takes 0.1 s to compile.
    """
    ptr = query.layers.ptr
    grid, firsts, ends = scratch
    first, next_first = firsts[0], firsts[1]
    origin = np.empty(1 << 12, np.int64)
    size = len(units)
    work = 0
    for i in range(size):
        memory += query.pair.memory[units[i]]
        work += first[ptr[i + 1] - ptr[i]]
        if work > MOST_WORK:
            return -1
        _spread((i, units[i]), query, first, labels, grid, memory)
        wide = ptr[i + 2] - ptr[i + 1]
        room = 0
        for y in range(wide):
            room += max(0, grid.high[y] - grid.low[y] + 1)
        if ends[i + 1] + room > len(origin):
            grown = np.empty(2 * (ends[i + 1] + room), np.int64)
            for x in range(ends[i + 1]):  # a slice would compile many times as long
                grown[x] = origin[x]
            origin = grown
        labels = (np.empty(room), np.empty(room), np.empty(room))
        kept = _collect(wide, grid, labels, next_first, origin, ends[i + 1])
        first, next_first = next_first, first
        ends[i + 2] = ends[i + 1] + kept
        if kept == 0:
            return 0
    best, at = np.inf, -1
    for k in range(ends[size + 1] - ends[size]):
        a, b = labels[0][k], labels[1][k]
        score = a + b if query.least_sum else max(a, b)
        if score < best:
            best, at = score, k
    for i in range(size, 0, -1):
        came = origin[ends[i] + at]
        where[units[i - 1]] = query.pair.a if came & 1 else query.pair.b
        at = came >> 1
    return 1


@inner
def _spread(place, query, first, labels, grid, total_held):
    """Extend the labels of a layer by its unit into the grid; `total_held` is for A and B."""
    i, v = place
    pair, layers, bounds, most, _ = query
    _a, _b, compute_a, compute_b, _weight_a, _weight_b, memory, room_a, room_b = pair
    ptr, step, cost_a, cost_b = layers
    load_a, load_b, held = labels
    grid_a, grid_b, grid_held, grid_from, low, high = grid
    begin, after = ptr[i], ptr[i + 1]
    scale = (grid_a.shape[1] - 1) / most
    for x in range(begin, after):
        for k in range(first[x - begin], first[x - begin + 1]):
            for choice in range(2):
                now_a = load_a[k] + cost_a[x, choice]
                now_b = load_b[k] + cost_b[x, choice]
                now_held = held[k]
                if choice == 1:
                    now_a += compute_a[v]
                    now_held += memory[v]
                else:
                    now_b += compute_b[v]
                if not (now_a < most and now_b < most):
                    continue
                if now_held > room_a or total_held - now_held > room_b:
                    continue
                y = step[x, choice]
                hopeless = y < 0
                for r in range(0 if hopeless else len(TILTS)):
                    if TILTS[r] * now_a + (1 - TILTS[r]) * now_b + bounds[r, y] >= most:
                        hopeless = True
                        break
                if hopeless:
                    continue
                y -= after
                at = int(now_a * scale)
                if now_b < grid_b[y, at]:
                    grid_a[y, at] = now_a
                    grid_b[y, at] = now_b
                    grid_held[y, at] = now_held
                    grid_from[y, at] = 2 * k + choice
                    low[y] = min(low[y], at)
                    high[y] = max(high[y], at)


@inner
def _collect(wide, grid, labels, first, origin, end):
    """Move the undominated labels of a layer out of the grid, and return their number.

    Labels of state y are first[y] … first[y + 1] − 1.
    """
    grid_a, grid_b, grid_held, grid_from, low, high = grid
    load_a, load_b, held = labels
    buckets = grid_a.shape[1] - 1
    kept = 0
    for y in range(wide):
        first[y] = kept
        best = np.inf
        for at in range(low[y], high[y] + 1):
            if grid_b[y, at] < best:
                best = grid_b[y, at]
                load_a[kept] = grid_a[y, at]
                load_b[kept] = best
                held[kept] = grid_held[y, at]
                origin[end + kept] = grid_from[y, at]
                kept += 1
            grid_b[y, at] = np.inf
        low[y], high[y] = buckets + 1, -1
    first[wide] = kept
    return kept
