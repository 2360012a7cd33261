"""The modules of a workload in pipeline order, read from the names of its nodes.

Frameworks cut a model between modules: an input part such as an embedding, numbered *blocks* such
as ``layers.17``, and an output part such as a head. The beginning of a node's name, up to and
including the first run of numbered components, is its block: ``layers.17`` for
``layers.17.attention``, ``stage.0.2`` for ``stage.0.2.expand``. After a slash comes an operator of
the module: ``layers.17.attention/add_5``, or ``3/linear_3`` in a sequence. A backward node belongs
to the module of the forward node whose name begins its own name, else to the last module whose data
it uses. All other nodes belong

- to the input, each under the first component of its name, if no block is before them and the
  first block uses them;
- to the output, likewise, if the last block is before them and no block after;
- else to the last block before them or, if there is none, to the first block that uses them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ...instances import Workload
from ...instances.common.arrays import Floats, Ints, frozen
from ...instances.model.workload import kept_bytes
from .line import Line

#: The parts of a model.
INPUT, BLOCK, OUTPUT = range(3)


@dataclass(frozen=True, eq=False)
class Modules:
    """The I modules of a workload: input modules, then blocks, then output modules."""

    #: Names of the modules, in pipeline order.
    names: tuple[str, ...]
    #: Numbers of modules before and after the blocks.
    inputs: int
    outputs: int
    #: Shape (U,): module of each unit of the line.
    module_of: Ints
    #: Shape (I,): forward and backward time on the first kind of device.
    compute: Floats
    #: Shape (I,): bytes of the weights, and their number; bytes again if the number is unknown.
    weight_bytes: Floats
    parameters: Floats

    @property
    def size(self) -> int:
        """Number of modules."""
        return len(self.names)

    @property
    def blocks(self) -> int:
        """Number of blocks."""
        return self.size - self.inputs - self.outputs


def modules(workload: Workload, statement: Line, least: int = 1) -> Modules | None:
    """Return the modules of a workload; None if the names of its nodes number no blocks.

    If there are fewer than `least` blocks, they are divided by the next numbers in the names of
    their nodes, such as ``layers.3.blocks.1``, provided that this gives enough blocks. O(n + m) in
    nodes and edges for each depth of numbers.
    """
    forward = np.flatnonzero(~workload.backward).tolist()
    deepest = max((len(_runs(workload.names[v])) for v in forward), default=0)
    if not deepest:
        return None
    first = found = _modules(workload, statement, 1)
    for depth in range(2, deepest + 1):
        if found.blocks >= least:
            return found
        found = _modules(workload, statement, depth)
    return found if found.blocks >= least else first


def block_of(name: str, depth: int = 1) -> str:
    """Return the block that a name begins with; empty if it has no numbered component.

    Parameters
    ----------
    depth
        Most runs of numbered components in the block's name.

    Examples
    --------
    >>> block_of("layers.17.attention"), block_of("layer4.0.conv1"), block_of("lm_head")
    ('layers.17', 'layer4.0', '')
    >>> block_of("layers.3.blocks.1.mlp", 2)
    'layers.3.blocks.1'
    >>> block_of("layers.17.attention/add_5"), block_of("3/linear_3"), block_of("3")
    ('layers.17', '3', '')
    """
    ends = _runs(name)
    return ".".join(_module_of(name).split(".")[: ends[min(depth, len(ends)) - 1]]) if ends else ""


def _module_of(name: str) -> str:
    """Return the module of an operator's name; the name of a module is returned unchanged."""
    return name.rpartition("/")[0] or name


def _runs(name: str) -> list[int]:
    """Return the numbers of components of a name up to the end of each run of numbered ones."""
    parts = _module_of(name).split(".")
    if len(parts) == 1 and "/" not in name:
        return []  # numbers alone are ids
    numbered = [part[-1:].isdigit() for part in parts[:-1]] + [parts[-1].isdigit(), False]
    return [i + 1 for i in range(len(parts)) if numbered[i] and not numbered[i + 1]]


