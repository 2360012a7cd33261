"""Seconds of a training iteration under a layout: its schedule's longest path, traffic, optimizer.

Passes run in the order of the runtime's schedules, by the simulator's rules: a device performs its
actions in turn, and each waits for its data and for the message that brings it. The exposed traffic
of gradients and weights, the host's fixed time and the optimizer step are added to the path.

Many layouts are priced at once: those with the same pipeline, chunks, schedule and number of
microbatches go through the schedule together, with one array operation per step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from ..instances.common.arrays import Floats, Ints
from ..instances.costs.calibration import Calibration
from ..instances.costs.description import ModelDescription
from ..instances.costs.hardware import TrainingCluster
from ..instances.costs.layers import LayerPrices
from ..instances.costs.layout import JobSchedule, Layout
from ..instances.costs.stages import (
    StageTime,
    exposed_traffic,
    host_step,
    message_time,
    optimizer_rates,
    stage_times,
    tied_all_reduce,
)
from ..instances.costs.terms import TIME_TERMS
from .schedules import make_schedule
from .schedules.actions import ActionTable, Kind
from .simulate.stages import chain

#: Number of microbatches up to which a schedule is executed action by action.
STEPPED = 1024


@dataclass(frozen=True)
class PipelineShape:
    """Shape of a pipeline, which determines the order of a schedule's actions."""

    schedule: str
    pipeline: int  # ranks
    chunks: int  # stages per rank
    microbatches: int


@dataclass(frozen=True)
class IterationTime:
    """Seconds of an iteration, with the terms of the busiest pipeline rank."""

    seconds: float  # seconds of the whole iteration
    terms: dict[str, float]  # seconds by term of `TIME_TERMS`; they sum to `seconds`
    stages: tuple[StageTime, ...]  # seconds of one microbatch, by model stage


def iteration_time(
    model: ModelDescription, layout: Layout, cluster: TrainingCluster, calibration: Calibration
) -> IterationTime:
    """Return the seconds of one iteration, by term and by stage."""
    return iteration_times([layout], LayerPrices(model, cluster, calibration))[0]


def iteration_times(layouts: Sequence[Layout], prices: LayerPrices) -> list[IterationTime]:
    """Return the seconds of one iteration under each of many layouts of one model and cluster."""
    stages = [stage_times(layout, prices) for layout in layouts]
    alike: dict[tuple[PipelineShape, bool], list[int]] = {}
    for i, layout in enumerate(layouts):
        shape = PipelineShape(
            layout.schedule.value, layout.pipeline, layout.chunks, layout.microbatches
        )
        alike.setdefault((shape, layout.overlap.iterations), []).append(i)
    path = np.empty(len(layouts))
    for (shape, apart), group in alike.items():
        forward = np.array([[s.forward for s in stages[i]] for i in group]).T
        backward = np.array([[s.backward for s in stages[i]] for i in group]).T
        weights = np.array([[s.weights for s in stages[i]] for i in group]).T
        sent = np.array([message_time(layouts[i], prices) for i in group])
        blocking = np.array([not layouts[i].overlap.messages for i in group])
        if blocking.any() and shape.pipeline > 1:
            forward = forward + np.where(blocking, sent, 0.0)
            backward = backward + np.where(blocking, sent, 0.0)
        path[group] = longest_path(shape, forward, backward, weights, sent, apart)
    return [
        _iteration_time(layout, prices, own, float(seconds))
        for layout, own, seconds in zip(layouts, stages, path, strict=True)
    ]


def _iteration_time(
    layout: Layout, prices: LayerPrices, stages: tuple[StageTime, ...], path: float
) -> IterationTime:
    """Return the time of an iteration whose schedule takes `path` seconds."""
    alike: dict[tuple[tuple[float, float], tuple[int, ...]], list[StageTime]] = {}
    for rank, rates in enumerate(optimizer_rates(layout, prices)):
        own = [stages[s] for s in layout.rank_stages(rank)]
        alike[rates, tuple(map(id, own))] = own
    own = max(alike.values(), key=lambda one: sum(stage.forward + stage.backward for stage in one))
    terms = dict.fromkeys(TIME_TERMS, 0.0)
    for stage in own:
        for term, seconds in stage.terms.items():
            terms[term] += layout.microbatches * seconds
    busy = layout.microbatches * sum(stage.forward + stage.backward for stage in own)
    terms["bubble"] = path - busy
    terms["gradients"] = max(exposed_traffic(layout, prices, one) for one in alike.values())
    terms["gradients"] += tied_all_reduce(layout, prices)
    terms["optimizer"] = max(
        dense * sum(s.held.shared for s in one) + routed * sum(s.held.routed for s in one)
        for ((dense, routed), _), one in alike.items()
    )
    each = host_step(layout, prices)
    terms["host"] += each
    seconds = path + each + terms["gradients"] + terms["optimizer"]
    return IterationTime(seconds, terms, stages)


# The schedule's longest path.


class ScheduleSteps(NamedTuple):
    """A schedule divided into steps, whose actions depend only on actions of earlier steps."""

    start: Ints  # first action of each step, then the number of actions
    # for each action, 4 · stage + `Kind` (F, B, I or W)
    task: Ints
    # before, needs: for each action the previous action on its device, and the action whose result
    # it needs; the number of actions if there is none
    before: Ints
    needs: Ints
    remote: Floats  # for each action, 1 if a message brings this result, else 0

    def durations(self, forward: Floats, backward: Floats, weights: Floats) -> Floats:
        """Return the seconds of each task, shape (4 · stages, …), from the passes of stages."""
        return np.stack((forward, backward, backward - weights, weights), axis=1).reshape(
            -1, *forward.shape[1:]
        )

    def ends(self, duration: Floats, sent: Floats | float = 0.0) -> Floats:
        """Return the end of each of N actions for L layouts, shape (N + 1, L); the last row is 0.

        `duration`, shape (4 · stages, L), is by task, and `sent` is the seconds of a message.
        """
        end = np.zeros((len(self.task) + 1, duration.shape[1]))
        for first, last in zip(self.start[:-1].tolist(), self.start[1:].tolist(), strict=True):
            arrives = end[self.needs[first:last]] + self.remote[first:last, None] * sent
            ready = np.maximum(end[self.before[first:last]], arrives)
            end[first:last] = ready + duration[self.task[first:last]]
        return end


