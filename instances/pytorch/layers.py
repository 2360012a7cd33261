"""Grouping of operators into layers by module, without cycles between layers."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

from ..common.search import leads_to
from ..common.units import ROOT_MODULE
from .operator_graph import OperatorGraph


@dataclass(frozen=True)
class Grouping:
    """Assignment of operators to nodes.

    Parameters
    ----------
    node
        Node of each operator.
    names
        Of the nodes, all different.
    paths
        What the nodes are called with the modules around them; empty if `names` say it.
    """

    node: tuple[int, ...]
    names: tuple[str, ...]
    paths: tuple[str, ...] = ()


def by_operator(graph: OperatorGraph) -> Grouping:
    """Return the grouping in which every operator is a node, called ``path/operator``, too."""
    names = tuple(op.name for op in graph.operators)
    paths = tuple(f"{_path(op.modules, len(op.modules))}/{op.name}" for op in graph.operators)
    return Grouping(tuple(range(len(names))), names, paths)


def by_layer(graph: OperatorGraph, depth: int) -> Grouping:
    """Group operators by the module `depth` calls below the outermost one.

    An operator whose call is less deep belongs to the innermost module around it; the backward
    operators of a layer make up a node of their own. Operators join the newest node of their
    module unless that would close a cycle between nodes (a module called twice, or one that works
    before and after its children): then they begin another one, called ``path#2`` and so on.

    Parameters
    ----------
    depth
        1 for the outermost module's children. Containers that are not called themselves, such as
        `ModuleList`, do not count.

    Notes
    -----
    Linear in operators times edges between nodes. The result is acyclic by construction: every
    operator is added to an acyclic graph of nodes, after all operators that it waits for.
    """
    before: list[list[int]] = [[] for _ in graph.operators]
    for u, v in graph.edges():
        before[v].append(u)
    node: list[int] = []
    names: list[str] = []
    newest: dict[Hashable, int] = {}
    count: dict[str, int] = {}
    follows: list[set[int]] = []
    for v, op in enumerate(graph.operators):
        sources = {node[u] for u in before[v]}
        if op.backward and op.partner >= 0:
            name = f"{names[node[op.partner]]}.backward"
        else:
            name = _path(op.modules, depth) + (".backward" if op.backward else "")
        g = newest.get(name, -1)
        if g < 0 or leads_to(follows, {g}, sources - {g}):
            g = newest[name] = len(names)
            count[name] = count.get(name, 0) + 1
            names.append(name if count[name] == 1 else f"{name}#{count[name]}")
            follows.append(set())
        node.append(g)
        for u in sources - {g}:
            follows[u].add(g)
    return Grouping(tuple(node), tuple(names))


def fitting_depth(graph: OperatorGraph, least: int = 8) -> int:
    """Return the smallest depth with at least `least` forward nodes, or the greatest there is."""
    deepest = max(len(op.modules) for op in graph.operators)
    for depth in range(1, deepest):
        if sum(not name.endswith(".backward") for name in by_layer(graph, depth).names) >= least:
            return depth
    return max(1, deepest - 1)


def _path(modules: tuple[str, ...], depth: int) -> str:
    inside = modules[: depth + 1]
    return (inside[-1] if inside else "") or ROOT_MODULE
