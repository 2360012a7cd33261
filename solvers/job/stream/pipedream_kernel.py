"""The table of one level of PipeDream's optimizer: see `pipedream`."""

from __future__ import annotations

import numpy as np

from ....instances.common.kernel import kernel


@kernel
def divide_level(time, weight, inside, workers, sync):
    """Return A, and for each entry the state k and the m' of its last stage."""
    states = len(time)
    best = np.full((states, states, workers + 1), np.inf)
    cut = np.zeros((states, states, workers + 1), np.int32)
    last = np.zeros((states, states, workers + 1), np.int32)
    for i in range(states):
        for j in range(i + 1, states):
            if not inside[i, j]:
                continue
            for m in range(1, workers + 1):
                best[i, j, m] = (time[i, j] + sync * (m - 1) * weight[i, j] / m) / m
                cut[i, j, m] = i
                last[i, j, m] = m
            for k in range(i + 1, j):
                if not (inside[i, k] and inside[k, j]):
                    continue
                for used in range(1, workers):
                    stage = (time[k, j] + sync * (used - 1) * weight[k, j] / used) / used
                    for m in range(used + 1, workers + 1):
                        value = max(best[i, k, m - used], stage)
                        if value < best[i, j, m]:
                            best[i, j, m] = value
                            cut[i, j, m] = k
                            last[i, j, m] = used
    return best, cut, last
