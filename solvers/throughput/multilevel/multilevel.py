"""Multilevel planning, for graphs with too many units for methods that handle them all.

*Coarsen*: consecutive units in a topological order are merged. *Solve*: the dynamic program finds
the best contiguous plan of coarse units. *Refine*: units stay single near the ends of stages and
are coarser the farther away, and the dynamic program runs again, until that does not improve.
Splits that need not be contiguous start from an order that need not be topological; finally pairs
of devices divide anew what they hold, in such units, by the neighbourhood search. Every step takes
time near-linear in the graph.
"""

from __future__ import annotations

import math

import numpy as np

from ....formulations.digraph import demand_order
from ....formulations.task import Task
from ....formulations.throughput.cheap_bounds import units_of_split
from ....formulations.throughput.hypergraph import Hypergraph, hypergraph, pipeline_units
from ....formulations.throughput.ideals import topological_orders
from ....formulations.throughput.infeasible import why_infeasible
from ....instances import Placement, Solution, Throughput
from ....instances.common.arrays import Floats, Ints
from ...core.search import Search
from ..column_generation.orders import narrow_order
from ..dp import contracted_dp, few_ideals_dp, ideals_alone
from ..neighbourhood import Neighbourhood
from .coarsen import PER_DEVICE, around, balanced, crossing, even, labels, touching
from .critical_path import raise_by_critical_path
from .hub_bound import raise_by_hubs
from .least_load import raise_by_least_load

#: Fewest coarse units of the first plan.
LEAST = 256

#: Relative improvement below which a round is the last.
ENOUGH = 1e-4

#: Moves of the neighbourhood search per device before units are made anew.
MOVES = 10

#: Most of the time left that the bound takes.
BOUND = 0.5

#: Rounds in a row without improvement that are allowed.
PATIENCE = 4

#: Units up to which pairs divide all of them in every other round: with 10,000 operators Mixtral
#: gets to 26.84 instead of 26.89 ms, T5 to 144.75 instead of 144.85.
FINE = 10_000


def multilevel(task: Task[Throughput], search: Search[Solution]) -> None:
    """Plan with coarse units, and refine the plan near the ends of its stages."""
    with search.phase("build"):
        graph = hypergraph(task, pipeline_units(task))
        reason = why_infeasible(task)
        if reason is not None:
            search.prove_infeasible(reason)
            return
        demand = np.array(demand_order(graph.size, graph.edges), np.int64)
        orders = demand, *topological_orders(graph)[1:]
        units = units_of_split(task)
        free = graph if np.array_equal(units, graph.unit_of) else hypergraph(task, units)
        narrow = narrow_order(free)
    anyhow = task.problem.split == "noncontiguous"
    starts = [(free, _within_memory(task, free, narrow))] if anyhow else []
    for i, (of, order) in enumerate([*starts, *((graph, order) for order in orders)]):
        if search.should_stop():
            return
        _plan(task, of, order, search, any_order=i < len(starts))
        if i == 0:  # this bound is quick, and any plan suffices for it
            with search.phase("bound"):
                raise_by_hubs(task, free, narrow, search, search.part(BOUND))
    with search.phase("dp"):
        few_ideals_dp(task, search)
    with search.phase("bound"):
        clock = search.part(BOUND)
        if ideals_alone(task):
            raise_by_critical_path(task, graph, search, clock)
        raise_by_least_load(task, free, narrow, search, clock)
    if anyhow and search.best is not None:
        before = search.objective
        with search.phase("pairs"):
            _pairs(task, free, narrow, search)
        if search.objective < before * (1 - ENOUGH) and not search.should_stop():
            with search.phase("bound"):  # a better plan gives a better bound
                raise_by_least_load(task, free, narrow, search, search)


def _plan(
    task: Task[Throughput],
    graph: Hypergraph,
    order: Ints,
    search: Search[Solution],
    *,
    any_order: bool,
) -> None:
    """Cut an order into coarse units, and refine the best plan along it while that improves it."""
    with search.phase("coarse"):
        units = _coarse(task, graph, order)
        contracted_dp(task, search, units, any_order=any_order)
    before = math.inf
    while search.objective < before * (1 - ENOUGH) and not search.should_stop():
        before = search.objective
        with search.phase("refine"):
            units = _near_ends(task, graph, order, search, by_stage=not any_order)
            contracted_dp(task, search, units, any_order=any_order)


