"""Which devices fit which stages at a threshold: the inner loop of `bound.fitting`."""

from __future__ import annotations

import numpy as np

from ...instances.common.kernel import kernel
from .rings_kernel import ring_core


@kernel
def fit_stages(latency, inverse, boundary, ring, on_boundary, on_ring, fits, replicas):
    """Take out of `fits` what conditions 1 and 2 exclude; whether each stage keeps R devices."""
    stages, size = fits.shape
    admitted = np.empty((size, size), np.bool_)
    changed = True
    while changed:
        changed = False
        for s in range(stages):
            before = s > 0 and (boundary[s - 1, 0] > 0 or boundary[s - 1, 1] > 0)
            after = boundary[s, 0] > 0 or boundary[s, 1] > 0
            around = (ring[s, 0] > 0 or ring[s, 1] > 0) and on_ring[s] < np.inf
            on_circle = min(2, replicas - 1) if around else 0
            need = int(before) + int(after) + on_circle
            for d in range(size):
                if not fits[s, d]:
                    continue
                has_before, has_after, has_ring, different = False, False, 0, 0
                ok = need == 0
                for e in range(size):
                    if ok:
                        break
                    if e == d:
                        continue
                    one = False
                    if before and fits[s - 1, e]:
                        cost = boundary[s - 1, 0] * latency[e, d]
                        if cost + boundary[s - 1, 1] * inverse[e, d] <= on_boundary[s - 1]:
                            has_before = True
                            one = True
                    if after and fits[s + 1, e]:
                        cost = boundary[s, 0] * latency[d, e] + boundary[s, 1] * inverse[d, e]
                        if cost <= on_boundary[s]:
                            has_after = True
                            one = True
                    if around and fits[s, e]:
                        cost = ring[s, 0] * latency[d, e] + ring[s, 1] * inverse[d, e]
                        if cost <= on_ring[s]:
                            has_ring += 1
                            one = True
                    different += int(one)
                    ok = (
                        (has_before or not before)
                        and (has_after or not after)
                        and has_ring >= on_circle
                        and different >= need
                    )
                if not ok:
                    fits[s, d] = False
                    changed = True
            if around:
                count = fits[s].sum()
                for d in range(size):
                    for e in range(size):
                        cost = ring[s, 0] * latency[d, e] + ring[s, 1] * inverse[d, e]
                        admitted[d, e] = d != e and cost <= on_ring[s]
                ring_core(admitted, on_circle, replicas, fits[s])
                if fits[s].sum() < count:
                    changed = True
            if fits[s].sum() < replicas:
                return False
    return True
