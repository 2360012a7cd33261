"""The method ``dp`` for latency: the bound along paths, a plan, then the label DP."""

from __future__ import annotations

from collections.abc import Callable

from ...formulations.latency.graph import latency_graph
from ...formulations.task import Task
from ...instances import Latency, Solution
from ..core.search import Search
from ..core.share import Share
from .calls import several_calls
from .greedy import first_plans
from .label_dp.dp import one_call
from .lns import linear
from .series.series import solve_by_series


def label_dp(
    task: Task[Latency],
    search: Search[Solution],
    plan: Callable[[], None] = lambda: None,
    part: float = 1.0,
    meanwhile: Callable[[], None] | None = None,
) -> None:
    """Prove the least latency: with one call per accelerator exactly, else as far as can be.

    With more calls see `several_calls`. The bound along paths comes first: where it proves the best
    plan known, nothing else is started, nor compiled. Plans from `linear` and `plan` come next.
    Where the label DP takes long, it begins again above the bound by regions.

    Parameters
    ----------
    plan
        Called for a better plan.
    part
        Of the time left that it may take, with one call.
    meanwhile
        Called once that part is used up: the label DP then goes on where it was, below the best
        plan, with all of the time left.
    """
    if search.best is None:
        with search.phase("first plans"):
            first_plans(task, search)

    def start() -> None:
        method, search.method = search.method, "linear"
        with search.phase("start"):
            linear(task, search)
        search.method = method
        plan()

    if task.problem.calls > 1:
        several_calls(task, search, start)
        return

    def by_series() -> float:
        solve_by_series(task, search, latency_graph(task, whole_colours=True))
        return search.bound

    share = Share(search, part)
    waiting = [meanwhile] if meanwhile is not None else []

    def should_stop() -> bool:
        if waiting and share.should_stop() and not search.should_stop():
            waiting.pop()()
        return (share if meanwhile is None else search).should_stop()

    with search.phase("solve"):
        one_call(
            task,
            should_stop,
            lambda: search.objective,
            search.offer,
            search.raise_bound,
            search.prove_infeasible,
            start,
            by_series,
        )
