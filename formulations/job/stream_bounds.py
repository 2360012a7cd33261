"""Cheap lower bounds on the time per microbatch of a stream, computed before any search.

Every stage i on kind k has d_i t_i devices and takes TPS_i ≥ Σ_v cost(c_v) / d_i. So, under any
schedule, a plan with all TPS_i ≤ T satisfies:

- work:     T · Σ_k n_k / slowdown_k  ≥  W,          W = Σ_v min_c t_c p_c
- a layer:  T  ≥  min over k, t, d, c that have room for v of (p_c slowdown_k + κ(t,d) w_c) / d
- memory:   Σ_v t_c size_c ≤ Σ_k n_k M_k over all devices, so W may be raised to
            max over λ ≥ 0 of Σ_v min_c t_c (p_c + λ size_c) − λ Σ_k n_k M_k:
            if memory is short, some layers must take configurations that need less

where size_c is the bytes of a configuration with the fewest microbatches in flight.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ...instances import PipelineJob
from ...instances.common.arrays import Floats, Ints
from ..task import Task
from .stream import Staging, state_staging

#: Relative margin for rounding in sums, by which these bounds are lowered.
SLACK = 1e-11


#: Steps of the ternary search for the price of memory.
ROUNDS = 80


def stream_cheap_bounds(task: Task[PipelineJob]) -> Iterator[tuple[float, str]]:
    """Yield lower bounds on the objective with origins; none if a layer fits on no device."""
    staging = state_staging(task)
    longest = _heaviest(staging) * (1 - SLACK)
    if np.isfinite(longest):
        yield longest, "longest layer"
        yield _share(staging), "total work over all devices"


def least_stage_time(staging: Staging) -> float:
    """Return a lower bound on the longest stage's time; `inf` if a layer fits on no device."""
    return max(_share(staging), _heaviest(staging) * (1 - SLACK))


def _share(staging: Staging) -> float:
    return _work(staging) / float((staging.count / staging.slowdown).sum()) * (1 - SLACK)


def _work(staging: Staging) -> float:
    """Return a lower bound on Σ t p over all layers, within the memory of all devices together."""
    unit, degree = option_units(staging)
    by_unit = np.argsort(unit, kind="stable")
    start = np.searchsorted(unit[by_unit], np.arange(staging.size))
    time = (staging.degrees[degree] * staging.time)[by_unit]
    size = (staging.degrees[degree] * _least_size(staging))[by_unit]
    room = float((staging.count * staging.capacity).sum())

    def dual(price: float) -> float:
        return float(np.minimum.reduceat(time + price * size, start).sum()) - price * room

    best = float(np.minimum.reduceat(time, start).sum())
    if np.isinf(room) or not size.max() > 0:
        return best
    low, high = 0.0, float(time.max()) / float(size[size > 0].min())
    for _ in range(ROUNDS):  # the dual is concave
        third = (high - low) / 3
        left, right = dual(low + third), dual(high - third)
        best = max(best, left, right)
        low, high = (low + third, high) if left < right else (low, high - third)
    return best


def _heaviest(staging: Staging) -> float:
    """Return the maximum over layers of the least time of a stage with only this layer."""
    unit, degree = option_units(staging)
    size = _least_size(staging)
    least = np.full(staging.size, np.inf)
    for t, width in enumerate(staging.degrees.tolist()):
        for p, d in enumerate(staging.divisors.tolist()):
            for k in np.flatnonzero(staging.count >= d * width).tolist():
                may = (degree == t) & staging.allowed[unit, p] & (size <= staging.capacity[k])
                cost = staging.time * staging.slowdown[k] + staging.kappa(t, d) * staging.weight
                np.minimum.at(least, unit[may], cost[may] / d)
    return float(least.max())


def option_units(staging: Staging) -> tuple[Ints, Ints]:
    """Return the unit and the index of the degree of each configuration, shapes (C,)."""
    cell = np.repeat(np.arange(len(staging.first) - 1), np.diff(staging.first))
    return cell % staging.size, cell // staging.size


def _least_size(staging: Staging) -> Floats:
    """Return the bytes of each configuration with the fewest microbatches in flight."""
    fewest = staging.in_flight(int(staging.divisors[-1]), 0)
    return staging.per_microbatch * fewest + staging.fixed