def _modules(workload: Workload, statement: Line, depth: int) -> Modules:
    unit_of = statement.graph.unit_of
    names = _pipeline_order(workload, statement, depth)
    place = _places(workload, statement, names)
    keys = sorted(set(place))
    number = {key: i for i, key in enumerate(keys)}
    module_of = np.array([number[p] for p in place])
    weights, _, _ = kept_bytes(workload)
    sides = [side for side, _, _ in keys]
    return Modules(
        names=tuple(name for _, _, name in keys),
        inputs=sides.count(INPUT),
        outputs=sides.count(OUTPUT),
        module_of=frozen(module_of, np.int64),
        compute=frozen(np.bincount(module_of, statement.compute[0].sum(axis=0)), np.float64),
        weight_bytes=frozen(np.bincount(module_of[unit_of], weights), np.float64),
        parameters=frozen(
            np.bincount(module_of[unit_of], workload.extra.get("parameters", weights)), np.float64
        ),
    )


def _pipeline_order(workload: Workload, statement: Line, depth: int) -> list[tuple[int, str]]:
    """Return the number and name of each unit's block; −1 and empty if it has none.

    Blocks are numbered in topological order, with ties in the natural order of their names; blocks
    on a common cycle are one block.
    """
    import networkx as nx

    graph = statement.graph
    first: dict[int, str] = {}
    for v in np.flatnonzero(~workload.backward).tolist():
        block = block_of(workload.names[v], depth)
        unit = int(graph.unit_of[v])
        if block:
            first[unit] = min(first.get(unit, block), block, key=_natural)
    node = [first.get(unit, unit) for unit in range(graph.size)]
    joined: nx.DiGraph[str | int] = nx.DiGraph()
    joined.add_nodes_from(node)
    joined.add_edges_from((node[u], node[v]) for u, v in graph.edges.tolist())
    groups = nx.condensation(joined)
    called = {
        group: min((m for m in members if isinstance(m, str)), key=_natural, default="")
        for group, members in groups.nodes(data="members")
    }
    in_order = nx.lexicographical_topological_sort(groups, key=lambda g: _natural(called[g]))
    number = {group: i for i, group in enumerate(g for g in in_order if called[g])}
    of = groups.graph["mapping"]
    return [(number.get(of[n], -1), called[of[n]]) for n in node]


def _natural(name: str) -> list[tuple[int, int, str]]:
    """Return the sort key of a name that compares the numbers in names as numbers."""
    parts = re.split(r"([0-9]+)", name)
    return [(0, int(p), "") if p.isdecimal() else (1, 0, p) for p in parts]


def _places(
    workload: Workload, statement: Line, block: Sequence[tuple[int, str]]
) -> list[tuple[int, int, str]]:
    """Return each unit's part of the model, and the number and name of its module in that part."""
    graph, order = statement.graph, statement.orders[0].tolist()
    last = max(number for number, _ in block)
    called = {number: name for number, name in block if number >= 0}
    before = [number for number, _ in block]
    behind = [number if number >= 0 else last + 1 for number, _ in block]
    for u in order:
        for v in graph.successors[u]:
            before[v] = max(before[v], before[u])
    for u in reversed(order):
        for v in graph.successors[u]:
            behind[u] = min(behind[u], behind[v])
    place: list[tuple[int, int, str]] = [(INPUT, 0, "")] * len(order)
    outer: dict[str, int] = {}
    for u in order:
        name = _module_of(workload.names[graph.members[u][0]]).split(".")[0]
        if block[u][0] < 0 and before[u] < 0 and behind[u] in (0, last + 1):
            place[u] = (INPUT, outer.setdefault(f"input {name}", len(outer)), name)
        elif block[u][0] < 0 and before[u] == last and behind[u] > last:
            place[u] = (OUTPUT, outer.setdefault(f"output {name}", len(outer)), name)
        else:
            own = before[u] if before[u] >= 0 else behind[u]
            place[u] = (BLOCK, own, called[own])
    return _follow(workload, statement, place)


def _follow(
    workload: Workload, statement: Line, place: list[tuple[int, int, str]]
) -> list[tuple[int, int, str]]:
    """Return the places with each backward unit moved to the module of its forward node."""
    unit_of, backward = statement.graph.unit_of.tolist(), workload.backward.tolist()
    forward = {workload.names[v]: unit_of[v] for v in range(workload.n) if not backward[v]}
    alone = [all(backward[v] for v in nodes) for nodes in statement.graph.members]
    place = list(place)
    for v in workload.order:
        if not alone[unit_of[v]]:
            continue
        parts = workload.names[v].split(".")
        own = [forward.get(".".join(parts[:i])) for i in range(len(parts) - 1, 0, -1)]
        like = [unit for unit in own if unit is not None][:1]
        used = [unit_of[u] for u in workload.predecessors[v] if not backward[u]]
        if like or used:
            place[unit_of[v]] = max(place[unit] for unit in like or used)
    return place
