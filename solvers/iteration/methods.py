"""The methods for iterations: solvers, imported when first run, and what they support."""

from __future__ import annotations

import re

from ...formulations.task import Task
from ...instances import Iteration, Solution
from ...instances.model.errors import quote
from ..core.method import Method, Solver
from ..core.search import Search


def _auto(task: Task[Iteration], search: Search[Solution]) -> None:
    from .auto import auto

    auto(task, search)


def _dp(task: Task[Iteration], search: Search[Solution]) -> None:
    from .exact import chain_search

    chain_search(task, search)


def _by_rule(name: str) -> Solver[Iteration]:
    def solve(task: Task[Iteration], search: Search[Solution]) -> None:
        from .frameworks import BY_NAME, offer_split

        offer_split(BY_NAME[name], task, search)

    return solve


def _no_regex(method: str, task: Task[Iteration]) -> str | None:
    try:
        re.compile(task.options.get("type", ""))
    except re.error as error:
        return f"type: {quote(task.options['type'])} is no regular expression for {method}: {error}"
    return None


#: What frameworks do by default.
RULES = (
    "megatron",
    "vllm",
    "torchtitan",
    "deepspeed-uniform",
    "deepspeed-parameters",
    "deepspeed-type",
    "accelerate-balanced",
    "block-dp",
)

#: By name.
METHODS: dict[str, Method[Iteration]] = {
    "auto": Method(_auto),
    "dp": Method(_dp),
    **{name: Method(_by_rule(name)) for name in RULES},
    "deepspeed-type": Method(_by_rule("deepspeed-type"), {"type": ()}, refuses=(_no_regex,)),
}
