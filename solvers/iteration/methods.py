"""The methods for iterations: solvers, imported when first run, and what they support."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ...formulations.task import Task
from ...instances import Iteration, PlacementRules, Solution
from ...instances.common.errors import quote
from ..core.method import READS_SOLVER, Method, SolverName, Strategy
from ..core.search import Search
from ..learned.options import LEARNED_OPTIONS, no_policy
from .turns import ANNEALING

#: Actions of all numbers of stages together, that the program has variables for.
MOST_ACTIONS = 50_000


def _beside(task: Task[Iteration]) -> Sequence[Strategy]:
    """Return what runs beside `auto`: what is no chain; annealing, and the program where small."""
    problem = task.problem
    if problem.split != "contiguous":
        return (
            Strategy(
                "pieces", SolverName("stagecut.solvers.iteration.pieces.pieces_search"), seeded=True
            ),
        )
    fits = METHODS["milp"].refuses
    small = all(refusal("milp", task) is None for refusal in fits)
    program = (
        (Strategy("milp", SolverName("stagecut.solvers.iteration.milp.milp")),) if small else ()
    )
    if problem.order or _rules_beyond_number(problem):
        return program  # annealing does not keep them
    return (
        Strategy(ANNEALING, SolverName("stagecut.solvers.iteration.beside.annealing"), seeded=True),
        *program,
    )


def _learned(task: Task[Iteration], search: Search[Solution]) -> None:
    from ..learned.method import learned
    from .frameworks import offer_defaults

    offer_defaults(task, search)
    learned(task, search)


def _chains_alone(name: str, task: Task[Iteration]) -> str | None:
    if task.problem.split != "contiguous":
        return f"method: {name} is for contiguous splits; use auto, or split contiguous"
    return None


def _one_kind(name: str, task: Task[Iteration]) -> str | None:
    problem = task.problem
    if (reason := _chains_alone(name, task)) is not None:
        return reason
    if problem.overlap:
        return f"method: {name} does not know transfers beside compute; use auto or dp"
    if task.cluster.links:
        return f"method: {name} does not know links between devices; use auto or dp"
    kinds = sum(kind.count > 0 for kind in task.cluster.kinds)
    if kinds > 1:
        return f"method: {name} is for devices of one kind, and there are {kinds}; use auto or dp"
    return None


def _small(name: str, task: Task[Iteration]) -> str | None:
    problem, chunks = task.problem, task.problem.chunks_per_device
    most = min(task.cluster.size, task.workload.n)
    most = min(most, problem.placement_rules.max_stages or most)
    stages = chunks * most * (most + 1) // 2
    if problem.order:
        stages = len(problem.order.device)
    actions = 2 * problem.microbatches * stages
    if actions > MOST_ACTIONS:
        return (
            f"method: {name} is for small cases, of at most {MOST_ACTIONS} passes over all numbers "
            f"of stages, and this has {quote(actions)}; use auto or dp"
        )
    return None


def _no_regex(method: str, task: Task[Iteration]) -> str | None:
    try:
        re.compile(task.options.get("type", ""))
    except re.error as error:
        return f"type: {quote(task.options['type'])} is no regular expression for {method}: {error}"
    return None


def _rules_beyond_number(problem: Iteration) -> bool:
    """Whether there are rules besides that for the number of stages."""
    rules = problem.placement_rules
    return rules != PlacementRules(max_stages=rules.max_stages)


def _no_rules(name: str, task: Task[Iteration]) -> str | None:
    if not _rules_beyond_number(task.problem):
        return None
    return f"method: {name} divides by its own rule and keeps no placement rules; use auto or dp"


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
    "auto": Method(SolverName("stagecut.solvers.iteration.auto.auto"), beside=_beside),
    "dp": Method(SolverName("stagecut.solvers.iteration.exact.chain_search")),
    "milp": Method(
        SolverName("stagecut.solvers.iteration.milp.milp"),
        READS_SOLVER,
        refuses=(_one_kind, _small),
    ),
    "learned": Method(_learned, LEARNED_OPTIONS, refuses=(_chains_alone, no_policy)),
    **{
        name: Method(
            SolverName("stagecut.solvers.iteration.frameworks.default_split", (name,)),
            refuses=(_no_rules,),
        )
        for name in RULES
    },
    "deepspeed-type": Method(
        SolverName("stagecut.solvers.iteration.frameworks.default_split", ("deepspeed-type",)),
        {"type": ()},
        refuses=(_no_regex, _no_rules),
    ),
}