def _coarse(task: Task[Throughput], graph: Hypergraph, order: Ints) -> Ints:
    count = max(LEAST, PER_DEVICE * task.cluster.size)
    weight = _weight(task, graph)
    boundaries = even(_load_alone(task, graph)[order], crossing(graph, weight, order), count)
    return labels(order, boundaries)[graph.unit_of]


def _within_memory(task: Task[Throughput], graph: Hypergraph, order: Ints) -> Ints:
    """Return an order whose even shares fit the most frequent kind's memory, if possible."""
    kind = int(task.costs.count.argmax())
    return balanced(
        order,
        _load_alone(task, graph),
        crossing(graph, _weight(task, graph), order),
        graph.memory_bytes,
        float(task.costs.capacity_bytes[kind]),
        int(task.costs.count[kind]),
    )


def _weight(task: Task[Throughput], graph: Hypergraph) -> Floats:
    """Return the weight of each net on the most frequent kind of device, shape (E,)."""
    weight: Floats = graph.weight[task.costs.count.argmax()].sum(axis=0)
    return weight


def _load_alone(task: Task[Throughput], graph: Hypergraph) -> Floats:
    """Return the least load of a device that holds a unit alone, shape (U,)."""
    time: Floats = graph.compute[task.costs.count > 0].sum(axis=1).min(axis=0)
    return time + touching(graph, _weight(task, graph))


def _near_ends(
    task: Task[Throughput],
    graph: Hypergraph,
    order: Ints,
    search: Search[Solution],
    *,
    by_stage: bool,
) -> Ints:
    """Return units merged except near where devices of the best plan meet, shape (n,).

    If `by_stage`, the order is first sorted by stages.
    """
    assert isinstance(search.best, Placement)
    device = graph.restrict(search.best.device)
    if by_stage:
        order = order[np.argsort(_stages(task, graph, device)[order], kind="stable")]
    load = _load_alone(task, graph)
    alone = load > load.sum() / (LEAST + PER_DEVICE * task.cluster.size)
    return labels(order, around(device[order], alone[order]))[graph.unit_of]


def _stages(task: Task[Throughput], graph: Hypergraph, device: Ints) -> Ints:
    """Return the position of each unit's device in a topological order of devices, shape (U,).

    All zeros if devices wait for each other, as in a start that is not contiguous.
    """
    import networkx as nx

    stages: nx.DiGraph[int] = nx.DiGraph()
    stages.add_nodes_from(range(task.cluster.size))
    between = device[graph.edges]
    stages.add_edges_from(np.unique(between[between[:, 0] != between[:, 1]], axis=0).tolist())
    place = np.zeros(task.cluster.size, np.int64)
    if nx.is_directed_acyclic_graph(stages):
        place[list(nx.topological_sort(stages))] = np.arange(task.cluster.size)
    return place[device]


def _pairs(
    task: Task[Throughput], graph: Hypergraph, order: Ints, search: Search[Solution]
) -> None:
    """Let pairs of devices divide anew what they hold, until nothing has improved for long.

    They divide units that are merged except near the ends of stages, and all units, in turn.
    `limits.nodes` counts rounds.
    """
    rng = np.random.default_rng(search.limits.seed)
    idle = rounds = 0
    while idle < PATIENCE and not search.should_stop():
        if search.out_of_nodes(rounds):
            return
        rounds += 1
        before = search.objective
        assert isinstance(search.best, Placement)
        units, narrow = graph, order
        if rounds % 2 or graph.size > FINE:
            units = hypergraph(task, _near_ends(task, graph, order, search, by_stage=False))
            narrow = np.arange(units.size)
        start = units.restrict(search.best.device)
        walk = Neighbourhood(task, units, narrow, start, rng)
        walk.walk(search, MOVES * task.cluster.size)
        idle = 0 if search.objective < before * (1 - ENOUGH) else idle + 1
