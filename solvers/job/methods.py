"""Table of the methods for pipelines: their solvers, options, and the tasks that they refuse.

A solver is imported when it first runs. `auto`, `dp` and `milp` each name two solvers: one for
streams, one for iterations.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from ...formulations.task import Task
from ...instances import PipelineJob, PlacementRules, Solution, is_stream
from ...instances.common.errors import quote
from ..core.method import READS_SOLVER, Method, SolverName, Strategy
from ..core.search import Search
from ..learned import LEARNED_OPTIONS, no_policy

#: Name of the annealing that runs beside `auto`.
ANNEALING = "annealing"

#: Most actions, over all numbers of stages together, for which the integer program is stated.
MOST_ACTIONS = 50_000


def _strategies(task: Task[PipelineJob]) -> Sequence[Strategy]:
    """Return the strategies beside `auto`: pieces, or annealing and, on small tasks, `milp`."""
    problem = task.problem
    if is_stream(problem):
        return ()
    if problem.split != "contiguous":
        return (
            Strategy(
                "pieces",
                SolverName("stagecut.solvers.job.iteration.pieces.pieces_search"),
                seeded=True,
            ),
        )
    fits = METHODS["milp"].refuses
    small = all(refusal("milp", task) is None for refusal in fits)
    program = (Strategy("milp", SolverName("stagecut.solvers.job.milp.milp")),) if small else ()
    if problem.order or _rules_beyond_number(problem):
        return program  # annealing does not keep them
    return (
        Strategy(
            ANNEALING, SolverName("stagecut.solvers.job.iteration.exact.annealing"), seeded=True
        ),
        *program,
    )


def _learned(task: Task[PipelineJob], search: Search[Solution]) -> None:
    from ..learned.method import learned
    from .iteration.frameworks import offer_defaults

    offer_defaults(task, search)
    learned(task, search)


def _streams_alone(name: str, task: Task[PipelineJob]) -> str | None:
    if is_stream(task.problem):
        return None
    return f"method: {name} is for the schedule stream; use auto"


def _iterations_alone(name: str, task: Task[PipelineJob]) -> str | None:
    if not is_stream(task.problem):
        return None
    return f"method: {name} is for schedules of M microbatches, not for a stream; use auto"


def _links(_method: str, task: Task[PipelineJob]) -> str | None:
    if not is_stream(task.problem) or not task.cluster.links:
        return None
    return "cluster: the schedule stream takes no links between devices; remove them"


def _option_of_streams(name: str, task: Task[PipelineJob]) -> str | None:
    if is_stream(task.problem) or "start" not in task.options:
        return None
    return f"start: {name} reads it for the schedule stream alone; leave it out"


def _chains_alone(name: str, task: Task[PipelineJob]) -> str | None:
    if task.problem.split != "contiguous":
        return f"method: {name} is for contiguous splits; use auto, or split contiguous"
    return None


def _one_kind(name: str, task: Task[PipelineJob]) -> str | None:
    problem = task.problem
    if is_stream(problem):
        return None
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


def _small(name: str, task: Task[PipelineJob]) -> str | None:
    if is_stream(task.problem):
        return None
    problem, chunks = task.problem, task.problem.chunks_per_device
    most = min(task.cluster.size, task.workload.n)
    most = min(most, problem.placement_rules.max_stages or most)
    stages = chunks * most * (most + 1) // 2
    if problem.order:
        stages = len(problem.order.device)
    actions = 2 * problem.batch * stages
    if actions > MOST_ACTIONS:
        return (
            f"method: {name} is for small cases, of at most {MOST_ACTIONS} passes over all numbers "
            f"of stages, and this has {quote(actions)}; use auto or dp"
        )
    return None


def _no_regex(method: str, task: Task[PipelineJob]) -> str | None:
    try:
        re.compile(task.options.get("type", ""))
    except re.error as error:
        return f"type: {quote(task.options['type'])} is no regular expression for {method}: {error}"
    return None


def _rules_beyond_number(problem: PipelineJob) -> bool:
    """Whether there are placement rules other than `max_stages`."""
    rules = problem.placement_rules
    return rules != PlacementRules(max_stages=rules.max_stages)


def _no_rules(name: str, task: Task[PipelineJob]) -> str | None:
    if not _rules_beyond_number(task.problem):
        return None
    return (
        f"method: {name} divides by its own rule and keeps no placement rules but max_stages; "
        "use auto or dp"
    )


#: Methods that split as frameworks do by default.
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

#: Methods for pipelines by name.
METHODS: dict[str, Method[PipelineJob]] = {
    "auto": Method(
        SolverName("stagecut.solvers.job.auto.auto"), refuses=(_links,), strategies=_strategies
    ),
    "dp": Method(SolverName("stagecut.solvers.job.auto.dp"), refuses=(_links,)),
    "milp": Method(
        SolverName("stagecut.solvers.job.milp.milp"),
        {**READS_SOLVER, "start": ("none",)},
        refuses=(_links, _option_of_streams, _one_kind, _small),
    ),
    "piper": Method(
        SolverName("stagecut.solvers.job.stream.dp.piper"), refuses=(_streams_alone, _links)
    ),
    **{
        name: Method(
            SolverName(f"stagecut.solvers.job.stream.baselines.{function}"),
            reads,
            refuses=(_streams_alone, _links, _no_rules),
        )
        for name, function, reads in (
            ("equal-stages", "equal_stages", {"stages": ()}),
            ("data-parallel", "data_parallel", {}),
            ("pipedream", "pipedream", {}),
        )
    },
    "learned": Method(
        _learned, LEARNED_OPTIONS, refuses=(_iterations_alone, _chains_alone, no_policy)
    ),
    **{
        name: Method(
            SolverName("stagecut.solvers.job.iteration.frameworks.default_split", (name,)),
            {"type": ()} if name == "deepspeed-type" else {},
            refuses=(_iterations_alone, _no_regex, _no_rules),
        )
        for name in RULES
    },
}
