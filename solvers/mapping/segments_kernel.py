"""The least cost of a pair of devices across blocks: see `segments`."""

from __future__ import annotations

import numpy as np

from ...instances.common.kernel import kernel


@kernel
def least_across(latency, inverse, block, factors, across):
    """Least cost of a pair in two blocks (or in one) for each row of factors; `inf` without one."""
    least = np.full(len(factors), np.inf)
    for d in range(len(block)):
        for e in range(len(block)):
            if d != e and (block[d] != block[e]) == across:
                for k in range(len(factors)):
                    cost = factors[k, 0] * latency[d, e] + factors[k, 1] * inverse[d, e]
                    least[k] = min(least[k], cost)
    return least
