"""The data of the integer program of an iteration: lengths of chains, units, values, times."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np

from ...instances import InfeasibleError, TrainingJob
from ...instances.common.arrays import Floats, Ints
from ..task import Task
from ..throughput.infeasible import why_infeasible
from .cheap_bounds import max_load_task
from .line import Line, chain_edges, line
from .orders import BACKWARD, FORWARD, INPUT, WEIGHT, ScheduleOrder, order_of

#: A stage s of a chain of P stages.
Stage = tuple[int, int]

#: An action: P, stage, kind and microbatch.
Action = tuple[int, int, int, int]


@dataclass(frozen=True)
class MovedOutput:
    """Outputs that move together: made in one pass of one unit, needed by the same others.

    Parameters
    ----------
    unit
        Its maker, u.
    side
        Pass in which it is made.
    users
        Units that need it in their forward and in their backward pass.
    """

    unit: int
    side: int
    users: tuple[tuple[int, ...], tuple[int, ...]]


@dataclass(frozen=True, eq=False)
class IterationData:
    """What the program is stated over; times in units of `scale`.

    Parameters
    ----------
    line
        Units, their times and bytes.
    edges
        Pairs of units of which the first must not be in a later stage.
    values
        Outputs that other units need, with the time of a transfer of each.
    orders
        Of a chain of each length P that the schedule allows.
    scale
        Time units of the workload per time unit of the program.
    floor
        No plan has a smaller makespan, in the program's time unit.
    """

    line: Line
    edges: list[tuple[int, int]]
    values: dict[MovedOutput, float]
    orders: dict[int, ScheduleOrder]
    scale: float
    floor: float

    @property
    def problem(self) -> TrainingJob:
        """As asked."""
        return self.line.problem

    @property
    def units(self) -> range:
        """Numbers of the units."""
        return range(self.line.graph.size)

    @cached_property
    def stages(self) -> list[Stage]:
        """The stages of the chains of all lengths."""
        return [(p, s) for p in self.orders for s in range(p)]

    @cached_property
    def p(self) -> Floats:
        """Shape (2, U): forward and backward time of each unit; `inf` where unsupported."""
        scaled: Floats = self.line.compute[0] / self.scale
        return scaled

    @cached_property
    def makers(self) -> list[MovedOutput]:
        """The values in the order of their numbers e."""
        return list(self.values)

    @cached_property
    def c(self) -> list[float]:
        """Time of a transfer of each value."""
        return [time / self.scale for time in self.values.values()]

    def mates(self, length: int, s: int) -> list[int]:
        """Return the stages on the device of stage s, increasing."""
        device = self.orders[length].device
        return np.flatnonzero(device == device[s]).tolist()

    def before(self, length: int, s: int, side: int) -> list[tuple[int, int]]:
        """Return the passes on the device of a stage up to one of its passes, that one included.

        Forward passes go up the chain, and backward passes down.
        """
        own = self.mates(length, s)
        up, down = [(t, FORWARD) for t in own], [(t, BACKWARD) for t in reversed(own)]
        passes = up + (down if self.line.trains else [])
        return passes[: passes.index((s, side)) + 1]

    def tables(self, length: int) -> tuple[Ints, ...]:
        """Return the actions of each device of a chain, shape (actions, 3)."""
        return self.orders[length].tables

    @cached_property
    def actions(self) -> list[Action]:
        """All actions."""
        tables = [(p, table) for p in self.orders for table in self.tables(p)]
        return [(p, *row) for p, table in tables for row in table.tolist()]

    @cached_property
    def on_device(self) -> list[tuple[Action, Action]]:
        """Pairs of actions that follow each other on a device."""
        pairs = []
        for p in self.orders:
            for table in self.tables(p):
                rows: list[Action] = [(p, *row) for row in table.tolist()]
                pairs += list(pairwise(rows))
        return pairs

    @cached_property
    def along_chain(self) -> list[tuple[Action, Action]]:
        """Pairs of actions of which the second needs what the first makes."""
        pairs: list[tuple[Action, Action]] = []
        every = set(self.actions)
        for p, s, kind, j in self.actions:
            if kind == FORWARD and s > 0:
                pairs.append(((p, s - 1, FORWARD, j), (p, s, kind, j)))
            elif kind == WEIGHT:
                pairs.append(((p, s, INPUT, j), (p, s, kind, j)))
            elif kind != FORWARD:
                whole = p, s + 1, BACKWARD, j
                behind = whole if whole in every else (p, s + 1, INPUT, j)
                after = (p, s, FORWARD, j) if s == p - 1 else behind
                pairs.append((after, (p, s, kind, j)))
        return pairs

    @cached_property
    def last(self) -> list[Action]:
        """The last action of each device."""
        return [(p, *table[-1].tolist()) for p in self.orders for table in self.tables(p)]


def iteration_data(
    task: Task[TrainingJob], reference: float | None, floor: float = 0.0
) -> IterationData:
    """Return the data of the program.

    Parameters
    ----------
    reference
        A likely makespan: times are scaled to make it 1000; None for times as they are.
    floor
        No plan has a smaller makespan.

    Raises
    ------
    InfeasibleError
        If some node fits on no device, the sizes are too large in all, or no number of stages
        suits the schedule.
    """
    reason = why_infeasible(max_load_task(task))
    if reason is not None:
        raise InfeasibleError(reason)
    stated = line(task)
    if not stated.sizes():
        raise InfeasibleError(stated.why_no_size())
    scale = 1.0 if reference is None or not reference > 0 else reference / 1000.0
    orders = {p: order_of(task.problem, p, stated.trains) for p in stated.sizes()}
    unit = stated.graph.unit_of.tolist()
    pairs = {(unit[u], unit[v]) for u, v in chain_edges(task.workload)}
    edges = sorted((a, b) for a, b in pairs if a != b)
    return IterationData(stated, edges, _values(task, stated), orders, scale, floor / scale)


def _values(task: Task[TrainingJob], stated: Line) -> dict[MovedOutput, float]:
    """Return what other units need, and the time to move it between a device and host memory."""
    workload, unit = task.workload, stated.graph.unit_of.tolist()
    transfer = task.costs.transfer[stated.kinds[0]].tolist()
    side = workload.backward.astype(int).tolist()
    found: dict[MovedOutput, float] = {}
    for u, successors in enumerate(workload.successors):
        users: tuple[set[int], set[int]] = (set(), set())
        for v in successors:
            if unit[v] != unit[u]:
                users[side[v]].add(unit[v])
        if transfer[u] > 0 and any(users):
            first, second = (tuple(sorted(own)) for own in users)
            value = MovedOutput(unit[u], side[u], (first, second))
            found[value] = found.get(value, 0.0) + transfer[u]
    return found
