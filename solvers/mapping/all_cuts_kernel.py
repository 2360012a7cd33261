"""Kernel of the DP over chains of ideals: one more stage."""

from __future__ import annotations

from ...instances.common.kernel import kernel


@kernel
def add_stage(members, work, held, sent, prices, before, after, came, table, overlap, low, high):
    """Extend the chains of `before` by a stage that ends at ideals `low` to `high`, in `after`.

    Ideals are bits; `work` and `held`, (N,), seconds and parameters of their units; `sent`, (2, N),
    what the boundary at an ideal costs within blocks and across; `prices` of a byte of parameters;
    `before` and `after`, (N, Q), the least maximum by state, which only falls; `came`, (N, Q, 2),
    the ideal and state before; `table` as of `run_states`.
    """
    words, states = members.shape[1], before.shape[1]
    for i in range(low, high):
        worst = 0.0
        for q in range(states):
            worst = max(worst, after[i, q])
        for j in range(i):
            compute, reduced = work[i] - work[j], held[i] - held[j]
            least = prices[0] * reduced + sent[0, i]
            least = max(least, compute) if overlap else least + compute
            if least >= worst:
                continue
            reached = False
            for q in range(states):
                reached = reached or before[j, q] < worst
            if not reached:
                continue
            inside = True
            for k in range(words):
                if members[j, k] & ~members[i, k]:
                    inside = False
                    break
            if not inside:
                continue
            for ring in range(2):
                for boundary in range(2):
                    time = prices[ring] * reduced + sent[boundary, i]
                    time = max(time, compute) if overlap else time + compute
                    for q in range(states):
                        target = table[q, ring, boundary]
                        if target < 0:
                            continue
                        value = max(time, before[j, q])
                        if value < after[i, target]:
                            after[i, target] = value
                            came[i, target, 0], came[i, target, 1] = j, q
