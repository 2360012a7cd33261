"""What one device of each kind can hold: all that prices depend on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from ....formulations.task import Task
from ....formulations.throughput.certificate import Prices
from ....formulations.throughput.hypergraph import Hypergraph
from ....formulations.throughput.transfer_budget import most_transfer
from ....formulations.throughput.whole_bytes import room_of
from ....instances import Throughput
from ....instances.common.arrays import Bools, Floats, Ints
from .best_set import Scratch
from .frontier import Frontier, Incidence, cut, frontier, incidence, orders

#: Most parts of a price of 1, entries of a table of loads by value, and the parts of the average
#: unit at least: prices are rounded to parts.
PARTS, ENTRIES, FEWEST = 10_000, 30_000_000, 20


@dataclass(frozen=True, eq=False)
class PricingProblem:
    """What one device of each kind can hold: all that prices depend on. K kinds, U units.

    Parameters
    ----------
    count
        Shape (K,): devices of each kind.
    states
        Frontier of each kind.
    orders
        Orders of the units, that of the smallest frontier first.
    shape, weight
        The nets, and their weights; shape (K, E).
    load
        Shape (K, U): compute time; `inf` where the kind cannot hold the unit.
    share
        Shape (K, U): part of its memory that a unit takes; 0 where memory cannot bind.
    memory_bound, transfer_priced
        Shape (K,): whether memory can bind; whether transfers overlap compute, so that both
        must stay below the target.
    parts
        How many make a price of 1 where sets are sought by value; 0: by labels.
    without_memory
        Whether memory can bind and is left out nevertheless.
    scratch
        For the labels.
    """

    count: Floats
    states: tuple[Frontier, ...]
    orders: tuple[Ints, ...]
    shape: Incidence
    weight: Floats
    load: Floats
    share: Floats
    memory_bound: Bools
    transfer_priced: Bools
    parts: int
    without_memory: bool
    scratch: Scratch = field(default_factory=Scratch)

    def transfer_of(self, kind: int, members: Bools) -> float:
        """Return the transfer time of a set."""
        return float(self.weight[kind] @ cut(self.shape, members))

    def load_of(self, kind: int, members: Bools) -> float:
        """Return what a set takes of the target: no transfers where they have a price instead."""
        compute = float(self.load[kind][members].sum())
        return compute if self.transfer_priced[kind] else compute + self.transfer_of(kind, members)


def pricing_problem(
    task: Task[Throughput],
    graph: Hypergraph,
    limit: float = np.inf,
    tried: Sequence[Ints] | None = None,
    *,
    by_value: bool = True,
) -> PricingProblem:
    """Return what one device of each kind can hold in plans of a max-load of at most `limit`.

    The limit leaves out sets of too many transfers (`transfer_budget`), so that targets must not
    exceed it. `tried` are orders of the units, if they are known. `by_value`: sets are sought by
    value, memory left out, if tables are small and transfers are load.
    """
    costs, overlap = task.costs, task.problem.overlap
    room = room_of(costs.capacity_bytes)
    load = graph.compute.sum(axis=1)
    load = np.where(graph.memory_bytes > room[:, None], np.inf, load)
    held = np.where(np.isinf(load), 0.0, graph.memory_bytes)
    memory_bound = (held.sum(axis=1) > room) & (costs.count > 0)
    share = np.where(memory_bound[:, None], held / np.where(memory_bound, room, 1.0)[:, None], 0.0)
    weight = graph.weight.sum(axis=1)
    shape = incidence(graph)
    tried = tried or orders(graph, shape, np.random.default_rng(0))
    most = most_transfer(task, graph, limit)
    states = tuple(frontier(graph, weight[k], tried, most[k]) for k in range(len(weight)))
    priced = weight.any(axis=1) & overlap & (costs.count > 0)
    largest = max(one.size for one in states)
    parts = int(min(PARTS, ENTRIES / (largest * _most_value(load, costs.count, limit))))
    if not by_value or priced.any() or parts * costs.count.sum() < FEWEST * graph.size:
        parts = 0
    without_memory = bool(parts and memory_bound.any())
    if parts:
        memory_bound, share = np.zeros_like(memory_bound), np.zeros_like(share)
    return PricingProblem(
        count=costs.count.astype(np.float64),
        states=states,
        orders=tuple(tried),
        shape=shape,
        weight=weight,
        load=load,
        share=share,
        memory_bound=memory_bound,
        transfer_priced=priced,
        parts=parts,
        without_memory=without_memory,
    )


def _most_value(load: Floats, count: Ints, limit: float) -> float:
    """Return what a device can hold at most at prices in proportion to the least compute times."""
    least = load[count > 0].min(axis=0)
    work = float(least[np.isfinite(least)].sum())
    return max(1.0, limit * float(count.sum()) / work) if np.isfinite(limit) and work > 0 else 1.0


def first_prices(pricing: PricingProblem, graph: Hypergraph, host: Bools) -> Prices:
    """Return prices in proportion to compute times, which count the devices in all."""
    used = pricing.count > 0
    kinds = used & ~host if (used & ~host).any() else used
    time = np.where(np.isinf(pricing.load), np.nan, pricing.load)[kinds]
    known = ~np.isnan(time).all(axis=0)
    unit = np.zeros(graph.size)
    unit[known] = np.nanmin(time[:, known], axis=0)
    unit += 1e-9 * unit.max() or 1.0
    total = pricing.count[kinds].sum()
    zero = np.zeros(len(pricing.count))
    return Prices(unit * (total / unit.sum()), zero, zero)