@lru_cache(maxsize=512)
def schedule_steps(schedule: str, pipeline: int, chunks: int, microbatches: int) -> ScheduleSteps:
    """Return the order of passes of a schedule of the runtime, divided into steps."""
    placed = Layout(pipeline=pipeline, chunks=chunks, schedule=JobSchedule(schedule)).stage_ranks
    line = chain([1.0] * len(placed), [2.0] * len(placed), device=placed)
    return steps_of(make_schedule(schedule, line, microbatches).actions, microbatches)


def steps_of(actions: Sequence[ActionTable], microbatches: int) -> ScheduleSteps:
    """Divide the passes of all devices, in each device's order, into steps."""
    tables = [table[table[:, 1] <= Kind.W].astype(np.int64) for table in actions]
    stage, kind, which = np.concatenate(tables).T
    stages = int(stage.max()) + 1
    device = np.empty(stages, dtype=np.int64)
    device[stage] = np.repeat(np.arange(len(tables)), [len(table) for table in tables])
    count = len(stage)
    role = np.where(kind == Kind.F, 0, np.where(kind == Kind.W, 2, 1))  # 1: B or I
    found = np.full((stages, 3, microbatches), count)
    found[stage, role, which] = np.arange(count)
    first = np.cumsum([0, *(len(table) for table in tables)])
    before = np.arange(-1, count - 1)
    before[first[:-1]] = count
    needs = np.full(count, count)
    ahead, last = (role == 0) & (stage > 0), (role == 1) & (stage == stages - 1)
    back = (role == 1) & (stage < stages - 1)
    needs[ahead] = found[stage[ahead] - 1, 0, which[ahead]]
    needs[last] = found[stage[last], 0, which[last]]
    needs[back] = found[stage[back] + 1, 1, which[back]]
    remote = np.zeros(count)
    remote[ahead] = device[stage[ahead]] != device[stage[ahead] - 1]
    remote[back] = device[stage[back]] != device[stage[back] + 1]
    step = _step_of(first, needs)
    row = np.argsort(step, kind="stable")
    place = np.empty(count + 1, dtype=np.int64)
    place[row] = np.arange(count)
    place[count] = count
    start = np.searchsorted(step[row], np.arange(step.max() + 2))
    task = 4 * stage + kind
    return ScheduleSteps(start, task[row], place[before[row]], place[needs[row]], remote[row])


def _step_of(first: Ints, needs: Ints) -> Ints:
    """Return the step of each action: the earliest if every action takes one step.

    An action comes after the previous one on its device and the one that it needs. `first` has the
    first action of each device, then the number of actions; `needs` the action that each one needs,
    or the number of actions.
    """
    count = len(needs)
    step = np.zeros(count, dtype=np.int64)
    done = np.zeros(count + 1, dtype=bool)
    done[count] = True
    at, end = first[:-1].copy(), first[1:]
    now = 0
    while (busy := np.flatnonzero(at < end)).size:
        current = at[busy]
        ready = done[needs[current]]
        ran = current[ready]
        step[ran] = now
        done[ran] = True
        at[busy[ready]] += 1
        now += 1
    return step


def longest_path(
    shape: PipelineShape,
    forward: Floats,
    backward: Floats,
    weights: Floats,
    sent: Floats,
    apart: bool = False,
) -> Floats:
    """Return the seconds of a schedule for each of L layouts.

    `forward`, `backward` (which includes `weights`) and `weights` are the seconds of one
    microbatch, shape (stages, L); `sent`, shape (L,), is that of a message between ranks. With
    `apart`, a rank begins its next iteration without waiting for other ranks: the result is then
    the longest time from a rank's first pass to the end of its last.
    """
    pipeline, microbatches = shape.pipeline, shape.microbatches
    if pipeline == 1:
        return np.asarray(microbatches * (forward + backward).sum(axis=0))
    window = 12 * pipeline
    followed = max(STEPPED, 2 * window)
    if microbatches > followed + pipeline:
        # The pattern has become periodic by then, so the time is extrapolated linearly.
        most = followed - followed % pipeline + microbatches % pipeline
        fewer, more = (
            longest_path(replace(shape, microbatches=m), forward, backward, weights, sent, apart)
            for m in (most - window, most)
        )
        return np.asarray(more + (microbatches - most) / window * (more - fewer))
    steps = schedule_steps(shape.schedule, pipeline, shape.chunks, microbatches)
    duration = steps.durations(forward, backward, weights)
    count, end = len(steps.task), steps.ends(duration, sent)
    if not apart:
        return np.asarray(end.max(axis=0))
    begin = end[:count] - duration[steps.task]
    placed = Layout(
        pipeline=pipeline, chunks=shape.chunks, schedule=JobSchedule(shape.schedule)
    ).stage_ranks
    on = np.array(placed)[steps.task // 4]
    ranks = [on == rank for rank in range(pipeline)]
    spans = [end[:count][own].max(axis=0) - begin[own].min(axis=0) for own in ranks]
    return np.asarray(np.max(spans, axis=0))
