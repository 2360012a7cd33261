"""Pricing problem of column generation: the sets that one device of each kind can hold.

*Transfer budget*: a bound on the transfer time of devices in plans within a limit. Let T be the
limit, p_v the least time of unit v on any device, and D the number of devices. In a plan of
max-load at most T, the loads of all devices add up to at most D T, of which compute takes at least
Σ_v p_v, so that transfers take at most

    B(T) = D T − Σ_v p_v.                                                                  (1)

Every transfer that one device pays for, another one pays for, too. With overlap, (1) does not
hold.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from ....formulations.task import Task
from ....formulations.throughput.certificate import PROOF_MARGIN, Prices
from ....formulations.throughput.hypergraph import Hypergraph
from ....formulations.throughput.whole_bytes import room_of
from ....instances import Throughput
from ....instances.common.arrays import Bools, Floats, Ints
from .best_set import LabelScratch
from .frontier import Frontier, frontier, orders

#: Most parts in a price of 1, most entries of a table of loads by value, and fewest parts of the
#: average unit: prices are rounded to multiples of 1 / parts.
PARTS, ENTRIES, FEWEST = 10_000, 30_000_000, 20


@dataclass(frozen=True, eq=False)
class PricingProblem:
    """Sets that one device of each kind can hold, as pricing needs them: K kinds, U units."""

    count: Floats  # (K,): number of devices of each kind
    states: tuple[Frontier, ...]  # frontier of each kind
    orders: tuple[Ints, ...]  # orders of the units, that of the smallest frontier first
    graph: Hypergraph
    weight: Floats  # (K, E): weights of the nets
    load: Floats  # (K, U): compute time; `inf` if the kind cannot hold the unit
    share: Floats  # (K, U): part of the memory that a unit takes; 0 if memory cannot bind
    # memory_bound, transfer_priced: (K,): whether memory can bind; whether transfers overlap
    # compute, so that both must stay below the target
    memory_bound: Bools
    transfer_priced: Bools
    parts: int  # parts in a price of 1 if sets are priced by value; 0 if by load
    without_memory: bool  # whether memory can bind but is ignored
    scratch: LabelScratch = field(default_factory=LabelScratch)  # for the labels

    def transfer_of(self, kind: int, members: Bools) -> float:
        """Return the transfer time of a set on a device of a kind."""
        ptr, pins, _, _ = self.graph.incidence
        inside = np.add.reduceat(members[pins].astype(np.int64), ptr[:-1])
        return float(self.weight[kind] @ ((inside > 0) & (inside < np.diff(ptr))))

    def load_of(self, kind: int, members: Bools) -> float:
        """Return the load of a set, without transfers if these have a price."""
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
    """Return the pricing problem for plans whose max-load is at most `limit`.

    The limit excludes sets of too many transfers (`transfer_budget`), so targets must not exceed
    it. `tried` are orders of the units, if known. With `by_value`, sets are sought by value,
    ignoring memory, if tables are small and transfers are load.
    """
    costs, overlap = task.costs, task.problem.overlap
    room = room_of(costs.capacity_bytes)
    load = graph.compute.sum(axis=1)
    load = np.where(graph.memory_bytes > room[:, None], np.inf, load)
    held = np.where(np.isinf(load), 0.0, graph.memory_bytes)
    memory_bound = (held.sum(axis=1) > room) & (costs.count > 0)
    share = np.where(memory_bound[:, None], held / np.where(memory_bound, room, 1.0)[:, None], 0.0)
    weight = graph.weight.sum(axis=1)
    tried = tried or orders(graph)
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
        graph=graph,
        weight=weight,
        load=load,
        share=share,
        memory_bound=memory_bound,
        transfer_priced=priced,
        parts=parts,
        without_memory=without_memory,
    )


def _most_value(load: Floats, count: Ints, limit: float) -> float:
    """Return the greatest value on one device at prices proportional to least compute times."""
    least = load[count > 0].min(axis=0)
    work = float(least[np.isfinite(least)].sum())
    return max(1.0, limit * float(count.sum()) / work) if np.isfinite(limit) and work > 0 else 1.0


def first_prices(pricing: PricingProblem, graph: Hypergraph, host: Bools) -> Prices:
    """Return prices proportional to compute times, whose sum is the number of devices."""
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


def transfer_budget(task: Task[Throughput], graph: Hypergraph, limit: float) -> float:
    """Return B(T) of (1), with a margin for rounding; `inf` if it does not hold."""
    costs = task.costs
    if task.problem.overlap or not np.isfinite(limit):
        return np.inf
    used = costs.count > 0
    least = graph.compute.sum(axis=1)[used].min(axis=0).sum()
    whole = float(costs.count.sum()) * limit
    return float(whole * (1 + PROOF_MARGIN) - least * (1 - PROOF_MARGIN))


def most_transfer(task: Task[Throughput], graph: Hypergraph, limit: float) -> Floats:
    """Return the most transfer time that a device of each kind can have, shape (K,).

    The devices at the other ends pay for at least a part of the same transfers.
    """
    budget, costs = transfer_budget(task, graph, limit), task.costs
    weight = graph.weight.sum(axis=1)
    most = np.full(len(costs.count), np.inf)
    for k in np.flatnonzero(costs.count):
        other = [j for j in np.flatnonzero(costs.count) if j != k or costs.count[k] > 1]
        paid = weight[k] > 0
        if other and paid.any():
            part = float((weight[other][:, paid] / weight[k, paid]).min())
            most[k] = max(0.0, budget) / (1 + part)
    return most
