"""Table of the methods for sharding: solvers by dotted name, and the tasks that they refuse."""

from __future__ import annotations

from collections.abc import Sequence

from ...formulations.task import Task
from ...instances import Sharding
from ..core.method import READS_SOLVER, Method, SolverName, Strategy


def _links(_method: str, task: Task[Sharding]) -> str | None:
    if not task.cluster.links:
        return None
    return "cluster: a sharding has the links of its mesh; remove the cluster's"


#: Names of the baselines.
RULES = ("data-parallel", "fully-sharded", "megatron", "replicate", "communication-only")


def _strategies(task: Task[Sharding]) -> Sequence[Strategy]:  # noqa: ARG001
    """Return the strategy beside `auto`, whose elimination may take long."""
    return (Strategy("milp", SolverName("stagecut.solvers.sharding.milp.milp")),)


#: Methods for sharding by name.
METHODS: dict[str, Method[Sharding]] = {
    "auto": Method(
        SolverName("stagecut.solvers.sharding.auto.auto"), refuses=(_links,), strategies=_strategies
    ),
    "elimination": Method(
        SolverName("stagecut.solvers.sharding.elimination.elimination"), refuses=(_links,)
    ),
    "messages": Method(
        SolverName("stagecut.solvers.sharding.messages.messages"), refuses=(_links,)
    ),
    "milp": Method(SolverName("stagecut.solvers.sharding.milp.milp"), READS_SOLVER, (_links,)),
    "milp-compact": Method(
        SolverName("stagecut.solvers.sharding.milp.compact"), READS_SOLVER, (_links,)
    ),
    **{
        name: Method(
            SolverName("stagecut.solvers.sharding.baselines.baseline", (name,)), refuses=(_links,)
        )
        for name in RULES
    },
}
