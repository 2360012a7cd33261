"""Frontier of an order of the units: a decision diagram of all sets of units, exact or relaxed.

Place the units one after the other, in the set or outside. The transfers still to come depend only
on, for each net with pins on both sides of the frontier, whether a pin is in the set and whether a
pin is outside. For an order with a small frontier these *states* are few (Bodlaender: pathwidth),
and labels (value, load) of the ways to reach each state lead to the best set.

Steps between states are kept as *arcs*, as compressed rows by the state that they enter or leave.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import numpy as np

from ....formulations.throughput.certificate import PROOF_MARGIN
from ....formulations.throughput.hypergraph import Hypergraph, Incidence, incidence
from ....instances.common.arrays import Floats, Ints
from .frontier_kernels import FrontierLimits, FrontierNets, build
from .orders import greedy_order, narrow_order, order_width

#: Steps as compressed rows: those of state x are ptr[x] … ptr[x + 1] − 1. For each step the state
#: at its other end, the position in the order of the unit that it takes (−1 if the unit stays
#: outside), and the transfer time that it adds.
Arcs = tuple[Ints, Ints, Ints, Floats]

T = TypeVar("T", bound=np.generic)

#: Most states of one layer, and of all layers, before nets are given up.
WIDTH, ROOM = 5_000, 200_000

#: Most states of one layer if nets are given up.
RELAXED_WIDTH = 500

#: Most orders tried, and states of an order up to which the next one is tried.
TRIES, FEW = 8, 20_000


@dataclass(frozen=True, eq=False)
class Frontier:
    """The states between the units of an order, for one kind of device: S states, U units."""

    order: Ints  # (U,): the units in their order
    # forward, backward: steps into and out of each state, see `arcs_forward` and `arcs_backward`
    forward: Arcs
    backward: Arcs
    exact: bool  # whether all nets are charged; if not, costs are underestimated

    @property
    def size(self) -> int:
        """Number of states."""
        return len(self.forward[0]) - 1


def orders(graph: Hypergraph) -> list[Ints]:
    """Return up to `TRIES` different orders of the units, that of the smallest frontier first."""
    size, rng = graph.size, np.random.default_rng(0)
    tries = max(8, min(100, 40_000_000 // size**2))
    found: dict[tuple[int, ...], float] = {}
    for _ in range(tries):
        start, noise = int(rng.integers(size)), 0.5 * rng.random(size)
        order, cost = greedy_order(graph.incidence, start, noise)
        found[tuple(order.tolist())] = cost
    tried = [np.array(order) for order in sorted(found, key=lambda order: (found[order], order))]
    return sorted([narrow_order(graph), *tried[: TRIES - 1]], key=partial(order_width, graph))


def frontier(
    graph: Hypergraph, weight: Floats, tried: Sequence[Ints], most: float = np.inf
) -> Frontier:
    """Return the frontier with the fewest states, over given orders, for nets of given weights.

    Sets with more transfer time than `most` are excluded, and nets without weight, shape (E,).
    """
    nets = np.flatnonzero(weight > 0)
    shape = incidence([graph.pins[e] for e in nets], np.arange(graph.size))
    best: Frontier | None = None
    for order in tried if len(nets) else tried[:1]:
        made = _states(shape, order, weight[nets], most, WIDTH, relax=False)
        if made is None:
            break  # the next orders are of larger frontier
        if best is None or made.size < best.size:
            best = made
        if made.size > FEW:
            break
    width = RELAXED_WIDTH
    while best is None:
        best = _states(shape, tried[0], weight[nets], most, width, relax=True)
        width //= 4  # one state a layer always fits
    return best


def relaxed_frontier(
    graph: Hypergraph, nets: Ints, weight: Floats, order: Ints, most: float, width: int
) -> tuple[Ints, Ints, Floats] | None:
    """Return layers, steps and costs, as `build` does, of states that give up nets beyond a width.

    Sets with more transfer time than `most` are excluded; None if no set remains.
    """
    shape = incidence([graph.pins[e] for e in nets], np.arange(graph.size))
    zero = np.zeros(len(nets))
    layers, step, cost, _, _ = build(
        order, shape.unit_ptr, shape.unit_nets,
        FrontierNets(np.diff(shape.net_ptr), zero.astype(np.int64), zero > 0, weight, zero),
        FrontierLimits(False, most, width, width * (graph.size + 2), relax=True),
    )  # fmt: skip
    return (layers, step, cost) if len(layers) else None


def _states(
    shape: Incidence, order: Ints, weight: Floats, most: float, width: int, *, relax: bool
) -> Frontier | None:
    count = len(weight)
    nets = FrontierNets(
        pins_left=np.diff(shape.net_ptr),
        fixed=np.zeros(count, np.int64),
        outside=np.zeros(count, np.bool_),
        weight_in=weight,
        weight_out=np.zeros(count),
    )
    layer_ptr, step, cost, _, exact = build(
        order, shape.unit_ptr, shape.unit_nets, nets,
        FrontierLimits(False, most * (1 + PROOF_MARGIN), width, ROOM, relax),
    )  # fmt: skip
    if len(layer_ptr) == 0:
        return None
    forward = arcs_forward(layer_ptr, step, cost)
    return Frontier(order, forward, arcs_backward(layer_ptr, step, cost), exact)


def arcs_forward(layer_ptr: Ints, step: Ints, cost: Floats) -> Arcs:
    """Return the steps into each state, from the arrays of `build`, without steps of −1."""
    by_target = np.argsort(step, axis=None, kind="stable")
    by_target = by_target[np.count_nonzero(step < 0) :]
    return _arcs(layer_ptr, step.ravel()[by_target], by_target, by_target >> 1, cost)


def arcs_backward(layer_ptr: Ints, step: Ints, cost: Floats) -> Arcs:
    """Return the steps out of each state, from the arrays of `arcs_forward`."""
    steps = np.flatnonzero(step >= 0)
    return _arcs(layer_ptr, steps >> 1, steps, step.ravel()[steps], cost)


def _arcs(layer_ptr: Ints, at: Ints, steps: Ints, other: Ints, cost: Floats) -> Arcs:
    """Return steps grouped by the states `at` which they are listed.

    Step 2 x + 1 takes the unit after state x, step 2 x leaves it outside.
    """
    ptr = np.searchsorted(at, np.arange(layer_ptr[-1] + 1))
    layer = np.repeat(np.arange(len(layer_ptr) - 1), np.diff(layer_ptr))
    return ptr, other, np.where(steps & 1, layer[steps >> 1], -1), cost.ravel()[steps]
