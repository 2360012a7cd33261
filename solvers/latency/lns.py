"""Heuristics for latency: local search, and the label DP along one topological order."""

from __future__ import annotations

import numpy as np

from ...formulations.latency.execute_kernel import call_slots, flatten
from ...formulations.latency.graph import latency_graph
from ...formulations.task import Task
from ...formulations.throughput.whole_bytes import room_of
from ...instances import CallPlacement, Latency, Solution
from ..core.search import Search
from ..core.swaps import swap_devices
from .greedy import first_plans
from .label_dp import kernel_graph, run_label_dp, solution_of
from .lns_kernel import random_moves

#: Work between two polls of the clock, in node visits.
SLICE_VISITS = 20_000_000
#: Moves per unit without success after which local search ends.
PATIENCE = 60


def local_search(task: Task[Latency], search: Search[Solution]) -> None:
    """Improve the incumbent, or a plan of `linear`, by moving units between calls and CPUs.

    A unit (a colour or a node) moves to a neighbour's call, or anywhere; a move is kept if the
    request ends no later. The search ends when no move has helped for long.
    """
    if search.best is None:
        linear(task, search)
    swap_devices(task, search)
    if isinstance(search.best, CallPlacement):
        improve(task, search)


def linear(task: Task[Latency], search: Search[Solution]) -> None:
    """Run the label DP over the prefixes of one topological order, with one label per prefix."""
    first_plans(task, search)
    graph = latency_graph(task, whole_colours=True)
    counts = [min(int(c), graph.size) for c in graph.count]
    kernel = kernel_graph(task, graph, counts, [], search.objective, chained=True)
    # only plans better than the incumbent are of use
    _, _, steps = run_label_dp(kernel, search.objective, search.should_stop, single=True)
    if steps is not None:
        search.offer(solution_of(task, graph, steps))


def improve(task: Task[Latency], search: Search[Solution]) -> None:
    """Move units of the incumbent between calls until no move has helped for long."""
    assert isinstance(search.best, CallPlacement)
    calls = task.problem.calls
    graph = latency_graph(task, whole_colours=False)
    groups = _groups(task)
    accelerators = np.flatnonzero(~task.costs.host[task.costs.kind_of])
    slot, slots = call_slots(task, graph, search.best)
    flat = flatten(task, graph)
    room = np.repeat(room_of(graph.capacity_bytes), graph.count)
    start = np.concatenate([[0], np.cumsum([len(group) for group in groups])])
    members = np.array([v for group in groups for v in group])
    rng = np.random.default_rng(search.limits.seed)
    value = search.objective
    failed, rounds = 0, 0
    moves = max(100, SLICE_VISITS // (task.workload.n + len(task.workload.edges)) // 10)
    while failed < PATIENCE * len(groups) and not search.should_stop():
        if search.out_of_nodes(rounds):
            return
        rounds += 1
        draws = rng.random((moves, 4))
        new = random_moves(flat, slot, slots, room, calls, (start, members), value, draws)
        failed = 0 if new < value else failed + moves
        if new < value:
            value = new
            device = np.where(
                slot >= 0,
                accelerators[np.maximum(slot, 0) // calls] if len(accelerators) else 0,
                graph.pool,
            )
            search.offer(CallPlacement(device, np.where(slot >= 0, slot % calls, -1)))


def _groups(task: Task[Latency]) -> list[list[int]]:
    """Return the nodes that move together: each colour, and each other node by itself."""
    alone = [[v] for v, colour in enumerate(task.workload.colours.tolist()) if colour < 0]
    return [list(nodes) for nodes in task.workload.colour_classes if nodes] + alone
