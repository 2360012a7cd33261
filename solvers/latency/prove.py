"""The method ``dp`` for latency: a first plan, then the label DP."""

from __future__ import annotations

from ...formulations.task import Task
from ...instances import Latency, Solution
from ..core.search import Search
from .calls import several_calls
from .label_dp.dp import one_call
from .lns import linear


def label_dp(task: Task[Latency], search: Search[Solution]) -> None:
    """Prove the least latency: with one call per accelerator exactly, else as far as can be.

    With more calls see `several_calls`. A plan from `linear` comes first, if there is none.
    """
    if search.best is None:
        with search.phase("start"):
            linear(task, search)
    if task.problem.calls > 1:
        several_calls(task, search)
        return
    with search.phase("solve"):
        one_call(
            task,
            search.should_stop,
            lambda: search.objective,
            search.offer,
            search.raise_bound,
            search.prove_infeasible,
        )
