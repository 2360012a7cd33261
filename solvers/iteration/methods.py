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


def _by_rule(rule: str) -> Solver[Iteration]:
    def solve(task: Task[Iteration], search: Search[Solution]) -> None:
        from . import frameworks

        frameworks.offer_split(getattr(frameworks, rule), task, search)

    return solve


def _no_regex(method: str, task: Task[Iteration]) -> str | None:
    try:
        re.compile(task.options.get("type", ""))
    except re.error as error:
        return f"type: {quote(task.options['type'])} is no regular expression for {method}: {error}"
    return None


#: By name.
METHODS: dict[str, Method[Iteration]] = {
    "auto": Method(_auto),
    "dp": Method(_dp),
    "megatron": Method(_by_rule("megatron")),
    "vllm": Method(_by_rule("vllm")),
    "torchtitan": Method(_by_rule("torchtitan")),
    "deepspeed-uniform": Method(_by_rule("deepspeed_uniform")),
    "deepspeed-parameters": Method(_by_rule("deepspeed_parameters")),
    "deepspeed-type": Method(_by_rule("deepspeed_type"), {"type": ()}, refuses=(_no_regex,)),
    "accelerate-balanced": Method(_by_rule("accelerate_balanced")),
    "block-dp": Method(_by_rule("block_dp")),
}
