"""Splits of a stage's slack between messages and ring at a threshold, and what blocks can carry.

With blocks (`blocks.py`) a message either stays in a block or crosses, and crossing costs at
least the cheapest route across. So a stage of slack T − base has these *splits*: pairs of upper
bounds, of its messages and of its ring messages:

1. no message crosses: the ring has what the least transfer leaves;
2. no ring message crosses: the messages have what the least all-reduce leaves;
3. both cross: the range of the ring's part is cut into intervals; ring messages are bounded by an
   interval's upper end, messages by what its lower end leaves.

Every mapping within the threshold respects the bounds of one split of each stage.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import maximum_bipartite_matching

from ...instances.common.arrays import Bools, Floats, Ints
from .blocks import cheapest_across
from .bound import LowerBounds, fitting
from .costs import MappingCosts
from .rings_kernel import has_ring, matching_size

#: Pairs of blocks times boundaries up to which messages are counted by pair of blocks.
MAX_BLOCK_PAIRS = 8000
#: Intervals into which the range of split 3 is cut.
SPLIT_INTERVALS = 12


@dataclass(frozen=True, eq=False)
class BlockCapacities:
    """The coefficients of `counts.py`; B blocks, S stages, Q splits (padded with the first).

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
    """Return the coefficients at a threshold; None if simpler conditions fail already."""
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
    """Leave out splits that allow nothing that another split does not."""
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
    """Size of the largest matching, or R if that is less."""
    degree = max(int(admitted.sum(axis=0).max()), int(admitted.sum(axis=1).max()), 1)
    if int(admitted.sum()) >= degree * replicas:  # König: edges / degree are matched
        return replicas
    return min(replicas, matching_size(admitted))


def _holds_ring(
    admitted: Bools, members: list[Ints], replicas: int, known: dict[bytes, bool]
) -> list[bool]:
    """Whether each block may hold a ring of R devices by itself."""
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
