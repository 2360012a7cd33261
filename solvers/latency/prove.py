"""The method ``dp`` for latency: the bound along paths, a plan, then the label DP."""

from __future__ import annotations

from collections.abc import Callable

from ...formulations.task import Task
from ...instances import Latency, Solution
from ..core.search import Search
from .calls import several_calls
from .greedy import first_plans
from .label_dp.dp import one_call
from .lns import linear


def label_dp(
    task: Task[Latency], search: Search[Solution], plan: Callable[[], None] = lambda: None
) -> None:
    """Prove the least latency: with one call per accelerator exactly, else as far as can be.

    With more calls see `several_calls`. The bound along paths comes first: where it proves the best
    plan known, nothing else is started, nor compiled. Plans from `plan` and `linear` come next.
    """
    if search.best is None:
        with search.phase("first plans"):
            first_plans(task, search)

    def start() -> None:
        plan()
        method, search.method = search.method, "linear"
        with search.phase("start"):
            linear(task, search)
        search.method = method

    if task.problem.calls > 1:
        several_calls(task, search, start)
        return
    with search.phase("solve"):
        one_call(
            task,
            search.should_stop,
            lambda: search.objective,
            search.offer,
            search.raise_bound,
            search.prove_infeasible,
            start,
        )
