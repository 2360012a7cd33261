"""The inner loop that lists candidates for stages."""

from __future__ import annotations

import numpy as np

from ....instances.common.kernel import kernel


@kernel
def grow_stages(ideal, last, lattice, unit_weight, net_weight, incidence, limit, out):
    """List the stages that begin at ideals `ideal`, … `last` − 1, until `out` is full.

    A stage is grown by adding units in increasing number, so that each is met once. It sums up
    `unit_weight`, shape (U, L), over its units, of which the first `len(limit)` are limited, and
    `net_weight`, shape (E, C), over the nets that it cuts. `out` is filled with pairs of ideals,
    shape (R, 2), and these sums, (R, L + C). Returns the first ideal whose stages are not listed,
    and how many stages are.
    """
    members, start, unit, to = lattice
    pin_start, pin, of_start, of = incidence
    pairs, sums = out
    units, lanes = unit_weight.shape
    nets, charged = net_weight.shape
    one = np.uint64(1)
    held = np.zeros(nets, np.int64)
    inside = np.zeros(nets, np.bool_)
    node = np.zeros(units + 1, np.int64)
    at = np.zeros(units + 1, np.int64)
    added = np.full(units + 1, -1, np.int64)
    total = np.zeros((units + 1, lanes + charged))
    filled = 0
    while ideal < last:
        begun = filled
        for e in range(nets):
            inside[e] = False
            for p in range(pin_start[e], pin_start[e + 1]):
                v = pin[p]
                if (members[ideal, v >> 6] >> np.uint64(v & 63)) & one:
                    inside[e] = True
                    break
        depth = 0
        node[0] = ideal
        at[0] = start[ideal + 1] - 1
        while depth >= 0:
            step = at[depth]
            if step < start[node[depth]] or unit[step] <= added[depth]:
                if depth > 0:
                    v = added[depth]
                    for a in range(of_start[v], of_start[v + 1]):
                        held[of[a]] -= 1
                depth -= 1
                continue
            at[depth] = step - 1
            v = unit[step]
            deep = depth + 1
            fits = True
            for n in range(lanes):
                total[deep, n] = total[depth, n] + unit_weight[v, n]
                if n < len(limit) and total[deep, n] > limit[n]:
                    fits = False
            if not fits:
                continue
            for n in range(lanes, lanes + charged):
                total[deep, n] = total[depth, n]
            for a in range(of_start[v], of_start[v + 1]):
                e = of[a]
                held[e] += 1
                change = 0.0
                if held[e] == 1:
                    change = 1.0
                elif not inside[e] and held[e] == pin_start[e + 1] - pin_start[e]:
                    change = -1.0
                if change != 0.0:
                    for n in range(charged):
                        total[deep, lanes + n] += change * net_weight[e, n]
            if filled == len(pairs):
                return ideal, begun
            pairs[filled, 0], pairs[filled, 1] = ideal, to[step]
            for n in range(lanes + charged):
                sums[filled, n] = total[deep, n]
            filled += 1
            node[deep] = to[step]
            added[deep] = v
            at[deep] = start[to[step] + 1] - 1
            depth = deep
        ideal += 1
    return ideal, filled
