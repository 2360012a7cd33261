"""Topological orders of the units, drawn at random: contiguous groups are intervals of them.

Which plans can be drawn depends on the order. One that keeps branches together cannot give a group
the first units of several branches, as good plans of recurrent layers do; one that takes branches
in turns can hardly give it a whole branch.
"""

from __future__ import annotations

from collections.abc import Iterable

import networkx as nx
import numpy as np

from ...instances.common.arrays import Ints
from .features import Scene


def random_order(of: Scene, rng: np.random.Generator) -> Ints:
    """Return a topological order of the units, drawn at random, that keeps branches together.

    A depth-first search from the sinks against the edges; units that wait for each other are
    neighbours, in any order.
    """
    blocks = of.blocks
    priority = rng.random(len(blocks)).tolist()
    done = [False] * len(blocks)
    sequence: list[int] = []
    for root in sorted((b for b in blocks if not blocks.out_degree(b)), key=priority.__getitem__):
        stack = [(root, False)]
        while stack:
            block, finished = stack.pop()
            if finished:
                sequence.append(block)
            elif not done[block]:
                done[block] = True
                stack.append((block, True))
                before = sorted(blocks.predecessors(block), key=priority.__getitem__)
                stack.extend((b, False) for b in before if not done[b])
    return _units(of, sequence, rng)


def interleaved_order(of: Scene, rng: np.random.Generator) -> Ints:
    """Return a topological order of the units, drawn at random, that mixes branches.

    The next unit is any one whose predecessors have been; units that wait for each other are
    neighbours, in any order.
    """
    blocks, priority = of.blocks, rng.random(len(of.blocks)).tolist()
    sequence = nx.lexicographical_topological_sort(blocks, key=priority.__getitem__)
    return _units(of, sequence, rng)


def together(of: Scene, order: Ints, group: Ints) -> Ints:
    """Return an order with the units of each group, (U,), side by side, else as in an order.

    Groups that wait for each other in a circle leave the order as it is.
    """
    groups: nx.DiGraph[int] = nx.DiGraph()
    groups.add_nodes_from(np.unique(group).tolist())
    groups.add_edges_from((a, b) for a, b in group[of.edges].tolist() if a != b)
    if not nx.is_directed_acyclic_graph(groups):
        return order
    place = {part: p for p, part in enumerate(nx.topological_sort(groups))}
    return order[np.argsort([place[p] for p in group[order].tolist()], kind="stable")]


def _units(of: Scene, blocks: Iterable[int], rng: np.random.Generator) -> Ints:
    """Return the units of blocks in their order; those of a block in any."""
    members = [sorted(of.blocks.nodes[b]["members"]) for b in blocks]
    return np.array([u for units in members for u in rng.permutation(units).tolist()], np.int64)
