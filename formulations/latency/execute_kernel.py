"""Execution of a division into calls, for searches: latency, start and finish times.

A division is given by `slot`, shape (n,), the number of each node's call, −1 for the CPUs, and by
the `CallSlots` of the calls. The verifier has code of its own.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ...instances import CallPlacement, Latency
from ...instances.common.arrays import Floats, Ints, rows
from ...instances.common.kernel import inner, kernel
from ..task import Task
from .graph import LatencyGraph


class GraphRows(NamedTuple):
    """Graph and costs as compressed rows: n nodes, K kinds of accelerators, L links, D devices."""

    succ_start: Ints
    succ: Ints
    pred_start: Ints
    pred: Ints
    compute: Floats  # (K, n)
    transfer: Floats  # (K, n)
    memory: Floats
    cpu: Floats
    link: Ints  # (D, D): link between devices, −1 for none; (1, 1) without links
    message: Floats  # (L, n)


class CallSlots(NamedTuple):
    """The R calls that accelerators may run: where each runs, and which call precedes it."""

    kind: Ints  # (R,): row of `GraphRows.compute`
    device: Ints  # (R,): accelerator; matters only for links
    before: Ints  # (R,): the call that must end before it starts; −1 for none


def flatten(task: Task[Latency], graph: LatencyGraph) -> GraphRows:
    """Return graph and costs of a task as arrays for `execute`."""
    costs = task.linked_costs
    between = costs.messages
    return GraphRows(
        *rows(task.workload.successors),
        *rows(task.workload.predecessors),
        np.ascontiguousarray(graph.compute),
        np.ascontiguousarray(costs.transfer[list(graph.kinds)]),
        np.array(graph.memory_bytes),
        np.array(graph.cpu),
        np.full((1, 1), -1) if between is None else np.array(between.link),
        np.zeros((0, task.workload.n)) if between is None else np.array(between.time),
    )


@inner
def call_loads(flat, slot, kind, device):
    """Return the duration of each call, shape (R,): compute, transfers, messages over links."""
    calls = len(kind)
    load = np.zeros(calls)
    entered = np.full(calls, -1, np.int64)
    linked = len(flat.link) > 1
    for u in range(len(slot)):
        own = slot[u]
        through_host = False
        if own >= 0:
            load[own] += flat.compute[kind[own], u]
        for i in range(flat.succ_start[u], flat.succ_start[u + 1]):
            r = slot[flat.succ[i]]
            if r == own and own >= 0:
                continue
            link = -1
            if linked and own >= 0 and r >= 0:
                link = flat.link[device[own], device[r]]
            through_host |= link < 0
            if r >= 0 and entered[r] != u:
                entered[r] = u
                if link < 0:
                    load[r] += flat.transfer[kind[r], u]
                else:
                    load[r] += flat.message[link, u]
                    load[own] += flat.message[link, u]
        if through_host and own >= 0:
            load[own] += flat.transfer[kind[own], u]
    return load


@inner
def _open_edges(flat, slot, before):
    """Return the waits of each call, the call after each (−1: none), and the waits of each node.

    A call waits for every edge that enters it, and for the call before it.
    """
    n, calls = len(slot), len(before)
    open_in = np.zeros(n, np.int64)
    waiting, after = np.zeros(calls, np.int64), np.full(calls, -1, np.int64)
    for r in range(calls):
        if before[r] >= 0:
            after[before[r]] = r
            waiting[r] += 1
    for u in range(n):
        open_in[u] = flat.pred_start[u + 1] - flat.pred_start[u]
        for i in range(flat.succ_start[u], flat.succ_start[u + 1]):
            r = slot[flat.succ[i]]
            if r >= 0 and r != slot[u]:
                waiting[r] += 1
    return waiting, after, open_in


@inner
def _by_call(slot, calls):
    """Return the nodes of all calls as compressed rows: call r has members[at[r] : at[r + 1]]."""
    at = np.zeros(calls + 1, np.int64)
    for own in slot:
        if own >= 0:
            at[own + 1] += 1
    for r in range(calls):
        at[r + 1] += at[r]
    members = np.empty(at[calls], np.int64)
    fill = at[:calls].copy()
    for v in range(len(slot)):
        if slot[v] >= 0:
            members[fill[slot[v]]] = v
            fill[slot[v]] += 1
    return at, members


@kernel
def execute(flat, slot, calls):
    """Execute the calls as soon as possible; return the latency, and times of calls and nodes.

    `slot` is the call of each node, −1 on CPUs. The times are starts and finishes of calls, (R,),
    and finishes of nodes, (n,). The latency is `inf`, and the rest meaningless, if calls wait for
    each other in a cycle, or a time is infinite.
    """
    n, count = len(slot), len(calls.kind)
    load = call_loads(flat, slot, calls.kind, calls.device)
    waiting, after, open_in = _open_edges(flat, slot, calls.before)
    at, members = _by_call(slot, count)
    start, finish = np.zeros(count), np.zeros(count)
    node_finish = np.zeros(n)
    stack = np.empty(n + count, np.int64)  # v: node v on CPUs is ready, −1−r: call r is
    top = 0
    for r in range(count):
        if waiting[r] == 0:
            stack[top] = -1 - r
            top += 1
    for v in range(n):
        if slot[v] < 0 and open_in[v] == 0:
            stack[top] = v
            top += 1
    done = 0
    ready = np.zeros(n)
    last = 0.0
    while top > 0:
        top -= 1
        one = stack[top]
        if one >= 0:
            node_finish[one] = ready[one] + flat.cpu[one]
            last = max(last, node_finish[one])
            low, high, r = 0, 1, -1
        else:
            r = -1 - one
            finish[r] = start[r] + load[r]
            low, high = at[r], at[r + 1]
            if high > low:
                last = max(last, finish[r])
            if after[r] >= 0:
                y = after[r]
                start[y] = max(start[y], finish[r])
                waiting[y] -= 1
                if waiting[y] == 0:
                    stack[top] = -1 - y
                    top += 1
        for j in range(low, high):
            u = one if r < 0 else members[j]
            done += 1
            if r >= 0:
                node_finish[u] = finish[r]
            for i in range(flat.succ_start[u], flat.succ_start[u + 1]):
                v = flat.succ[i]
                y = slot[v]
                if y < 0:
                    ready[v] = max(ready[v], node_finish[u])
                    open_in[v] -= 1
                    if open_in[v] == 0:
                        stack[top] = v
                        top += 1
                elif y != r:
                    start[y] = max(start[y], node_finish[u])
                    waiting[y] -= 1
                    if waiting[y] == 0:
                        stack[top] = -1 - y
                        top += 1
    if done < n:
        last = np.inf
    return last, start, finish, node_finish


def call_slots(
    task: Task[Latency], graph: LatencyGraph, plan: CallPlacement
) -> tuple[Ints, CallSlots]:
    """Return the call of each node of a plan, shape (n,), and all calls that are possible.

    With q calls per accelerator, call j of the a-th accelerator of the cluster has number a q + j;
    the plan's calls on each are numbered from 0, without gaps.
    """
    calls, kind_of = task.problem.calls, task.costs.kind_of
    accelerators = np.flatnonzero(~task.costs.host[kind_of])
    slot = np.full(task.workload.n, -1)
    for a, d in enumerate(accelerators.tolist()):
        here = plan.device == d
        slot[here] = a * calls + np.unique(plan.call[here], return_inverse=True)[1]
    before = np.arange(calls * len(accelerators)) - 1
    before[::calls] = -1
    rows = np.array([graph.kinds.index(k) for k in kind_of[accelerators].tolist()], np.int64)
    return slot, CallSlots(np.repeat(rows, calls), np.repeat(accelerators, calls), before)
