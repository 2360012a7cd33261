"""The least latency by trying every division into calls: what the planners are compared with.

Every node goes to the CPUs or to one of the q calls of one of the accelerators; nothing of the
package computes here but the pricing of nodes.
"""

from __future__ import annotations

import math

import numpy as np
from brute import compiled_once, most_bytes, pair_prices
from numba import njit

from stagecut import Cluster, Latency, Workload
from stagecut.instances import price


def least_latency(workload: Workload, cluster: Cluster, problem: Latency) -> float:
    """Return the least latency over all placements and orders, `inf` if none keeps the rules."""
    costs = price(workload, cluster)
    host = costs.host[costs.kind_of]
    accelerators = np.flatnonzero(~host)
    pools = np.array(
        [k for k in range(len(costs.host)) if costs.host[k] and costs.count[k]], dtype=np.int64
    )
    link, message = pair_prices(workload, cluster)
    return float(
        compiled_once(_search)(
            workload.n,
            workload.edges,
            costs.compute,
            costs.transfer,
            link[np.ix_(accelerators, accelerators)],
            message,
            costs.memory_bytes,
            costs.capacity_bytes,
            workload.colours,
            costs.kind_of[accelerators],
            problem.calls,
            pools,
        )
    )


@njit(cache=True)
def _search(
    n, edges, compute, transfer, link, message, memory, capacity, colours, kind, calls, pools
):  # fmt: skip
    """Slot s < pools is a pool; the others are call (s - pools) % calls of an accelerator."""
    slots = len(pools) + len(kind) * calls
    slot = np.zeros(n, np.int64)
    best = math.inf
    if slots == 0:
        return best
    while True:
        if _allowed(n, slot, compute, memory, capacity, colours, kind, calls, pools):
            value = _execute(n, slot, edges, compute, transfer, link, message, kind, calls, pools)
            best = min(best, value)
        v = 0
        while v < n and slot[v] == slots - 1:
            slot[v] = 0
            v += 1
        if v == n:
            return best
        slot[v] += 1


@njit(cache=True)
def _place(slot, calls, pools):
    return slot if slot < len(pools) else len(pools) + (slot - len(pools)) // calls


@njit(cache=True)
def _kind(slot, kind, calls, pools):
    return pools[slot] if slot < len(pools) else kind[(slot - len(pools)) // calls]


@njit(cache=True)
def _allowed(n, slot, compute, memory, capacity, colours, kind, calls, pools):
    used = np.zeros(len(kind))
    for v in range(n):
        if math.isinf(compute[_kind(slot[v], kind, calls, pools), v]):
            return False
        place = _place(slot[v], calls, pools)
        if place >= len(pools):
            used[place - len(pools)] += memory[v]
        for u in range(v):
            if colours[u] >= 0 and colours[u] == colours[v]:  # noqa: SIM102
                if _place(slot[u], calls, pools) != place:
                    return False
    within = True
    for d in range(len(kind)):
        within &= used[d] <= most_bytes(capacity[kind[d]])
    return within


@njit(cache=True)
def _execute(n, slot, edges, compute, transfer, link, message, kind, calls, pools):
    """Relax starts and finishes until nothing moves; what still moves after that is a circle."""
    slots = len(pools) + len(kind) * calls
    takes = np.zeros(slots)
    for v in range(n):
        if slot[v] >= len(pools):
            takes[slot[v]] += compute[_kind(slot[v], kind, calls, pools), v]
    for u in range(n):
        stored = False
        enters = np.zeros(slots, np.bool_)
        for e in range(len(edges)):
            if edges[e, 0] == u and slot[edges[e, 1]] != slot[u]:
                enters[slot[edges[e, 1]]] = True
        for s in range(slots):
            if not enters[s]:
                continue
            over = -1
            if s >= len(pools) and slot[u] >= len(pools):
                a = _place(slot[u], calls, pools) - len(pools)
                over = link[a, _place(s, calls, pools) - len(pools)]
            if over >= 0:
                takes[s] += message[over, u]
                takes[slot[u]] += message[over, u]
            else:
                stored = True
                if s >= len(pools):
                    takes[s] += transfer[_kind(s, kind, calls, pools), u]
        if stored and slot[u] >= len(pools):
            takes[slot[u]] += transfer[_kind(slot[u], kind, calls, pools), u]
    # before[a, b]: what a is waits for b; nodes on CPUs are items of their own
    items = slots + n
    item = np.empty(n, np.int64)
    for v in range(n):
        item[v] = slots + v if slot[v] < len(pools) else slot[v]
    needs = np.zeros((items, items), np.bool_)
    for e in range(len(edges)):
        a, b = item[edges[e, 0]], item[edges[e, 1]]
        if a != b:
            needs[b, a] = True
    for s in range(len(pools), slots):
        if (s - len(pools)) % calls:
            needs[s, s - 1] = True
    time = np.zeros(items)
    for s in range(len(pools), slots):
        time[s] = takes[s]
    for v in range(n):
        if slot[v] < len(pools):
            time[slots + v] = compute[pools[slot[v]], v]
    done = np.zeros(items, np.bool_)
    finish = np.zeros(items)
    for _ in range(items):
        moved = False
        for i in range(items):
            if not done[i]:
                ready, start = True, 0.0
                for j in range(items):
                    if needs[i, j]:
                        ready &= done[j]
                        start = max(start, finish[j])
                if ready:
                    done[i] = True
                    finish[i] = start + time[i]
                    moved = True
        if not moved:
            break
    return finish.max() if done.all() else math.inf
