"""Integer program that decides whether some stages have disjoint rings that meet a threshold.

Devices that are admitted to one another are in one *cell*: a block, if all its pairs are, or one
device. A ring may visit the devices of a cell in any order, so only links between cells have
variables. For stage s

    symbol         meaning
    w_e            1 if the ring has the admitted pair e of devices in two cells
    one_d, two_d   1 if device d has one, two such links
    fill_k         devices of cell k without such links
    paths_k        parts of the ring in cell k with two ends
    z_k            1 if the whole ring lies in cell k
    used_k         1 if the ring comes to cell k
    chosen_c       1 if the ring lies in component c
    n_k            Σ_{d in k} (one_d + two_d) + fill_k: devices of cell k on the ring

    Σ_{e at d} w_e = one_d + 2 two_d                                                (1) degree
    w_e ≤ one_d + two_d,  d an end of e                                             (2) at_ends
    Σ_{d in k} one_d = 2 paths_k                                                    (3) ends
    fill_k ≤ |k| (paths_k + z_k)                                                    (4) fills
    n_k ≥ R z_k                                                                     (5) whole
    n_k ≤ |k| used_k                                                                (6) uses
    used_k ≤ paths_k + Σ_{d in k} two_d + z_k                                       (7) comes
    Σ_k n_k = R                                                                     (8) full
    Σ_c chosen_c = 1                                                               (9) one_component
    w_e, z_k ≤ chosen_c,  paths_k ≤ (most paths) chosen_c                          (10) component
    Σ_{e leaves j and k} w_e ≥ 2 used_j, 2 used_k,  where |j| + |k| < R            (11) leaves

A ring lies in one biconnected component of the admitted pairs: where several have R devices, one is
chosen. Where a cell has capacity for fewer devices of the stage, |k| is that capacity in (4) to (6)
and (11). That no device has two places, and no block more places than devices, is said by
`message_program` over all stages. The program is a relaxation: it may have only some of the stages,
and a ring of a solution may consist of several cycles.

Such solutions violate *cuts* that every ring fulfils. With S a set of devices, and P, for every
cell that is partly in S, all its devices on one side:

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
from ..linear import LinearBuilder
from .costs import MappingCosts
from .kernels import ring_core

#: Places on each side that are joined in cuts of one piece.
MAX_CUT_PLACES = 5


@dataclass(frozen=True, eq=False)
class Cut:
    """Row Σ factors · columns ≥ least that every ring fulfils."""

    columns: Ints
    factors: Floats
    least: float


@dataclass(frozen=True, eq=False)
class StageRing:
    """Columns of one stage's ring."""

    stage: int  # stage, replicas: which stage, and R
    replicas: int
    cell: Ints  # (D,): cell of each device; -1 if it has no place in the ring
    a: Ints  # a, c: (E,): the two devices of each admitted pair of different cells
    c: Ints
    link: Ints  # (E,): columns w
    # one, two: (D,): columns; -1 for a device without such pairs, and `one` for a cell of one
    one: Ints
    two: Ints
    fill: Ints  # fill, paths, whole, used: (cells,): columns; -1 for a cell of one device
    paths: Ints
    whole: Ints
    used: Ints

    def places(self, d: int) -> list[int]:
        """Columns whose sum is 1 if the ring links device d to another cell."""
        return [int(j) for j in (self.one[d], self.two[d]) if j >= 0]


