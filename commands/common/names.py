"""Names that options take: for help texts, and for the shell to complete.

Help answers at once, so what is slow to import is imported when the shell completes a name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from importlib import import_module
from typing import Any

from ...instances.common.choices import NAMED_SCHEDULES, PipelineSchedule

Complete = Callable[[str], list[str]]

#: Formats and launchers that `stagecut export` writes placements for.
LAUNCHERS = ("python", "csv", "torchtitan", "megatron", "deepspeed", "vllm", "accelerate")


def one_of(*names: str) -> Complete:
    """Return a completion of beginnings of these names.

    Examples
    --------
    >>> one_of("greedy", "gpipe", "milp")("g")
    ['greedy', 'gpipe']
    """
    return lambda incomplete: [name for name in names if name.startswith(incomplete)]


def later(module: str, names: Callable[[Any], Iterable[str]]) -> Complete:
    """Return a completion of names from a module of the package, imported at the first request."""
    return lambda incomplete: one_of(*names(import_module(f"stagecut.{module}")))(incomplete)


complete_method = later(
    "solvers", lambda m: dict.fromkeys(name for methods in m.METHODS.values() for name in methods)
)
complete_simulated = later("runtime.schedules", lambda m: m.SCHEDULES)
complete_topology = later(
    "instances.topologies.named",
    lambda m: (f"{kind}:" for kind in (*m.REGULAR, *m.RANDOM, "nvidia")),
)
complete_workload = later("instances.generate.catalogue", lambda m: sorted(m.CATALOGUE))
complete_machine = later(
    "instances.costs.clusters", lambda m: (device.name for device in m.accelerators())
)
complete_description = later("instances.costs.models", lambda m: m.shipped_models())
complete_recipe = later("instances.costs.layout", lambda m: m.RECIPES)


def complete_methods(incomplete: str) -> list[str]:
    """Complete the last of methods separated by commas."""
    before, comma, last = incomplete.rpartition(",")
    return [before + comma + name for name in complete_method(last)]


LAUNCHER = one_of("run", *LAUNCHERS)
PROBLEM = one_of("throughput", "pipeline", "latency", "mapping", "sharding")
SCHEDULE = one_of(*NAMED_SCHEDULES, PipelineSchedule.STREAM, "all")
RUN_SCHEDULE = one_of(*NAMED_SCHEDULES, "pipedream", "2bw")
BATCH_SCHEDULE = one_of(*NAMED_SCHEDULES)
