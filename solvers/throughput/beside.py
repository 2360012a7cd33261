"""What can run beside the methods for throughput, in processes of their own."""

from __future__ import annotations

from collections.abc import Sequence

from ...formulations.task import Task
from ...instances import Solution, Throughput
from ..core.portfolio.strategy import Strategy
from ..core.search import Search


def beside_auto(task: Task[Throughput]) -> Sequence[Strategy]:
    """Return what runs beside `auto`: nothing that ends in time for large graphs.

    The DP alone prices relayed data.
    """
    from .auto import LARGE

    if task.problem.relayed or task.workload.n > LARGE:
        return ()
    if task.problem.split == "noncontiguous":
        return (*beside_set_partitioning(task), Strategy("milp", _milp))
    return (Strategy("milp", _milp),)


def beside_set_partitioning(task: Task[Throughput]) -> Sequence[Strategy]:
    """Return what runs beside set partitioning, which is left with the bounds."""
    from .relaxation import pays, relaxation  # only here: other splits wait for neither
    from .set_partitioning import SPLITS, splits

    first = (Strategy("relaxation", relaxation),) if pays(task) else ()
    return (*first, Strategy(SPLITS, splits, seeded=True))


def _milp(task: Task[Throughput], search: Search[Solution]) -> None:
    from .milp import compact  # with Pyomo, which takes a second to import

    compact(task, search)
