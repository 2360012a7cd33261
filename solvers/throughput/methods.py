"""The methods for throughput: solvers, imported when first run, and the tasks they support."""

from __future__ import annotations

from collections.abc import Sequence

from ...formulations.task import Task
from ...instances import Solution, Throughput
from ..core.method import READS_SOLVER, Method, SolverName, Strategy
from ..core.search import Search
from ..learned import LEARNED_OPTIONS, no_policy

MILP = SolverName("stagecut.solvers.throughput.milp.compact")
GREEDY = SolverName("stagecut.solvers.throughput.baselines.greedy")


def _learned(task: Task[Throughput], search: Search[Solution]) -> None:
    from ..learned.method import learned

    GREEDY(task, search)
    learned(task, search)


def _strategies_of_auto(task: Task[Throughput]) -> Sequence[Strategy]:
    """Return the strategies beside `auto`: none for large graphs, as none would end in time.

    There is none for relayed data either, as only the DP can price it.
    """
    from .auto import LARGE

    if task.problem.relayed or task.workload.n > LARGE:
        return ()
    if task.problem.split == "noncontiguous":
        return (*_strategies_of_set_partitioning(task), Strategy("milp", MILP))
    return (Strategy("milp", MILP),)


def _strategies_of_set_partitioning(_: Task[Throughput]) -> Sequence[Strategy]:
    """Return the strategies beside set partitioning; the latter then works on the bound only."""
    from .set_partitioning import SPLITS, splits  # only here: other splits need none of it

    return (Strategy(SPLITS, splits, seeded=True),)


def _relayed(method: str, task: Task[Throughput]) -> str | None:
    if not task.problem.relayed:
        return None
    able = [name for name, known in METHODS.items() if _relayed not in known.refuses]
    return f"method: {method} cannot price relayed data; use one of {', '.join(able)}"


def _connected(method: str, task: Task[Throughput]) -> str | None:
    if task.problem.split == "noncontiguous":
        return None
    return (
        f"{method}: it plans non-contiguous splits, and {task.problem.split} was asked for; "
        "use method dp or milp, or split noncontiguous"
    )


def _hosts_alone(method: str, task: Task[Throughput]) -> str | None:
    if any(kind.count and not kind.host for kind in task.cluster.kinds):
        return None
    return f"method {method}: it needs at least one accelerator"


#: Methods for throughput by name.
METHODS: dict[str, Method[Throughput]] = {
    "auto": Method(
        SolverName("stagecut.solvers.throughput.auto.auto"),
        READS_SOLVER,
        strategies=_strategies_of_auto,
    ),
    "dp": Method(SolverName("stagecut.solvers.throughput.dp.ideal_dp")),
    "linear-dp": Method(SolverName("stagecut.solvers.throughput.dp.linearised_dp")),
    "multilevel": Method(
        SolverName("stagecut.solvers.throughput.multilevel.multilevel.multilevel")
    ),
    "pipedream": Method(SolverName("stagecut.solvers.throughput.dp.pipedream"), {"skip": ()}),
    "milp": Method(MILP, READS_SOLVER, refuses=(_relayed,)),
    "column-generation": Method(
        SolverName("stagecut.solvers.throughput.set_partitioning.set_partitioning"),
        refuses=(_relayed, _connected),
        strategies=_strategies_of_set_partitioning,
    ),
    "greedy": Method(GREEDY),
    "local-search": Method(
        SolverName("stagecut.solvers.throughput.local_search.local_search"), refuses=(_relayed,)
    ),
    "random": Method(
        SolverName("stagecut.solvers.throughput.local_search.random_best"), refuses=(_relayed,)
    ),
    "learned": Method(_learned, LEARNED_OPTIONS, refuses=(_relayed, no_policy)),
    "single": Method(
        SolverName("stagecut.solvers.throughput.baselines.single_device"), refuses=(_relayed,)
    ),
    "expert": Method(
        SolverName("stagecut.solvers.throughput.baselines.expert"),
        {"split": ()},
        refuses=(_relayed,),
    ),
    "metis": Method(
        SolverName("stagecut.solvers.throughput.partitioners.metis"),
        refuses=(_relayed, _hosts_alone),
    ),
    "scotch": Method(
        SolverName("stagecut.solvers.throughput.partitioners.scotch"),
        refuses=(_relayed, _hosts_alone),
    ),
}
