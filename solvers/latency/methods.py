"""The methods for latency: solvers, imported when first run, and the tasks they support."""

from __future__ import annotations

from collections.abc import Sequence

from ...formulations.task import Task
from ...instances import Latency, Solution
from ..core.method import READS_SOLVER, Method, SolverName, Strategy
from ..core.search import Search
from ..learned import LEARNED_OPTIONS, no_policy

GREEDY = SolverName("stagecut.solvers.latency.greedy.greedy")


def _learned(task: Task[Latency], search: Search[Solution]) -> None:
    """Run the learned policy after the greedy plan."""
    from ..learned.method import learned

    GREEDY(task, search)
    learned(task, search)


def _strategies(task: Task[Latency]) -> Sequence[Strategy]:
    """Return the strategies beside `auto`: local search, and the integer program if it is small."""
    from .auto import MOST_CHOICES

    calls = task.problem.calls * task.cluster.size
    small = task.workload.n * calls <= MOST_CHOICES
    return (
        Strategy(
            "local search", SolverName("stagecut.solvers.latency.lns.local_search"), seeded=True
        ),
        *((Strategy("milp", SolverName("stagecut.solvers.latency.milp.strong")),) if small else ()),
    )


#: Methods for latency by name.
METHODS: dict[str, Method[Latency]] = {
    "auto": Method(SolverName("stagecut.solvers.latency.auto.auto"), strategies=_strategies),
    "dp": Method(SolverName("stagecut.solvers.latency.auto.label_dp")),
    "milp": Method(SolverName("stagecut.solvers.latency.milp.strong"), READS_SOLVER),
    "milp-big-m": Method(SolverName("stagecut.solvers.latency.milp.big_m"), READS_SOLVER),
    "lns": Method(SolverName("stagecut.solvers.latency.lns.local_search")),
    "linear": Method(SolverName("stagecut.solvers.latency.lns.linear")),
    "greedy": Method(SolverName("stagecut.solvers.latency.greedy.greedy")),
    "max-load": Method(SolverName("stagecut.solvers.latency.greedy.max_load")),
    "learned": Method(_learned, LEARNED_OPTIONS, refuses=(no_policy,)),
}
