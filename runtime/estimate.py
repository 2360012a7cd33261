"""Seconds of a training iteration under a layout: the longest path of its schedule, and the rest.

Passes run in the order of the runtime's own schedules, by the simulator's rules: a device takes
its actions in turn, and each waits for what it needs and for the message that brings it. Added to
the path are the traffic of gradients and weights that no computation hides, and the optimizer.

Many layouts are priced at once: those that share pipeline, chunks, schedule and number of
microbatches go through the schedule together, one array operation per step.
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

#: Microbatches up to which a schedule is followed action by action.
STEPPED = 1024


@dataclass(frozen=True)
class PipelineShape:
    """Shape of a pipeline: all that a schedule's order of actions depends on."""

    schedule: str
    pipeline: int  # ranks
    chunks: int  # stages per rank
    microbatches: int


@dataclass(frozen=True)
class IterationTime:
    """Seconds of an iteration, by term of the pipeline rank that has the most to do."""

    seconds: float  # all of it
    terms: dict[str, float]  # by `TIME_TERMS`; they sum to `seconds`
    stages: tuple[StageTime, ...]  # of one microbatch, by model stage


def iteration_time(
    model: ModelDescription, layout: Layout, cluster: TrainingCluster, calibration: Calibration
) -> IterationTime:
    """Return the seconds of one iteration and what they are made of."""
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
        _whole(layout, prices, own, float(seconds))
        for layout, own, seconds in zip(layouts, stages, path, strict=True)
    ]


def _whole(
    layout: Layout, prices: LayerPrices, stages: tuple[StageTime, ...], path: float
) -> IterationTime:
    """Return the iteration around a schedule's longest path."""
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
    """A schedule in steps of actions that wait for earlier steps only."""

    start: Ints  # first action of each step, and the number of actions
    # of each action: 4 · stage + `Kind`: F, B, I or W
    task: Ints
    # before, needs: the action before it on its device, and the one whose result it needs; the
    # number of actions where there is none
    before: Ints
    needs: Ints
    remote: Floats  # whether a message brings what it needs

    def durations(self, forward: Floats, backward: Floats, weights: Floats) -> Floats:
        """Return seconds of each task, shape (4 · stages, …), from those of each stage's passes."""
        return np.stack((forward, backward, backward - weights, weights), axis=1).reshape(
            -1, *forward.shape[1:]
        )

    def ends(self, duration: Floats, sent: Floats | float = 0.0) -> Floats:
        """Return when each of N actions ends, and 0; shape (N + 1, L).

        `duration` of tasks has shape (4 · stages, L), and `sent` is what a message takes.
        """
        end = np.zeros((len(self.task) + 1, duration.shape[1]))
        for first, last in zip(self.start[:-1].tolist(), self.start[1:].tolist(), strict=True):
            arrives = end[self.needs[first:last]] + self.remote[first:last, None] * sent
            ready = np.maximum(end[self.before[first:last]], arrives)
            end[first:last] = ready + duration[self.task[first:last]]
        return end


@lru_cache(maxsize=512)
def schedule_steps(schedule: str, pipeline: int, chunks: int, microbatches: int) -> ScheduleSteps:
    """Return the runtime's own order of passes in steps."""
    placed = Layout(pipeline=pipeline, chunks=chunks, schedule=JobSchedule(schedule)).stage_ranks
    line = chain([1.0] * len(placed), [2.0] * len(placed), device=placed)
    return steps_of(make_schedule(schedule, line, microbatches).actions, microbatches)


def steps_of(actions: Sequence[ActionTable], microbatches: int) -> ScheduleSteps:
    """Return the passes of each device, in its order, in steps."""
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
    """Return the step of each action if all take one.

    After its device's last, and what it needs.

    `first` is the first action of each device, and the number of actions; `needs` the action that
    each waits for, or that number.
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

    Passes of one microbatch have shape (stages, L); `backward` includes `weights`. `sent` is a
    message between pipeline ranks. With `apart`, a rank goes on when it is through, and not when
    all are: what counts is then the longest time from a rank's first pass to its last, after which
    it can all begin again.
    """
    pipeline, microbatches = shape.pipeline, shape.microbatches
    if pipeline == 1:
        return np.asarray(microbatches * (forward + backward).sum(axis=0))
    window = 12 * pipeline
    followed = max(STEPPED, 2 * window)
    if microbatches > followed + pipeline:
        # Long before, the pattern repeats itself, every few rounds of microbatches.
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
