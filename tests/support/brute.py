"""The best max-load by trying every placement: what the planners are compared with.

Nothing of the package computes here but the pricing of nodes and the list of pipeline edges.
"""

from __future__ import annotations

import fcntl
import itertools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numba import njit

from stagecut import Cluster, Throughput, Workload
from stagecut.instances import TIME_UNITS, price
from stagecut.instances.common.arrays import Floats, Ints
from stagecut.instances.model.contiguity import pipeline_edges

SPLIT = {"noncontiguous": 0, "contiguous": 1, "per-device": 2}


def best_max_load(workload: Workload, cluster: Cluster, problem: Throughput) -> float:
    """Return the least objective over all placements, `inf` if none keeps the rules."""
    costs = price(workload, cluster)
    n = workload.n
    reach = np.zeros((n, n), np.bool_)
    for u, v in workload.edges.tolist():
        reach[u, v] = not (workload.backward[u] or workload.backward[v])
    for via in range(n):
        reach |= np.outer(reach[:, via], reach[via])
    link, message = pair_prices(workload, cluster)
    return float(
        compiled_once(_search)(
            n,
            workload.edges,
            np.array(pipeline_edges(workload), dtype=np.int64).reshape(-1, 2),
            reach,
            costs.compute[costs.kind_of],
            costs.transfer[costs.kind_of],
            link,
            message,
            costs.memory_bytes,
            costs.capacity_bytes[costs.kind_of],
            costs.host[costs.kind_of],
            workload.colours,
            workload.backward.astype(np.int64),
            SPLIT[problem.split],
            problem.cpu_split == "free",
            problem.pipeline == "gpipe",
            problem.overlap,
            _orders(cluster.size if problem.relayed else 0),
        )
    )


def compiled_once(function: Any) -> Callable[..., Any]:
    """Return a function whose first call waits for other processes that compile it, or load it."""
    if function.signatures:
        return function  # type: ignore[no-any-return]

    def first_call(*arguments: Any) -> Any:
        with Path(function.stats.cache_path, f"{function.__module__}.lock").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            return function(*arguments)

    return first_call


def max_load(workload: Workload, cluster: Cluster, problem: Throughput, where: Ints) -> float:
    """Return the objective of one placement, rules aside, where nothing is relayed."""
    costs = price(workload, cluster)
    side = workload.backward.astype(np.int64)
    transfer = costs.transfer[costs.kind_of]
    moved = _moved(
        workload.n, where, workload.edges, transfer, *pair_prices(workload, cluster), side
    )
    compute = costs.compute[costs.kind_of]
    gpipe = problem.pipeline == "gpipe"
    return float(_objective(workload.n, where, compute, moved, side, gpipe, problem.overlap))


def pair_prices(workload: Workload, cluster: Cluster) -> tuple[Ints, Floats]:
    """Return the link between each two devices (−1: none), and times of nodes over each link."""
    table = np.full((cluster.size, cluster.size), -1)
    times = np.zeros((len(cluster.links), workload.n))
    for i, pair in enumerate(cluster.links):
        for a, one in enumerate(cluster.devices):
            for b, other in enumerate(cluster.devices):
                names = [{d.name, cluster.kinds[d.kind].name} for d in (one, other)]
                ends = [pair.ends, pair.ends[::-1]]
                if a != b and any(x in names[0] and y in names[1] for x, y in ends):
                    table[a, b] = i
        for v, size in enumerate(workload.output_bytes if cluster.links else ()):
            seconds = pair.link.latency_s + size / pair.link.bytes_per_s
            times[i, v] = seconds / TIME_UNITS[workload.time_unit] if size else 0.0
    return table, times


def _orders(devices: int):
    """Return, shape (orders, D), the place of each device in every order of the stages."""
    orders = list(itertools.permutations(range(devices)))
    return np.array(orders, dtype=np.int64).reshape(len(orders), devices)


@njit(cache=True)
def most_bytes(memory):
    """What a device may hold: less than a whole byte more than it has, for rounding of sums."""
    return memory + (min(1e-9 * memory, 0.5) if memory < 2.0**53 else 1e-9 * memory)


