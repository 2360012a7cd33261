"""Best trees of small sets of devices: the bottleneck binary tree, by a DP over sets.

The tree is the one of an all-reduce: complete, its last level filled from the left. So a subtree is
told by its size, and with the tables of its two children's sizes a set's best tree is a split of
the set into root, left and right subtree.
"""

from __future__ import annotations

import numpy as np

from ....instances.common.arrays import Floats, Ints
from ....instances.common.kernel import kernel


def set_trees(cost: Floats, replicas: int) -> Floats:
    """Return the least largest link of a tree over each set of R devices; shape (2^D,).

    O(D · 2^D · 2^R) time at worst, `inf` for other sets.
    """
    _, _, best = _tables(cost, *_shapes(replicas))
    found: Floats = best.min(axis=1)
    return found


def best_tree(cost: Floats) -> Ints:
    """Return the order of all devices in which their tree has the least largest link.

    The parent of position i is position ⌊(i−1)/2⌋.
    """
    sizes, left, right = _shapes(len(cost))
    links, halves, best = _tables(cost, sizes, left, right)
    order = np.empty(len(cost), np.int64)

    def place(position: int, k: int, mask: int, root: int) -> None:
        order[position] = root
        if sizes[k] == 1:
            return
        low = int(halves[k, mask, root])
        parts = [(left[k], low), (right[k], mask ^ low ^ 1 << root)]
        for side, (child, part) in enumerate(parts[: 1 if right[k] < 0 else 2]):
            place(2 * position + 1 + side, child, part, int(links[child, part, root]))

    full = (1 << len(cost)) - 1
    place(0, len(sizes) - 1, full, int(best[full].argmin()))
    return order


def _shapes(replicas: int) -> tuple[Ints, Ints, Ints]:
    """Sizes of all subtrees, increasing, and which of them each one's children are; −1 for none."""
    children: dict[int, tuple[int, int]] = {}
    todo = [replicas]
    while todo:
        n = todo.pop()
        if n in children:
            continue
        half = 1 << max(0, n.bit_length() - 2)  # devices on a full last level of the left subtree
        low = half - 1 + min(half, n - (2 * half - 1)) if n > 1 else 0
        children[n] = low, max(0, n - 1 - low)
        todo += [part for part in children[n] if part]
    sizes = sorted(children)
    at = {n: k for k, n in enumerate(sizes)} | {0: -1}
    sides = [[at[children[n][side]] for n in sizes] for side in (0, 1)]
    return np.array(sizes), np.array(sides[0]), np.array(sides[1])


@kernel
def _tables(cost, sizes, left, right):
    """Tables over sizes, sets and devices outside or in the set.

    Returns for a device outside of the set the root to which it should be linked, for a root the
    set of its left subtree, and for the last size the least largest link with each root.
    """
    size, count = len(cost), len(sizes)
    links = np.full((count, 1 << size, size), -1, np.int8)
    linked = np.full((count, 1 << size, size), np.inf)
    halves = np.zeros((count, 1 << size, size), np.int32)
    bits = np.zeros(1 << size, np.int8)
    for mask in range(1, 1 << size):
        bits[mask] = bits[mask >> 1] + (mask & 1)
    best = np.full((1 << size, size), np.inf)
    for k in range(count):
        best[:] = np.inf
        for mask in range(1, 1 << size):
            if bits[mask] != sizes[k]:
                continue
            for root in range(size):
                if not mask >> root & 1:
                    continue
                if sizes[k] == 1:
                    best[mask, root] = 0.0
                    continue
                rest = mask ^ 1 << root
                part = rest
                while part:
                    if bits[part] == sizes[left[k]]:
                        value = linked[left[k], part, root]
                        if right[k] >= 0:
                            value = max(value, linked[right[k], rest ^ part, root])
                        if value < best[mask, root]:
                            best[mask, root] = value
                            halves[k, mask, root] = part
                    part = (part - 1) & rest
            for v in range(size):
                if mask >> v & 1:
                    continue
                for root in range(size):
                    if mask >> root & 1:
                        value = max(cost[v, root], best[mask, root])
                        if value < linked[k, mask, v]:
                            linked[k, mask, v] = value
                            links[k, mask, v] = root
    return links, halves, best
