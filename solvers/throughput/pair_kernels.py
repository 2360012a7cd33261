"""The best split of two devices, by labels along the states of a frontier."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ...instances.common.arrays import Bools, Floats, Ints
from ...instances.common.kernel import inner, kernel
from .column_generation.frontier import Incidence

#: Most labels of one split: some 0.2 s.
MOST_WORK = 10_000_000

#: Labels of one state, by load of A.
BUCKETS = 1000

#: Shares of A's load in what is minimised over completions, the rest being B's.
TILTS = (0.5, 0.3, 0.7, 0.1, 0.9)


class Pair(NamedTuple):
    """Two devices A and B, and what units and nets cost them; shapes (U,) and (E,)."""

    a: int
    b: int
    compute_a: Floats
    compute_b: Floats
    weight_a: Floats
    weight_b: Floats
    memory: Floats
    room_a: float
    room_b: float


class Layers(NamedTuple):
    """The states between the units of an order, and the costs of steps, as `build` returns them."""

    ptr: Ints
    step: Ints
    cost_a: Floats
    cost_b: Floats


class Held(NamedTuple):
    """What two devices keep, and what of the nets is left; shapes (E,)."""

    load_a: float
    load_b: float
    memory_a: float
    memory_b: float
    least_compute: float  # of the free units
    pins_left: Ints
    fixed: Ints
    outside: Bools


def loads(
    where: Ints,
    compute: Floats,
    weight: Floats,
    memory: Floats,
    shape: Incidence,
    kind_of: Ints,
) -> tuple[Floats, Floats]:
    """Return the load and the used memory of each device; shape (D,) each.

    Parameters
    ----------
    where
        Shape (U,): device of each unit.
    compute, weight
        Shapes (K, U) and (K, E).
    """
    devices, nets = len(kind_of), len(shape.net_ptr) - 1
    on = np.zeros((nets, devices), np.bool_)
    on[_net_of_pins(shape), where[shape.net_pins]] = True
    on[on.sum(axis=1) < 2] = False
    here = compute[kind_of[where], np.arange(len(where))]
    load, used = np.zeros((2, devices))
    np.add.at(load, where, here)
    np.add.at(used, where, memory)
    return load + np.where(on.T, weight[kind_of], 0.0).sum(axis=1), used


def held_by(
    where: Ints, free: Bools, pair: Pair, order: Ints, shape: Incidence
) -> tuple[Ints, Held]:
    """Return the free units of two devices, in order, and what the devices hold without them.

    `where` and `free`, shape (U,): device of each unit, and whether it may move.
    """
    on_a, on_b = (where == pair.a) & ~free, (where == pair.b) & ~free
    moving = free & ((where == pair.a) | (where == pair.b))
    units = order[moving[order]]
    net_of = _net_of_pins(shape)

    def pins(of: Bools) -> Ints:
        return np.bincount(net_of[of[shape.net_pins]], minlength=len(shape.net_ptr) - 1)

    has_a, has_b = pins(on_a) > 0, pins(on_b) > 0
    outside = pins(~(on_a | on_b | moving)) > 0
    held = Held(
        load_a=float(pair.compute_a[on_a].sum() + pair.weight_a[has_a & (has_b | outside)].sum()),
        load_b=float(pair.compute_b[on_b].sum() + pair.weight_b[has_b & (has_a | outside)].sum()),
        memory_a=float(pair.memory[on_a].sum()),
        memory_b=float(pair.memory[on_b].sum()),
        least_compute=float(np.minimum(pair.compute_a, pair.compute_b)[units].sum()),
        pins_left=pins(moving),
        fixed=has_a + 2 * has_b,
        outside=outside,
    )
    return units, held


def _net_of_pins(shape: Incidence) -> Ints:
    """Return the net of each pin."""
    return np.repeat(np.arange(len(shape.net_ptr) - 1), np.diff(shape.net_ptr))


def least_to_go(units: Ints, pair: Pair, layers: Layers) -> Floats:
    """Return the least t·(load of A) + (1 − t)·(load of B) that completes each state, per tilt t.

    Shape (len(TILTS), S + 1).
    """
    ptr, step = layers.ptr, layers.step
    togo = np.zeros((len(TILTS), ptr[len(units)] + 1))
    tilt = np.array(TILTS)[:, None]
    for i in range(len(units) - 1, -1, -1):
        here = slice(ptr[i], ptr[i + 1])
        cost_a, cost_b, after = layers.cost_a[here].T, layers.cost_b[here].T, step[here].T
        on_a, on_b = pair.compute_a[units[i]], pair.compute_b[units[i]]
        to_a = tilt * (on_a + cost_a[1]) + (1 - tilt) * cost_b[1] + togo[:, after[1]]
        to_b = tilt * cost_a[0] + (1 - tilt) * (on_b + cost_b[0]) + togo[:, after[0]]
        to_a[:, after[1] < 0], to_b[:, after[0] < 0] = np.inf, np.inf
        togo[:, here] = np.minimum(to_a, to_b)
    return togo


def split_pair(
    where: Ints,
    units: Ints,
    pair: Pair,
    layers: Layers,
    togo: Floats,
    held: Held,
    most: float,
    *,
    least_sum: bool,
) -> int:
    """Split the free units of two devices anew, as well as the labels allow.

    Labels are true; of two that fall into one bucket of A's load, the one that leaves less load
    to B stays. A label is dropped if it cannot lead to loads within `most` each.

    Parameters
    ----------
    where
        Shape (U,): device of each unit; written on success.
    units, togo
        The free units, in order, and what `least_to_go` returns.
    most
        Both loads must stay below this.
    least_sum
        True to minimise the sum of the loads, False their maximum.

    Returns
    -------
    int
        1 if a split within `most` was found, 0 if none was, −1 if that is too much work.
    """
    widest = int(np.diff(layers.ptr).max())
    shape = widest, BUCKETS + 1
    grid = (
        np.empty(shape), np.full(shape, np.inf), np.empty(shape), np.empty(shape, np.int64),
        np.full(widest, BUCKETS + 1), np.full(widest, -1),
    )  # fmt: skip
    first = np.zeros((2, widest + 1), np.int64)
    first[0, 1] = 1
    ends = np.zeros(len(units) + 2, np.int64)
    ends[1] = 1
    start = np.array([held.load_a]), np.array([held.load_b]), np.array([held.memory_a])
    fixed = held.memory_a + held.memory_b
    code: int = _split(
        where, units, pair, layers, togo, start, fixed, most, least_sum, (grid, first, ends)
    )
    return code


@kernel
def _split(where, units, pair, layers, togo, labels, total_held, most, least_sum, scratch):
    """Split as `split_pair` says; `labels` has the first one, `total_held` what is not free.

    `scratch` is allocated outside, as each form of an array takes a tenth of a second to compile.
    """
    ptr, memory = layers.ptr, pair.memory
    grid, firsts, ends = scratch
    first, next_first = firsts[0], firsts[1]
    origin = np.empty(1 << 12, np.int64)
    size = len(units)
    work = 0
    for i in range(size):
        total_held += memory[units[i]]
        work += first[ptr[i + 1] - ptr[i]]
        if work > MOST_WORK:
            return -1
        _spread(i, units[i], pair, layers, togo, first, labels, grid, total_held, most)
        wide = ptr[i + 2] - ptr[i + 1]
        room = 0
        for y in range(wide):
            room += max(0, grid[5][y] - grid[4][y] + 1)
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
        score = a + b if least_sum else max(a, b)
        if score < best:
            best, at = score, k
    for i in range(size, 0, -1):
        came = origin[ends[i] + at]
        where[units[i - 1]] = pair.a if came & 1 else pair.b
        at = came >> 1
    return 1


@inner
def _spread(i, v, pair, layers, togo, first, labels, grid, total_held, most):
    """Extend the labels of layer i by unit v, into the grid: loads, memory, origin by bucket."""
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
                    if TILTS[r] * now_a + (1 - TILTS[r]) * now_b + togo[r, y] >= most:
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
    """Take the labels of a layer out of the grid, those of more load on A and no less on B not.

    Returns their number; those of state y are first[y] … first[y + 1] − 1.
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
