"""Least latency with q > 1 calls per accelerator, from plans and relaxations with one call each.

A plan with one call per accelerator is also a plan with q, and often the best one: the path-
interval bound for q calls can prove it. Otherwise the label DP runs as if there were q times as
many accelerators, which is a relaxation. With q = 2 it knows which colours are divided, and that
the rest of such a colour has to be in the second call of the same accelerator, beside the first in
its memory; with more calls colours are dropped. If the calls that it finds can be packed onto the
accelerators (no two at once, memories fit, colours stay whole), the plan is optimal; if not, its
value is still a bound.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import pairwise

import numpy as np

from ...formulations.latency.execute_kernel import CallSlots, execute, flatten
from ...formulations.latency.graph import LatencyGraph, latency_graph
from ...formulations.task import Task
from ...formulations.throughput.whole_bytes import room_of
from ...instances import CallPlacement, Latency, Solution
from ...instances.common.arrays import Ints
from ..core.search import OPTIMAL_GAP, Search
from .label_dp import (
    MARGIN,
    MOST_CODES,
    bound_paths,
    calls_of,
    kernel_graph,
    latency_ceiling,
    next_target,
    raise_or_refute,
    run_label_dp,
    solve_one_call,
)


def several_calls(
    task: Task[Latency],
    search: Search[Solution],
    should_stop: Callable[[], bool],
    start: Callable[[], None],
) -> None:
    """Prove the least latency with several calls per accelerator, as far as possible.

    `start` is called, for a better plan, if the path-interval bound does not prove the incumbent.
    """
    calls = task.problem.calls
    graph = latency_graph(task, whole_colours=False)
    counts = [min(calls * int(c), graph.size) for c in graph.count]
    divided = calls == 2
    free = graph if divided else replace(graph, group=np.full(graph.size, -1))
    with search.phase("bound"):
        report = partial(raise_or_refute, task, search)
        paths = bound_paths(task, graph, sum(counts), search, should_stop, start, report)
    if paths is None:
        return

    with search.phase("one call each"):
        solve_one_call(
            replace(task, problem=Latency(1)),
            search,
            lambda: should_stop() or search.gap <= OPTIMAL_GAP,
            plans_only=True,
        )
    if math.prod(c + 1 for c in counts) > MOST_CODES or should_stop():
        return
    kernel = kernel_graph(task, free, counts, paths, search.objective, divided=divided)
    proved, most = max(search.bound, 0.0), latency_ceiling(task, graph)
    with search.phase("solve"):
        while not should_stop() and search.gap > OPTIMAL_GAP:
            target = min(next_target(proved, most), search.objective)
            complete, value, steps = run_label_dp(kernel, target, should_stop)
            if not complete:
                return
            if steps is None and search.best is None and target > most:
                report(math.inf, "label DP")
                return
            proved = (target if steps is None else value) * (1 - MARGIN)
            search.raise_bound(proved, f"label DP, {calls} calls per accelerator")
            if steps is not None:
                packed = pack_calls(task, graph, calls_of(graph, steps)) or pack_calls(
                    task, graph, calls_of(graph, steps, sinks=False)
                )
                if packed is None or not search.offer(packed):
                    search.note(
                        "the calls of the relaxation do not fit on the accelerators: "
                        "a gap may remain"
                    )
                return


def pack_calls(
    task: Task[Latency], graph: LatencyGraph, calls_found: list[tuple[int, list[int]]]
) -> CallPlacement | None:
    """Pack calls that each have an accelerator of their own onto the real ones, without delay.

    Nodes in no call are on CPUs. With two calls per accelerator all packings are tried (a maximum
    matching of calls that can share one); with more, calls are packed first fit by start. None if
    no packing was found.
    """
    import networkx as nx

    calls = task.problem.calls
    slot = np.full(task.workload.n, -1)
    for r, (_, nodes) in enumerate(calls_found):
        slot[nodes] = r
    kind = np.array([k for k, _ in calls_found], dtype=np.int64)
    free = np.full(len(kind), -1)
    nowhere = np.zeros(len(kind), np.int64)  # device 0 for all, so no two are linked
    _, start, finish, _ = execute(flatten(task, graph), slot, CallSlots(kind, nowhere, free))
    size = [float(graph.memory_bytes[nodes].sum()) for _, nodes in calls_found]

    def together(some: list[int]) -> bool:
        """Whether one accelerator can run these calls, none of them later than now."""
        some = sorted(some, key=lambda r: (start[r], finish[r]))
        room = float(room_of(graph.capacity_bytes[kind[some[0]]]))
        return (
            len(some) <= calls
            and len({int(kind[r]) for r in some}) == 1
            and sum(size[r] for r in some) <= room
            and all(finish[a] <= start[b] for a, b in pairwise(some))
        )

    bins = _by_colour(task, slot)
    if bins is None or not all(together(some) for some in bins):
        return None
    share: nx.Graph[int] = nx.Graph()
    share.add_edges_from(
        (i, j) for i in range(len(bins)) for j in range(i) if together(bins[i] + bins[j])
    )
    if calls == 2:
        for i, j in sorted(nx.max_weight_matching(share, maxcardinality=True)):
            bins[i], bins[j] = bins[i] + bins[j], []
        bins = [some for some in bins if some]
    else:
        fitted: list[list[int]] = []
        for some in sorted(bins, key=lambda some: (min(start[r] for r in some), some)):
            for other in fitted:
                if together(other + some):
                    other += some
                    break
            else:
                fitted.append(list(some))
        bins = fitted
    device, call = graph.pool.copy(), np.full(task.workload.n, -1)
    used = [0] * len(graph.kinds)
    for some in sorted(bins, key=lambda some: (min(start[r] for r in some), some)):
        k = int(kind[some[0]])
        if used[k] == graph.count[k]:
            return None
        first = int(np.flatnonzero(task.costs.kind_of == graph.kinds[k])[0])
        for j, r in enumerate(sorted(some, key=lambda r: (start[r], finish[r]))):
            device[calls_found[r][1]] = first + used[k]
            call[calls_found[r][1]] = j
        used[k] += 1
    return CallPlacement(device, call)


def _by_colour(task: Task[Latency], slot: Ints) -> list[list[int]] | None:
    """Return groups of calls that share a colour, so an accelerator; None if CPUs share one."""
    import networkx as nx

    tied: nx.Graph[int] = nx.Graph()
    tied.add_nodes_from(range(int(slot.max(initial=-1)) + 1))
    for members in task.workload.colour_classes:
        used = sorted({int(slot[v]) for v in members})
        if len(used) > 1 and used[0] < 0:
            return None
        tied.add_edges_from(pairwise(used))
    return [sorted(some) for some in nx.connected_components(tied)]
