"""The frontier: sets of units of the best price within a load, exactly or from above.

Place the units one after the other, in or out of the set. All that the transfers of the rest
depend on is, for each net with pins on both sides of the frontier, whether a pin is in and whether
a pin is out. In an order of small frontier these *states* are few (Bodlaender: pathwidth), and a
label (value, load) for each way to reach a state leads to the best set.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from ..formulations.hypergraph import Hypergraph
from ..instances.arrays import Bools, Floats, Ints
from .frontier_kernels import build, greedy_order
from .frontier_labels import advance, complete, incoming

T = TypeVar("T", bound=np.generic)

#: Most states of one layer and of all layers, before nets are given up.
WIDTH, ROOM = 20_000, 1_000_000

#: Orders whose states are counted.
TRIES = 8

#: Most labels kept at once: 24 bytes each.
LABELS = 40_000_000

#: Labels visited between two looks at the clock: some 0.1 s.
SLICE = 20_000_000


@dataclass(frozen=True, eq=False)
class Incidence:
    """Which nets meet which units, as compressed rows: the form that kernels read."""

    unit_ptr: Ints
    unit_nets: Ints
    net_ptr: Ints
    net_pins: Ints


@dataclass(frozen=True, eq=False)
class Frontier:
    """The states between the units of an order, for one kind of device; S states, U units.

    Parameters
    ----------
    order
        Shape (U,): the units in their order.
    layer_ptr
        Shape (U + 2,): states before each unit and at the end, as ranges.
    step, cost
        Shape (S, 2): state after leaving the next unit out or taking it, and what transfer time
        that adds.
    in_ptr, in_source
        The steps into each state.
    exact
        Whether all nets are charged; if not, costs are underestimated.
    """

    order: Ints
    layer_ptr: Ints
    step: Ints
    cost: Floats
    in_ptr: Ints
    in_source: Ints
    exact: bool


@dataclass(frozen=True, eq=False)
class BestSet:
    """What a search for a set of the best price within a load found.

    Parameters
    ----------
    bound
        No set within the load has a greater value.
    members
        Shape (U,): a set whose value is `bound`, if that is above the floor; its load may be
        above the limit by what labels lost.
    steps
        Pairs (load, value), both increasing: a set of a load below that of a pair has at most
        the value of the pair before it, or that of the floor before the first.
    """

    bound: float
    members: Bools | None
    steps: tuple[tuple[float, float], ...]


def incidence(graph: Hypergraph, nets: Ints | None = None) -> Incidence:
    """Return the incidence of the nets with the given numbers; default: all."""
    chosen = range(len(graph.pins)) if nets is None else nets.tolist()
    of_unit: list[list[int]] = [[] for _ in range(graph.size)]
    pins: list[int] = []
    net_ptr = [0]
    for number, e in enumerate(chosen):
        pins += graph.pins[e]
        net_ptr.append(len(pins))
        for v in graph.pins[e]:
            of_unit[v].append(number)
    return Incidence(
        unit_ptr=np.cumsum([0, *(len(nets) for nets in of_unit)], dtype=np.int64),
        unit_nets=np.array([e for nets in of_unit for e in nets], dtype=np.int64),
        net_ptr=np.array(net_ptr, dtype=np.int64),
        net_pins=np.array(pins, dtype=np.int64),
    )


def cut(shape: Incidence, members: Bools) -> Bools:
    """Return which nets have pins both in and out of a set; shape (E,)."""
    if len(shape.net_pins) == 0:
        return np.zeros(0, np.bool_)
    inside = np.add.reduceat(members[shape.net_pins].astype(np.int64), shape.net_ptr[:-1])
    found: Bools = (inside > 0) & (inside < np.diff(shape.net_ptr))
    return found


def orders(shape: Incidence, rng: np.random.Generator) -> list[Ints]:
    """Return different orders of the units, the one of the smallest frontier first."""
    size = len(shape.unit_ptr) - 1
    tries = max(8, min(100, 40_000_000 // size**2))
    found: dict[tuple[int, ...], float] = {}
    for _ in range(tries):
        start, noise = int(rng.integers(size)), 0.5 * rng.random(size)
        order, cost = greedy_order(
            shape.unit_ptr, shape.unit_nets, shape.net_ptr, shape.net_pins, start, noise
        )
        found[tuple(order.tolist())] = cost
    return [np.array(order) for order in sorted(found, key=lambda order: (found[order], order))]


def frontier(graph: Hypergraph, weight: Floats, tried: Sequence[Ints]) -> Frontier:
    """Return the frontier of fewest states for nets of the given weights.

    Parameters
    ----------
    weight
        Shape (E,); nets of no weight do not count.
    tried
        Orders of the units, of which the first few are compared.
    """
    nets = np.flatnonzero(weight > 0)
    shape = incidence(graph, nets)
    found = [_states(shape, order, weight[nets]) for order in tried[: TRIES if len(nets) else 1]]
    return min(found, key=lambda states: (not states.exact, len(states.step)))


def _states(shape: Incidence, order: Ints, weight: Floats) -> Frontier:
    count = len(weight)
    width = WIDTH
    while True:
        layer_ptr, step, cost, _, exact = build(
            order, shape.unit_ptr, shape.unit_nets, np.diff(shape.net_ptr),
            np.zeros(count, np.int64), np.zeros(count, np.bool_), weight, np.zeros(count),
            width, ROOM, True,
        )  # fmt: skip
        if len(layer_ptr):
            in_ptr, in_source = incoming(layer_ptr, step)
            return Frontier(order, layer_ptr, step, cost, in_ptr, in_source, exact)
        width //= 4  # one state a layer always fits


def best_set(
    states: Frontier,
    price: Floats,
    load: Floats,
    limit: float,
    *,
    buckets: int,
    floor: float,
    overlap: bool = False,
    toll: float = 0.0,
    should_stop: Callable[[], bool],
) -> BestSet | None:
    """Return a set S of the best Σ price − toll·transfers within the load, or above it.

    Parameters
    ----------
    price, load
        Shape (U,): of each unit; a unit of more load than the limit is left out.
    limit
        Σ load + transfers must be at most this; only Σ load if they `overlap`.
    buckets
        Resolution of the load: labels closer than limit / buckets become one.
    floor
        Values up to this are of no interest.
    toll
        What a unit of transfer time takes from the value.

    Returns
    -------
    BestSet or None
        None if `should_stop` said so. Time and memory grow with states × buckets.
    """
    order, layer_ptr = states.order, states.layer_ptr
    size, total = len(order), len(states.step) + 1
    allowed = load[order] <= limit
    arc = (
        layer_ptr, states.step, states.cost, price[order], np.where(allowed, load[order], 0.0),
        allowed, 0.0 if overlap else 1.0, toll, limit,
    )  # fmt: skip
    coarse = max(8, min(buckets // 4, 400, LABELS // 4 // total))
    begin, count = np.zeros(total, np.int64), np.zeros(total, np.int64)
    count[-1] = 1
    rest_value, rest_used = np.zeros(1 << 16), np.zeros(1 << 16)
    state = np.array([total - 1, 1, 0])
    while not complete(*arc, coarse, state, begin, count, rest_value, rest_used, SLICE):
        if should_stop():
            return None
        if state[2]:
            rest_value, rest_used = _doubled(rest_value), _doubled(rest_used)
    ceiling = rest_value[begin[0] + count[0] - 1]
    if ceiling <= floor:
        return BestSet(floor, None, ())

    widest = int(np.diff(layer_ptr).max()) + 1
    origin = np.empty(1 << 18, np.int32)
    value, next_value = np.zeros(1 << 14), np.empty(1 << 14)
    used, next_used = np.zeros(1 << 14), np.empty(1 << 14)
    first, next_first = np.zeros(widest, np.int64), np.zeros(widest, np.int64)
    first[1] = 1
    ends = [0, 1]
    state = np.array([1, 1, 0, 0])
    for _ in range(size):
        while not advance(
            *arc, floor, buckets, states.in_ptr, states.in_source, begin, count,
            rest_value, rest_used, state, first, value, used, next_first, next_value, next_used,
            origin, SLICE,
        ):  # fmt: skip
            if should_stop():
                return None
            if state[3]:
                if len(origin) >= LABELS:
                    return best_set(
                        states, price, load, limit, buckets=buckets // 4, floor=floor,
                        overlap=overlap, toll=toll, should_stop=should_stop,
                    )  # fmt: skip
                next_value, next_used = _doubled(next_value), _doubled(next_used)
                origin = _doubled(origin)
        kept = int(state[2])
        if kept == 0:
            return BestSet(floor, None, ())
        value, next_value = next_value, value
        used, next_used = next_used, used
        first, next_first = next_first, first
        ends.append(ends[-1] + kept)
        state[1], state[2] = ends[-1], 0
    best = ends[-1] - ends[-2] - 1
    members = np.zeros(size, np.bool_)
    at = best
    for layer in range(size, 0, -1):
        came = int(origin[ends[layer] + at])
        at, members[order[layer - 1]] = came >> 1, came & 1
    steps = tuple(zip(used[: best + 1].tolist(), value[: best + 1].tolist(), strict=True))
    return BestSet(float(value[best]), members, steps)


def _doubled(array: NDArray[T]) -> NDArray[T]:
    return np.concatenate([array, np.empty_like(array)])
