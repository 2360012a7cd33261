"""A sharding over time: every device computes its parts, and all exchange what is converted.

The devices do the same at the same time, so that one timeline is that of all: a lane for computing,
and one for each axis of the mesh. As the objective has it, nothing overlaps, and a tensor is
converted when the first operator that reads it so is due, a gradient when it is made; or, if
gradients overlap, all is converted when it is made, but gradients bucket by bucket beside it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ...instances import InputError, Plan, Sharding, TensorSharding, Workload, program_of
from ...instances.common.units import TIME_UNITS
from ...instances.model.sharding.problem import gradient_buckets
from ...instances.model.summary import Summarised
from ..verify.sharding import Converted, check


@dataclass(frozen=True)
class CollectiveEvent:
    """Something that all devices do together."""

    name: str  # of the operator, or of the tensor that is converted
    kind: str  # ``forward``, ``backward``, or the collective
    axis: int  # of the mesh; −1 for computing
    start: float  # start, end: in the workload's unit
    end: float
    bytes: float = 0.0  # that all devices send


@dataclass(frozen=True, repr=False)
class ShardedTimeline(Summarised):
    """What the devices do, first to last."""

    events: tuple[CollectiveEvent, ...]  # those that take time
    mesh: tuple[int, ...]  # devices along each axis
    time_unit: str  # the workload's

    @property
    def makespan(self) -> float:
        """When all is done."""
        return max((event.end for event in self.events), default=0.0)

    def summary(self) -> dict[str, object]:
        """Return when it ends, and what of that is computing, as it shows itself."""
        compute = math.fsum(e.end - e.start for e in self.events if e.axis < 0)
        return {
            "events": len(self.events),
            "makespan": self.makespan,
            "computing": compute,
            "exchanging": self.makespan - compute,
        }


def sharded_timeline(workload: Workload, plan: Plan) -> ShardedTimeline:
    """Return what the devices of a sharding do over time; its makespan is an objective of time.

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
    buckets = gradient_buckets(program, problem.bucket_bytes) if problem.overlap else []
    bucketed = {t for bucket in buckets for t in bucket}
    due: list[list[Converted]] = [[] for _ in program.operators]
    for one in report.converted:
        if problem.overlap:
            continue
        readers = [v for v in one.readers if one.tensor in program.operators[v].inputs]
        if readers:
            due[min(readers)].append(one)
    late: list[list[Converted]] = [[] for _ in program.operators]
    for one in report.converted:
        read = any(one.tensor in program.operators[v].inputs for v in one.readers)
        if one.tensor not in bucketed and (problem.overlap or not read):
            late[program.maker[one.tensor]].append(one)
    unit = TIME_UNITS[workload.time_unit]
    full: dict[int, list[int]] = {}  # the gradients of the buckets that an operator fills
    for bucket in buckets:
        full.setdefault(max(program.maker[t] for t in bucket), []).extend(bucket)
    events: list[CollectiveEvent] = []
    now, reduced = 0.0, 0.0

    def convert(one: Converted, begin: float) -> float:
        for step in one.steps:
            if step.seconds > 0:
                end = begin + step.seconds / unit
                name = program.tensors[one.tensor].name
                events.append(
                    CollectiveEvent(name, step.collective, step.axis, begin, end, step.bytes)
                )
                begin = end
        return begin

    for v, operator in enumerate(program.operators):
        for one in due[v]:
            now = convert(one, now)
        if report.times[v] > 0:
            kind = "backward" if operator.backward else "forward"
            events.append(CollectiveEvent(str(operator.name), kind, -1, now, now + report.times[v]))
            now += report.times[v]
        for one in late[v]:
            now = convert(one, now)
        if v in full:
            reduced = max(reduced, now)
            for one in report.converted:
                if one.tensor in full[v]:
                    reduced = convert(one, reduced)
    return ShardedTimeline(tuple(events), problem.mesh.shape, workload.time_unit)
