"""Partial sets of nodes in an order, in groups of those whose futures cost the same.

What the future of a partial set costs depends only on which of its outputs still have readers to
come and where they have been read or written so far.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ....instances import VerificationError

#: Most groups of partial sets before the check gives up.
MOST_GROUPS = 400_000


@dataclass(frozen=True, eq=False)
class Net:
    """A node's output: those that write and read it, as numbers of blocks; its transfer time."""

    blocks: tuple[int, ...]
    weight: float


@dataclass(frozen=True, eq=False)
class Groups:
    """Partial sets that agree in all that matters, layer by layer.

    `arcs[i]` lists, for each group after block i: the group before, whether block i is taken,
    and the transfer time that this adds.
    """

    arcs: tuple[tuple[tuple[tuple[int, bool, float], ...], ...], ...]


def enumerate_groups(size: int, nets: list[Net], most: float) -> Groups:
    """Return the groups of partial sets, after each block, that pay at most so much transfer time.

    A group is known by two sets of open outputs: those with a block in, and those with one out.
    """
    same: dict[tuple[int, ...], float] = {}
    for net in nets:
        same[net.blocks] = same.get(net.blocks, 0.0) + net.weight
    merged = list(same.items())
    touching: list[list[int]] = [[] for _ in range(size)]
    last = [blocks[-1] for blocks, _ in merged]
    for e, (blocks, _) in enumerate(merged):
        for b in blocks:
            touching[b].append(e)
    groups = {(frozenset[int](), frozenset[int]()): 0}
    least = [0.0]
    arcs = []
    total = 0
    for b in range(size):
        mine = frozenset(touching[b])
        open_after = frozenset(e for e in mine if last[e] > b)
        after: dict[tuple[frozenset[int], frozenset[int]], int] = {}
        incoming: list[list[tuple[int, bool, float]]] = []
        paid: list[float] = []
        for (inside, outside), g in groups.items():
            for taken in (False, True):
                other = outside if taken else inside
                before = inside if taken else outside
                cost = math.fsum(merged[e][1] for e in mine if e in other and e not in before)
                if least[g] + cost > most:
                    continue
                ended = mine - open_after
                now = (before | mine) - ended
                key = (now, other - ended) if taken else (other - ended, now)
                if key not in after:
                    after[key] = len(after)
                    incoming.append([])
                    paid.append(math.inf)
                incoming[after[key]].append((g, taken, cost))
                paid[after[key]] = min(paid[after[key]], least[g] + cost)
        groups, least = after, paid
        arcs.append(tuple(map(tuple, incoming)))
        total += len(after)
        if total > MOST_GROUPS:
            raise VerificationError(
                f"certificate: more than {MOST_GROUPS} groups of partial sets: too many for this "
                "check; the bound is neither proved nor refuted"
            )
    return Groups(tuple(arcs))
