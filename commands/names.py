"""Names that options take: for help texts, and for the shell to complete."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ..instances.common.choices import PipelineSchedule, TrainingSchedule
from ..instances.generate.catalogue import CATALOGUE
from ..instances.generate.roofline import MACHINES
from ..instances.topologies.generators import RANDOM, REGULAR
from ..solvers import METHODS
from .pose import OBJECTIVES

Complete = Callable[[str], list[str]]


def one_of(*names: str) -> Complete:
    """Return what completes the begin of a name.

    Examples
    --------
    >>> one_of("greedy", "gpipe", "milp")("g")
    ['greedy', 'gpipe']
    """

    def complete(incomplete: str) -> list[str]:
        return [name for name in names if name.startswith(incomplete)]

    return complete


def several_of(*names: str) -> Complete:
    """Return what completes the last of names separated by commas."""
    last_of = one_of(*names)

    def complete(incomplete: str) -> list[str]:
        before, comma, last = incomplete.rpartition(",")
        return [before + comma + name for name in last_of(last)]

    return complete


def _all(tables: Iterable[Iterable[str]]) -> list[str]:
    """Return each name once, in the order in which they come."""
    return list(dict.fromkeys(name for table in tables for name in table))


def methods_help(*problems: str) -> str:
    """Return the names of the methods of some problems as a help text lists them."""
    return "; ".join(f"{problem}: {', '.join(METHODS[problem])}" for problem in problems)


SOLVED = ("throughput", "iteration", "latency", "training")
OBJECTIVE = one_of(*(name for name in OBJECTIVES if name in SOLVED))
METHOD = one_of(*_all(METHODS[problem] for problem in SOLVED))
METHOD_LIST = several_of(*_all(METHODS[problem] for problem in SOLVED))
MAPPING_METHOD = one_of(*METHODS["mapping"])
SCHEDULE = one_of(*_all((PipelineSchedule, TrainingSchedule, ["all"])))
RUN_SCHEDULE = one_of(*_all((PipelineSchedule, [TrainingSchedule.PIPEDREAM, "2bw"])))
BATCH_SCHEDULE = one_of(*PipelineSchedule)
SOLVER = one_of("highs", "glpk", "cbc", "scip", "gurobi", "cplex")
TOPOLOGY = one_of(*(f"{kind}:" for kind in (*REGULAR, *RANDOM, "nvidia")))
WORKLOAD = one_of(*sorted(CATALOGUE))
MACHINE = one_of(*MACHINES)
