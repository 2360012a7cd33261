"""Inner loops of cutting a graph into stages: runs of an order, and moves between stages."""

from __future__ import annotations

import numpy as np

from ...instances.common.kernel import inner, kernel


@kernel
def reach(total, cut, target, stages):
    """Return the ends of exactly S runs of cost ≤ target, or [] if there are none.

    Bit k of can[j] says that the first j units can be k+1 runs.
    """
    n = len(total) - 1
    words = (stages + 63) // 64
    can = np.zeros((n + 1, words), np.uint64)
    one, top = np.uint64(1), np.uint64(63)
    slack = 1e-12 * target
    for j in range(1, n + 1):
        i = j - 1
        while i >= 0 and total[j] - total[i] + cut[j] <= target + slack:
            if i == 0:
                can[j, 0] |= one
            else:
                carry = np.uint64(0)
                for w in range(words):
                    can[j, w] |= (can[i, w] << one) | carry
                    carry = can[i, w] >> top
            i -= 1
    ends = np.zeros(stages, np.int64)
    j = n
    for k in range(stages - 1, -1, -1):
        if not can[j, k // 64] >> np.uint64(k % 64) & one:
            return np.zeros(0, np.int64)
        ends[k] = j
        if k == 0:
            break
        i = j - 1
        while not can[i, (k - 1) // 64] >> np.uint64((k - 1) % 64) & one:
            i -= 1
        j = i
    return ends


@inner
def _eighth_power(x):
    """Return x⁸, rounded in the same way whether interpreted or compiled."""
    x *= x
    x *= x
    return x * x


@kernel
def move_units(seconds, successors, predecessors, nets_of, pins_of, weight, stage, stages, sweeps):
    """Move single units between stages, in place, at most `sweeps` times over all units.

    Lists of units and nets are pairs: where the list of each one begins, and the lists.
    """
    (after_at, after), (before_at, before) = successors, predecessors
    (nets_at, nets), (net_start, pins) = nets_of, pins_of
    units = len(seconds)
    load = np.zeros(stages)
    cut = np.zeros(stages + 1)
    for v in range(units):
        load[stage[v]] += seconds[v]
    for e in range(len(weight)):
        low, high = stages, -1
        for k in range(net_start[e], net_start[e + 1]):
            low, high = min(low, stage[pins[k]]), max(high, stage[pins[k]])
        for s in range(low, high):
            cut[s] += weight[e]
    members = np.zeros(stages, np.int64)
    for v in range(units):
        members[stage[v]] += 1
    total = 0.0
    for s in range(stages):
        total += load[s]
    scale = max(total / stages, 1e-300)
    for sweep in range(sweeps):
        moved = False
        for k in range(units):
            v = k if sweep % 2 == 0 else units - 1 - k
            s = stage[v]
            if members[s] == 1:
                continue
            lowest, highest = 0, stages - 1
            for j in range(before_at[v], before_at[v + 1]):
                lowest = max(lowest, stage[before[j]])
            for j in range(after_at[v], after_at[v + 1]):
                highest = min(highest, stage[after[j]])
            for t in (s - 1, s + 1):
                if t < lowest or t > highest:
                    continue
                # moving v between s and t changes boundary min(s, t) alone
                b = min(s, t)
                change = 0.0
                for j in range(nets_at[v], nets_at[v + 1]):
                    e = nets[j]
                    low, high = stages, -1
                    for q in range(net_start[e], net_start[e + 1]):
                        if pins[q] != v:
                            low = min(low, stage[pins[q]])
                            high = max(high, stage[pins[q]])
                    was = min(low, s) <= b < max(high, s)
                    will = min(low, t) <= b < max(high, t)
                    change += weight[e] * (int(will) - int(was))
                x = load[s] + cut[s] * (s + 1 < stages)
                y = load[t] + cut[t] * (t + 1 < stages)
                x2 = x - seconds[v] + (change if s == b else 0.0)
                y2 = y + seconds[v] + (change if t == b else 0.0)
                old = _eighth_power(x / scale) + _eighth_power(y / scale)
                new = _eighth_power(x2 / scale) + _eighth_power(y2 / scale)
                if new < old * (1 - 1e-9):
                    load[s] -= seconds[v]
                    load[t] += seconds[v]
                    cut[b] += change
                    members[s] -= 1
                    members[t] += 1
                    stage[v] = t
                    moved = True
                    break
        if not moved:
            break
    worst = 0.0
    for s in range(stages):
        worst = max(worst, load[s] + (cut[s] if s + 1 < stages else 0.0))
    return worst
