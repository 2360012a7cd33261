"""Cuts into stages whose memory the devices have, or the proof that there is none.

Runs of topological orders first: at a time T, and with so many stages on devices of each size, how
far an order can be covered is a DP over the numbers of stages by size. Where no order can be
covered, the integer program of `formulations.mapping.memory` decides.
"""

from __future__ import annotations

from itertools import product

import numpy as np

from ...formulations.mapping.memory import can_be_mapped, held_bytes, memory_program, stage_rooms
from ...formulations.mapping.partition import Units, partition_units, stage_objective
from ...formulations.task import Task
from ...instances import DeviceMapping, Solution, stage_costs
from ...instances.common.arrays import Floats, Ints
from ...instances.common.quantities import show_bytes
from ..core.highs import run_highs, whole
from ..core.search import Search
from .parameters import MEMORY_COUNTS, MEMORY_LACK, MEMORY_SHARE
from .partition import orders


def cut_for_memory(
    task: Task[DeviceMapping], search: Search[Solution], coefficient: float
) -> Ints | None:
    """Return the stage of each node in a cut that has devices; None if none is known.

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
    for order in orders(units):
        ends = _runs(units.seconds[order], memory[order], rooms)
        if ends is None:
            continue
        stage = np.empty(units.size, np.int64)
        stage[order] = np.searchsorted(ends, np.arange(units.size), side="right")
        costs = stage_costs(workload, stage[unit_of], problem.stages)
        if stage_objective(costs, coefficient) < least:
            best, least = stage, stage_objective(costs, coefficient)
        if search.should_stop():
            break
    if best is None:
        best = _by_program(task, search, units, memory, rooms)
    return None if best is None else best[unit_of]


def _lacking(task: Task[DeviceMapping], unit_of: Ints, memory: Floats, rooms: Floats) -> str | None:
    """Return in words which bytes no device has, or all devices together; None if neither."""
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
            f"{problem.stages} stages × {problem.replicas} replicas take "
            f"{show_bytes(problem.replicas * memory.sum())}; as many devices of "
            f"{problem.topology.name} have {show_bytes(problem.replicas * rooms.sum())}: "
            f"{show_bytes(problem.replicas * (memory.sum() - rooms.sum()))} are missing"
        )
    return None


def _levels(rooms: Floats) -> tuple[Floats, Ints]:
    """Return the sizes of devices, and how many stages go on each; few enough for a DP.

    Sizes that lie near each other count as the smaller one.
    """
    sizes, counts = np.unique(rooms, return_counts=True)
    while np.prod(counts + 1.0) > MEMORY_COUNTS:
        with np.errstate(invalid="ignore"):
            k = int(np.nanargmin((sizes[1:] - sizes[:-1]) * counts[1:]))
        counts[k] += counts[k + 1]
        sizes, counts = np.delete(sizes, k + 1), np.delete(counts, k + 1)
    return sizes, counts


def _runs(seconds: Floats, memory: Floats, rooms: Floats) -> Ints | None:
    """Return the ends of runs of least longest time that have devices, shape (S,); None if none."""
    sizes, counts = _levels(rooms)
    time, held = (np.concatenate([[0.0], np.cumsum(x)]) for x in (seconds, memory))
    states = list(product(*(range(count + 1) for count in counts.tolist())))
    stages, units = len(rooms), len(seconds)

    def covered(most: float) -> Ints | None:
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
                    int(np.searchsorted(time, time[begin] + most, "right")) - 1,
                    int(np.searchsorted(held, held[begin] + sizes[k], "right")) - 1,
                    units - left,
                )
                if end > max(begin, far):
                    far, by = end, k
            if far >= 0:
                reach[state], came[state] = far, by
        if reach.get(states[-1], -1) < units:
            return None
        ends, state = [], states[-1]
        while sum(state):
            ends.append(reach[state])
            k = came[state]
            state = (*state[:k], state[k] - 1, *state[k + 1 :])
        return np.array(ends[::-1])

    high = float(time[-1])
    best = covered(high)
    if best is None:
        return None
    low = max(high / stages, float(seconds.max()))
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
    """Return the stage of each unit in a cut that has devices, or prove that there is none."""
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
