"""The dynamic program over a given lattice of ideals: tables in, best chain of stages out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..formulations.ideals import Criterion, Pipeline, Row
from ..instances.arrays import Floats, Ints
from . import dp_kernel
from .lattice import Lattice
from .search import Search

#: Pairs of ideals between two looks at the clock: about a tenth of a second.
SLICE = 2_000_000

#: Share by which the reach of devices is widened, so that rounding cuts nothing.
SLACK = 1e-9


@dataclass(frozen=True, eq=False)
class Found:
    """What the dynamic program returns.

    Parameters
    ----------
    complete
        Whether it came to its end. If so, and without plan, nothing is below the limits.
    value
        Least maximum of the criterion that was minimised; `inf` without plan.
    device_of_unit
        Shape (U,): device of each unit of the pipeline; None without plan.
    pairs
        Pairs of ideals visited.
    reachable
        Ideals that a plan within the limits may pass.
    """

    complete: bool
    value: float
    device_of_unit: Ints | None
    pairs: int
    reachable: int


@dataclass(frozen=True, eq=False)
class _States:
    """How many devices of each kind are used, as one number: Σ stride · used."""

    stride: NDArray[np.int64]
    used: NDArray[np.int64]  # (S, K)
    left: NDArray[np.int64]  # (S, K)


def _states(count: Ints) -> _States:
    stride = np.concatenate([[1], np.cumprod(count + 1)[:-1]])
    numbers = np.arange(int(np.prod(count + 1)))
    used = numbers[:, None] // stride % (count + 1)
    return _States(stride, used, count - used)


def least_maximum(
    pipe: Pipeline,
    lattice: Lattice,
    order: Ints,
    minimise: Criterion,
    limits: Mapping[Criterion, float],
    search: Search[object],
    floor: float = 0.0,
) -> Found:
    """Find the chain of stages with the least maximum of one criterion.

    Parameters
    ----------
    pipe
        The statement.
    lattice
        Ideals of the units numbered by `order`.
    order
        Shape (U,): units in topological order; position r of it is unit r of the lattice.
    minimise
        The criterion to minimise.
    limits
        For each criterion but the memory: what every stage must keep to; strictly so in the
        maximum of the criterion that is minimised.
    search
        Asked when to stop.
    floor
        Maxima up to this count as equal: any plan that keeps to it is as good as another.

    Notes
    -----
    Memory: linear in ideals × states. Time: pairs of ideals whose difference keeps to the limits.
    """
    limit = [limits.get(row.criterion, np.inf) for row in pipe.rows]
    caps = np.minimum([row.limit for row in pipe.rows], np.array(limit)[:, None])  # (R, K)
    states = _states(pipe.count)
    alive = _windows(pipe, lattice, order, caps, states)
    reachable = alive.any(axis=1)
    row = np.where(reachable, np.cumsum(reachable) - 1, -1)
    value = np.where(alive[reachable], limits[minimise], -1.0)
    origin = np.full(value.shape, -1, np.int32)
    by = np.zeros(value.shape, np.int8)
    if not (reachable[0] and reachable[-1]):
        return Found(True, np.inf, None, 0, len(value))
    value[0, 0], origin[0, 0] = 0.0, 0
    keep = np.zeros(value.shape, np.bool_)
    steps = (lattice.start, lattice.unit, lattice.to)
    table = (row, value, origin, by, keep)
    lanes, incidence = _lanes(pipe, order, caps, minimise), _incidence(pipe, order)
    yields = _yields(pipe, lattice, order)
    pairs = 0
    for total in range(int(pipe.count.sum())):
        now = np.flatnonzero(states.used.sum(axis=1) == total)
        for state in now.tolist():
            used = states.used[state]
            dp_kernel.undominated(
                *steps, *table, state, states.stride, used, yields, limits[minimise], floor
            )
        ideal = 0
        while ideal < lattice.size - 1:
            if search.should_stop():
                return Found(False, np.inf, None, pairs, len(value))
            ideal, more = dp_kernel.relax(
                ideal, SLICE, lattice.members, *steps, *table,
                now, states.stride, states.left > 0, *lanes, *incidence,
            )  # fmt: skip
            pairs += more
    last = np.where(origin[-1] >= 0, value[-1], np.inf)
    best = int(last.argmin())
    if np.isinf(last[best]):
        return Found(True, np.inf, None, pairs, len(value))
    device = _read_back(pipe, lattice, order, states, row, origin, by, best)
    return Found(True, float(last[best]), device, pairs, len(value))


def _windows(
    pipe: Pipeline, lattice: Lattice, order: Ints, caps: Floats, states: _States
) -> NDArray[np.bool_]:
    """Return for each ideal and state whether the devices used, and those left, can do the work.

    Work is measured in each row and by each kind's times in turn; a device of another kind takes
    as much of it as a fractional knapsack allows. Every device of a plan keeps to the caps, so
    an ideal that s devices are to hold has no more work than they can take together.
    """
    weights, takes = [], []
    for row, cap in zip(pipe.rows, caps, strict=True):
        cheapest = row.unit.min(axis=0)
        for times in row.unit:
            weight = np.where(np.isinf(times), cheapest, times)
            if np.isfinite(weight).all() and weight.any():
                weights.append(weight[order])
                pairs = zip(row.unit, cap, strict=True)
                takes.append([_knapsack(weight, size, room) for size, room in pairs])
    take = np.array(takes).reshape(len(takes), len(pipe.kinds))
    weight = np.array(weights).reshape(len(weights), len(order))
    slack = SLACK * weight.sum(axis=1, keepdims=True)
    used = take @ states.used.T + slack
    left = take @ states.left.T + slack
    return dp_kernel.windows(  # type: ignore[no-any-return]
        lattice.start, lattice.unit, lattice.to, weight, used, left
    )


def _yields(pipe: Pipeline, lattice: Lattice, order: Ints) -> NDArray[np.bool_]:
    """Return which units may leave the stage that begins with them without adding to any load.

    Let the unit u be ready at the ideal I, and a stage S beyond I hold it. Without u the stage
    saves a_u and newly pays at most for the nets that lie in S and contain u; these have no pin
    in I, and so none that must come before u.
    """
    rank = np.argsort(order)
    graph = pipe.graph
    before = _ancestors(rank[graph.edges], graph.size)
    opened = np.zeros((len(pipe.rows), len(pipe.kinds), graph.size))
    for e, net in enumerate(graph.pins):
        pins = rank[list(net)].tolist()
        mask = sum(1 << u for u in pins)
        for u in pins:
            if not before[u] & mask:
                opened[:, :, u] += [row.net[:, e] for row in pipe.rows]
    time = np.array([row.unit[:, order] for row in pipe.rows])
    return (time >= opened).all(axis=(0, 1))  # type: ignore[no-any-return]


def _ancestors(edges: Ints, size: int) -> list[int]:
    """Return the ancestors of each unit, as bits; units are numbered in a topological order."""
    before = [0] * size
    for u, v in sorted(edges.tolist(), key=lambda edge: edge[1]):
        before[v] |= before[u] | 1 << u
    return before


def _knapsack(weight: Floats, size: Floats, room: float) -> float:
    """Return the most weight that fits into `room`, where the last item may be cut."""
    may = np.isfinite(size) & (size <= room)
    weight, size = weight[may], size[may]
    free = size == 0
    gain = float(weight[free].sum())
    weight, size = weight[~free], size[~free]
    by_ratio = np.argsort(-weight / size, kind="stable")
    weight, size = weight[by_ratio], size[by_ratio]
    before = np.cumsum(size) - size
    share = np.clip((room - before) / size, 0.0, 1.0)
    return gain + float(share @ weight)


def _lanes(
    pipe: Pipeline, order: Ints, caps: Floats, minimise: Criterion
) -> tuple[Ints, Floats, NDArray[np.bool_], Floats, Floats]:
    """Return the rows by kind, without those that cannot bind: kinds, limits, …, weights."""
    lanes: list[tuple[int, float, Row]] = [
        (k, min(float(cap[k]), np.finfo(float).max), row)
        for row, cap in zip(pipe.rows, caps, strict=True)
        for k in range(len(pipe.kinds))
        if row.criterion == minimise or not row.unit[k].sum() + row.net[k].sum() <= cap[k]
    ]
    lanes.sort(key=lambda lane: not lane[2].net[lane[0]].any())
    charged = sum(lane[2].net[lane[0]].any() for lane in lanes)
    return (
        np.array([k for k, _, _ in lanes]),
        np.array([cap for _, cap, _ in lanes]),
        np.array([row.criterion == minimise for _, _, row in lanes]),
        np.ascontiguousarray(np.array([row.unit[k][order] for k, _, row in lanes]).T),
        np.ascontiguousarray(np.array([row.net[k] for k, _, row in lanes])[:charged].T),
    )


def _incidence(pipe: Pipeline, order: Ints) -> tuple[Ints, Ints, Ints, Ints]:
    """Return the units of each net and the nets of each unit, and where each begins."""
    rank = np.argsort(order)
    pins = pipe.graph.pins
    pin = rank[np.array([v for net in pins for v in net], dtype=np.int64)]
    net = np.repeat(np.arange(len(pins)), [len(net) for net in pins])
    pin_start = np.searchsorted(net, np.arange(len(pins) + 1))
    by_unit = np.argsort(pin, kind="stable")
    of_start = np.searchsorted(pin[by_unit], np.arange(len(order) + 1))
    return pin_start, pin, of_start, net[by_unit]


def _read_back(
    pipe: Pipeline, lattice: Lattice, order: Ints, states: _States,
    row: Ints, origin: NDArray[np.int32], by: NDArray[np.int8], state: int,
) -> Ints:  # fmt: skip
    """Return the device of each unit: follow the stages from the full ideal back to the empty."""
    device = np.full(len(order), -1)
    ideal = lattice.size - 1
    first = np.concatenate([[0], np.cumsum(pipe.count)])
    while ideal > 0:
        before, kind = int(origin[row[ideal], state]), int(by[row[ideal], state])
        stage = np.setdiff1d(lattice.units(ideal), lattice.units(before), assume_unique=True)
        device[order[stage]] = first[kind] + states.used[state, kind] - 1
        ideal, state = before, state - int(states.stride[kind])
    return device
