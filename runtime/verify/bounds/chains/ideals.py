"""All ideals of the graph of blocks, and what lies between two of them: stages of a chain.

An *ideal* is a set of blocks that holds all that any of its blocks waits for. The prefixes of a
contiguous split are ideals I_0 = ∅ ⊂ I_1 ⊂ … ⊂ I_P, and its stages are I_s ∖ I_{s−1}.

Blocks that take no time on any kind of device, and have at most one neighbour in the order, are
left out where their bytes cannot matter: no split gets dearer, and a net of a node and its readers
that is torn without them is torn with them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from .....instances import Costs, Workload
from .....instances.common.arrays import Bools, Ints
from ..bound_check import too_much
from ..max_load import merged

if TYPE_CHECKING:
    import networkx as nx

#: Ideals at most.
IDEALS = 60_000


@dataclass(frozen=True, eq=False)
class Ideals:
    """N ideals of B blocks, by the number of their blocks: the empty one first, all blocks last.

    Parameters
    ----------
    block
        Shape (n,): block of each node; −1 if it is left out.
    members
        Shape (N, B).
    words
        Shape (N, ⌈B / 64⌉): the same, a bit for a block.
    left_out
        How many other blocks there are.
    """

    block: Ints
    members: Bools
    words: NDArray[np.uint64]
    left_out: int

    def inside(self, ideal: int, others: Ints) -> Bools:
        """Whether an ideal is a proper part of each of the others."""
        own = self.words[ideal]
        held: Bools = np.all((self.words[others] & own) == own, axis=1)
        return np.asarray(held & (others > ideal), np.bool_)

    def sums(self, of_nodes: Ints) -> Ints:
        """Return the sum over the nodes of each ideal, shape (N,)."""
        of_blocks: Ints = np.zeros(self.members.shape[1] + 1, np.int64)
        np.add.at(of_blocks, self.block, of_nodes)
        total: Ints = self.members @ of_blocks[:-1]
        return total

    def held(self, nets: Iterable[frozenset[int]]) -> NDArray[np.int32]:
        """Return how many blocks of each net an ideal holds, shape (N, E)."""
        each = [self.members[:, sorted(pins)].sum(axis=1) for pins in nets]
        return np.array(each, np.int32).reshape(len(each), len(self.members)).T.copy()


def ideals_of(workload: Workload, costs: Costs, waits: Sequence[tuple[int, int]]) -> Ideals:
    """Return all ideals of blocks: of colours, and of those that wait for each other.

    Parameters
    ----------
    waits
        Pairs of nodes of which the first must not be in a later stage.

    Raises
    ------
    VerificationError
        If there are more than `IDEALS`.
    """
    import networkx as nx

    block = merged(workload, waits)
    pairs = {(int(block[u]), int(block[v])) for u, v in waits}
    order = nx.DiGraph((u, v) for u, v in pairs if u != v)
    order.add_nodes_from(block.tolist())
    kept = (costs.compute[costs.count > 0] > 0).any(axis=0)
    if not (costs.capacity_bytes[costs.count > 0] >= workload.memory_bytes.sum()).all():
        kept |= workload.memory_bytes > 0
    _leave_out(order, set(block[kept].tolist()))
    number = {b: i for i, b in enumerate(order)}
    size = len(number)
    before = [sum(1 << number[u] for u in order.predecessors(b)) for b in order]
    after = [[number[w] for w in order.successors(b)] for b in order]
    ready = sum(1 << v for v in range(size) if not before[v])
    layers = [{0: ready}]  # blocks that may come next, by ideal
    count = 1
    while len(layers) <= size:
        following: dict[int, int] = {}
        for ideal, ready in layers[-1].items():
            for v in _bits(ready):
                larger = ideal | 1 << v
                if larger not in following:
                    freed = (w for w in after[v] if before[w] & larger == before[w])
                    following[larger] = (ready ^ 1 << v) | sum(1 << w for w in freed)
            if count + len(following) > IDEALS:
                raise too_much(f"there are more than {IDEALS} ideals")
        count += len(following)
        layers.append(following)
    width = 8 * (size // 64 + 1)
    rows = b"".join(ideal.to_bytes(width, "little") for layer in layers for ideal in layer)
    packed = np.frombuffer(rows, np.uint8).reshape(count, width)
    members = np.unpackbits(packed, axis=1, count=size, bitorder="little").astype(np.bool_)
    own = np.array([number.get(b, -1) for b in block.tolist()], np.int64)
    return Ideals(own, members, packed.view(np.uint64), int(block.max(initial=-1)) + 1 - size)


def _leave_out(order: nx.DiGraph[int], kept: set[int]) -> None:
    """Take blocks out of the order that have one neighbour there or none, but for those to keep."""
    ends = [b for b in order if b not in kept]
    while ends:
        b = ends.pop()
        if b in order and b not in kept and order.degree(b) <= 1:
            ends += [*order.predecessors(b), *order.successors(b)]
            order.remove_node(b)


def _bits(mask: int) -> Iterable[int]:
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low
