"""The methods for training: solvers, imported when first run, and what they support."""

from __future__ import annotations

from ...formulations.task import Task
from ...instances import PlacementRules, Solution, Training
from ..core.method import Method
from ..core.search import Search


def _auto(task: Task[Training], search: Search[Solution]) -> None:
    from .auto import auto

    auto(task, search)


def _dp(task: Task[Training], search: Search[Solution]) -> None:
    from .dp import training_dp

    training_dp(task, search)


def _milp(task: Task[Training], search: Search[Solution]) -> None:
    from .milp import milp

    milp(task, search)


def _piper(task: Task[Training], search: Search[Solution]) -> None:
    from .dp import piper

    piper(task, search)


def _equal_stages(task: Task[Training], search: Search[Solution]) -> None:
    from .equal_stages import equal_stages

    equal_stages(task, search)


def _data_parallel(task: Task[Training], search: Search[Solution]) -> None:
    from .equal_stages import data_parallel

    data_parallel(task, search)


def _pipedream(task: Task[Training], search: Search[Solution]) -> None:
    from .pipedream import pipedream

    pipedream(task, search)


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
    "auto": Method(_auto, refuses=(_links,)),
    "dp": Method(_dp, refuses=(_links,)),
    "milp": Method(_milp, {"start": ("none",)}, refuses=(_links,)),
    "piper": Method(_piper, refuses=(_links,)),
    "equal-stages": Method(_equal_stages, refuses=(_links, _no_rules)),
    "data-parallel": Method(_data_parallel, refuses=(_links, _no_rules)),
    "pipedream": Method(_pipedream, refuses=(_links, _no_rules)),
}
