"""Memory of mappings: which stages fit which devices, and the least memory that a cut lacks.

Every replica of a stage holds all its nodes. Of the usable devices in the order of their memories,
largest first, the k-th R have at least ρ_k bytes; so a cut can be mapped if and only if the stage
that is k-th by bytes takes at most ρ_k, for all k.

    symbol     meaning                                                            in the program
    C_{v,s}    1 if unit v is in stage s or before; i_{v,s} = C_{v,s} − C_{v,s−1}  c[v, s]
    z_{s,k}    1 if stage s has the k-th R devices                                 z[s, k]
    e          bytes that each of some R devices lacks, per byte of the workload   e
    μ_v, μ     bytes of unit v, and of all units

    minimise  e                                                                              (0)

    C_{v,s−1} ≤ C_{v,s};   C_{v,s} ≤ C_{u,s}  for all edges (u, v)                           (1)
    Σ_v i_{v,s} ≥ 1                                                                          (2)
    Σ_k z_{s,k} = 1,   Σ_s z_{s,k} = 1                                                       (3)
    Σ_v μ_v i_{v,s} ≤ Σ_k ρ_k z_{s,k} + μ e                                                  (4)

If e > 0 in the optimum, no cut can be mapped. Where the ρ_k are alike, (3) is left out.
"""

from __future__ import annotations

import numpy as np

from ...instances import DeviceMapping, Workload
from ...instances.common.arrays import Bools, Floats, Ints
from ...instances.model.stage_costs import device_slowdowns, stage_costs
from ..linear import Linear, LinearBuilder
from ..task import Task
from ..throughput.whole_bytes import room_of
from .costs import MappingCosts, mapping_costs


def device_rooms(task: Task[DeviceMapping]) -> Floats:
    """Return the bytes that each usable device can hold; shape (D,), `inf` for no limit."""
    kinds = [task.cluster.kinds[device.kind] for device in task.cluster.devices]
    rooms = room_of([kind.memory_bytes for kind in kinds])
    return rooms[task.problem.topology.usable]


def stage_rooms(task: Task[DeviceMapping]) -> Floats:
    """Return ρ, shape (S,), descending: what the k-th stage by bytes may take."""
    problem = task.problem
    descending = np.sort(device_rooms(task))[::-1]
    return descending[problem.replicas - 1 :: problem.replicas][: problem.stages]


def relative_slowdowns(task: Task[DeviceMapping]) -> Floats:
    """Return each usable device's factor on the workload's seconds; shape (D,)."""
    slow: Floats = device_slowdowns(task.cluster)[task.problem.topology.usable]
    return slow


def stage_slowdowns(task: Task[DeviceMapping]) -> Floats:
    """Return σ, shape (S,), ascending: the slowdown that the k-th fastest stage has at least."""
    ascending = np.sort(relative_slowdowns(task))
    replicas = task.problem.replicas
    return ascending[replicas - 1 :: replicas][: task.problem.stages]


def stage_speeds(task: Task[DeviceMapping], most: int) -> tuple[Floats, Ints]:
    """Return the unlike ones of σ, ascending, and how many stages each is of.

    Where more than `most` numbers of stages by speed are possible, near ones count as the faster.
    """
    slow, counts = np.unique(stage_slowdowns(task), return_counts=True)
    while np.prod(counts + 1.0) > most and len(slow) > 1:
        k = int((slow[1:] / slow[:-1]).argmin())
        counts[k] += counts[k + 1]
        slow, counts = np.delete(slow, k + 1), np.delete(counts, k + 1)
    return slow, counts


def costs_of_cut(task: Task[DeviceMapping], stage: Ints) -> MappingCosts:
    """Return the costs of mapping a cut onto the task's devices, given the stage of each node."""
    costs = stage_costs(task.workload, stage, task.problem.stages)
    fits = stages_that_fit(task, stage)
    return mapping_costs(costs, task.problem, fits, relative_slowdowns(task))


