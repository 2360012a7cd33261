"""Simulate a plan: the second judge, which sees what a plan does over time."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..instances import Plan, Throughput, Workload
from ..instances.arrays import Floats, frozen
from .memory import memory_over_time
from .network import HostMemory, Network, settle
from .plan_stages import stages_of, usual_schedule
from .schedules import SCHEDULES, Schedule, make_schedule
from .schedules.actions import PER_BATCH
from .schedules.steps import deadlock
from .schedules.validate import check_actions
from .simulator_engine import execute
from .simulator_program import compile_program
from .simulator_result import Simulation
from .stages import Stages

#: Runs for the steady state hold at most this many actions.
STEADY_ACTIONS = 20_000_000


def simulate(
    workload: Workload,
    plan: Plan,
    schedule: str | Schedule | None = None,
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
        microbatches then counts; default: ``1f1b``, for latency plans ``single``.
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
    stages = stages_of(workload, plan, weight_share=weight_share)
    if network is None:
        network = HostMemory(isinstance(plan.problem, Throughput) and plan.problem.overlap)
    return simulate_stages(stages, schedule or usual_schedule(plan), microbatches, network=network)


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
    makespan = max(float(end.max(initial=0.0)), _last(job_end))
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
    """Measure the steady state, on runs of the same schedule that are long enough.

    Cyclic schedules repeat themselves: the spacing of an action's repetitions counts, of the
    slowest action. Of others, it is what further microbatches add to the makespan.
    """
    m, repeat = schedule.microbatches, schedule.repeat
    if schedule.name == "single":
        return makespan
    known = schedule.name in SCHEDULES and schedule.depth is not None
    enough = -(-(6 * (schedule.depth or 0) + 12) // repeat) * repeat + 4 * repeat
    if not known or schedule.size * (2 * enough / m) > STEADY_ACTIONS:
        first, last = (0, m - 1) if m < 16 else (m // 4, 3 * m // 4)
        return _spacing(schedule, starts, first, last) if m > 1 else makespan

    def run(microbatches: int) -> tuple[Schedule, list[Floats], float]:
        longer = make_schedule(schedule.name, stages, microbatches, network)
        program = compile_program(stages, longer, network)
        start, end, _, _, job_end, _, _ = execute(program, microbatches)
        last = max(float(end.max(initial=0.0)), _last(job_end))
        return longer, np.split(start, program.first[1:-1]), last

    if schedule.cyclic:
        longer, times, _ = run(enough)
        first = enough // 2
        return _spacing(longer, times, first, enough - 1 - (schedule.depth or 0), repeat)
    return (run(2 * enough)[2] - run(enough)[2]) / enough


def _spacing(
    schedule: Schedule, starts: Sequence[Floats], first: int, last: int, repeat: int = 1
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


def _last(times: Floats) -> float:
    return float(times[np.isfinite(times)].max(initial=0.0))
