"""The methods for latency: solvers, imported when first run, and what they support."""

from __future__ import annotations

from collections.abc import Sequence

from ...formulations.task import Task
from ...instances import Latency, Solution
from ..core.learned_options import LEARNED_OPTIONS, no_policy
from ..core.method import Method
from ..core.portfolio.strategy import Strategy
from ..core.search import Search


def _auto(task: Task[Latency], search: Search[Solution]) -> None:
    from .auto import auto

    auto(task, search)


def _dp(task: Task[Latency], search: Search[Solution]) -> None:
    from .prove import label_dp

    label_dp(task, search)


def _milp(task: Task[Latency], search: Search[Solution]) -> None:
    from .milp import strong

    strong(task, search)


def _milp_big_m(task: Task[Latency], search: Search[Solution]) -> None:
    from .milp import big_m

    big_m(task, search)


def _lns(task: Task[Latency], search: Search[Solution]) -> None:
    from .lns import local_search

    local_search(task, search)


def _linear(task: Task[Latency], search: Search[Solution]) -> None:
    from .lns import linear

    linear(task, search)


def _greedy(task: Task[Latency], search: Search[Solution]) -> None:
    from .greedy import greedy

    greedy(task, search)


def _max_load(task: Task[Latency], search: Search[Solution]) -> None:
    from .greedy import max_load

    max_load(task, search)


def _learned(task: Task[Latency], search: Search[Solution]) -> None:
    from ..learned.method import learned

    _greedy(task, search)
    learned(task, search)


def _beside(task: Task[Latency]) -> Sequence[Strategy]:
    """Return what runs beside `auto`; what its label DP leaves out goes by the best plan known."""
    from .auto import MOST_CHOICES

    calls = task.problem.calls * task.cluster.size
    small = task.workload.n * calls <= MOST_CHOICES
    return (
        Strategy("local search", _lns, seeded=True),
        *((Strategy("milp", _milp),) if small else ()),
    )


#: By name.
METHODS: dict[str, Method[Latency]] = {
    "auto": Method(_auto, beside=_beside),
    "dp": Method(_dp),
    "milp": Method(_milp),
    "milp-big-m": Method(_milp_big_m),
    "lns": Method(_lns),
    "linear": Method(_linear),
    "greedy": Method(_greedy),
    "max-load": Method(_max_load),
    "learned": Method(_learned, LEARNED_OPTIONS, refuses=(no_policy,)),
}
