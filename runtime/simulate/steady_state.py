"""The steady state: what one more microbatch costs, far from begin and end."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ...instances.common.arrays import Floats
from ...instances.model.schedule import MOST_ACTIONS
from ..schedules import SCHEDULES, Schedule, make_schedule
from ..schedules.actions import PER_BATCH
from .engine_kernel import execute
from .network import Network
from .program import compile_program
from .stages import StageGraph


def time_per_sample(
    stages: StageGraph,
    schedule: Schedule,
    network: Network,
    starts: tuple[Floats, ...],
    makespan: float,
) -> float:
    """Measure the steady state, on runs of the same schedule that are long enough.

    Cyclic schedules repeat themselves: the spacing of an action's repetitions counts, of the
    slowest action; where they repeat themselves only after too many microbatches, for their
    replicas have no common rhythm, that on the busiest device. Of others, it is what further
    microbatches add to the makespan. `starts` and `makespan` are of the run of `schedule` itself.
    """
    m, repeat = schedule.microbatches, schedule.repeat
    if schedule.name == "single":
        return makespan
    known = schedule.name in SCHEDULES and schedule.depth is not None
    depth = schedule.depth or 0

    def fits(number: int) -> bool:
        return schedule.size * (2 * number / m) <= MOST_ACTIONS

    def run(microbatches: int) -> tuple[Schedule, list[Floats], list[Floats], float]:
        longer = make_schedule(schedule.name, stages, microbatches, network)
        program = compile_program(stages, longer, network)
        times = execute(program, microbatches)
        last = max(float(times.end.max(initial=0.0)), last_of(times.job_end))
        cuts = program.actions.first[1:-1]
        return longer, np.split(times.start, cuts), np.split(times.end, cuts), last

    enough = -(-(6 * depth + 12) // repeat) * repeat + 4 * repeat
    if known and fits(enough):
        if not schedule.cyclic:
            return (run(2 * enough)[3] - run(enough)[3]) / enough
        longer, begin, _, _ = run(enough)
        return _spacing(longer, begin, enough // 2, enough - 1 - depth, repeat)
    enough = 8 * depth + 16
    if known and schedule.cyclic and fits(enough):
        return _on_busiest(*run(enough)[:3], enough // 2, enough - 1 - depth)
    first, last = (0, m - 1) if m < 16 else (m // 4, 3 * m // 4)
    round_robin = math.lcm(*(len(ring) for ring in stages.replicas))
    if last - first < round_robin:
        return makespan / m
    return _spacing(schedule, starts, first, last, round_robin)


def _spacing(
    schedule: Schedule, starts: Sequence[Floats], first: int, last: int, repeat: int
) -> float:
    """Return the mean time between repetitions of the slowest action, over whole repeats."""
    span = (last - first) // repeat * repeat
    slowest = 0.0
    for table, begin in zip(schedule.actions, starts, strict=True):
        per_batch = np.isin(table[:, 1], PER_BATCH)
        early = np.flatnonzero((table[:, 2] == first) & ~per_batch)
        late = np.flatnonzero((table[:, 2] == first + span) & ~per_batch)
        if len(early) != len(late):
            continue  # replicas that do not take both
        early = early[np.lexsort((table[early, 1], table[early, 0]))]
        late = late[np.lexsort((table[late, 1], table[late, 0]))]
        slowest = max(slowest, float((begin[late] - begin[early]).max(initial=0.0)) / span)
    return slowest


def _on_busiest(
    schedule: Schedule, starts: list[Floats], ends: list[Floats], first: int, last: int
) -> float:
    """Return the mean time per microbatch on the device that idles least meanwhile."""
    best, spacing = -1.0, 0.0
    for table, begin, end in zip(schedule.actions, starts, ends, strict=True):
        own = ~np.isin(table[:, 1], PER_BATCH) & (table[:, 2] >= first) & (table[:, 2] <= last)
        rows = np.flatnonzero(own)
        if not len(rows):
            continue
        again = rows[(table[rows, :2] == table[rows[0], :2]).all(axis=1)]
        passed = int(table[again[-1], 2] - table[again[0], 2])
        time = float(begin[again[-1]] - begin[again[0]])
        busy = float((end - begin)[again[0] : again[-1]].sum())
        if passed > 0 and busy > best * time:
            best, spacing = busy / time, time / passed
    return spacing


def last_of(times: Floats) -> float:
    """Return the last of the times that are finite; 0 if there is none."""
    return float(times[np.isfinite(times)].max(initial=0.0))
