"""Table of the methods for mapping: solvers by dotted name, and the problems that each refuses."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...formulations.task import Task
from ...instances import DeviceMapping
from ...instances.model.stage_costs import parameter_bytes
from ..core.method import READS_SOLVER, Method, SolverName, Strategy

#: Name of the annealing that runs beside `auto`.
ANNEALING = "annealing"


def _links(_method: str, task: Task[DeviceMapping]) -> str | None:
    if not task.cluster.links:
        return None
    return "cluster: a mapping has the topology's links; remove the cluster's"


def _busiest_link(method: str, task: Task[DeviceMapping]) -> str | None:
    if task.problem.objective == "stage-time":
        return None
    return f"{method}: it knows stage times alone; leave out the objective busiest-link"


def _memory(method: str, task: Task[DeviceMapping]) -> str | None:
    if task.problem.objective == "stage-time":
        return None
    from ...formulations.mapping.memory import device_rooms

    if len(np.unique(device_rooms(task))) == 1:
        return None
    return f"{method}: of the busiest link, devices are alike in memory; leave out the objective"


def _not_rings(method: str, task: Task[DeviceMapping]) -> str | None:
    problem = task.problem
    counted = problem.mode != "p2p" and problem.replicas > 1 and problem.collective != "ring"
    if not (counted and parameter_bytes(task.workload).any()):
        return None
    return f"{method}: it knows rings alone; set collective to ring"


def _strategies(task: Task[DeviceMapping]) -> Sequence[Strategy]:  # noqa: ARG001
    """Return the strategies that run beside `auto` in other processes."""
    return (
        Strategy(
            ANNEALING,
            SolverName("stagecut.solvers.mapping.auto.annealing"),
            seeded=True,
            restricted=True,
        ),
    )


#: Methods by name.
METHODS: dict[str, Method[DeviceMapping]] = {
    "auto": Method(
        SolverName("stagecut.solvers.mapping.auto.auto"),
        refuses=(_links, _memory),
        strategies=_strategies,
    ),
    "layouts": Method(
        SolverName("stagecut.solvers.mapping.auto.layouts"), refuses=(_links, _memory)
    ),
    "milp": Method(
        SolverName("stagecut.solvers.mapping.milp.milp"),
        READS_SOLVER,
        refuses=(_links, _memory, _not_rings),
    ),
    "joint": Method(
        SolverName("stagecut.solvers.mapping.joint.joint"),
        READS_SOLVER,
        refuses=(_links, _busiest_link, _not_rings),
    ),
}
