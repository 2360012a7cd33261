"""Lower bounds of a mapping: conditions that every mapping of max stage time ≤ T fulfils.

At a threshold T, a pair of devices is *admitted* to boundary s (ring s) if its message leaves
room for the rest of stage s. If a necessary condition fails at T, every mapping takes more:

1. A device *fits* stage s if it has admitted neighbours that fit on both boundaries and on the
   ring, all of them different, as many as its place needs. Devices that do not are taken out until
   nothing changes.
2. The devices that fit ring s and stay connected (after 1 each has two ring neighbours) must
   number R or more; smaller components are taken out.
3. Hall: devices can be matched to the S·R slots that they fit.
4. Each boundary has R disjoint admitted pairs.

In mode "both", the room of the one term is what the other leaves: the range of possible all-reduce
times of a stage is cut into intervals, and an interval counts only if the stage's ring at its upper
end and its messages, at what the lower end leaves, pass conditions 1, 2 and 4 for this stage alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numba import njit
from scipy.sparse import csr_array
from scipy.sparse.csgraph import maximum_bipartite_matching

from ..instances.arrays import Bools, Floats
from .mapping import MappingCosts

#: Relative width at which a bisection ends; below the gap up to which a plan is called optimal.
WIDTH = 2e-7
#: Steps of the search for a ring of exactly R devices, before it is taken to exist.
CYCLE_STEPS = 300_000
#: Parts into which the range of a stage's all-reduce time is cut in mode "both".
INTERVALS = 24


@dataclass(frozen=True, eq=False)
class Floors:
    """Least transfer and all-reduce that each stage can have by itself; shape (S,) both."""

    transfer: Floats
    allreduce: Floats


def floors(costs: MappingCosts, should_stop: Callable[[], bool] = lambda: False) -> Floors:
    """Return the least value of each term of each stage, by the conditions for it alone."""
    r = costs.replicas
    transfer, allreduce = np.zeros(costs.stages), np.zeros(costs.stages)
    known: dict[tuple[str, float, float], float] = {}
    for s in range(costs.stages):
        for kind, factors, out in (
            ("boundary", costs.boundary, transfer),
            ("ring", costs.ring, allreduce),
        ):
            key = (kind, float(factors[s, 0]), float(factors[s, 1]))
            if (key[1] == 0 and key[2] == 0) or should_stop():
                continue  # 0 is a floor too
            if key not in known:
                pair_costs = costs.boundary_costs(s) if kind == "boundary" else costs.ring_costs(s)
                known[key] = _least(pair_costs, r, ring=kind == "ring")
            out[s] = known[key]
    return Floors(transfer, np.minimum(allreduce, costs.detour))


def _least(pair_costs: Floats, replicas: int, *, ring: bool) -> float:
    """Least threshold at which R disjoint pairs, or a ring of R devices, may exist.

    A pair cost is one of the values of `pair_costs`; they are searched by bisection.
    """
    size = len(pair_costs)
    apart = ~np.eye(size, dtype=np.bool_)

    def enough(value: float) -> bool:
        admitted = (pair_costs <= value) & apart
        if ring:
            return has_ring(admitted, replicas)
        return matching_size(admitted) >= 2 * replicas

    least = float(pair_costs.min(where=apart, initial=np.inf))
    if enough(least):  # on grids: no need to sort all pairs
        return least
    values = np.unique(pair_costs[apart])
    low, high = 0, len(values) - 1
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(values[middle]) else (middle + 1, high)
    return float(values[low])


def has_ring(admitted: Bools, replicas: int) -> bool:
    """Whether a ring of exactly R devices may exist among those of a symmetric matrix.

    False is certain; True may be wrong for large ones, whose search is cut off.
    """
    alive = np.ones(len(admitted), np.bool_)
    enough = bool(_ring_core(admitted, min(2, replicas - 1), replicas, alive))
    if enough and replicas > 2:
        return bool(_has_cycle(admitted, alive, replicas, CYCLE_STEPS))
    return enough


def matching_size(admitted: Bools) -> int:
    """Return the size of a maximum matching between rows and columns.

    For a symmetric matrix this is twice the largest fractional matching of the graph.
    """
    return int((maximum_bipartite_matching(csr_array(admitted), perm_type="column") >= 0).sum())


def caps(costs: MappingCosts, least: Floors, threshold: float) -> tuple[Floats, Floats] | None:
    """Return what a pair may cost at most on each boundary and each ring; shape (S,) both.

    None if a stage has no room for the floors of both.
    """
    room = (threshold - costs.base) * (1 + 1e-12)
    if (room - least.transfer - least.allreduce).min() < -1e-12 * threshold:
        return None
    on_boundary, on_ring = room - least.allreduce, room - least.transfer
    # where another all-reduce than a ring may do, nothing is known of the ring
    on_ring[costs.detour <= on_ring] = np.inf
    return on_boundary, on_ring


def fitting(costs: MappingCosts, least: Floors, threshold: float) -> Bools | None:
    """Return which devices fit which stages at a threshold, shape (S, D).

    Returns
    -------
    array or None
        None if no mapping has a max stage time of at most `threshold`.
    """
    limits = caps(costs, least, threshold)
    if limits is None:
        return None
    on_boundary, on_ring = limits
    fits = np.ones((costs.stages, costs.size), np.bool_)
    ok = _fit(
        costs.latency,
        costs.inverse,
        costs.boundary,
        costs.ring,
        on_boundary,
        on_ring,
        fits,
        costs.replicas,
    )
    if not ok:
        return None
    if not fits.all():
        slots = np.repeat(fits, costs.replicas, axis=0)
        if matching_size(slots) < len(slots):
            return None
    for s in np.flatnonzero(costs.boundary.any(axis=1)).tolist():
        admitted = costs.boundary_costs(s) <= on_boundary[s]
        admitted &= fits[s][:, None] & fits[s + 1][None, :]
        np.fill_diagonal(admitted, False)
        if admitted.sum() < costs.size**2 / 2 and matching_size(admitted) < costs.replicas:
            return None
    return fits


def threshold_bound(
    costs: MappingCosts,
    least: Floors,
    upper: float,
    should_stop: Callable[[], bool],
    possible: Callable[[MappingCosts, Floors, float], object | None] = fitting,
    lower: float = 0.0,
    width: float = WIDTH,
) -> float:
    """Return a lower bound by bisection: the largest threshold known to be impossible.

    Parameters
    ----------
    upper
        Max stage time of a known mapping.
    possible
        Returns None at a threshold where no mapping exists.
    lower
        What is known already.
    width
        Relative width at which to end.
    """
    low = max(lower, float((costs.base + least.transfer + least.allreduce).max()))
    if low >= upper * (1 - WIDTH):
        return low
    if possible(costs, least, low * (1 + WIDTH)) is not None:
        return low
    if should_stop():
        return low
    if possible(costs, least, upper * (1 - WIDTH)) is None:
        return upper * (1 - WIDTH)
    high = upper
    while high - low > width * high and not should_stop():
        middle = (low + high) / 2
        if possible(costs, least, middle) is None:
            low = middle
        else:
            high = middle
    return low


@njit(cache=True)
def _ring_core(admitted, degree, replicas, alive):  # type: ignore[no-untyped-def]
    """Shrink `alive` to components of at least R devices with `degree` neighbours each."""
    size = len(alive)
    changed = True
    while changed:
        changed = False
        for d in range(size):
            if alive[d]:
                found = 0
                for e in range(size):
                    if alive[e] and admitted[d, e]:
                        found += 1
                        if found == degree:
                            break
                if found < degree:
                    alive[d] = False
                    changed = True
        label = np.full(size, -1, np.int64)
        stack = np.empty(size, np.int64)
        for d in range(size):
            if not alive[d] or label[d] >= 0:
                continue
            label[d] = d
            stack[0] = d
            top, count = 1, 1
            while top > 0:
                top -= 1
                u = stack[top]
                for e in range(size):
                    if alive[e] and label[e] < 0 and admitted[u, e]:
                        label[e] = d
                        stack[top] = e
                        top += 1
                        count += 1
            if count < replicas:
                for e in range(size):
                    if label[e] == d:
                        alive[e] = False
    return alive.any()


@njit(cache=True)
def _has_cycle(admitted, alive, length, steps):  # type: ignore[no-untyped-def]
    """Whether there is a cycle of exactly `length`; True if `steps` do not decide it."""
    size = len(alive)
    path = np.empty(length, np.int64)
    tried = np.empty(length, np.int64)
    on_path = np.zeros(size, np.bool_)
    open_ = alive.copy()
    for root in range(size):
        # cycles through `root`, of devices that were not roots before
        if not open_[root]:
            continue
        path[0] = root
        on_path[root] = True
        tried[0] = 0
        top = 0
        while top >= 0:
            steps -= 1
            if steps < 0:
                return True
            u = path[top]
            found = -1
            if top == length - 1:
                if admitted[u, root]:
                    return True
            else:
                for w in range(tried[top], size):
                    if open_[w] and not on_path[w] and admitted[u, w]:
                        found = w
                        break
            if found >= 0:
                tried[top] = found + 1
                top += 1
                path[top] = found
                on_path[found] = True
                tried[top] = 0
            else:
                on_path[u] = False
                top -= 1
        open_[root] = False
    return False


@njit(cache=True)
def _fit(latency, inverse, boundary, ring, on_boundary, on_ring, fits, replicas):  # type: ignore[no-untyped-def]
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
                _ring_core(admitted, on_circle, replicas, fits[s])
                if fits[s].sum() < count:
                    changed = True
            if fits[s].sum() < replicas:
                return False
    return True
