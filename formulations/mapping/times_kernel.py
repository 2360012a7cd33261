"""What the stages of a mapping take, with rings; and one all-reduce, the cheapest way."""

from __future__ import annotations

from ...instances.common.kernel import kernel


@kernel
def ring_stage_times(latency, inverse, base, boundary, ring, slots, sends_to):
    """Stage times with rings in seconds, shape (S,); `slots` and `sends_to` as in a solution."""
    stages, replicas = slots.shape
    times = base.copy()
    for s in range(stages):
        longest = 0.0
        if s + 1 < stages:
            for i in range(replicas):
                a, b = slots[s, i], slots[s + 1, sends_to[s, i]]
                cost = boundary[s, 0] * latency[a, b] + boundary[s, 1] * inverse[a, b]
                longest = max(longest, cost)
        times[s] += longest
        longest = 0.0
        for i in range(replicas if replicas > 1 else 0):
            a, b = slots[s, i], slots[s, (i + 1) % replicas]
            longest = max(longest, ring[s, 0] * latency[a, b] + ring[s, 1] * inverse[a, b])
        times[s] += longest
    return times


@kernel
def allreduce_time(latency, inverse, island, row, size, scratch):
    """Return the seconds of an all-reduce of `size` bytes among the devices `row`; O(R) time.

    Device i's parent in the tree is device ⌊(i−1)/2⌋. Hierarchical rings need as many devices in
    each island: the j-th of all islands form a ring. `scratch` has shape (2R,).
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
    for group in range(g):  # scratch: the devices of each island, then how many there are
        scratch[replicas + group] = 0
    count = 0
    for d in row:
        group = 0
        while group < count and island[scratch[group * k]] != island[d]:
            group += 1
        if group == g or scratch[replicas + group] == k:
            return best
        scratch[group * k + scratch[replicas + group]] = d
        scratch[replicas + group] += 1
        count = max(count, group + 1)
    inside, across = 0.0, 0.0
    for group in range(g):
        for j in range(k):
            a, b = scratch[group * k + j], scratch[group * k + (j + 1) % k]
            c = scratch[(group + 1) % g * k + j]
            inside = max(inside, latency[a, b] + size / k * inverse[a, b])
            across = max(across, latency[a, c] + size / (k * g) * inverse[a, c])
    return min(best, 2 * (k - 1) * inside + 2 * (g - 1) * across)
