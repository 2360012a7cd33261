"""A latency plan as stages: every call is one, and every node on a CPU is one.

A call waits for all its inputs, transfers them in, computes, transfers out; its results appear when
it has ended. That is what a stage without overlap does. What a call needs from another call on the
same accelerator goes through host memory too; what it needs from one on a linked accelerator is a
message. CPUs are an unlimited pool: as many cores are shown as compute at a time.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from ...instances import Cluster, InputError, Workload, price
from ...instances.common.arrays import Floats, Ints, frozen
from .stages import FORWARD, StageGraph


def stages_of_calls(workload: Workload, cluster: Cluster, device: Ints, call: Ints) -> StageGraph:
    """Return the stages of a latency plan; simulate them with the schedule ``single``.

    Parameters
    ----------
    device
        Shape (n,): number of the device of each node.
    call
        Shape (n,): number of the node's call on its accelerator, in the order in which they run;
        −1 for nodes on CPUs.

    Raises
    ------
    InputError
        If the calls wait for each other in a circle.

    Notes
    -----
    O((n + m) log n).
    """
    costs = price(workload, cluster)
    groups: dict[tuple[int, int], list[int]] = {}
    for v in workload.order:
        d, number = int(device[v]), int(call[v])
        groups.setdefault((d, number) if number >= 0 else (-1, v), []).append(v)
    of = np.zeros(workload.n, dtype=np.int64)
    for k, nodes in enumerate(groups.values()):
        of[nodes] = k
    where = [int(device[nodes[0]]) for nodes in groups.values()]
    kind = costs.kind_of[where]
    compute, receive, send = (np.zeros((len(groups), 2)) for _ in range(3))
    for k, nodes in enumerate(groups.values()):
        compute[k, FORWARD] = costs.compute[kind[k], nodes].sum()
    edges = set()
    for u, successors in enumerate(workload.successors):
        own = int(of[u])
        users = {int(of[v]) for v in successors} - {own}
        for k in sorted(users):
            edges.add((own, k))
            receive[k, FORWARD] += costs.received(u, where[own], where[k])
        send[own, FORWARD] += costs.sent(u, where[own], (where[k] for k in sorted(users)))
    duration = (receive + compute + send)[:, FORWARD]
    keys = list(groups)
    rank, begin, end = _execute(keys, sorted(edges), duration)
    lanes, names = _lanes(cluster, keys, rank, begin, end)
    capacity = [cluster.kinds[one.kind].memory_bytes for one in cluster.devices]
    capacity += [np.inf] * (len(names) - len(capacity))
    present = np.zeros((len(groups), 2), np.bool_)
    present[:, FORWARD] = True
    tasks = np.zeros(2 * len(groups), dtype=np.int64)
    tasks[0::2], tasks[1::2] = rank, len(groups)
    memory = frozen([workload.memory_bytes[nodes].sum() for nodes in groups.values()], np.float64)
    return StageGraph(
        devices=tuple(names),
        replicas=tuple((lane,) for lane in lanes),
        compute=frozen(compute, np.float64),
        present=frozen(present, np.bool_),
        receive=frozen(receive, np.float64),
        send=frozen(send, np.float64),
        edges=frozen(2 * np.array(sorted(edges), dtype=np.int64).reshape(-1, 2), np.int64),
        payload_bytes=frozen(np.zeros(len(edges)), np.float64),
        rank=frozen(tasks, np.int64),
        weight_bytes=memory,
        activation_bytes=frozen(np.zeros(len(groups)), np.float64),
        resident_bytes=memory,
        nodes=tuple((tuple(nodes), ()) for nodes in groups.values()),
        capacity_bytes=frozen(capacity, np.float64),
        time_unit=workload.time_unit,
    )


def _execute(
    keys: list[tuple[int, int]], edges: list[tuple[int, int]], duration: Floats
) -> tuple[Ints, Floats, Floats]:
    """Return the place in the order of begins, begin and end of each call and CPU node."""
    after: list[list[int]] = [[] for _ in keys]
    waits = np.zeros(len(keys), dtype=np.int64)
    numbered = sorted((k for k in range(len(keys)) if keys[k][0] >= 0), key=lambda k: keys[k])
    following = [(a, b) for a, b in pairwise(numbered) if keys[a][0] == keys[b][0]]
    for a, b in [*edges, *following]:
        after[a].append(b)
        waits[b] += 1
    begin, end = np.zeros(len(keys)), np.zeros(len(keys))
    ready = [k for k in range(len(keys)) if not waits[k]]
    for k in ready:
        end[k] = begin[k] + duration[k]
        for b in after[k]:
            begin[b] = max(begin[b], end[k])
            waits[b] -= 1
            if not waits[b]:
                ready.append(b)
    if len(ready) < len(keys):
        raise InputError("plan: its calls wait for each other in a circle; verify the plan")
    rank = np.zeros(len(keys), dtype=np.int64)
    rank[sorted(ready, key=lambda k: begin[k])] = np.arange(len(keys))
    return rank, begin, end


def _lanes(
    cluster: Cluster, keys: list[tuple[int, int]], rank: Ints, begin: Floats, end: Floats
) -> tuple[list[int], list[str]]:
    """Return the lane of each call and CPU node, and the names of all lanes."""
    names = [one.name for one in cluster.devices]
    lanes = [d for d, _ in keys]
    free: list[float] = []  # when each core shown is free again
    for k in sorted(range(len(keys)), key=lambda k: (begin[k], rank[k])):
        if lanes[k] >= 0:
            continue
        core = next((c for c, until in enumerate(free) if until <= begin[k]), len(free))
        free[core : core + 1] = [float(end[k])]
        lanes[k] = cluster.size + core
    return lanes, [*names, *(f"pool core {c}" for c in range(len(free)))]
