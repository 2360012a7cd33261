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

from ....formulations.throughput.hypergraph import Hypergraph
from ....instances.model.arrays import Bools, Floats, Ints
from .arcs import Arcs, arcs_backward, arcs_forward
from .frontier_kernels import build
from .frontier_labels import extend
from .orders import greedy_order

T = TypeVar("T", bound=np.generic)

#: Most states of one layer and of all layers, before nets are given up.
WIDTH, ROOM = 5_000, 200_000

#: Most states of one layer where nets are given up.
RELAXED_WIDTH = 500

#: Orders whose states are counted.
TRIES = 8

#: Resolutions of loads, as parts of the limit, that are tried one after the other.
BUCKETS = (500, 2_000, 8_000, 32_000, 128_000, 512_000)

#: Parts of what the bound allows above the floor, and in all, that a set must attain to be good
#: enough; and how many sets are looked at.
GOOD, CLOSE, LOOKS = 0.9, 0.99, 100

#: Most labels of one direction: 24 bytes each.
LABELS = 16_000_000

#: Labels visited between two looks at the clock: some 0.05 s.
SLICE = 4_000_000


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
    forward, backward
        Steps into and out of each state, as of `arcs_forward` and `arcs_backward`.
    exact
        Whether all nets are charged; if not, costs are underestimated.
    """

    order: Ints
    forward: Arcs
    backward: Arcs
    exact: bool

    @property
    def size(self) -> int:
        """Number of states."""
        return len(self.forward[0]) - 1


@dataclass(frozen=True, eq=False)
class BestSet:
    """What a search for a set of the best price within a load found.

    Parameters
    ----------
    bound
        No set within the load has a greater value.
    members
        Shape (U,): a set of a value above the floor; None if there is none.
    true
        Whether its load is within the limit in fact; if not, its value is `bound`.
    steps
        Pairs (load, value), both increasing: a set of a load below that of a pair has at most
        the value of the pair before it, or that of the floor before the first.
    """

    bound: float
    members: Bools | None
    true: bool
    steps: tuple[tuple[float, float], ...]


class Scratch:
    """Arrays for the labels of two directions, kept from search to search: fresh ones are slow."""

    def __init__(self) -> None:
        size = 1 << 16
        self.arrays = [
            (np.empty(size), np.empty(size), np.empty(size, np.int64)) for _direction in range(2)
        ]


@dataclass(eq=False)
class _Labels:
    """Labels of one direction at one resolution, as `extend` writes them."""

    begin: Ints
    count: Ints
    value: Floats
    used: Floats
    origin: Ints

    def last(self, forward: bool) -> range:
        """Labels of whole sets."""
        x = len(self.begin) - 1 if forward else 0
        return range(int(self.begin[x]), int(self.begin[x] + self.count[x]))


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
    best: Frontier | None = None
    for order in tried[: TRIES if len(nets) else 1]:
        made = _states(shape, order, weight[nets], WIDTH, relax=False)
        if made is None:
            break  # the next orders are of larger frontier
        if best is None or made.size < best.size:
            best = made
    width = RELAXED_WIDTH
    while best is None:
        best = _states(shape, tried[0], weight[nets], width, relax=True)
        width //= 4  # one state a layer always fits
    return best


def _states(
    shape: Incidence, order: Ints, weight: Floats, width: int, *, relax: bool
) -> Frontier | None:
    count = len(weight)
    layer_ptr, step, cost, _, exact = build(
        order, shape.unit_ptr, shape.unit_nets, np.diff(shape.net_ptr),
        np.zeros(count, np.int64), np.zeros(count, np.bool_), weight, np.zeros(count),
        width, ROOM, relax,
    )  # fmt: skip
    if len(layer_ptr) == 0:
        return None
    forward = arcs_forward(layer_ptr, step, cost)
    return Frontier(order, forward, arcs_backward(layer_ptr, step, cost), bool(exact))


def best_set(
    states: Frontier,
    price: Floats,
    load: Floats,
    limit: float,
    true_load: Callable[[Bools], float],
    scratch: Scratch,
    *,
    floor: float,
    overlap: bool = False,
    transfer_price: float = 0.0,
    rough: bool = False,
    should_stop: Callable[[], bool],
) -> BestSet | None:
    """Return a bound on Σ price − transfer_price × transfers of a set within a load, and a set.

    Labels are made in both directions in turn, each time finer, as those of one direction tell
    which of the other cannot lead above the floor. Ends when there is nothing above the floor,
    with a set that is within the load in fact and nearly as good as the bound, or at the finest
    resolution.

    Parameters
    ----------
    price, load
        Shape (U,): of each unit; a unit of more load than the limit is left out.
    limit
        Σ load + transfers must be at most this; only Σ load if they `overlap`.
    true_load
        Load of a set in fact.
    scratch
        Where labels are kept.
    floor
        Values up to this are of no interest; at least 0.
    transfer_price
        What a unit of transfer time takes from the value.
    rough
        Whether the first resolution is enough.

    Returns
    -------
    BestSet or None
        None if `should_stop` said so. Time and memory grow with states × resolution.
    """
    ordered = load[states.order]
    allowed = ordered <= limit
    terms = (
        price[states.order], np.where(allowed, ordered, 0.0), allowed,
        0.0 if overlap else 1.0, transfer_price, limit, floor,
    )  # fmt: skip
    bound, members = np.inf, None
    steps: tuple[tuple[float, float], ...] = ()
    rest: _Labels | None = None
    forward = False
    for wanted in BUCKETS[:1] if rough else BUCKETS:
        arcs = states.forward if forward else states.backward
        buckets = wanted if rest else min(wanted, max(8, LABELS // (2 * states.size)))
        labels = _extend(forward, arcs, terms, buckets, rest, scratch, should_stop)
        if labels is None and should_stop():
            return None
        if labels is None:
            break
        whole = labels.last(forward)
        if len(whole) == 0 or labels.value[whole[-1]] <= floor:
            return BestSet(floor, None, True, ())
        bound = float(labels.value[whole[-1]])
        steps = tuple(zip(labels.used[whole].tolist(), labels.value[whole].tolist(), strict=True))
        members = _trace(labels, whole[-1], states.order, forward)
        if true_load(members) <= limit:
            return BestSet(bound, members, True, steps)
        for k in reversed(whole[-LOOKS:-1]):
            if bound - labels.value[k] > min((1 - GOOD) * (bound - floor), (1 - CLOSE) * bound):
                break
            lesser = _trace(labels, k, states.order, forward)
            if true_load(lesser) <= limit:
                return BestSet(bound, lesser, True, steps)
        rest, forward = labels, not forward
    return BestSet(bound, members, False, steps)


def _extend(
    forward: bool,
    arcs: Arcs,
    terms: tuple[object, ...],
    buckets: int,
    rest: _Labels | None,
    scratch: Scratch,
    should_stop: Callable[[], bool],
) -> _Labels | None:
    """Return the labels of all states; None if they are too many, or `should_stop` said so."""
    total = len(arcs[0]) - 1
    begin, count = np.zeros(total, np.int64), np.zeros(total, np.int64)
    value, used, origin = scratch.arrays[forward]
    value[0] = used[0] = 0.0
    count[0 if forward else -1] = 1
    state = np.array([1, 1, 0])
    other = rest or _Labels(begin, count, value, used, origin)
    while not extend(
        forward, *arcs, *terms, buckets, rest is not None,
        other.begin, other.count, other.value, other.used,
        state, begin, count, value, used, origin, SLICE,
    ):  # fmt: skip
        if should_stop() or (state[2] and len(value) >= LABELS):
            return None
        if state[2]:
            value, used, origin = _doubled(value), _doubled(used), _doubled(origin)
            scratch.arrays[forward] = (value, used, origin)
    return _Labels(begin, count, value, used, origin)


def _trace(labels: _Labels, at: int, order: Ints, forward: bool) -> Bools:
    """Return the set of a label of the last state; shape (U,)."""
    members = np.zeros(len(order), np.bool_)
    for unit in reversed(order) if forward else order:
        came = int(labels.origin[at])
        at, members[unit] = came >> 1, came & 1
    return members


def _doubled(array: NDArray[T]) -> NDArray[T]:
    return np.concatenate([array, np.empty_like(array)])
