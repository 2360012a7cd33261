"""Kernel of message passing: sweeps in which operators exchange reduced costs with their uses."""

from __future__ import annotations

import numpy as np

from ...formulations.sharding.relaxation import GONE
from ...instances.common.kernel import inner, kernel


@inner
def _take(flat, at, r, reads):
    """Raise a use's potential on one side by the slack of its conversions."""
    t = flat.tensor[r]
    table, columns, rows, width = flat.entry[t], flat.columns[t], flat.rows[r], flat.width[r]
    a0, b0 = flat.alpha_at[r], flat.beta_at[r]
    for one in range(width if reads else rows):
        if (at.beta[b0 + one] if reads else at.alpha[a0 + one]) == GONE:
            continue
        least = np.inf
        for other in range(rows if reads else width):
            a, b = (other, one) if reads else (one, other)
            e = table + a * columns + flat.column[b0 + b]
            taken = max(0.0, at.alpha[a0 + a] + at.beta[b0 + b])
            room = flat.conversion[e] - at.used[e] + taken
            least = min(least, room - (at.alpha[a0 + a] if reads else at.beta[b0 + b]))
        _set(flat, at, r, reads, one, least)


@inner
def _set(flat, at, r, reads, one, value):
    """Set one potential of a use, and update how far conversions are used."""
    t = flat.tensor[r]
    table, columns = flat.entry[t], flat.columns[t]
    a0, b0 = flat.alpha_at[r], flat.beta_at[r]
    for other in range(flat.rows[r] if reads else flat.width[r]):
        a, b = (other, one) if reads else (one, other)
        e = table + a * columns + flat.column[b0 + b]
        known = at.alpha[a0 + a] if reads else at.beta[b0 + b]
        before = known + (at.beta[b0 + b] if reads else at.alpha[a0 + a])
        at.used[e] += max(0.0, known + value) - max(0.0, before)
    if reads:
        at.beta[b0 + one] = value
    else:
        at.alpha[a0 + one] = value


@inner
def _give(flat, at, r, reads, beliefs, share, mins):
    """Send a share of a use's reduced costs, above the least belief, to its other side.

    `beliefs`: the reduced cost of each choice of the operator, their number, and their minimum.
    """
    belief, count, least = beliefs
    group = flat.need[r] if reads else flat.made[r]
    classes = flat.width[r] if reads else flat.rows[r]
    for c in range(classes):
        mins[c] = np.inf
    for k in range(count):
        c = flat.group[group + k]
        mins[c] = min(mins[c], belief[k])
    for c in range(classes):
        if mins[c] < np.inf:
            known = at.beta[flat.beta_at[r] + c] if reads else at.alpha[flat.alpha_at[r] + c]
            _set(flat, at, r, reads, c, known - share * (mins[c] - least))


@kernel
def sweep(flat, at, forward, known, belief, mins):
    """Pass over all operators, first to last or back; return the bound.

    `known` is the bound before; `belief` and `mins` are scratch, as long as the largest operator.
    """
    total = 0.0
    count = len(flat.first) - 1
    for step in range(count):
        v = step if forward else count - 1 - step
        k0 = flat.first[v]
        size = flat.first[v + 1] - k0
        for k in range(size):
            belief[k] = flat.cost[k0 + k]
        before, after = 0, 0
        for end in range(flat.end_first[v], flat.end_first[v + 1]):
            r, reads = flat.end_use[end], flat.end_reads[end] == 1
            _take(flat, at, r, reads)
            other = flat.maker[r] if reads else flat.reader[r]
            if (other > v) == forward:
                after += 1
            else:
                before += 1
            group = flat.need[r] if reads else flat.made[r]
            place = flat.beta_at[r] if reads else flat.alpha_at[r]
            for k in range(size):
                c = place + flat.group[group + k]
                belief[k] += at.beta[c] if reads else at.alpha[c]
        least = np.inf
        for k in range(size):
            least = min(least, belief[k])
        total += least
        for k in range(size):
            at.least[k0 + k] = max(at.least[k0 + k], known + (belief[k] - least))
        if after + before == 0:
            continue
        share = 1.0 / max(after, before)
        for end in range(flat.end_first[v], flat.end_first[v + 1]):
            r, reads = flat.end_use[end], flat.end_reads[end] == 1
            other = flat.maker[r] if reads else flat.reader[r]
            if (other > v) == forward:
                _give(flat, at, r, reads, (belief, size, least), share, mins)
        if share * after < 1.0:
            _return(flat, at, v, forward, (belief, size, least), 1.0 - share * after, mins)
    return total


@inner
def _return(flat, at, v, forward, beliefs, rest, mins):
    """Give the rest of an operator's reduced costs back to the uses with shared conversions."""
    several = 0
    for end in range(flat.end_first[v], flat.end_first[v + 1]):
        r = flat.end_use[end]
        other = flat.maker[r] if flat.end_reads[end] == 1 else flat.reader[r]
        if flat.shared[r] == 1 and (other > v) != forward:
            several += 1
    for end in range(flat.end_first[v], flat.end_first[v + 1]):
        r, reads = flat.end_use[end], flat.end_reads[end] == 1
        other = flat.maker[r] if reads else flat.reader[r]
        if flat.shared[r] == 1 and (other > v) != forward:
            _give(flat, at, r, reads, beliefs, rest / several, mins)
