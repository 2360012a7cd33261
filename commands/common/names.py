"""Names that options take: for help texts, and for the shell to complete.

Help and completion answer at once, so nothing slow is imported for them: methods and schedules are
listed again here, and a test holds the lists against the registries.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ...instances.common.choices import NAMED_SCHEDULES, PipelineSchedule

Complete = Callable[[str], list[str]]

#: Problem → names of its methods.
METHODS = {
    "throughput": (
        "auto", "dp", "linear-dp", "multilevel", "pipedream", "milp", "column-generation",
        "greedy", "local-search", "random", "learned", "single", "expert", "metis", "scotch",
    ),
    "pipeline": (
        "auto", "dp", "milp", "piper", "equal-stages", "data-parallel", "pipedream", "learned",
        "megatron", "vllm", "torchtitan", "deepspeed-uniform", "deepspeed-parameters",
        "deepspeed-type", "accelerate-balanced", "block-dp",
    ),
    "latency": (
        "auto", "dp", "milp", "milp-big-m", "lns", "linear", "greedy", "max-load", "learned",
    ),
    "mapping": ("auto", "layouts", "milp", "joint"),
    "sharding": (
        "auto", "elimination", "messages", "milp", "milp-compact", "local-search",
        "data-parallel", "fully-sharded", "megatron", "replicate", "communication-only",
    ),
}  # fmt: skip
#: What `export` writes placements for.
LAUNCHERS = ("python", "csv", "torchtitan", "megatron", "deepspeed", "vllm", "accelerate")
#: Schedules of `simulate`.
SIMULATED = (
    "gpipe", "1f1b", "interleaved", "pipedream", "2bw", "zb-h1", "zb-h2", "single", "inference",
)  # fmt: skip


def one_of(*names: str) -> Complete:
    """Return what completes the begin of a name.

    Examples
    --------
    >>> one_of("greedy", "gpipe", "milp")("g")
    ['greedy', 'gpipe']
    """
    return lambda incomplete: [name for name in names if name.startswith(incomplete)]


def complete_methods(incomplete: str) -> list[str]:
    """Complete the last of methods separated by commas."""
    before, comma, last = incomplete.rpartition(",")
    return [before + comma + name for name in METHOD(last)]


def complete_topology(incomplete: str) -> list[str]:
    """Complete the kind of a topology."""
    from ...instances.topologies.named import RANDOM, REGULAR

    return one_of(*(f"{kind}:" for kind in (*REGULAR, *RANDOM, "nvidia")))(incomplete)


def complete_workload(incomplete: str) -> list[str]:
    """Complete the name of a shipped workload; of a file the shell does."""
    from ...instances.generate.catalogue import CATALOGUE

    return one_of(*sorted(CATALOGUE))(incomplete)


def complete_machine(incomplete: str) -> list[str]:
    """Complete the name of an accelerator."""
    from ...instances.costs.clusters import accelerators

    return one_of(*(device.name for device in accelerators()))(incomplete)


def complete_description(incomplete: str) -> list[str]:
    """Complete the name of a shipped model description."""
    from ...instances.costs.models import shipped_models

    return one_of(*shipped_models())(incomplete)


def complete_recipe(incomplete: str) -> list[str]:
    """Complete the name of a recipe of precisions."""
    from ...instances.costs.layout import RECIPES

    return one_of(*RECIPES)(incomplete)


def _once(tables: Iterable[Iterable[str]]) -> list[str]:
    """Return each name once, in the order in which they come."""
    return list(dict.fromkeys(name for table in tables for name in table))


LAUNCHER = one_of("run", *LAUNCHERS)
PROBLEM = one_of(*METHODS)
METHOD = one_of(*_once(METHODS.values()))
SIMULATED_SCHEDULE = one_of(*SIMULATED)
SCHEDULE = one_of(*NAMED_SCHEDULES, PipelineSchedule.STREAM, "all")
RUN_SCHEDULE = one_of(*NAMED_SCHEDULES, "pipedream", "2bw")
BATCH_SCHEDULE = one_of(*NAMED_SCHEDULES)
