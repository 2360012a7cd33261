"""The methods for sharding: solvers, imported when first run."""

from __future__ import annotations

from collections.abc import Sequence

from ...formulations.task import Task
from ...instances import Sharding, Solution
from ..core.method import Method, Solver
from ..core.portfolio.strategy import Strategy
from ..core.search import Search


def _auto(task: Task[Sharding], search: Search[Solution]) -> None:
    from .auto import auto

    auto(task, search)


def _elimination(task: Task[Sharding], search: Search[Solution]) -> None:
    from .elimination import elimination

    elimination(task, search)


def _messages(task: Task[Sharding], search: Search[Solution]) -> None:
    from .messages import messages

    messages(task, search)


def _milp(task: Task[Sharding], search: Search[Solution]) -> None:
    from .milp import milp

    milp(task, search)


def _compact(task: Task[Sharding], search: Search[Solution]) -> None:
    from .milp import compact

    compact(task, search)


def _local_search(task: Task[Sharding], search: Search[Solution]) -> None:
    from .local_search import local_search

    local_search(task, search)


def _baseline(name: str) -> Solver[Sharding]:
    def solve(task: Task[Sharding], search: Search[Solution]) -> None:
        from .baselines import baseline

        baseline(name, task, search)

    return solve


def _links(_method: str, task: Task[Sharding]) -> str | None:
    if not task.cluster.links:
        return None
    return "cluster: a sharding has the links of its mesh; remove the cluster's"


#: What frameworks do by rule.
RULES = ("data-parallel", "fully-sharded", "megatron", "replicate", "communication-only")


def _beside(task: Task[Sharding]) -> Sequence[Strategy]:  # noqa: ARG001
    """Return what runs beside `auto`, whose elimination may take long."""
    return (Strategy("milp", _milp), Strategy("local search", _local_search))


#: By name.
METHODS: dict[str, Method[Sharding]] = {
    "auto": Method(_auto, refuses=(_links,), beside=_beside),
    "elimination": Method(_elimination, refuses=(_links,)),
    "messages": Method(_messages, refuses=(_links,)),
    "milp": Method(_milp, {"solver": ()}, (_links,)),
    "milp-compact": Method(_compact, {"solver": ()}, (_links,)),
    "local-search": Method(_local_search, refuses=(_links,)),
    **{name: Method(_baseline(name), refuses=(_links,)) for name in RULES},
}
