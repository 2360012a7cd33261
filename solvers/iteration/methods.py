"""The methods for iterations: solvers, imported when first run, and what they support."""

from __future__ import annotations

from ...formulations.task import Task
from ...instances import Iteration, Solution
from ..core.method import Method
from ..core.search import Search


def _auto(task: Task[Iteration], search: Search[Solution]) -> None:
    from .auto import auto

    auto(task, search)


def _dp(task: Task[Iteration], search: Search[Solution]) -> None:
    from .exact import chain_search

    chain_search(task, search)


#: By name.
METHODS: dict[str, Method[Iteration]] = {
    "auto": Method(_auto),
    "dp": Method(_dp),
}
