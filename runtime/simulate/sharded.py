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
from collections.abc import Sequence
from dataclasses import dataclass

from ...instances import Sharding, TensorProgram
from ...instances.common.units import TIME_UNITS
from ...instances.model.sharding import (
    Groups,
    conversion_places,
    gradient_buckets,
    operator_groups,
    phases,
)
from ...instances.model.summary import Summarised

#: Properties of a tensor: a text such as ``S0`` for each axis of the mesh.
Properties = tuple[str, ...]


@dataclass(frozen=True)
class ConversionStep:
    """Step of a conversion: a collective along one axis of the mesh, or a local operation."""

    # a `Primitive`'s text; ``slice``, ``pad`` or ``keep-one`` where nothing is sent
    collective: str
    axis: int  # of the mesh, along which it runs
    # how the tensor lies then; ``I`` is whole on the first device of the axis, ``I1`` on the second
    after: Properties
    bytes: float  # sent, over all devices
    seconds: float  # by latency and bandwidth of the axis's link


@dataclass(frozen=True)
class Converted:
    """Conversion of a tensor, done once for all operators that read it with one property."""

    tensor: int  # its number in the program
    before: Properties  # before, after: its property on either side
    after: Properties
    steps: tuple[ConversionStep, ...]  # first to last
    # numbers of the operators that read it with that property; of a gradient, its parameter
    readers: tuple[int, ...]


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


def sharded_timeline(
    program: TensorProgram,
    problem: Sharding,
    times: Sequence[float],
    converted: Sequence[Converted],
    time_unit: str,
) -> ShardedTimeline:
    """Return the timeline of a sharding; `times` are those of its operators, in `time_unit`."""
    placed, unit = bool(problem.placement), TIME_UNITS[time_unit]
    groups = operator_groups(program, problem.placement)
    phase, places = phases(program, groups), conversion_places(program, groups)
    events: list[CollectiveEvent] = []
    now = [0.0] * (problem.mesh.shape[0] if placed else 1)
    reduced = list(now)  # end of the buckets of each group

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

    def convert(ones: Sequence[Converted]) -> None:
        for one in ones:
            name, group = program.tensors[one.tensor].name, _own_group(program, groups, one)
            for step in one.steps:
                take(group, name, step.collective, step.axis, step.seconds / unit, step.bytes)

    # conversions before each operator and after it, and in the bucket that it completes
    before, after, beside = (defaultdict[int, list[Converted]](list) for _ in range(3))
    ready = {
        t: max(program.maker[u] for u in bucket)
        for bucket in gradient_buckets(program, problem)
        for t in bucket
    }
    for one in converted:
        if one.tensor in ready:
            beside[ready[one.tensor]].append(one)
            continue
        reader = _reader(program, problem, groups, places, one)
        due, by = (after, program.maker[one.tensor]) if reader is None else (before, reader)
        due[by].append(one)
    convert(before[-1])
    done: int | None = None
    for v, operator in enumerate(program.operators):
        if operator.role == "operator" and (phase[v] is None or phase[v] != done):
            wait()
            done = phase[v]
        convert(before[v])
        kind = "backward" if operator.backward else "forward"
        if operator.role == "operator" or not placed:
            take(groups[v], str(operator.name), kind, -1, times[v], 0.0)
        convert(after[v])
        if v in beside:  # beside the group's compute
            group = groups[v] or 0
            computed, now[group] = now[group], max(reduced[group], now[group])
            convert(beside[v])
            reduced[group], now[group] = now[group], computed
    return ShardedTimeline(tuple(events), problem.mesh.shape, time_unit, len(now))


def _own_group(program: TensorProgram, groups: Groups, one: Converted) -> int | None:
    """Return the group of devices that converts a tensor alone; None for all devices."""
    return groups[program.maker[one.tensor]] if one.before[0] == one.after[0] else None


def _reader(
    program: TensorProgram,
    problem: Sharding,
    groups: Groups,
    places: Sequence[int],
    one: Converted,
) -> int | None:
    """Return the operator before which a tensor is converted; None if right after it is made.

    It is -1 for tensors that are converted first of all.
    """
    maker = program.maker[one.tensor]
    source, alone = program.operators[maker].role != "operator", _own_group(program, groups, one)
    if problem.placement and groups[maker] is None:
        return -1 if source else None
    if alone is not None:
        return places[one.tensor] if places[one.tensor] != maker else None
    if problem.overlap and not problem.placement:
        return None
    return min((v for v in one.readers if one.tensor in program.operators[v].inputs), default=None)
