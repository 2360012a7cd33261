"""The methods for training: solvers, imported when first run, and what they support."""

from __future__ import annotations

from ...formulations.task import Task
from ...instances import PlacementRules, Training
from ..core.method import READS_SOLVER, Method, SolverName


def _links(_method: str, task: Task[Training]) -> str | None:
    if not task.cluster.links:
        return None
    return "cluster: training plans take no links between devices; remove them"


def _no_rules(method: str, task: Task[Training]) -> str | None:
    rules = task.problem.placement_rules
    if rules == PlacementRules(max_stages=rules.max_stages):
        return None
    return f"method: {method} keeps no placement rules but max_stages; use auto, dp, milp or piper"


#: By name.
METHODS: dict[str, Method[Training]] = {
    "auto": Method(SolverName("stagecut.solvers.training.auto.auto"), refuses=(_links,)),
    "dp": Method(SolverName("stagecut.solvers.training.dp.training_dp"), refuses=(_links,)),
    "milp": Method(
        SolverName("stagecut.solvers.training.milp.milp"),
        {"start": ("none",), **READS_SOLVER},
        refuses=(_links,),
    ),
    "piper": Method(SolverName("stagecut.solvers.training.dp.piper"), refuses=(_links,)),
    "equal-stages": Method(
        SolverName("stagecut.solvers.training.equal_stages.equal_stages"),
        refuses=(_links, _no_rules),
    ),
    "data-parallel": Method(
        SolverName("stagecut.solvers.training.equal_stages.data_parallel"),
        refuses=(_links, _no_rules),
    ),
    "pipedream": Method(
        SolverName("stagecut.solvers.training.pipedream.pipedream"), refuses=(_links, _no_rules)
    ),
}
