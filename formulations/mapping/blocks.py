"""Blocks of near devices, and the integer program of counts of devices per block.

*Blocks*. A block structure is a partition of the devices in which every route inside a block is
cheaper than every route between two blocks. Single linkage finds all of them in the table of
routes: the levels of a minimum spanning tree at which no component holds a route as long as the
next level. The one with the widest step between inside and across is taken.

*Splits*. At a threshold T the slack of a stage, T − base, is split between its messages and its
ring messages. A message either stays in a block or crosses, and crossing costs at least the
cheapest route across. So a split is one of these pairs of upper bounds:

1. no message crosses: the ring has what the least transfer leaves;
2. no ring message crosses: the messages have what the least all-reduce leaves;
3. both cross: the range of the ring's part is cut into intervals; ring messages are bounded by an
   interval's upper end, messages by what its lower end leaves.

Every mapping within the threshold respects the bounds of one split of each stage.

*Counts*. Every mapping with stage times ≤ T fulfils a small integer program. For a block b, a stage
s, and a split q of its slack:

    symbol      meaning
    n_{s,b}     devices of b in stage s, at most those that fit
    k_{s,b}     messages of boundary s within b
    y_{s,b,c}   messages of boundary s from b to c, where blocks are few
    λ_{s,q}     1 if stage s shares its time by q
    u_{s,b}     1 if stage s uses b
    z_{s,b}     1 if b holds the whole ring of stage s

    Σ_b n_{s,b} = R                                                                 (1) full
    Σ_q λ_{s,q} = 1                                                               (2) one_split
    Σ_s n_{s,b} ≤ |b|                                                               (3) size
    k_{s,b} ≤ n_{s,b}                                                               (4) from_here
    k_{s,b} ≤ n_{s+1,b}                                                             (5) to_here
    n_{s,b} − k_{s,b} ≤ Σ_q λ_{s,q} out_{s,q,b}                                     (6) out
    n_{s+1,b} − k_{s,b} ≤ Σ_q λ_{s,q} in_{s,q,b}                                    (7) into
    Σ_b (n_{s,b} − k_{s,b}) ≤ Σ_q λ_{s,q} cross_{s,q}                               (8) cross
    Σ_c y_{s,b,c} = n_{s,b} − k_{s,b}                                               (9) sent
    Σ_b y_{s,b,c} = n_{s+1,c} − k_{s,c}                                            (10) got
    y_{s,b,c} ≤ Σ_q λ_{s,q} pairs_{s,q,b,c}                                        (11) pair
    Σ_b (u_{s,b} − z_{s,b}) ≤ Σ_q λ_{s,q} links_{s,q}                              (12) links
    n_{s,b} ≤ |b| u_{s,b}                                                          (13) uses
    n_{s,b} ≥ R z_{s,b}                                                            (14) whole
    u_{s,b} − z_{s,b} ≤ Σ_q λ_{s,q} ring_{s,q,b}                                   (15) ring
    z_{s,b} ≤ Σ_q λ_{s,q} whole_{s,q,b}                                            (16) alone

Matchings of admitted pairs are on the right: messages that leave b (6), enter b (7), cross between
blocks (8), and go from b to c (11). A ring that uses b and others enters and leaves it (15), over
as many links as blocks (12); (16) says whether b can hold a ring of R. The objective has no meaning
for the bound: it counts what crosses, so that solutions are good beginnings of a search.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import maximum_bipartite_matching

from ...instances.common.arrays import Bools, Floats, Ints
from ..linear import Linear, LinearBuilder
from .bound import LowerBounds, fitting
from .costs import MappingCosts
from .kernels import has_ring, matching_size

#: Pairs of blocks times boundaries up to which messages are counted by pair of blocks.
MAX_BLOCK_PAIRS = 8000


#: Intervals into which the range of split 3 is cut.
SPLIT_INTERVALS = 12


@dataclass(frozen=True, eq=False)
class BlockCapacities:
    """Coefficients of the program of counts; B blocks, S stages, Q splits (padded with the first).

    Parameters
    ----------
    size
        Shape (B,): devices.
    fits
        Shape (S, B): devices that fit the stage.
    splits
        Shape (S,): number of splits.
    upper_bounds
        Shape (S, Q, 2): of messages and ring messages, in seconds.
    out, into
        Shape (S, Q, B): devices with an admitted receiver or sender in another block.
    ring
        Shape (S, Q, B): 1 if a ring may enter and leave the block.
    cross
        Shape (S, Q): the largest matching between blocks, or R if that is less.
    links
        Shape (S, Q): blocks that ring messages can enter and leave, two per device at most.
    whole
        Shape (S, Q, B): whether a whole ring fits in.
    pairs
        Shape (S, Q, B, B): matchings between two blocks; None if there are too many.
    has_boundary, has_ring
        Shape (S,): which terms the stage has at all.
    """

    replicas: int
    size: Ints
    fits: Ints
    splits: Ints
    upper_bounds: Floats
    out: Ints
    into: Ints
    cross: Ints
    links: Ints
    ring: Ints
    whole: Bools
    pairs: Ints | None
    has_boundary: Bools
    has_ring: Bools


#: Least ratio of the cheapest route across to the dearest inside.
MIN_STEP_RATIO = 1.5


#: Levels of the spanning tree that are tried, widest step first.
MAX_LEVELS = 8


def find_blocks(costs: MappingCosts) -> Ints:
    """Return the number of each device's block, shape (D,); all 0 if there is no structure.

    Routes are compared by what all messages of a batch would cost on them. O(D²) time.
    """
    alpha, beta = costs.boundary.sum(axis=0) + costs.ring.sum(axis=0)
    whole = np.zeros(costs.size, np.int64)
    if costs.size < 3 or alpha + beta == 0:
        return whole
    from scipy.cluster.hierarchy import fcluster, linkage  # takes 0.3 CPU s to import
    from scipy.spatial.distance import squareform

    cost = alpha * costs.latency + beta * costs.inverse
    tree = linkage(squareform(np.minimum(cost, cost.T), checks=False), "single")
    distance = tree[:, 2]
    step = distance[1:] / np.maximum(distance[:-1], 1e-300)
    for level in np.argsort(-step, kind="stable")[:MAX_LEVELS].tolist():
        if step[level] < MIN_STEP_RATIO:
            return whole
        label = fcluster(tree, distance[level], "distance")
        inside = float(cost.max(where=label[:, None] == label[None, :], initial=0.0))
        if inside * MIN_STEP_RATIO <= distance[level + 1]:
            _, first, named = np.unique(label, return_index=True, return_inverse=True)
            block: Ints = np.argsort(np.argsort(first))[named]  # numbered by first device
            return block
    return whole


def cheapest_across(pair_costs: Floats, block: Ints) -> float:
    """Return the least cost of a pair of devices in different blocks; `inf` without one."""
    apart = block[:, None] != block[None, :]
    return float(pair_costs.min(where=apart, initial=np.inf))


def stage_splits(
    costs: MappingCosts, lower_bounds: LowerBounds, block: Ints, s: int, slack: float
) -> list[tuple[float, float]]:
    """Return the upper bounds (message, ring message) of each split of stage s; empty if none.

    That of ring messages is `inf` where an all-reduce other than a ring fits the slack.
    """
    transfer, allreduce = float(lower_bounds.transfer[s]), float(lower_bounds.allreduce[s])
    most, most_ring = slack - allreduce, slack - transfer
    if most < transfer * (1 - 1e-12):
        return []
    if costs.non_ring_lower_bound[s] <= most_ring:
        return [(most, np.inf)]
    if not (costs.boundary[s].any() and costs.ring[s].any()):
        return [(most, most_ring)]
    messages, rings = costs.boundary_costs(s), costs.ring_costs(s)
    across, ring_across = cheapest_across(messages, block), cheapest_across(rings, block)
    if across > most or ring_across > most_ring:  # one of the two stays inside: no trade
        return [(most, most_ring)]
    splits = [(across * (1 - 1e-12), most_ring), (most, ring_across * (1 - 1e-12))]
    low, high = max(allreduce, ring_across), slack - max(transfer, across)
    if low <= high:
        apart = block[:, None] != block[None, :]
        sample = np.concatenate([rings[apart], slack - messages[apart]])
        sample = sample[(sample > low) & (sample < high)]
        edges = (
            [low, *np.quantile(sample, np.arange(1, SPLIT_INTERVALS) / SPLIT_INTERVALS)]
            if len(sample)
            else [low]
        )
        splits += [(slack - a, b * (1 + 1e-12)) for a, b in pairwise([*edges, high])]
    return splits


def block_capacities(
    costs: MappingCosts, lower_bounds: LowerBounds, threshold: float, block: Ints
) -> BlockCapacities | None:
    """Return the coefficients at a threshold in seconds; None if simpler conditions refute it."""
    slack = (threshold - costs.base) * (1 + 1e-12)
    splits = [
        stage_splits(costs, lower_bounds, block, s, float(slack[s])) for s in range(costs.stages)
    ]
    if not all(splits):
        return None
    fits = fitting(costs, lower_bounds, threshold)
    if fits is None:
        return None
    b, s, r = int(block.max()) + 1, costs.stages, costs.replicas
    has_boundary = np.asarray(costs.boundary.any(axis=1))
    # where another all-reduce than a ring may do, nothing is known of the ring
    has_ring_term = np.array(
        [costs.ring[k].any() and np.isfinite(splits[k][0][1]) for k in range(s)]
    )
    by_pair = b * b * max(1, s - 1) <= MAX_BLOCK_PAIRS and bool(has_boundary.any())
    q = max(map(len, splits))
    shape = (s, q, b)
    out, into, ring = (np.zeros(shape, np.int64) for _ in range(3))
    cross, links = np.zeros((s, q), np.int64), np.zeros((s, q), np.int64)
    whole = np.zeros(shape, np.bool_)
    pairs = np.zeros((s, q, b, b), np.int64) if by_pair else None
    members = [np.flatnonzero(block == i) for i in range(b)]
    apart = block[:, None] != block[None, :]
    for k in range(s):
        messages = costs.boundary_costs(k) if has_boundary[k] else None
        rings = costs.ring_costs(k) if has_ring_term[k] else None
        rings_inside: dict[bytes, bool] = {}
        for j, (on_boundary, on_ring) in enumerate(splits[k]):
            if messages is not None:
                admitted = (messages <= on_boundary) & apart
                admitted &= fits[k][:, None] & fits[k + 1][None, :]
                cross[k, j] = _matched(admitted, r)
                out[k, j] = np.bincount(block[admitted.any(axis=1)], minlength=b)
                into[k, j] = np.bincount(block[admitted.any(axis=0)], minlength=b)
                if pairs is not None:
                    pairs[k, j] = _matchings(admitted, block, b)
            if rings is not None:
                admitted = (rings <= on_ring) & fits[k][:, None] & fits[k][None, :]
                np.fill_diagonal(admitted, False)
                degree = (admitted & apart).sum(axis=1)
                # a block that is entered and left has two ends of links, by one device or by two;
                # the ring of two devices is one link, so one
                need = min(2, r - 1)
                ends = np.bincount(block, np.minimum(degree, need), minlength=b)
                ring[k, j] = ends >= need
                links[k, j] = int(ends.sum()) // need
                whole[k, j] = _holds_ring(admitted, members, r, rings_inside)
    found = BlockCapacities(
        replicas=r,
        size=np.array([len(group) for group in members]),
        fits=np.array([np.bincount(block[row], minlength=b) for row in fits]),
        splits=np.array([len(w) for w in splits]),
        upper_bounds=np.array([w + w[:1] * (q - len(w)) for w in splits]),
        out=out,
        into=into,
        cross=cross,
        links=links,
        ring=ring,
        whole=whole,
        pairs=pairs,
        has_boundary=has_boundary,
        has_ring=has_ring_term,
    )
    return _undominated(found)


def _undominated(counts: BlockCapacities) -> BlockCapacities:
    """Remove dominated splits: another split of the stage has no smaller coefficient."""
    stages, most = counts.cross.shape
    kept = []
    for s in range(stages):
        parts = [counts.cross[s, :, None], counts.links[s, :, None]]
        parts += [getattr(counts, key)[s] for key in ("out", "into", "ring", "whole")]
        if counts.pairs is not None:
            parts.append(counts.pairs[s].reshape(most, -1))
        rows = np.concatenate(parts, axis=1)[: counts.splits[s]]
        keep: list[int] = []
        for j in range(len(rows)):
            above = (rows >= rows[j]).all(axis=1)
            equal = (rows == rows[j]).all(axis=1)
            if not (above & ~equal).any() and not equal[:j].any():
                keep.append(j)
        kept.append(keep)
    count = max(map(len, kept))
    order = np.array([keep + keep[:1] * (count - len(keep)) for keep in kept])
    at = np.arange(stages)[:, None]
    chosen = {
        key: getattr(counts, key)[at, order]
        for key in ("upper_bounds", "out", "into", "cross", "links", "ring", "whole")
    }
    return replace(
        counts,
        splits=np.array([len(keep) for keep in kept]),
        pairs=None if counts.pairs is None else counts.pairs[at, order],
        **chosen,
    )


def _matched(admitted: Bools, replicas: int) -> int:
    """Return the size of the largest matching, at most R."""
    degree = max(int(admitted.sum(axis=0).max()), int(admitted.sum(axis=1).max()), 1)
    if int(admitted.sum()) >= degree * replicas:  # König: edges / degree are matched
        return replicas
    return min(replicas, matching_size(admitted))


def _holds_ring(
    admitted: Bools, members: list[Ints], replicas: int, known: dict[bytes, bool]
) -> list[bool]:
    """Return for each block whether it may hold a ring of R devices by itself."""
    found = []
    for group in members:
        inside = admitted[np.ix_(group, group)]
        key = inside.tobytes()
        if len(group) < replicas:
            known[key] = False
        elif key not in known:
            known[key] = has_ring(inside, replicas)
        found.append(known[key])
    return found


def _matchings(admitted: Bools, block: Ints, count: int) -> Ints:
    """Return the size of the largest matching from each block to each other; shape (B, B).

    One graph holds all: a pair (d, e) joins d's copy for e's block to e's copy for d's block.
    """
    d, e = np.nonzero(admitted & (block[:, None] != block[None, :]))
    shape = (len(block) * count, len(block) * count)
    copies = d * count + block[e], e * count + block[d]
    graph = csr_array((np.ones(len(d), np.bool_), copies), shape=shape)
    used = np.flatnonzero(maximum_bipartite_matching(graph, perm_type="column") >= 0)
    pair = block[used // count] * count + used % count
    return np.bincount(pair, minlength=count**2).reshape(count, count)


def program(counts: BlockCapacities) -> Linear:
    """Return the program of counts; its columns are n, k and λ first, each by stage."""
    stages, blocks = counts.fits.shape
    build = LinearBuilder()
    # finite everywhere: HiGHS 1.12 calls some of these programs infeasible without
    n = build.columns((stages, blocks), counts.fits)
    k = build.columns((stages, blocks), float(counts.replicas), whole=False)
    lam = build.columns((stages, counts.out.shape[1]))
    u, z = build.columns((stages, blocks)), build.columns((stages, blocks))
    for s in range(stages):
        build.row(f"full[{s}]", n[s], 1.0, counts.replicas, counts.replicas)
        build.upper[lam[s, counts.splits[s] :]] = 0.0
        build.row(f"one_split[{s}]", lam[s], 1.0, 1, 1)
    for b in range(blocks):
        build.row(f"size[{b}]", n[:, b], 1.0, 0, int(counts.size[b]))
    y = None
    if counts.pairs is not None:
        y = build.columns((stages, blocks, blocks), float(counts.replicas), whole=False)
    for s in range(stages):
        if counts.has_boundary[s]:
            _messages(build, counts, s, n, k, lam)
            if y is not None:
                _pairs(build, counts, s, n, k, lam, y[s])
        if counts.has_ring[s] and counts.replicas > 1:
            _ring(build, counts, s, n, lam, u[s], z[s])
    cost = np.zeros(len(build.upper))
    cost[k[np.flatnonzero(counts.has_boundary)]] = -1.0
    cost[u] = 1.0
    return build.build(cost)


def _at_most(
    build: LinearBuilder, name: str, plus: Ints, minus: Ints, splits: Ints, values: Ints | Bools
) -> None:
    """Add rows Σ plus − Σ minus ≤ Σ_q values_q λ_q, over the splits that there are.

    Parameters
    ----------
    plus, minus
        Shape (rows, any): columns.
    values
        Shape (q, rows).
    """
    rows, q = len(plus), len(splits)
    columns = np.hstack([plus, minus, np.tile(splits, (rows, 1))])
    signs = np.ones(plus.shape), -np.ones(minus.shape)
    factors = np.hstack([*signs, -values[:q].T.astype(np.float64)])
    at = np.repeat(np.arange(rows), columns.shape[1])
    build.table(name, at, columns.ravel(), factors.ravel(), 0)


def _messages(
    build: LinearBuilder, counts: BlockCapacities, s: int, n: Ints, k: Ints, lam: Ints
) -> None:
    """Add (4) to (8) for a boundary."""
    splits, none = lam[s, : counts.splits[s]], lam[s, :0]
    inside, first, second = k[s, :, None], n[s, :, None], n[s + 1, :, None]
    _at_most(build, f"from_here[{s}]", inside, first, none, counts.out[s])
    _at_most(build, f"to_here[{s}]", inside, second, none, counts.out[s])
    _at_most(build, f"out[{s}]", first, inside, splits, counts.out[s])
    _at_most(build, f"into[{s}]", second, inside, splits, counts.into[s])
    _at_most(build, f"cross[{s}]", n[None, s], k[None, s], splits, counts.cross[s, :, None])


def _pairs(
    build: LinearBuilder, counts: BlockCapacities, s: int, n: Ints, k: Ints, lam: Ints, y: Ints
) -> None:
    """Add (9) to (11) for a boundary, given its columns y, shape (B, B)."""
    assert counts.pairs is not None
    splits, blocks = lam[s, : counts.splits[s]], len(y)
    at = np.repeat(np.arange(blocks), blocks + 2)
    signs = np.tile(np.r_[-1.0, 1.0, np.ones(blocks)], blocks)
    for name, served, moved in (("sent", n[s], y), ("got", n[s + 1], y.T)):
        columns = np.column_stack([served, k[s], moved]).ravel()
        build.table(f"{name}[{s}]", at, columns, signs, 0, 0)
    values = counts.pairs[s].reshape(-1, blocks * blocks)
    some = values.any(axis=0)
    build.upper[y.ravel()[~some]] = 0.0
    if some.any():
        each = y.ravel()[some][:, None]
        _at_most(build, f"pair[{s}]", each, each[:, :0], splits, values[:, some])


def _ring(
    build: LinearBuilder, counts: BlockCapacities, s: int, n: Ints, lam: Ints, u: Ints, z: Ints
) -> None:
    """Add (12) to (16) for a ring, given its columns u and z, shape (B,)."""
    splits, r = lam[s, : counts.splits[s]], float(counts.replicas)
    at, ones = np.repeat(np.arange(len(u)), 2), np.ones(len(u))
    used, alone = u[:, None], z[:, None]
    _at_most(build, f"links[{s}]", u[None], z[None], splits, counts.links[s, :, None])
    for name, columns, factors in (
        ("uses", np.column_stack([n[s], u]), np.column_stack([ones, -counts.size])),
        ("whole", np.column_stack([n[s], z]), np.column_stack([-ones, r * ones])),
    ):
        build.table(f"{name}[{s}]", at, columns.ravel(), factors.ravel(), 0)
    _at_most(build, f"ring[{s}]", used, alone, splits, counts.ring[s])
    _at_most(build, f"alone[{s}]", alone, alone[:, :0], splits, counts.whole[s])