@njit(cache=True)
def _search(
    n, edges, pipeline, reach, compute, transfer, link, message, memory, capacity, host, colours,
    side, split, free, gpipe, overlap, orders,
):  # fmt: skip
    devices = len(capacity)
    where = np.zeros(n, np.int64)
    best = math.inf
    while True:
        if _allowed(n, where, pipeline, reach, memory, capacity, host, colours, split, free):
            if orders.shape[1] == 0:
                moved = _moved(n, where, edges, transfer, link, message, side)
                value = _objective(n, where, compute, moved, side, gpipe, overlap)
                best = min(best, value)
            for k in range(len(orders) if orders.shape[1] else 0):
                if _ascends(where, pipeline, orders[k]):
                    moved = _passed_on(n, where, edges, transfer, side, orders[k])
                    value = _objective(n, where, compute, moved, side, gpipe, overlap)
                    best = min(best, value)
        v = 0
        while v < n and where[v] == devices - 1:
            where[v] = 0
            v += 1
        if v == n:
            return best
        where[v] += 1


@njit(cache=True)
def _allowed(n, where, pipeline, reach, memory, capacity, host, colours, split, free):
    used = np.zeros(len(capacity))
    for v in range(n):
        used[where[v]] += memory[v]
        for u in range(v):
            if colours[u] >= 0 and colours[u] == colours[v] and where[u] != where[v]:
                return False
    for d in range(len(capacity)):
        if used[d] > most_bytes(capacity[d]):
            return False
    if split == 1:
        parts = len(capacity) + n
        part = where.copy()
        for v in range(n):
            if free and host[where[v]]:
                part[v] = len(capacity) + v
        before = np.zeros((parts, parts), np.bool_)
        for e in range(len(pipeline)):
            a, b = part[pipeline[e, 0]], part[pipeline[e, 1]]
            if a != b:
                before[a, b] = True
        for k in range(parts):
            for i in range(parts):
                if before[i, k]:
                    for j in range(parts):
                        before[i, j] |= before[k, j]
        for i in range(parts):
            if before[i, i]:
                return False
    if split == 2:
        for u in range(n):
            for w in range(n):
                if where[u] == where[w] and not (free and host[where[u]]):
                    for v in range(n):
                        if where[v] != where[u] and reach[u, v] and reach[v, w]:
                            return False
    return True


@njit(cache=True)
def _ascends(where, pipeline, place):
    for e in range(len(pipeline)):
        if place[where[pipeline[e, 0]]] > place[where[pipeline[e, 1]]]:
            return False
    return True


@njit(cache=True)
def _passed_on(n, where, edges, transfer, side, place):
    """What each device pays if data moves only between neighbours among the devices in use."""
    devices = len(place)
    moved = np.zeros((devices, 2))
    used = np.zeros(devices, np.bool_)
    for v in range(n):
        used[where[v]] = True
    for u in range(n):
        low = high = place[where[u]]
        for e in range(len(edges)):
            if edges[e, 0] == u:
                low = min(low, place[where[edges[e, 1]]])
                high = max(high, place[where[edges[e, 1]]])
        for d in range(devices):
            if used[d] and low <= place[d] <= high and low < high:
                between = low < place[d] < high
                moved[d, side[u]] += transfer[d, u] * (2 if between else 1)
    return moved


@njit(cache=True)
def _objective(n, where, compute, moved, side, gpipe, overlap):
    devices = len(compute)
    work = np.zeros((devices, 2))
    for v in range(n):
        work[where[v], side[v]] += compute[where[v], v]
    fw, bw, total = 0.0, 0.0, 0.0
    for d in range(devices):
        if overlap:
            fw = max(fw, work[d, 0], moved[d, 0])
            bw = max(bw, work[d, 1], moved[d, 1])
            total = max(total, work[d, 0] + work[d, 1], moved[d, 0] + moved[d, 1])
        else:
            fw = max(fw, work[d, 0] + moved[d, 0])
            bw = max(bw, work[d, 1] + moved[d, 1])
            total = max(total, work[d, 0] + moved[d, 0] + work[d, 1] + moved[d, 1])
    return fw + bw if gpipe else total


@njit(cache=True)
def _moved(n, where, edges, transfer, link, message, side):
    devices = len(transfer)
    moved = np.zeros((devices, 2))
    for u in range(n):
        needs = np.zeros(devices, np.bool_)
        for e in range(len(edges)):
            if edges[e, 0] == u and where[edges[e, 1]] != where[u]:
                needs[where[edges[e, 1]]] = True
        host_too = False
        for d in range(devices):
            if needs[d] and link[where[u], d] >= 0:
                moved[d, side[u]] += message[link[where[u], d], u]
                moved[where[u], side[u]] += message[link[where[u], d], u]
            elif needs[d]:
                moved[d, side[u]] += transfer[d, u]
                host_too = True
        if host_too:
            moved[where[u], side[u]] += transfer[where[u], u]
    return moved
