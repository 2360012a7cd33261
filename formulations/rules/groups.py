"""Groups of nodes that colours and rules keep together, and the devices that pins allow each."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations, pairwise
from typing import TYPE_CHECKING

import numpy as np

from ...instances import Costs, InfeasibleError, InputError, Problem, Throughput, Workload
from ...instances.common.arrays import Bools, Ints, frozen
from ...instances.model.contiguity import pipeline_edges
from ...instances.model.placement_rules import PlacementRules, places
from ..task import Task

if TYPE_CHECKING:
    import networkx as nx


@dataclass(frozen=True)
class Pin:
    """A node pinned to a device or stage of this number, and the text of the rule."""

    node: int
    number: int
    rule: str


@dataclass(frozen=True, eq=False)
class DeviceGroups:
    """Groups of nodes that share a device, by colours or rules of `together`: n nodes, G groups."""

    group_of: Ints  # (n,): group of each node
    pins: tuple[tuple[Pin, ...], ...]  # the pins of each group
    # pairs of groups that share no device, the smaller number first, with the rule
    apart: dict[tuple[int, int], str]
    # graph of nodes, with an edge for whatever keeps two nodes together, and its name as ``rule``
    joins: nx.Graph[int]

    def contradiction(self, *rules: str, between: tuple[int, int]) -> InfeasibleError:
        """Return the error for rules that contradict each other over two nodes.

        It also names what keeps the two nodes together.
        """
        import networkx as nx

        path = nx.shortest_path(self.joins, *between)
        also = [self.joins.edges[u, v]["rule"] for u, v in pairwise(path)]
        named = [*dict.fromkeys((*rules, *also))]
        return InfeasibleError(f"{', '.join(named[:-1])} and {named[-1]} contradict each other")


def groups_of(workload: Workload, rules: PlacementRules, *, coloured: bool = True) -> DeviceGroups:
    """Return the groups of a workload's nodes; nodes of a colour share one if `coloured`.

    InputError if a rule names an unknown node, InfeasibleError if nodes must be both together and
    apart.
    """
    import networkx as nx

    joins: nx.Graph[int] = nx.Graph()
    joins.add_nodes_from(range(workload.n))
    classes = [
        (f"colour {label}", list(members))
        for label, members in zip(workload.colour_labels, workload.colour_classes, strict=True)
        if members
    ]
    for rule, members in (*(classes if coloured else ()), *rules.joined(workload)):
        joins.add_edges_from(((members[0], v) for v in members[1:]), rule=rule)
    group_of = np.empty(workload.n, np.int64)
    parts = list(nx.connected_components(joins))
    for g, part in enumerate(parts):
        group_of[list(part)] = g
    pins: list[list[Pin]] = [[] for _ in parts]
    for rule, nodes, number in rules.numbered(workload):
        for v in nodes:
            pins[group_of[v]].append(Pin(v, number, rule))
    found = DeviceGroups(frozen(group_of, np.int64), tuple(map(tuple, pins)), {}, joins)
    for rule, separate in rules.separated(workload):
        first = [{int(group_of[v]): v for v in reversed(nodes)} for nodes in separate]
        for one, other in combinations(first, 2):
            for g, u in one.items():
                if g in other:
                    raise found.contradiction(rule, between=(u, other[g]))
                for h in other:
                    found.apart.setdefault((min(g, h), max(g, h)), rule)
    return found


@dataclass(frozen=True, eq=False)
class Devices:
    """The groups and the devices that they may have: G groups, D devices."""

    groups: DeviceGroups  # of nodes
    place: Ints  # (D,): see `places`
    allowed: Bools  # (G, D): which devices a group may have; False for those that are no place


def devices_of(task: Task[Problem], groups: DeviceGroups) -> Devices:
    """Return the devices that pins allow each group.

    InputError if a pin names an unknown device, InfeasibleError if pins contradict each other, or a
    node cannot run where it is pinned.
    """
    place = places(task.cluster, pools=task.problem.name == "latency")
    able = np.unique(place)
    allowed = np.zeros((len(groups.pins), len(place)), np.bool_)
    allowed[:, able] = True
    for g, pins in enumerate(groups.pins):
        for pin in pins:
            d = int(place[_device(pin, len(place))])
            if not allowed[g, d]:
                first = next(p for p in pins if place[p.number] != d)
                raise groups.contradiction(first.rule, pin.rule, between=(first.node, pin.node))
            allowed[g] = False
            allowed[g, d] = True
    _check_support(task, groups, allowed)
    _check_apart(groups, allowed)
    if isinstance(task.problem, Throughput) and task.problem.split == "contiguous":
        _check_order(task, groups, allowed)
    return Devices(groups, place, allowed)


def _device(pin: Pin, size: int) -> int:
    if not -size <= pin.number < size:
        raise InputError(f"{pin.rule}: there are devices 0 to {size - 1}; −1 is the last one")
    return pin.number % size


def _check_support(task: Task[Problem], groups: DeviceGroups, allowed: Bools) -> None:
    """Raise InfeasibleError if a node cannot run where its group is pinned."""
    costs: Costs = task.linked_costs
    for v, g in enumerate(groups.group_of.tolist()):
        if groups.pins[g] and np.isinf(costs.compute[costs.kind_of[allowed[g].argmax()], v]):
            name = task.cluster.devices[int(allowed[g].argmax())].name
            node = task.workload.ids[v]
            raise InfeasibleError(
                f"{groups.pins[g][0].rule}: {name} does not support node {node}; pin it elsewhere"
            )


def _check_apart(groups: DeviceGroups, allowed: Bools) -> None:
    for (g, h), rule in groups.apart.items():
        if groups.pins[g] and groups.pins[h] and (allowed[g] & allowed[h]).any():
            named = dict.fromkeys((groups.pins[g][0].rule, groups.pins[h][0].rule, rule))
            raise InfeasibleError(f"{' and '.join(named)} contradict each other")


def _check_order(task: Task[Problem], groups: DeviceGroups, allowed: Bools) -> None:
    """Raise InfeasibleError if pinned devices must wait for each other in a cycle.

    Device d comes before e if a node pinned to d feeds one pinned to e, directly or through other
    nodes.
    """
    import networkx as nx

    costs, group_of = task.costs, groups.group_of.tolist()
    free = isinstance(task.problem, Throughput) and task.problem.cpu_split == "free"
    of = list(range(task.workload.n)) if free else group_of  # nodes on a free core count one by one
    ahead: nx.DiGraph[int] = nx.DiGraph()
    ahead.add_nodes_from(of)
    ahead.add_edges_from((of[u], of[v]) for u, v in pipeline_edges(task.workload) if of[u] != of[v])
    pinned: dict[int, dict[int, Pin]] = {}
    for v, g in enumerate(group_of):
        d = int(allowed[g].argmax())
        if groups.pins[g] and not (free and costs.host[costs.kind_of[d]]):
            pinned.setdefault(d, {}).setdefault(of[v], groups.pins[g][0])
    waits: nx.DiGraph[int] = nx.DiGraph()
    for d, sources in pinned.items():
        ahead.add_edges_from((-1 - d, part) for part in sources)
        reached = nx.descendants(ahead, -1 - d)
        for e, targets in pinned.items():
            found = next((part for part in targets if part in reached), None)
            if e != d and found is not None:
                waits.add_edge(d, e, fed=found)
    circle = next(iter(sorted(nx.simple_cycles(waits, length_bound=2), key=len)), None)
    if circle is None:
        try:
            circle = [d for d, _ in nx.find_cycle(waits)]
        except nx.NetworkXNoCycle:
            return
    ends = []
    for d, e in zip(circle, [*circle[1:], circle[0]], strict=True):
        part = waits.edges[d, e]["fed"]
        feeding = min(pinned[d].keys() & nx.ancestors(ahead, part))
        ends.append((pinned[d][feeding], pinned[e][part]))
    ids = task.workload.ids
    feeds = " and ".join(f"{ids[a.node]} feeds {ids[b.node]}" for a, b in ends)
    named = ", ".join(dict.fromkeys(pin.rule for pair in ends for pin in pair))
    raise InfeasibleError(f"{feeds}, so {named} cannot hold with a contiguous split")