class RingProgram:
    """Program of the rings of the stages added so far; `block` is that of each device."""

    def __init__(self, costs: MappingCosts, block: Ints) -> None:
        self.rows = LinearBuilder()
        self.rings: list[StageRing] = []
        self._replicas = costs.replicas
        self._block = block

    def add(self, stage: int, admitted: Bools, cell: Ints, capacity: Ints | None = None) -> None:
        """Add the ring of a stage, of R ≥ 3, over admitted pairs, and cells by `cells_of`.

        `admitted` is symmetric, False on the diagonal. `capacity`, (B,), is how many devices of
        each block may serve the stage.
        """
        rows, r, size = self.rows, self._replicas, len(cell)
        apart = np.triu(admitted & (cell[:, None] != cell[None, :]), 1)
        apart &= (cell >= 0)[:, None] & (cell >= 0)[None, :]
        a, c = np.nonzero(apart)
        link = rows.columns(len(a))
        members = np.bincount(cell[cell >= 0])
        wide = np.flatnonzero(members > 1)
        cap = members.copy()
        if capacity is not None:
            of_block = np.zeros(len(members), np.int64)
            of_block[cell[cell >= 0]] = self._block[cell >= 0]
            cap = np.minimum(members, capacity[of_block])
        gates = np.unique(np.r_[a, c])
        one, two = np.full(size, -1), np.full(size, -1)
        inner = gates[members[cell[gates]] > 1]
        one[inner], two[gates] = rows.columns(len(inner)), rows.columns(len(gates))
        fill, paths, whole, comes = (np.full(len(members), -1) for _ in range(4))
        for k in wide.tolist():
            # finite everywhere: HiGHS 1.12 calls some programs infeasible without
            fill[k] = rows.columns(1, float(min(r, cap[k])))[0]
            paths[k] = rows.columns(1, float(min(r, cap[k]) // 2))[0]
            whole[k] = rows.columns(1, float(cap[k] >= r))[0]
            comes[k] = rows.columns(1)[0]
        ring = StageRing(stage, r, cell, a, c, link, one, two, fill, paths, whole, comes)
        self.rings.append(ring)

        for d in gates.tolist():
            places = ring.places(d)
            links = link[(a == d) | (c == d)]
            factors = np.r_[np.ones(len(links)), [-2.0 if j == two[d] else -1.0 for j in places]]
            rows.row(f"degree[{stage},{d}]", np.r_[links, places], factors, 0, 0)
            for j in links.tolist():
                name = f"at_ends[{stage},{d},{j}]"
                rows.row(name, [j, *places], [1.0, *[-1.0] * len(places)], -np.inf, 0)
        used: list[int] = []
        for k in range(len(members)):
            inside = np.flatnonzero(cell == k)
            places = [j for d in inside.tolist() for j in ring.places(d)]
            if fill[k] >= 0:
                ends = one[inside][one[inside] >= 0]
                at = f"[{stage},{k}]"
                rows.row("ends" + at, np.r_[ends, paths[k]], np.r_[np.ones(len(ends)), -2.0], 0, 0)
                most = -float(cap[k])
                rows.row(
                    "fills" + at,
                    [fill[k], paths[k], whole[k]],
                    [1.0, most, most],
                    -np.inf,
                    0,
                )
                places.append(int(fill[k]))
                ones = np.ones(len(places))
                rows.row("whole" + at, np.r_[places, whole[k]], np.r_[ones, -r], 0, np.inf)
                rows.row("uses" + at, np.r_[places, comes[k]], np.r_[ones, most], -np.inf, 0)
                through = two[inside][two[inside] >= 0]
                splits = np.r_[through, paths[k], whole[k], comes[k]]
                rows.row("comes" + at, splits, np.r_[np.ones(len(splits) - 1), -1.0], 0, np.inf)
            used += places
        rows.row(f"full[{stage}]", used, 1.0, r, r)
        self._choose_component(ring, admitted)
        self._leave_pairs(ring, cap)

    def _leave_pairs(self, ring: StageRing, cap: Ints) -> None:
        """Let the ring leave two cells that are linked and cannot hold it."""
        u, v = ring.cell[ring.a], ring.cell[ring.c]
        linked = {(min(pair), max(pair)) for pair in zip(u.tolist(), v.tolist(), strict=True)}
        for i, j in sorted(linked):
            if cap[i] + cap[j] >= ring.replicas or ring.used[i] < 0 or ring.used[j] < 0:
                continue
            leaves = ring.link[np.isin(u, (i, j)) != np.isin(v, (i, j))]
            for k in (i, j):
                columns, signs = np.r_[leaves, ring.used[k]], np.r_[np.ones(len(leaves)), -2.0]
                name = f"leaves[{ring.stage},{i},{j},{k}]"
                self.rows.row(name, columns, signs, 0, np.inf)

    def _choose_component(self, ring: StageRing, admitted: Bools) -> None:
        """Let links and paths be of one biconnected component with R devices or more."""
        rows, alive = self.rows, ring.cell >= 0
        pairs = np.argwhere(np.triu(admitted & alive[:, None] & alive[None, :], 1))
        graph: nx.Graph[int] = nx.Graph()
        graph.add_edges_from((int(a), int(c)) for a, c in pairs)
        of_pair: dict[tuple[int, int], int] = {}
        count = 0
        for edges in nx.biconnected_component_edges(graph):
            inside = [(min(edge), max(edge)) for edge in edges]
            if len({d for edge in inside for d in edge}) >= ring.replicas:
                of_pair.update(dict.fromkeys(inside, count))
                count += 1
        chosen = rows.columns(count)
        rows.row(f"one_component[{ring.stage}]", chosen, 1.0, 1, 1)
        columns = [*ring.link.tolist()]
        component = [
            of_pair.get(pair, -1) for pair in zip(ring.a.tolist(), ring.c.tolist(), strict=True)
        ]
        for k in np.flatnonzero(ring.paths >= 0).tolist():
            first, second = np.flatnonzero(ring.cell == k)[:2].tolist()
            columns += [int(ring.paths[k]), int(ring.whole[k])]
            component += [of_pair.get((first, second), -1)] * 2
        for j, name in zip(columns, component, strict=True):
            if name < 0:
                rows.upper[j] = 0.0
            elif count > 1 and rows.upper[j] > 0:
                most = -rows.upper[j]
                rows.row(f"component[{ring.stage},{j}]", [j, chosen[name]], [1.0, most], -np.inf, 0)


def cells_of(admitted: Bools, block: Ints, replicas: int) -> Ints | None:
    """Return the cell of each device, -1 for those without a place; None if no ring exists.

    `admitted`, (D, D), is symmetric, False on the diagonal; `block` divides devices into sets that
    may be cells, if all their pairs are admitted.
    """
    every = np.ones(len(block), np.bool_)
    alive = ring_core(admitted, min(2, replicas - 1), replicas, every)
    if not alive.any():
        return None
    cell = np.full(len(block), -1)
    count = 0
    for name in np.unique(block[alive]).tolist():
        members = np.flatnonzero(alive & (block == name))
        inside = admitted[np.ix_(members, members)]
        if inside.sum() == len(members) * (len(members) - 1):
            cell[members] = count
            count += 1
        else:
            cell[members] = count + np.arange(len(members))
            count += len(members)
    return cell


def _pieces(ring: StageRing, x: Floats) -> nx.MultiGraph[tuple[int, int]]:
    """Return the multigraph of the ring's links: its nodes are cells, and devices with two links.

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
    """Return the cuts that an integer solution x violates; none if its ring is one cycle."""
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
    """Return the columns whose sum is 1 for each cell or gate `among` the devices that x uses."""
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


def orders(rings: list[StageRing], x: Floats, members: dict[int, Ints]) -> dict[int, Ints] | None:
    """Return each stage's devices in ring order; None if fill finds no device of its own."""
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
