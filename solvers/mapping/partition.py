"""Balanced partition of large operator graphs: topological orders, split by DP and refined.

1. *DP*: along a topological order, stage (i, j] costs C_j − C_i + κ·cut_j; the least T at which
   S runs reach the end is found by bisection. Several orders are tried.
2. *Refine*: units move to neighbouring stages as long as that lowers the sum of the eighth powers
   of the stages' costs, in which the largest dominate.

Where memory is short or devices are of unlike speed (`cut_for_devices`), topological orders are cut
into runs instead: at a time T, a DP over the numbers of stages on each kind of device says how far
an order can be covered. If no order can be covered, the integer program of
`formulations.mapping.memory` decides.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import product

import networkx as nx
import numpy as np
from scipy.sparse import coo_array

from ...formulations.mapping.all_cuts import Units, partition_units, stage_objective
from ...formulations.mapping.memory import (
    can_be_mapped,
    device_groups,
    held_bytes,
    memory_program,
    stage_rooms,
)
from ...formulations.task import Task
from ...instances import DeviceMapping, InputError, Solution, Workload, stage_costs
from ...instances.common.arrays import Floats, Ints
from ...instances.common.units import show_bytes, show_count
from ..core.highs import run_highs, whole
from ..core.search import Search
from .cuts_kernel import UnitGraph, move_units
from .parameters import MEMORY_COUNTS, MEMORY_LACK, MEMORY_SHARE


def balanced_partition(
    workload: Workload,
    stages: int,
    coefficient: float = 0.0,
    *,
    should_stop: Callable[[], bool] = lambda: False,
) -> Ints:
    """Return the stage of each node, in near-linear time: seconds for 20,000 operators.

    `coefficient` is κ, seconds per byte that crosses a boundary; 1 / bandwidth counts transfers in
    full. The first split is made even if it should stop. InputError if there are more stages than
    units, or the workload lacks times or sizes.
    """
    unit_of, units = partition_units(workload)
    if stages > units.size:
        raise InputError(
            f"{workload.name}: {stages} stages, but its nodes can be cut into {units.size} at "
            "most; take fewer stages"
        )
    best, least = np.zeros(units.size, np.int64), np.inf
    for order in orders(units):
        stage, value = split_along(units, order, stages, coefficient)
        moved, longest = refine(units, stage, stages, coefficient)
        if longest < value:  # a smaller sum of powers is mostly, not always, a shorter stage
            stage, value = moved, longest
        if value < least:
            best, least = stage, value
        if should_stop():
            break
    return best[unit_of]


def orders(units: Units) -> Iterator[Ints]:
    """Yield topological orders: by level, depth first, and with least data alive."""
    graph: nx.DiGraph[int] = nx.DiGraph()
    graph.add_nodes_from(range(units.size))
    graph.add_edges_from(units.edges.tolist())
    depth = {v: k for k, level in enumerate(nx.topological_generations(graph)) for v in level}
    order = list(nx.lexicographical_topological_sort(graph))
    yield np.array(order)
    yield np.array(list(nx.lexicographical_topological_sort(graph, key=depth.__getitem__)))
    yield np.array(list(nx.dfs_postorder_nodes(graph.reverse(copy=False))))
    if len(units.net_bytes):
        net = np.repeat(np.arange(len(units.net_bytes)), np.diff(units.net_start))
        # a unit adds the nets that it opens to the data alive, and may end the others
        rank = np.empty(units.size, np.int64)
        rank[order] = np.arange(units.size)
        first = np.minimum.reduceat(rank[units.pins], units.net_start[:-1])
        delta = np.where(rank[units.pins] == first[net], 1.0, -1.0) * units.net_bytes[net]
        weight = np.bincount(units.pins, weights=delta, minlength=units.size).tolist()
        yield np.array(list(nx.lexicographical_topological_sort(graph, key=weight.__getitem__)))


def split_along(units: Units, order: Ints, stages: int, coefficient: float) -> tuple[Ints, float]:
    """Return the best split into S runs of an order, and its objective."""
    place = np.empty(units.size, np.int64)
    place[order] = np.arange(units.size)
    total = np.concatenate([[0.0], np.cumsum(units.seconds[order])])
    cut = np.zeros(units.size + 1)
    if coefficient and len(units.net_bytes):
        at = place[units.pins]
        first = np.minimum.reduceat(at, units.net_start[:-1])
        last = np.maximum.reduceat(at, units.net_start[:-1])
        np.add.at(cut, first + 1, units.net_bytes)
        np.add.at(cut, last + 1, -units.net_bytes)
        cut = coefficient * np.maximum(0.0, np.cumsum(cut))
    cut[0] = cut[-1] = 0.0
    low = max(total[-1] / stages, float(units.seconds.max(initial=0.0)))
    high = float(total[-1] + cut.max())
    ends = run_ends(total, cut, high, stages)
    while high - low > 1e-6 * high:
        middle = (low + high) / 2
        found = run_ends(total, cut, middle, stages)
        if len(found):
            ends, high = found, middle
        else:
            low = middle
    stage = np.empty(units.size, np.int64)
    stage[order] = np.searchsorted(ends, np.arange(units.size), side="right")
    return stage, high


def run_ends(total: Floats, cut: Floats, target: float, stages: int) -> Ints:
    """Return the ends of exactly S runs of cost ≤ target, shape (S,); empty if there are none.

    The run of units i + 1 … j costs C_j − C_i + cut_j, so that i may be anything from some unit on.
    `total` and `cut`, shape (U + 1,), are C and κ times what is cut behind each unit.
    """
    begins = np.searchsorted(total, total + cut - target * (1 + 1e-12))
    can = np.zeros((stages + 1, len(total)), np.bool_)  # whether the first j units can be k runs
    can[0, 0] = True
    for k in range(stages):
        before = np.concatenate([[0], np.cumsum(can[k])])
        can[k + 1] = before[:-1] > before[np.minimum(begins, np.arange(len(total)))]
    ends = np.zeros(stages if can[-1, -1] else 0, np.int64)
    j = len(total) - 1
    for k in reversed(range(len(ends))):
        ends[k] = j
        j = int(np.flatnonzero(can[k, :j])[-1])
    return ends


def refine(
    units: Units, stage: Ints, stages: int, coefficient: float, sweeps: int = 20
) -> tuple[Ints, float]:
    """Move units to neighbouring stages while the power sum falls; return stages and objective."""

    def rows(keys: Ints, values: Ints, count: int) -> tuple[Ints, Ints]:
        matrix = coo_array(
            (values + 1, (keys, np.arange(len(keys)))), shape=(count, max(1, len(keys)))
        )
        table = matrix.tocsr()
        return table.indptr.astype(np.int64), table.data.astype(np.int64) - 1

    after = rows(units.edges[:, 0], units.edges[:, 1], units.size)
    before = rows(units.edges[:, 1], units.edges[:, 0], units.size)
    net = np.repeat(np.arange(len(units.net_bytes)), np.diff(units.net_start))
    nets = rows(units.pins, net, units.size)
    weight = coefficient * units.net_bytes
    result = stage.copy()
    of_net = units.net_start, units.pins
    graph = UnitGraph(units.seconds, after, before, nets, of_net, weight)
    value = move_units(graph, result, stages, sweeps)
    return result, float(value)


def cut_for_devices(
    task: Task[DeviceMapping], search: Search[Solution], coefficient: float
) -> Ints | None:
    """Return the stage of each node in a cut for unlike devices; None if none is known.

    If there is none at all, the search is told so. `coefficient` is κ of `balanced_partition`.
    """
    problem, workload = task.problem, task.workload
    unit_of, units = partition_units(workload)
    memory = held_bytes(workload, unit_of, units.size)
    rooms = stage_rooms(task)
    lacking = _lacking(task, unit_of, memory, rooms)
    if lacking is not None:
        search.prove_infeasible(lacking)
        return None
    best, least = None, np.inf
    groups = device_groups(task)
    for order in orders(units):
        found = _runs(units.seconds[order], memory[order], *groups)
        if found is None:
            continue
        ends, slow = found
        stage = np.empty(units.size, np.int64)
        stage[order] = np.searchsorted(ends, np.arange(units.size), side="right")
        costs = stage_costs(workload, stage[unit_of], problem.stages)
        value = stage_objective(replace(costs, compute_s=slow * costs.compute_s), coefficient)
        if value < least:
            best, least = stage, value
        if search.should_stop():
            break
    if best is None:
        best = _by_program(task, search, units, memory, rooms)
    return None if best is None else best[unit_of]


def _lacking(task: Task[DeviceMapping], unit_of: Ints, memory: Floats, rooms: Floats) -> str | None:
    """Return, for users, which bytes no device or not all devices have; None if they may fit."""
    problem, workload = task.problem, task.workload
    large = int(memory.argmax())
    if memory[large] > rooms[0]:
        node = workload.ids[int(np.flatnonzero(unit_of == large)[0])]
        return (
            f"the stage of node {node} takes {show_bytes(memory[large])} at least; the "
            f"{problem.replicas} largest devices of {problem.topology.name} have "
            f"{show_bytes(rooms[0])}: {show_bytes(memory[large] - rooms[0])} are missing on each"
        )
    if memory.sum() > rooms.sum():
        return (
            f"{show_count(problem.stages, 'stage')} × {show_count(problem.replicas, 'replica')} "
            f"take {show_bytes(problem.replicas * memory.sum())}; as many devices of "
            f"{problem.topology.name} have {show_bytes(problem.replicas * rooms.sum())}: "
            f"{show_bytes(problem.replicas * (memory.sum() - rooms.sum()))} are missing"
        )
    return None


def _levels(rooms: Floats, slow: Floats) -> tuple[Floats, Floats, Ints]:
    """Return memory, slowdown and number of the groups of each kind, with few enough for the DP.

    The most alike kinds are merged, with the smaller memory and the lower speed.
    """
    kinds, counts = np.unique(np.stack([slow, rooms], axis=1), axis=0, return_counts=True)
    scale = np.maximum(kinds.max(axis=0, where=np.isfinite(kinds), initial=0.0), 1e-300)
    while len(counts) > 1 and np.prod(counts + 1.0) > MEMORY_COUNTS:
        with np.errstate(invalid="ignore"):
            apart = np.nan_to_num(np.abs(kinds[1:] - kinds[:-1]) / scale, posinf=1e300).sum(axis=1)
        k = int(np.argmin(apart * counts[1:]))
        counts[k] += counts[k + 1]
        kinds[k] = max(kinds[k : k + 2, 0]), min(kinds[k : k + 2, 1])
        kinds, counts = np.delete(kinds, k + 1, axis=0), np.delete(counts, k + 1)
    return kinds[:, 1], kinds[:, 0], counts


def _runs(
    seconds: Floats, memory: Floats, rooms: Floats, slow: Floats
) -> tuple[Ints, Floats] | None:
    """Return the ends of the runs with the least longest time, and their devices' slowdowns.

    Shapes (S,); None if the order has no runs that fit the groups of devices.
    """
    sizes, factors, counts = _levels(rooms, slow)
    time, held = (np.concatenate([[0.0], np.cumsum(x)]) for x in (seconds, memory))
    states = list(product(*(range(count + 1) for count in counts.tolist())))
    stages, units = len(rooms), len(seconds)

    def covered(most: float) -> tuple[Ints, Floats] | None:
        reach = {states[0]: 0}
        came: dict[tuple[int, ...], int] = {}
        for state in states[1:]:
            far, by = -1, -1
            left = stages - sum(state)
            for k in range(len(sizes)):
                if not state[k]:
                    continue
                begin = reach.get((*state[:k], state[k] - 1, *state[k + 1 :]), -1)
                if begin < 0:
                    continue
                end = min(
                    int(np.searchsorted(time, time[begin] + most / factors[k], "right")) - 1,
                    int(np.searchsorted(held, held[begin] + sizes[k], "right")) - 1,
                    units - left,
                )
                if end > max(begin, far):
                    far, by = end, k
            if far >= 0:
                reach[state], came[state] = far, by
        if reach.get(states[-1], -1) < units:
            return None
        ends, kinds, state = [], [], states[-1]
        while sum(state):
            ends.append(reach[state])
            k = came[state]
            kinds.append(k)
            state = (*state[:k], state[k] - 1, *state[k + 1 :])
        return np.array(ends[::-1]), factors[kinds[::-1]]

    high = float(time[-1] * factors.max())
    best = covered(high)
    if best is None:
        return None
    low = max(float(time[-1] / (counts / factors).sum()), float(seconds.max() * factors.min()))
    while high - low > 1e-4 * high:
        middle = (low + high) / 2
        found = covered(middle)
        if found is None:
            low = middle
        else:
            best, high = found, middle
    return best


def _by_program(
    task: Task[DeviceMapping], search: Search[Solution], units: Units, memory: Floats, rooms: Floats
) -> Ints | None:
    """Return the stage of each unit in a cut that fits the memories; None, perhaps with a proof."""
    if len(rooms) < 2:
        return None
    linear, columns = memory_program(memory, units.edges, rooms)
    with search.phase("memory"):
        outcome = run_highs(linear, search, gap=0.0, seconds=MEMORY_SHARE * search.seconds_left)
    if outcome.bound > MEMORY_LACK:
        more = show_bytes(outcome.bound * memory.sum())
        problem = task.problem
        search.prove_infeasible(
            f"no cut into {problem.stages} stages fits the devices of {problem.topology.name}: "
            f"some {problem.replicas} of them need {more} more each"
        )
        return None
    if outcome.x is None:
        return None
    stage: Ints = (len(rooms) - 1 - whole(linear, outcome.x)[columns].sum(axis=1)).astype(np.int64)
    held = np.bincount(stage, weights=memory, minlength=len(rooms)).astype(np.float64)
    return stage if can_be_mapped(held, rooms) else None
