"""Tie-breaking: lower the sum of the stage times while the longest stage stays as it is.

The objective says nothing about stages shorter than the longest. A step of this descent takes the
longest message of a stage and exchanges the device at one of its ends with another, or two
receivers. It is kept if the sum falls and no stage exceeds its upper bound.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from ...formulations.mapping.costs import mapping_costs, stage_times
from ...formulations.task import Task
from ...instances import DeviceMapping, ReplicaPlacement, Solution, stage_costs
from ..core.search import Search
from .parameters import TIE_MESSAGES, TIE_PATIENCE, TIE_STEPS


def break_ties(task: Task[DeviceMapping], search: Search[Solution]) -> None:
    """Lower the sum of the incumbent's stage times while there is time; its maximum stays.

    Other collectives than rings are priced as rings on the way; the judge decides.
    """
    best, problem = search.best, task.problem
    if not isinstance(best, ReplicaPlacement) or best.slots.size < 2:
        return
    with search.phase("ties"):
        costs = mapping_costs(stage_costs(task.workload, best.stage, problem.stages), problem)
        used = costs.numbers(best.slots)
        slot = np.concatenate([used.ravel(), np.setdiff1d(np.arange(costs.size), used)])
        sends_to = best.sends_to.copy()
        times = stage_times(costs, used, sends_to)
        upper_bound = np.maximum(times, times.max())
        steps = 1000 + min(TIE_MESSAGES // problem.replicas, TIE_STEPS * used.size)
        total, idle, turn = float(times.sum()), 0, 0
        while idle < TIE_PATIENCE and search.seconds_left > 0.2 and search.overdue() <= 0:
            seed = (search.limits.seed * 7919 + turn) % 2**31
            least = float(_descend(
                costs.latency, costs.inverse, costs.base, costs.boundary, costs.ring,
                slot, sends_to, upper_bound, steps, seed, problem.replicas,
            ))  # fmt: skip
            turn += 1
            idle = idle + 1 if least >= total * (1 - 1e-4) else 0
            total = least
            slots = slot[: used.size].reshape(used.shape)
            search.offer(costs.read_back(best.stage, slots.copy(), sends_to.copy()))


@njit(cache=True)
def _longest(s, latency, inverse, base, boundary, ring, slot, sends_to, replicas):  # type: ignore[no-untyped-def]
    """Return the time of stage s, and the slots at the ends of its longest message."""
    stages = len(base)
    time, end, other = base[s], -1, -1
    most = 0.0
    if s + 1 < stages and (boundary[s, 0] > 0 or boundary[s, 1] > 0):
        for i in range(replicas):
            p, q = s * replicas + i, (s + 1) * replicas + sends_to[s, i]
            a, b = slot[p], slot[q]
            cost = boundary[s, 0] * latency[a, b] + boundary[s, 1] * inverse[a, b]
            if cost > most:
                most, end, other = cost, p, q
    time += most
    around = 0.0
    if replicas > 1 and (ring[s, 0] > 0 or ring[s, 1] > 0):
        for i in range(replicas):
            p, q = s * replicas + i, s * replicas + (i + 1) % replicas
            a, b = slot[p], slot[q]
            cost = ring[s, 0] * latency[a, b] + ring[s, 1] * inverse[a, b]
            if cost > around:
                around = cost
                if cost > most or np.random.random() < 0.5:  # noqa: NPY002
                    end, other = p, q
    return time + around, end, other


@njit(cache=True)
def _descend(  # type: ignore[no-untyped-def]
    latency, inverse, base, boundary, ring, slot, sends_to, upper_bound, steps, seed, replicas,
):  # fmt: skip
    """Descend for `steps` steps in place; return the sum of the stage times."""
    np.random.seed(seed)  # noqa: NPY002
    stages = len(base)
    times = np.empty(stages)
    for s in range(stages):
        times[s] = _longest(s, latency, inverse, base, boundary, ring, slot, sends_to, replicas)[0]
    touched = np.empty(4, np.int64)
    fresh = np.empty(4)
    for _ in range(steps):
        s = np.random.randint(stages)  # noqa: NPY002
        _t, p, other = _longest(s, latency, inverse, base, boundary, ring, slot, sends_to, replicas)
        if p < 0:
            continue
        receivers = other // replicas != s and np.random.random() < 0.4  # noqa: NPY002
        i = j = 0
        q = p
        if receivers:
            i, j = p % replicas, np.random.randint(replicas)  # noqa: NPY002
            if i == j:
                continue
            sends_to[s, i], sends_to[s, j] = sends_to[s, j], sends_to[s, i]
            touched[0] = s
            count = 1
        else:
            if np.random.random() < 0.5:  # noqa: NPY002
                p = other
            q = np.random.randint(len(slot))  # noqa: NPY002
            if p == q:
                continue
            slot[p], slot[q] = slot[q], slot[p]
            count = 0
            for k in (p // replicas, p // replicas - 1, q // replicas, q // replicas - 1):
                new = 0 <= k < stages
                for m in range(count):
                    new = new and touched[m] != k
                if new:
                    touched[count] = k
                    count += 1
        change, good = 0.0, True
        for m in range(count):
            k = touched[m]
            fresh[m] = _longest(
                k, latency, inverse, base, boundary, ring, slot, sends_to, replicas
            )[0]
            change += fresh[m] - times[k]
            good = good and fresh[m] <= upper_bound[k]
        if good and change < 0:
            for m in range(count):
                times[touched[m]] = fresh[m]
        elif receivers:
            sends_to[s, i], sends_to[s, j] = sends_to[s, j], sends_to[s, i]
        else:
            slot[p], slot[q] = slot[q], slot[p]
    return times.sum()
