"""Schedules for torch.distributed.pipelining, whose ``_load_csv(FILE, format="compute_only")``
reads their CSV.
"""

from __future__ import annotations

import numpy as np

from ...instances import InputError, Plan, Workload, is_iteration
from ...instances.model.schedule import COMPUTES
from ..schedules import Schedule, make_schedule
from ..simulate.plan_stages import named_schedule, schedule_to_run, stages_of, usual_schedule


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
