"""Simulation of plans: times of every action on devices and links."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np

from ...instances import InputError, Plan, Planned, Workload, plan_of
from ...instances.common.arrays import frozen
from ..schedules import Schedule, make_schedule
from ..schedules.validate import check_actions, deadlock, rows_by_stage
from .engine_kernel import execute
from .network import HostMemory, Network, priced_in
from .plan_stages import DEFAULT_MICROBATCHES, stages_of, usual_network, usual_schedule
from .program import compile_program
from .result import Simulation, memory_over_time
from .stages import StageGraph


def simulate(
    workload: Workload,
    plan: Plan | Planned,
    schedule: str | Schedule | None = None,
    microbatches: int | None = None,
    *,
    network: Network | None = None,
    weight_share: float | None = None,
    relayed: bool | None = None,
) -> Simulation:
    """Simulate a plan under a schedule: times of every action and transfer, and memory.

    Parameters
    ----------
    workload, plan
        A workload, and the plan that was made for it, or the `Result` that holds it.
    schedule
        ``gpipe``, ``1f1b``, ``interleaved``, ``pipedream``, ``2bw``, ``zb-h1``, ``zb-h2``,
        ``single`` or ``inference``; or a `stagecut.runtime.schedules.Schedule`, with its own
        number of microbatches; default: ``1f1b``, for mappings ``gpipe``, for latency plans
        ``single``, for pipelines the one that they were made for.
    microbatches
        Number of microbatches to run; default: the plan's batch, else 8; 1 for ``single``.
    network
        Network that moves data; default: the links of the topology for a mapped plan, else
        `stagecut.runtime.simulate.network.HostMemory`, with the transfer costs of the problem.
    weight_share
        Share of a backward pass that computes gradients of weights, where a schedule splits it;
        default: the plan's, else a half.
    relayed
        Whether the pieces of a placement exchange data with neighbours only, as PyTorch runs them;
        default: as the plan's problem says.

    Returns
    -------
    Simulation
        Times of every action; makespan, steady state, bubble, memory over time, critical path.

    Raises
    ------
    InputError
        If the plan was made for another workload, or the schedule does not fit, is incomplete or
        deadlocks: then with the table of steps and devices.

    Examples
    --------
    >>> import stagecut
    >>> workload = stagecut.load("gpt2-xl")
    >>> cluster = stagecut.accelerators_and_cpus(2)
    >>> plan = stagecut.solve(workload, cluster, method="greedy").plan
    >>> run = stagecut.simulate(workload, plan, "inference", 4)
    >>> abs(run.time_per_sample / plan.objective - 1) < 1e-9
    True
    """
    plan = plan_of(plan)
    stages = stages_of(workload, plan, weight_share=weight_share, relayed=relayed)
    network = network or usual_network(plan)
    return simulate_stages(stages, schedule or usual_schedule(plan), microbatches, network=network)


def simulate_stages(
    stages: StageGraph,
    schedule: str | Schedule = "1f1b",
    microbatches: int | None = None,
    *,
    network: Network | None = None,
) -> Simulation:
    """Simulate stages; see `simulate`.

    Parameters
    ----------
    stages
        Stages, such as those of `chain`.
    schedule, microbatches, network
        As in `simulate`; default: 1F1B, 8 microbatches, `HostMemory()`.

    Returns
    -------
    Simulation
        As of `simulate`.

    Raises
    ------
    InputError
        If the schedule does not fit the stages, is incomplete or deadlocks.

    Notes
    -----
    O(log(devices + links)) per action and transfer, memory linear in them.

    Examples
    --------
    >>> import stagecut
    >>> stages = stagecut.runtime.simulate.chain([1.0, 1.0], [2.0, 2.0])
    >>> simulate_stages(stages, "gpipe", 4).makespan
    15.0
    """
    network = network or HostMemory()
    stages = priced_in(stages, network)
    if isinstance(schedule, str):
        if microbatches is None:
            microbatches = 1 if schedule == "single" else stages.batch or DEFAULT_MICROBATCHES
        stages = replace(stages, batch=stages.batch or microbatches)
        schedule = make_schedule(schedule, stages, microbatches, network)
    elif microbatches not in (None, schedule.microbatches):
        raise InputError(
            f"microbatches: {microbatches}; the schedule is of {schedule.microbatches}: leave it "
            "out"
        )
    else:
        schedule = rows_by_stage(schedule, stages)
    check_actions(schedule, stages)
    program = compile_program(stages, schedule, network)
    times = execute(program, schedule.microbatches)
    first = program.actions.first
    size = np.diff(first)
    if (times.reached < size).any():
        raise deadlock(schedule, stages)
    pieces = [slice(a, b) for a, b in pairwise(first)]
    starts = tuple(frozen(times.start[piece], np.float64) for piece in pieces)
    ends = tuple(frozen(times.end[piece], np.float64) for piece in pieces)
    arrived = times.job_end[np.isfinite(times.job_end)]
    makespan = max(float(times.end.max(initial=0.0)), float(arrived.max(initial=0.0)))
    return Simulation(
        stages=stages,
        schedule=schedule,
        network=network,
        starts=starts,
        ends=ends,
        makespan=makespan,
        memory=memory_over_time(stages, schedule, list(starts), list(ends)),
        program=program,
        causes=times.cause,
        job_start=times.job_start,
        job_end=times.job_end,
        job_cause=times.job_cause,
        longer=lambda number: simulate_stages(stages, schedule.name, number, network=network),
    )
