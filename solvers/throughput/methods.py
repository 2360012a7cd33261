"""The methods for throughput: solvers, imported when first run, and what they support."""

from __future__ import annotations

from collections.abc import Sequence

from ...formulations.task import Task
from ...instances import Solution, Throughput
from ..core.learned_options import LEARNED_OPTIONS, no_policy
from ..core.method import Method
from ..core.portfolio.strategy import Strategy
from ..core.search import Search


def _auto(task: Task[Throughput], search: Search[Solution]) -> None:
    from .auto import auto

    auto(task, search)


def _dp(task: Task[Throughput], search: Search[Solution]) -> None:
    from .dp.dp import ideal_dp

    ideal_dp(task, search)


def _linear_dp(task: Task[Throughput], search: Search[Solution]) -> None:
    from .dp.dp import linearised_dp

    linearised_dp(task, search)


def _pipedream(task: Task[Throughput], search: Search[Solution]) -> None:
    from .dp.dp import pipedream

    pipedream(task, search)


def _multilevel(task: Task[Throughput], search: Search[Solution]) -> None:
    from .multilevel.multilevel import multilevel

    multilevel(task, search)


def _milp(task: Task[Throughput], search: Search[Solution]) -> None:
    from .milp import compact

    compact(task, search)


def _column_generation(task: Task[Throughput], search: Search[Solution]) -> None:
    from .set_partitioning import set_partitioning

    set_partitioning(task, search)


def _greedy(task: Task[Throughput], search: Search[Solution]) -> None:
    from .greedy import greedy

    greedy(task, search)


def _local_search(task: Task[Throughput], search: Search[Solution]) -> None:
    from .local_search import local_search

    local_search(task, search)


def _random(task: Task[Throughput], search: Search[Solution]) -> None:
    from .local_search import random_best

    random_best(task, search)


def _single(task: Task[Throughput], search: Search[Solution]) -> None:
    from .single_device import single_device

    single_device(task, search)


def _metis(task: Task[Throughput], search: Search[Solution]) -> None:
    from .partitioner import metis

    metis(task, search)


def _learned(task: Task[Throughput], search: Search[Solution]) -> None:
    from ..learned.method import learned

    _greedy(task, search)
    learned(task, search)


def _beside_auto(task: Task[Throughput]) -> Sequence[Strategy]:
    from .beside import beside_auto

    return beside_auto(task)


def _beside_set_partitioning(task: Task[Throughput]) -> Sequence[Strategy]:
    from .beside import beside_set_partitioning

    return beside_set_partitioning(task)


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


#: What `options` may say: the solver of integer programs.
_SOLVER: dict[str, tuple[str, ...]] = {"solver": ()}

#: By name.
METHODS: dict[str, Method[Throughput]] = {
    "auto": Method(_auto, _SOLVER, beside=_beside_auto),
    "dp": Method(_dp),
    "linear-dp": Method(_linear_dp),
    "multilevel": Method(_multilevel),
    "pipedream": Method(_pipedream),
    "milp": Method(_milp, _SOLVER, refuses=(_relayed,)),
    "column-generation": Method(
        _column_generation, refuses=(_relayed, _connected), beside=_beside_set_partitioning
    ),
    "greedy": Method(_greedy, refuses=(_relayed,)),
    "local-search": Method(_local_search, refuses=(_relayed,)),
    "random": Method(_random, refuses=(_relayed,)),
    "learned": Method(_learned, LEARNED_OPTIONS, refuses=(_relayed, no_policy)),
    "single": Method(_single, refuses=(_relayed,)),
    "metis": Method(_metis, refuses=(_relayed, _hosts_alone)),
}
