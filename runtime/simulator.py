"""Simulate a plan: the second judge, which sees what a plan does over time."""

from __future__ import annotations

import numpy as np

from ..instances import Plan, Workload
from ..instances.arrays import Floats, frozen
from .memory import memory_over_time
from .network import HostMemory, Network, settle
from .pieces import cut
from .schedules import SCHEDULES, Kind, Schedule, make_schedule
from .schedules.steps import deadlock
from .schedules.validate import check_actions
from .simulator_engine import execute
from .simulator_program import Program, compile_program
from .simulator_result import Simulation
from .stages import Stages

#: Runs for the steady state hold at most this many actions.
STEADY_ACTIONS = 20_000_000


def simulate(
    workload: Workload,
    plan: Plan,
    schedule: str | Schedule = "1f1b",
    microbatches: int | None = None,
    *,
    network: Network | None = None,
    weight_share: float = 0.5,
) -> Simulation:
    """Simulate a plan.

    Parameters
    ----------
    schedule
        A name of `stagecut.runtime.schedules.SCHEDULES`, or a schedule, whose own number of
        microbatches then counts.
    microbatches
        How many samples or microbatches to run; default: 8, or 1 for ``single``.
    network
        Default: `HostMemory()`, as in the placement paper; it overlaps if the plan's problem
        says so.
    weight_share
        The part of a backward pass that computes gradients of weights, for zero-bubble
        schedules.

    Raises
    ------
    InputError
        If the plan was made for another workload, or the schedule does not fit, is incomplete or
        deadlocks: then with the table of steps and devices.
    """
    stages = cut(workload, plan, weight_share=weight_share)
    return simulate_stages(
        stages, schedule, microbatches, network=network or HostMemory(plan.problem.overlap)
    )


def simulate_stages(
    stages: Stages,
    schedule: str | Schedule = "1f1b",
    microbatches: int | None = None,
    *,
    network: Network | None = None,
) -> Simulation:
    """Simulate stages; see `simulate`.

    Notes
    -----
    O(log(devices + links)) per action and transfer, memory linear in them.
    """
    network = network or HostMemory()
    stages = settle(stages, network)
    if isinstance(schedule, str):
        if microbatches is None:
            microbatches = 1 if schedule == "single" else 8
        schedule = make_schedule(schedule, stages, microbatches, network)
    check_actions(schedule, stages)
    program = compile_program(stages, schedule, network)
    start, end, cause, job_start, job_end, job_cause, reached = execute(
        program, schedule.microbatches
    )
    size = np.diff(program.first)
    if (reached < size).any():
        raise deadlock(schedule, stages)
    pieces = [slice(a, b) for a, b in zip(program.first[:-1], program.first[1:], strict=True)]
    starts = tuple(frozen(start[piece], np.float64) for piece in pieces)
    ends = tuple(frozen(end[piece], np.float64) for piece in pieces)
    makespan = max(float(end.max(initial=0.0)), float(job_end[np.isfinite(job_end)].max(initial=0)))
    return Simulation(
        stages=stages,
        schedule=schedule,
        network=network,
        starts=starts,
        ends=ends,
        makespan=makespan,
        time_per_sample=_time_per_sample(stages, schedule, network, starts, makespan),
        memory=memory_over_time(stages, schedule, list(starts), list(ends)),
        program=program,
        causes=cause,
        job_start=job_start,
        job_end=job_end,
        job_cause=job_cause,
    )


def _time_per_sample(
    stages: Stages,
    schedule: Schedule,
    network: Network,
    starts: tuple[Floats, ...],
    makespan: float,
) -> float:
    """Measure the steady state, on a longer run of the same schedule where this one is short."""
    m = schedule.microbatches
    repeat = schedule.repeat
    if schedule.name == "single":
        return makespan
    known = schedule.name in SCHEDULES and schedule.depth is not None
    depth = schedule.depth if schedule.depth is not None else m // 6
    wanted = -(-(6 * depth + 12) // repeat) * repeat + 4 * repeat
    if known and m < wanted and schedule.size * (wanted / m) <= STEADY_ACTIONS:
        m = wanted
        schedule = make_schedule(schedule.name, stages, m, network)
        program: Program = compile_program(stages, schedule, network)
        start = execute(program, m)[0]
        starts = tuple(np.split(start, program.first[1:-1]))
    first, last = m // 2, m - 1 - min(depth, m // 4)
    if not known and m < 16:  # too short to have a middle: the mean of it all
        first, last = 0, m - 1
    span = (last - first) // repeat * repeat
    if span <= 0:
        return makespan / m
    slowest = {False: 0.0, True: 0.0}
    for table, begin in zip(schedule.actions, starts, strict=True):
        single = np.isin(table[:, 1], (Kind.REDUCE_GRAD, Kind.STEP))
        early = np.flatnonzero((table[:, 2] == first) & ~single)
        late = np.flatnonzero((table[:, 2] == first + span) & ~single)
        early = early[np.lexsort((table[early, 1], table[early, 0]))]
        late = late[np.lexsort((table[late, 1], table[late, 0]))]
        spacing = (begin[late] - begin[early]) / span
        back = schedule.phased & (table[early, 1] != Kind.F)
        for side in (False, True):
            slowest[side] = max(slowest[side], float(spacing[back == side].max(initial=0.0)))
    return slowest[False] + slowest[True]