def device_groups(task: Task[DeviceMapping]) -> tuple[Floats, Floats]:
    """Return bytes and slowdown of S groups of R devices that share memory and speed well, (S,).

    Devices in the order of their speeds, and of their memories where these are alike.
    """
    rooms, slow = device_rooms(task), relative_slowdowns(task)
    stages, replicas = task.problem.stages, task.problem.replicas
    order = np.lexsort((-rooms, slow))[: stages * replicas].reshape(stages, replicas)
    return rooms[order].min(axis=1), slow[order].max(axis=1)


def held_bytes(workload: Workload, part: Ints, count: int) -> Floats:
    """Return the bytes of the nodes in each part, shape (count,), given the part of each node."""
    held = np.bincount(part, weights=workload.memory_bytes, minlength=count)
    return held.astype(np.float64)


def stages_that_fit(task: Task[DeviceMapping], stage: Ints) -> Bools:
    """Return whether each stage fits each usable device, shape (S, D), given each node's stage."""
    held = held_bytes(task.workload, stage, task.problem.stages)
    fits: Bools = held[:, None] <= device_rooms(task)[None, :]
    return fits


def can_be_mapped(held: Floats, rooms: Floats) -> bool:
    """Whether stages of so many bytes, shape (S,), have devices, by ρ of shape (S,)."""
    return bool((np.sort(held)[::-1] <= rooms).all())


def memory_program(memory: Floats, edges: Ints, rooms: Floats) -> tuple[Linear, Ints]:
    """Return the program of a cut that lacks least memory, and the columns C, shape (U, S − 1).

    `memory`, shape (U,), are bytes of the units, `edges` pairs of units that stages must follow,
    `rooms` ρ.
    """
    units, stages, total = len(memory), len(rooms), float(memory.sum())
    share = np.minimum(rooms / total, 1.0)
    levels, level_of = np.unique(share, return_inverse=True)
    program = LinearBuilder()
    c = program.columns((units, stages - 1))
    several = len(levels) > 1
    z = program.columns((stages, len(levels))) if several else np.zeros((stages, 0), np.int64)
    (lacks,) = program.columns(1, whole=False)

    def inside(s: int) -> tuple[Ints, Floats, float]:
        """Return columns and factors of Σ_v μ_v i_{v,s} / μ, and its constant."""
        own = memory / total
        columns = ([c[:, s]] if s < stages - 1 else []) + ([c[:, s - 1]] if s else [])
        factors = ([own] if s < stages - 1 else []) + ([-own] if s else [])
        return np.concatenate(columns), np.concatenate(factors), float(s == stages - 1)

    for s in range(stages - 1):
        for v in range(units if s else 0):
            program.row(f"grows[{v},{s}]", [c[v, s - 1], c[v, s]], [1.0, -1.0], -np.inf, 0.0)  # (1)
        for u, v in edges.tolist():
            program.row(f"ordered[{u},{v},{s}]", [c[v, s], c[u, s]], [1.0, -1.0], -np.inf, 0.0)
        before = c[:, s - 1] if s else c[:0, 0]
        signs = np.repeat([1.0, -1.0], [units, len(before)])
        program.row(f"filled[{s}]", np.concatenate([c[:, s], before]), signs, 1.0, np.inf)  # (2)
    program.row(f"filled[{stages - 1}]", c[:, -1], 1.0, 0.0, units - 1.0)
    for k in range(len(levels) if several else 0):
        count = float((level_of == k).sum())
        program.row(f"level[{k}]", z[:, k], 1.0, count, count)  # (3)
    for s in range(stages):
        if several:
            program.row(f"one[{s}]", z[s], 1.0, 1.0, 1.0)  # (3)
        columns, factors, constant = inside(s)
        columns = np.concatenate([columns, z[s], [lacks]])
        factors = np.concatenate([factors, -levels if several else [], [-1.0]])
        high = -constant + (0.0 if several else float(levels[0]))
        program.row(f"memory[{s}]", columns, factors, -np.inf, high)  # (4)
    cost = np.zeros(len(program.upper))
    cost[lacks] = 1.0
    return program.build(cost), c
