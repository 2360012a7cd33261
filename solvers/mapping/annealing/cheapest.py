"""Descent on the stage times themselves, where other all-reduces than rings are allowed.

Annealing on violated edges knows rings alone. A step here exchanges the devices of two slots, two
places in the order of a stage, or two receivers, and looks at the whole of the stages it touches.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from ....formulations.mapping.collectives import allreduce_time
from ....formulations.mapping.costs import MappingCosts
from ....instances.model.arrays import Ints
from ..parameters import TIME_POWER


def descend(
    costs: MappingCosts,
    slots: Ints,
    sends_to: Ints,
    steps: int,
    seed: int,
    *,
    hot: float = 0.0,
    orders_only: bool = False,
) -> tuple[Ints, Ints]:
    """Return a mapping of shorter stages; O(steps · R) time.

    Parameters
    ----------
    slots, sends_to
        Shapes (S, R) and (S−1, R): the mapping to begin with.
    hot
        Temperature to begin with, in the unit of the longest stage's power; it falls to 0.
    orders_only
        Whether each stage keeps its devices and their messages, and only their order may change.
    """
    used = slots.ravel()
    slot = np.concatenate([used, np.setdiff1d(np.arange(costs.size), used)])
    receivers = np.zeros(slots.shape, np.int64)
    receivers[:-1] = sends_to
    size = np.array([costs.reduced_bytes(s) for s in range(costs.stages)])
    _descend(
        costs.latency, costs.inverse, costs.island, costs.base, costs.boundary, size,
        slot, receivers, steps, seed, hot, orders_only, TIME_POWER,
    )  # fmt: skip
    return slot[: used.size].reshape(slots.shape), receivers[:-1]


@njit(cache=True)
def _time(s, latency, inverse, island, base, boundary, size, slot, sends_to):  # type: ignore[no-untyped-def]
    stages, replicas = sends_to.shape
    row = slot[s * replicas : (s + 1) * replicas]
    longest = 0.0
    if s + 1 < stages and (boundary[s, 0] > 0 or boundary[s, 1] > 0):
        for i in range(replicas):
            a, b = row[i], slot[(s + 1) * replicas + sends_to[s, i]]
            longest = max(longest, boundary[s, 0] * latency[a, b] + boundary[s, 1] * inverse[a, b])
    return base[s] + longest + allreduce_time(latency, inverse, island, row, size[s])


@njit(cache=True)
def _change(kind, s, p, q, slot, sends_to):  # type: ignore[no-untyped-def]
    """Exchange devices (0), places in the order (1) or receivers (2); its own inverse."""
    replicas = sends_to.shape[1]
    if kind < 2:
        slot[p], slot[q] = slot[q], slot[p]
    i, j = p % replicas, q % replicas
    if kind == 1 and s > 0:
        for k in range(replicas):
            if sends_to[s - 1, k] == i:
                sends_to[s - 1, k] = j
            elif sends_to[s - 1, k] == j:
                sends_to[s - 1, k] = i
    if kind > 0:
        sends_to[s, i], sends_to[s, j] = sends_to[s, j], sends_to[s, i]


@njit(cache=True)
def _descend(  # type: ignore[no-untyped-def]
    latency, inverse, island, base, boundary, size, slot, sends_to, steps, seed, hot, orders_only,
    power,
):  # fmt: skip
    np.random.seed(seed)  # noqa: NPY002
    stages, replicas = sends_to.shape
    times = np.empty(stages)
    for s in range(stages):
        times[s] = _time(s, latency, inverse, island, base, boundary, size, slot, sends_to)
    scale = times.max()
    if scale == 0 or len(slot) == 1:
        return
    touched, fresh = np.empty(4, np.int64), np.empty(4)
    for step in range(steps):
        s = np.random.randint(stages)  # noqa: NPY002
        if not orders_only and np.random.random() < 0.5:  # noqa: NPY002
            s = int(np.argmax(times))
        p = s * replicas + np.random.randint(replicas)  # noqa: NPY002
        kind, q = 0, np.random.randint(len(slot))  # noqa: NPY002
        chance = np.random.random()  # noqa: NPY002
        if orders_only or chance < 0.4:
            kind, q = 1, s * replicas + np.random.randint(replicas)  # noqa: NPY002
        elif chance < 0.6 and s + 1 < stages:
            kind, q = 2, s * replicas + np.random.randint(replicas)  # noqa: NPY002
        if p == q:
            continue
        touched[0] = s
        count = 1
        if kind == 0:
            for k in (s - 1, q // replicas, q // replicas - 1):
                new = 0 <= k < stages
                for m in range(count):
                    new = new and touched[m] != k
                if new:
                    touched[count] = k
                    count += 1
        _change(kind, s, p, q, slot, sends_to)
        change = 0.0
        for m in range(count):
            k = touched[m]
            fresh[m] = _time(k, latency, inverse, island, base, boundary, size, slot, sends_to)
            change += (fresh[m] / scale) ** power - (times[k] / scale) ** power
        heat = hot * (1 - step / steps) ** 2
        if change <= 0 or (heat > 0 and np.random.random() < np.exp(-change / heat)):  # noqa: NPY002
            for m in range(count):
                times[touched[m]] = fresh[m]
        else:
            _change(kind, s, p, q, slot, sends_to)
