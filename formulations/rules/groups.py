"""Groups of nodes that colours and rules keep together, and what rules say of them."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations, pairwise
from typing import TYPE_CHECKING

import numpy as np

from ...instances import InfeasibleError, Workload
from ...instances.common.arrays import Ints, frozen
from ...instances.model.placement_rules import PlacementRules

if TYPE_CHECKING:
    import networkx as nx


@dataclass(frozen=True)
class Pin:
    """A node's number, and the rule that says so."""

    node: int
    number: int
    said: str


@dataclass(frozen=True, eq=False)
class DeviceGroups:
    """Nodes that share a device by colours and by rules of `together`; n nodes, G groups."""

    group_of: Ints  # (n,): group of each node
    pins: tuple[tuple[Pin, ...], ...]  # the pins of each group
    # pairs of groups that share no device, the smaller number first, with the rule
    apart: dict[tuple[int, int], str]
    # graph of nodes: an edge for what keeps two nodes together, with its name as ``said``
    joins: nx.Graph[int]

    def contradiction(self, *rules: str, between: tuple[int, int]) -> InfeasibleError:
        """Return the error for rules that contradict each other over two nodes.

        What keeps these together is named too.
        """
        import networkx as nx

        path = nx.shortest_path(self.joins, *between)
        also = [self.joins.edges[u, v]["said"] for u, v in pairwise(path)]
        named = [*dict.fromkeys((*rules, *also))]
        return InfeasibleError(f"{', '.join(named[:-1])} and {named[-1]} contradict each other")


def groups_of(workload: Workload, rules: PlacementRules, *, coloured: bool = True) -> DeviceGroups:
    """Return the groups of a workload's nodes; those of a colour share one if `coloured`.

    InputError if a rule names no node, InfeasibleError if nodes must be both together and apart.
    """
    import networkx as nx

    joins: nx.Graph[int] = nx.Graph()
    joins.add_nodes_from(range(workload.n))
    classes = [
        (f"colour {label}", list(members))
        for label, members in zip(workload.colour_labels, workload.colour_classes, strict=True)
        if members
    ]
    for said, members in (*(classes if coloured else ()), *rules.joined(workload)):
        joins.add_edges_from(((members[0], v) for v in members[1:]), said=said)
    group_of = np.empty(workload.n, np.int64)
    parts = list(nx.connected_components(joins))
    for g, part in enumerate(parts):
        group_of[list(part)] = g
    pins: list[list[Pin]] = [[] for _ in parts]
    for said, nodes, number in rules.numbered(workload):
        for v in nodes:
            pins[group_of[v]].append(Pin(v, number, said))
    found = DeviceGroups(frozen(group_of, np.int64), tuple(map(tuple, pins)), {}, joins)
    for said, separate in rules.separated(workload):
        first = [{int(group_of[v]): v for v in reversed(nodes)} for nodes in separate]
        for one, other in combinations(first, 2):
            for g, u in one.items():
                if g in other:
                    raise found.contradiction(said, between=(u, other[g]))
                for h in other:
                    found.apart.setdefault((min(g, h), max(g, h)), said)
    return found
