"""Schedules for torch.distributed.pipelining: its CSV of computations."""

from __future__ import annotations

import numpy as np

from ...instances import InputError, Plan, Workload, is_iteration
from ..schedules import Schedule, make_schedule, read_csv, write_csv
from ..schedules.actions import Kind
from ..simulate.plan_stages import named_schedule, schedule_to_run, stages_of, usual_schedule

#: What a row may hold; torch adds transfers itself.
COMPUTES = (Kind.F, Kind.B, Kind.I, Kind.W)


def torch_schedule(
    workload: Workload, plan: Plan, name: str | None = None, microbatches: int | None = None
) -> tuple[Schedule, tuple[int, ...]]:
    """Return the schedule that torch runs, a row per rank, and the plan's device of each rank.

    Stages are the plan's pieces in the order in which they can run. Devices without a piece have no
    rank. Raises `InputError` if torch cannot run the schedule, or it does not fit the plan.
    """
    stages = stages_of(workload, plan)
    if not is_iteration(plan.problem):
        name = name or str(usual_schedule(plan))
    name, microbatches = schedule_to_run(plan, name, microbatches)
    planned = named_schedule(plan, name)
    made = make_schedule(planned, stages, microbatches) if isinstance(planned, str) else planned
    if made.versions != "one":
        raise InputError(
            f"csv: {name} keeps versions of weights, which torch.distributed.pipelining does "
            "not; export a synchronous schedule such as 1f1b"
        )
    devices, rows = [], []
    for d, table in enumerate(made.actions):
        own = table[np.isin(table[:, 1], COMPUTES)]
        if len(own):
            devices.append(d)
            rows.append(own)
    return Schedule(name, microbatches, tuple(rows)), tuple(devices)


def torch_csv(schedule: Schedule) -> str:
    """Return the CSV: a row per rank, cells such as ``2F0``; read back and compared.

    ``schedule._load_csv(FILE, format="compute_only")`` reads it.
    """
    text = write_csv(schedule)
    back = read_csv(text).actions
    if not all(np.array_equal(a, b) for a, b in zip(back, schedule.actions, strict=True)):
        raise InputError("csv: what was written reads back as another schedule: a fault of ours")
    return text
