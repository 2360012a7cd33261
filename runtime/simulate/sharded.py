"""A sharding over time: computation on all devices, and the collectives between.

All devices do the same at the same time, so that one timeline stands for all: a lane for compute,
and one for each axis of the mesh. As in the objective, nothing overlaps: a tensor is converted
before the first operator that reads it with the new property, a gradient when it is made. If
gradients overlap, other tensors are converted when they are made, and gradients in buckets beside
compute.

If parts are placed on groups of devices, each group has a timeline of its own, and all wait for
each other at operators and conversions of several groups. Outputs of all devices are then converted
when they are made.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass

from ...instances import (
    InputError,
    Plan,
    Sharding,
    TensorProgram,
    TensorSharding,
    Workload,
    program_of,
)
from ...instances.common.units import TIME_UNITS
from ...instances.model.sharding import Groups, gradient_buckets, operator_groups, phases
from ...instances.model.summary import Summarised
from ..verify.sharding import Converted, check


@dataclass(frozen=True)
class CollectiveEvent:
    """Computation or collective of all devices, or of a group."""

    name: str  # of the operator, or of the tensor that is converted
    kind: str  # ``forward``, ``backward``, or the collective
    axis: int  # of the mesh; −1 for compute
    start: float  # start, end: in the workload's unit
    end: float
    bytes: float = 0.0  # sent, over all devices
    group: int | None = None  # number along the first axis; None for all devices


@dataclass(frozen=True, repr=False)
class ShardedTimeline(Summarised):
    """Timeline of a sharding: computation and collectives of its devices, first to last."""

    events: tuple[CollectiveEvent, ...]  # those that take time
    mesh: tuple[int, ...]  # devices along each axis
    time_unit: str  # the workload's
    groups: int = 1  # number of groups of devices that work in parallel

    @property
    def makespan(self) -> float:
        """Time at which the last event ends."""
        return max((event.end for event in self.events), default=0.0)

    def summary(self) -> dict[str, object]:
        """Return events, makespan, and time of compute and exchange for display."""
        compute = math.fsum(e.end - e.start for e in self.events if e.axis < 0)
        return {
            "events": len(self.events),
            "makespan": self.makespan,
            "computing": compute,
            "exchanging": self.makespan - compute,
        }


def sharded_timeline(workload: Workload, plan: Plan) -> ShardedTimeline:
    """Return the timeline of a sharding, whose makespan is the objective ``time``.

    InputError if the plan is no sharding, was made for another workload, or breaks a rule.
    """
    plan.check_made_for(workload)
    problem, solution = plan.problem, plan.solution
    if not isinstance(problem, Sharding) or not isinstance(solution, TensorSharding):
        raise InputError(f"the plan is for {problem.name}, not a sharding")
    report = check(workload, plan.cluster, problem, solution)
    if report.lying == ():
        raise InputError(f"plan: {report.violations[0]}; plan again")
    program = program_of(workload)
    placed = bool(problem.placement)
    groups = operator_groups(program, problem.placement)
    phase = phases(program, groups)
    unit = TIME_UNITS[workload.time_unit]
    events: list[CollectiveEvent] = []
    now = [0.0] * (problem.mesh.shape[0] if placed else 1)
    reduced = list(now)  # end of the buckets of each group
    full: dict[int, list[int]] = {}  # gradients of the buckets that an operator completes
    for bucket in gradient_buckets(program, problem):
        full.setdefault(max(program.maker[t] for t in bucket), []).extend(bucket)
    bucketed = {t for bucket in full.values() for t in bucket}

    def wait() -> None:
        now[:] = [max(now)] * len(now)

    def take(group: int | None, name: str, kind: str, axis: int, time: float, size: float) -> None:
        if group is None:
            wait()
        begin = now[group or 0]
        if time > 0:
            events.append(CollectiveEvent(name, kind, axis, begin, begin + time, size, group))
        for j in range(len(now)) if group is None else (group,):
            now[j] = begin + time

    def convert(one: Converted) -> None:
        name = program.tensors[one.tensor].name
        for step in one.steps:
            time = step.seconds / unit
            take(where[one.tensor, one.after], name, step.collective, step.axis, time, step.bytes)

    def convert_bucket(v: int) -> None:
        """Convert the gradients of a bucket beside their group's compute."""
        group = groups[v] or 0
        computed, now[group] = now[group], max(reduced[group], now[group])
        for one in report.converted:
            if one.tensor in full[v]:
                convert(one)
        reduced[group], now[group] = now[group], computed

    where: dict[tuple[int, tuple[str, ...]], int | None] = {}
    due: dict[tuple[int, bool], list[Converted]] = defaultdict(list)
    for one in report.converted:
        where[one.tensor, one.after], by, early = _due(program, problem, groups, one)
        if one.tensor not in bucketed:
            due[by, early].append(one)
    for one in due[-1, False]:
        convert(one)
    done: int | None = None
    for v, operator in enumerate(program.operators):
        if operator.role == "operator" and (phase[v] is None or phase[v] != done):
            wait()
            done = phase[v]
        for one in due[v, True]:
            convert(one)
        kind = "backward" if operator.backward else "forward"
        if operator.role == "operator" or not placed:
            take(groups[v], str(operator.name), kind, -1, report.times[v], 0.0)
        for one in due[v, False]:
            convert(one)
        if v in full:
            convert_bucket(v)
    return ShardedTimeline(tuple(events), problem.mesh.shape, workload.time_unit, len(now))


def _due(
    program: TensorProgram, problem: Sharding, groups: Groups, one: Converted
) -> tuple[int | None, int, bool]:
    """Return the group that converts a tensor alone, if any, the operator, and whether before it.

    If the last value is false it is converted after the operator; the operator is -1 for tensors
    that are converted first of all.
    """
    maker = program.maker[one.tensor]
    group, source = groups[maker], program.operators[maker].role != "operator"
    alone = group is not None and one.before[0] == one.after[0]
    readers = [
        v
        for v, operator in enumerate(program.operators)
        if one.tensor in operator.inputs and (groups[v] == group if alone else v in one.readers)
    ]
    if problem.placement and source and group is None:
        return None, -1, False
    by_reader = not problem.overlap
    if problem.placement:
        by_reader = group is not None and (source or not alone)
    early = bool(readers) and by_reader
    return group if alone else None, min(readers) if early else maker, early
