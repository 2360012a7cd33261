"""A bound on the max-load by counting: too many heavy units for the devices there are.

Let H be a set of units. By T, a device of kind k can hold at most

    a_k(T, H) = the largest a such that the a smallest times of H on kind k add up to at most T

of them, transfers left aside. If Σ_k n_k a_k(T, H) < |H|, then T is impossible: for every split,
and with overlap. Where a few equal layers dominate, as in BERT, this is what decides: 25 layers on
6 devices means 5 on one.

Sets H tried: the h heaviest units, for each h up to `MAX_HEAVIEST`.
"""

from __future__ import annotations

import numpy as np

from ...instances.common.arrays import Floats, Ints

#: What rounding in sums can make the bound too high by, relatively.
COUNTING_SLACK = 1e-7

#: Units in the largest set tried: what counts is few and heavy.
MAX_HEAVIEST = 500


def count_out(time: Floats, count: Ints) -> float:
    """Return the largest T, to 1e-9, below which counting rules all sharing of units out.

    O(K H² log H) once and O(K H log H) for each of some 40 values of T; K kinds, and H is
    `MAX_HEAVIEST`.

    Parameters
    ----------
    time
        Shape (K, U): of each unit on a device of each kind; `inf` where it cannot be there.
    count
        Shape (K,): devices of each kind.
    """
    heaviest = np.argsort(-time.min(axis=0), kind="stable")
    sizes = range(1, min(time.shape[1], MAX_HEAVIEST) + 1)
    # sums[k][h − 1][a]: the a smallest times on kind k of the h heaviest units.
    sums = [[np.cumsum(np.sort(times[heaviest[:h]])) for h in sizes] for times in time]

    def impossible(limit: float) -> bool:
        return any(
            sum(
                int(n) * int(np.searchsorted(of_kind[h - 1], limit, side="right"))
                for n, of_kind in zip(count, sums, strict=True)
            )
            < h
            for h in sizes
        )

    finite = np.where(np.isinf(time), 0.0, time)
    low, high = 0.0, float(finite.sum())
    if impossible(high) or not impossible(low):
        return low
    while high - low > 1e-9 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if impossible(middle) else (low, middle)
    return low
