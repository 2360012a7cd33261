"""Least memory and number of devices that make an infeasible problem feasible."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from ...instances import Cluster, InputError, Problem, Workload
from ...instances.common.quantities import show_bytes
from ...solvers import Limits
from ..solve import solve
from .answers import Remedy
from .remedies import memory_times

#: Steps up, each to twice as much, and down again, each to the middle.
STEPS_UP, STEPS_DOWN = 8, 5
#: Any plan will do.
GAP = 0.999


def made_feasible(
    workload: Workload, cluster: Cluster, problem: Problem, seconds: float
) -> tuple[Remedy, ...]:
    """Return the least memory, and the least number of devices, for which a plan is found.

    Parameters
    ----------
    cluster, problem
        For which none was found.
    seconds
        For all searches together.
    """
    limits = Limits(seconds=seconds / (2 * (STEPS_UP + STEPS_DOWN)), gap=GAP)
    found = []
    limited = [k for k in cluster.kinds if k.count and math.isfinite(k.memory_bytes)]
    if limited:
        most = max(kind.memory_bytes for kind in limited)

        def with_memory(factor: float) -> tuple[Cluster, str]:
            given = " and ".join(show_bytes(factor * kind.memory_bytes) for kind in limited)
            return memory_times(cluster, factor), f"{given} of memory on each device"

        if most > 0:
            found.append(_least(workload, problem, with_memory, limits, whole=False))
    alike = [k for k, kind in enumerate(cluster.kinds) if not kind.host and kind.count]
    if len(alike) == 1:
        (k,) = alike
        kind = cluster.kinds[k]

        def with_devices(factor: float) -> tuple[Cluster, str]:
            count = round(factor * kind.count)
            kinds = list(cluster.kinds)
            kinds[k] = replace(kind, count=count)
            return replace(cluster, kinds=tuple(kinds)), f"{count} × {kind.name}"

        found.append(_least(workload, problem, with_devices, limits, whole=True, one=kind.count))
    return tuple(remedy for remedy in found if remedy is not None)


def _least(
    workload: Workload,
    problem: Problem,
    changed: Callable[[float], tuple[Cluster, str]],
    limits: Limits,
    *,
    whole: bool,
    one: int = 1,
) -> Remedy | None:
    """Return the remedy of the least factor with a plan, by doubling and halving; None without."""
    low, high, best = 1.0, math.inf, None
    for step in range(STEPS_UP + STEPS_DOWN):
        if math.isinf(high) and step >= STEPS_UP:
            return None
        factor = 2 * low if math.isinf(high) else (low + high) / 2
        if whole:
            factor = round(factor * one) / one
            if factor in (low, high):
                break
        cluster, change = changed(factor)
        try:
            result = solve(workload, cluster, problem, limits=limits)
        except InputError:  # such as more devices than can be planned for
            return best
        if result.plan is None:
            low = factor
        else:
            high, best = factor, Remedy(change, result.objective, result.bound)
    return best
