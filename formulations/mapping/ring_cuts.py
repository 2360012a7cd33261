"""Rings in one piece: rows that every ring fulfils and a solution in several pieces does not.

With the columns of `ring_program`, S a set of devices, and P, for every cell that is partly
in S, all its devices on one side:

    Σ_{e leaves S} w_e + 2 Σ_{d in P} (1 − two_d) ≥ 2 (used_i + used_j − 1)     i in S, j outside

where i and j are cells, or devices (used_d = one_d + two_d) of cells that are partly in S; and the
right side is 2 used_i (2 used_j) if S (its complement) has fewer than R devices. For if all of P
have two links between cells, the ring can leave S between cells only.

Source: connectivity cuts of the travelling salesman, Dantzig, Fulkerson, Johnson, "Solution of a
large-scale traveling-salesman problem", Operations Research 1954; for tours that visit some nodes
only, Fischetti, Salazar, Toth, "A branch-and-cut algorithm for the symmetric generalized traveling
salesman problem", Operations Research 1997.
"""

from __future__ import annotations

from dataclasses import dataclass

import networkx as nx
import numpy as np

from ...instances.common.arrays import Bools, Floats, Ints
from .ring_program import StageRing

#: Places on each side that are joined in cuts of one piece.
MAX_CUT_PLACES = 5


@dataclass(frozen=True, eq=False)
class Cut:
    """A row: Σ factors · columns ≥ least."""

    columns: Ints
    factors: Floats
    least: float


def _pieces(ring: StageRing, x: Floats) -> nx.MultiGraph[tuple[int, int]]:
    """Return what the ring's links join: cells with ends or fill, and devices with two links.

    A node is (cell, -1) or (cell, device); an edge carries its devices as ``ends``.
    """
    graph: nx.MultiGraph[tuple[int, int]] = nx.MultiGraph()
    for k in np.flatnonzero(ring.fill >= 0).tolist():
        if x[ring.paths[k]] > 0.5 or x[ring.whole[k]] > 0.5:
            graph.add_node((k, -1))

    def node(d: int) -> tuple[int, int]:
        return int(ring.cell[d]), (d if x[ring.two[d]] > 0.5 else -1)

    for e in np.flatnonzero(x[ring.link] > 0.5).tolist() if len(ring.link) else []:
        a, c = int(ring.a[e]), int(ring.c[e])
        u, v = node(a), node(c)
        graph.add_edge(u, v, ends={u: a, v: c})
    return graph


def cuts(ring: StageRing, x: Floats) -> list[Cut]:
    """Return cuts that x, whole numbers, violates; none if its ring is in one piece."""
    graph = _pieces(ring, x)
    parts = list(nx.connected_components(graph))
    if len(parts) < 2:
        return []
    size = len(ring.cell)
    alive = ring.cell >= 0
    shared = {k for k, _ in graph.nodes}
    found: list[Cut] = []
    for part in parts:
        inside = np.zeros(size, np.bool_)
        own = {k for k, _ in part}
        mine = shared - {k for p in parts if p is not part for k, _ in p}
        partial: list[int] = []
        for k in own:
            members = ring.cell == k
            devices = [d for j, d in part if j == k and d >= 0]
            if k in mine:
                inside |= members
            elif (k, -1) in part:  # all but those of other pieces
                away = [d for j, d in graph.nodes if j == k and d >= 0 and (j, d) not in part]
                inside |= members
                inside[away] = False
                partial += away
            else:
                inside[devices] = True
                partial += devices
        leaves = ring.link[inside[ring.a] != inside[ring.c]]
        columns = [*leaves.tolist(), *ring.two[partial].tolist()]
        factors = [1.0] * len(leaves) + [-2.0] * len(partial)
        bare = -2.0 * len(partial)
        here = _used(ring, x, inside)
        there = _used(ring, x, alive & ~inside)
        if inside.sum() < ring.replicas:
            pairs = [(places, bare) for places in here]
        elif (alive & ~inside).sum() < ring.replicas:
            pairs = [(places, bare) for places in there]
        else:
            pairs = [
                (p + q, bare - 2.0) for p in here[:MAX_CUT_PLACES] for q in there[:MAX_CUT_PLACES]
            ]
        found += [_cut(columns, factors, places, least) for places, least in pairs]
    return found


def _used(ring: StageRing, x: Floats, among: Bools) -> list[list[int]]:
    """Columns whose sum says that a cell, or a gate of a cell partly among them, is used."""
    found = []
    partly = np.bincount(ring.cell[ring.cell >= 0], ~among[ring.cell >= 0])[ring.cell] > 0
    for k in np.flatnonzero(ring.used >= 0).tolist():
        members = ring.cell == k
        if x[ring.used[k]] > 0.5 and among[members].all():
            found.append([int(ring.used[k])])
    alone = (ring.two >= 0) & (partly | (ring.one < 0))
    for d in np.flatnonzero(among & alone).tolist():
        places = ring.places(d)
        if x[places].sum() > 0.5:
            found.append(places)
    return found


def _cut(columns: list[int], factors: list[float], used: list[int], least: float) -> Cut:
    return Cut(np.array(columns + used), np.array(factors + [-2.0] * len(used)), least)


def orders(
    rings: list[StageRing], x: Floats, members: dict[int, Ints] | None = None
) -> dict[int, Ints] | None:
    """Return each stage's devices in ring order; None if fill finds no device of its own.

    Parameters
    ----------
    members
        The devices of each stage, if they are known.
    """
    taken = np.zeros(len(rings[0].cell), np.bool_)
    for ring in rings:
        for d in np.flatnonzero(ring.two >= 0).tolist():
            if x[ring.places(d)].sum() > 0.5:
                taken[d] = True
    found: dict[int, Ints] = {}
    for ring in rings:
        filling: dict[int, list[int]] = {}
        for k in np.flatnonzero(ring.fill >= 0).tolist():
            count = round(x[ring.fill[k]])
            able = (ring.cell == k) & ~taken
            if members is not None:
                able &= np.isin(np.arange(len(able)), members[ring.stage])
            free = np.flatnonzero(able)[:count]
            if len(free) < count:
                return None
            taken[free] = True
            filling[k] = free.tolist()
        graph = _pieces(ring, x)
        order: list[int] = []
        if graph.number_of_edges() == 0:
            order = next(devices for devices in filling.values() if devices)
        walk = list(nx.eulerian_circuit(graph, keys=True)) if graph.number_of_edges() else []
        for u, v, key in walk:
            ends = graph.edges[u, v, key]["ends"]
            if u[1] < 0:  # from where the last link ended through the cell
                order += filling.pop(u[0], [])
            order.append(ends[u])
            if v[1] < 0:
                order.append(ends[v])
        found[ring.stage] = np.array(order)
    return found
