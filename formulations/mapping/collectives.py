"""What an all-reduce takes in an order of devices: the least of ring, tree and hierarchical rings.

The definition as arrays; that of the verifier is `runtime.verify.mapping.allreduce`.
"""

from __future__ import annotations

from ...instances.common.kernel import kernel


@kernel
def allreduce_time(latency, inverse, island, row, size, room):
    """Return the seconds of an all-reduce of `size` bytes among the devices `row`; O(R) time.

    Device i's parent in the tree is device ⌊(i−1)/2⌋. Hierarchical rings need as many devices in
    each island: the j-th of all islands form a ring. `room` is two whole numbers for each device.
    """
    replicas = len(row)
    if replicas == 1 or size == 0:
        return 0.0
    ring, tree, depth = 0.0, 0.0, 0
    for i in range(replicas):
        a, b = row[i], row[(i + 1) % replicas]
        ring = max(ring, latency[a, b] + size / replicas * inverse[a, b])
        if i > 0:
            b = row[(i - 1) // 2]
            tree = max(tree, latency[a, b] + size * inverse[a, b])
    while 2 << depth <= replicas:
        depth += 1
    best = min(2 * (replicas - 1) * ring, 2 * depth * tree)
    k = 0
    for d in row:
        if island[d] == island[row[0]]:
            k += 1
    if k == 1 or k == replicas or replicas % k:
        return best
    g = replicas // k
    for group in range(g):  # room: the devices of each island, then how many there are
        room[replicas + group] = 0
    count = 0
    for d in row:
        group = 0
        while group < count and island[room[group * k]] != island[d]:
            group += 1
        if group == g or room[replicas + group] == k:
            return best
        room[group * k + room[replicas + group]] = d
        room[replicas + group] += 1
        count = max(count, group + 1)
    inside, across = 0.0, 0.0
    for group in range(g):
        for j in range(k):
            a, b = room[group * k + j], room[group * k + (j + 1) % k]
            c = room[(group + 1) % g * k + j]
            inside = max(inside, latency[a, b] + size / k * inverse[a, b])
            across = max(across, latency[a, c] + size / (k * g) * inverse[a, c])
    return min(best, 2 * (k - 1) * inside + 2 * (g - 1) * across)
