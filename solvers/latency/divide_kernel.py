"""All divisions of accelerators' nodes into calls, tried one by one."""

from __future__ import annotations

import numpy as np

from ...formulations.latency.execute_kernel import execute
from ...instances.common.kernel import kernel


@kernel
def try_all(flat, held, where, reach, kind, device, before, calls, few):
    """Try every division whose calls follow the edges; give up beyond `few` of them."""
    size, n = len(held), len(where)
    number = np.full(n, -1, np.int64)
    slot = np.full(n, -1, np.int64)
    best_number = number.copy()
    best = np.inf
    tried = 0
    low = np.zeros(size + 1, np.int64)
    i = 0
    if size > 0:
        number[held[0]] = -1
    while i >= 0:
        if i == size:
            tried += 1
            if tried > few:
                return best_number, best, False
            value = execute(flat, slot, kind, device, before)[0]
            if value < best:
                best = value
                for v in range(n):  # a slice takes seconds to compile
                    best_number[v] = number[v]
            i -= 1
            continue
        v = held[i]
        if number[v] < 0:
            low[i] = 0
            for j in range(i):
                u = held[j]
                if where[u] == where[v] and reach[u, v]:
                    low[i] = max(low[i], number[u])
            number[v] = low[i]
        else:
            number[v] += 1
        if number[v] >= calls:
            number[v] = -1
            slot[v] = -1
            i -= 1
            continue
        slot[v] = where[v] * calls + number[v]
        i += 1
    return best_number, best, True
