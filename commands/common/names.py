"""Names that options take: for help texts, and for the shell to complete.

Help answers at once, so what is slow to import is imported when the shell completes a name.
"""

from __future__ import annotations

from collections.abc import Callable

from ...instances.common.choices import NAMED_SCHEDULES, PipelineSchedule

Complete = Callable[[str], list[str]]

#: What `export` writes placements for.
LAUNCHERS = ("python", "csv", "torchtitan", "megatron", "deepspeed", "vllm", "accelerate")


def one_of(*names: str) -> Complete:
    """Return what completes the begin of a name.

    Examples
    --------
    >>> one_of("greedy", "gpipe", "milp")("g")
    ['greedy', 'gpipe']
    """
    return lambda incomplete: [name for name in names if name.startswith(incomplete)]


def complete_method(incomplete: str) -> list[str]:
    """Complete the name of a method of any problem."""
    from ...solvers import METHODS

    return one_of(*dict.fromkeys(name for methods in METHODS.values() for name in methods))(
        incomplete
    )


def complete_methods(incomplete: str) -> list[str]:
    """Complete the last of methods separated by commas."""
    before, comma, last = incomplete.rpartition(",")
    return [before + comma + name for name in complete_method(last)]


def complete_simulated(incomplete: str) -> list[str]:
    """Complete the name of a schedule of `simulate`."""
    from ...runtime.schedules import SCHEDULES

    return one_of(*SCHEDULES)(incomplete)


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
    from ...instances.generate.roofline import machine_names

    return one_of(*machine_names())(incomplete)


def complete_description(incomplete: str) -> list[str]:
    """Complete the name of a shipped model description."""
    from ...instances.costs.models import shipped_models

    return one_of(*shipped_models())(incomplete)


def complete_recipe(incomplete: str) -> list[str]:
    """Complete the name of a recipe of precisions."""
    from ...instances.costs.layout import RECIPES

    return one_of(*RECIPES)(incomplete)


LAUNCHER = one_of("run", *LAUNCHERS)
PROBLEM = one_of("throughput", "pipeline", "latency", "mapping", "sharding")
SCHEDULE = one_of(*NAMED_SCHEDULES, PipelineSchedule.STREAM, "all")
RUN_SCHEDULE = one_of(*NAMED_SCHEDULES, "pipedream", "2bw")
BATCH_SCHEDULE = one_of(*NAMED_SCHEDULES)
