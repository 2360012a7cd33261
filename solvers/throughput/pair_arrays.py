"""Loads of devices, and what a split of two of them begins with: whole arrays, nothing compiled."""

from __future__ import annotations

import numpy as np

from ...instances.common.arrays import Bools, Floats, Ints
from .column_generation.frontier import Incidence
from .pair_kernels import TILTS, Held, Layers, Pair


def loads(
    where: Ints, compute: Floats, weight: Floats, memory: Floats, shape: Incidence, kind_of: Ints
) -> tuple[Floats, Floats]:
    """Return the load and the used memory of each device; shape (D,) each.

    Parameters
    ----------
    where
        Shape (U,): device of each unit.
    compute, weight
        Shapes (K, U) and (K, E), by kind of device.
    memory
        Shape (U,).
    kind_of
        Shape (D,).
    """
    devices, nets = len(kind_of), len(shape.net_ptr) - 1
    load, used = np.zeros(devices), np.zeros(devices)
    np.add.at(load, where, compute[kind_of[where], np.arange(len(where))])
    np.add.at(used, where, memory)
    inside = np.zeros((nets, devices), np.bool_)
    inside[np.repeat(np.arange(nets), np.diff(shape.net_ptr)), where[shape.net_pins]] = True
    e, d = np.nonzero(inside & (inside.sum(axis=1) > 1)[:, None])
    np.add.at(load, d, weight[kind_of[d], e])
    return load, used


def held_by(
    where: Ints, free: Bools, pair: Pair, order: Ints, shape: Incidence
) -> tuple[Ints, Held]:
    """Return the free units of two devices, in order, and what the devices hold without them.

    `where` and `free`, shape (U,): device of each unit, and whether it may move.
    """
    on_a, on_b = where == pair.a, where == pair.b
    moving = free & (on_a | on_b)
    kept_a, kept_b = on_a & ~free, on_b & ~free
    units = order[moving[order]]
    outside = _pins_of(shape, ~(on_a | on_b)) > 0
    fixed_a, fixed_b = _pins_of(shape, kept_a) > 0, _pins_of(shape, kept_b) > 0
    cut_a, cut_b = fixed_a & (outside | fixed_b), fixed_b & (outside | fixed_a)
    return units, Held(
        load_a=float(pair.compute_a[kept_a].sum() + pair.weight_a[cut_a].sum()),
        load_b=float(pair.compute_b[kept_b].sum() + pair.weight_b[cut_b].sum()),
        memory_a=float(pair.memory[kept_a].sum()),
        memory_b=float(pair.memory[kept_b].sum()),
        least_compute=float(np.minimum(pair.compute_a, pair.compute_b)[units].sum()),
        pins_left=_pins_of(shape, moving),
        fixed=fixed_a + 2 * fixed_b,
        outside=outside,
    )


def _pins_of(shape: Incidence, members: Bools) -> Ints:
    """Return how many pins of each net are members; shape (E,)."""
    nets = np.repeat(np.arange(len(shape.net_ptr) - 1), np.diff(shape.net_ptr))
    return np.bincount(nets[members[shape.net_pins]], minlength=len(shape.net_ptr) - 1)


def least_to_go(units: Ints, pair: Pair, layers: Layers) -> Floats:
    """Return the least t·(load of A) + (1 − t)·(load of B) that completes each state, per tilt t.

    Shape (len(TILTS), S).
    """
    ptr, step, cost_a, cost_b = layers
    unit = np.repeat(units, np.diff(ptr[: len(units) + 1]))
    t = np.array(TILTS)[:, None]
    to_b = t * cost_a[:, 0] + (1 - t) * (pair.compute_b[unit] + cost_b[:, 0])
    to_a = t * (pair.compute_a[unit] + cost_a[:, 1]) + (1 - t) * cost_b[:, 1]
    to_b[:, step[:, 0] < 0] = to_a[:, step[:, 1] < 0] = np.inf
    togo = np.zeros((len(TILTS), ptr[-1]))
    for i in range(len(units) - 1, -1, -1):
        x = slice(ptr[i], ptr[i + 1])
        togo[:, x] = np.minimum(to_b[:, x] + togo[:, step[x, 0]], to_a[:, x] + togo[:, step[x, 1]])
    return togo
