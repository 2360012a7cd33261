"""Solving of problems: from a workload, a cluster and a problem to a verified plan."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, cast, overload

from ..formulations.task import pose
from ..instances import (
    Cluster,
    DeviceMapping,
    InputError,
    PipelineJob,
    Plan,
    Planned,
    Problem,
    Solution,
    Tied,
    Workload,
    is_iteration,
    plan_of,
)
from ..instances.costs.description import ModelDescription
from ..instances.costs.hardware import TrainingCluster
from ..instances.job.problem import TrainingJob
from ..instances.model.solution import on_cluster
from ..instances.model.tied_weights import are_copied, tied_as
from ..solvers import (
    DEFAULT_LIMITS,
    Limits,
    Progress,
    Result,
    Search,
    split_argument,
    supported_method,
)
from ..solvers.core.limits import Workers, checked
from ..solvers.core.session import run_session
from .common import Judge, result_of, with_defaults

if TYPE_CHECKING:
    from .job import JobResult


@overload
def solve(
    workload: str | Path | ModelDescription,
    cluster: str | Path | TrainingCluster,
    problem: TrainingJob,
    *,
    limits: Limits | None = None,
) -> JobResult: ...


@overload
def solve(
    workload: Workload | str | Path,
    cluster: Cluster | None = None,
    problem: Problem | None = None,
    *,
    method: str = "auto",
    limits: Limits | None = None,
    start: Plan | Planned | None = None,
    on_progress: Callable[[Progress], None] | None = None,
    workers: Workers | int | None = None,
) -> Result: ...


def solve(
    workload: Workload | str | Path | ModelDescription,
    cluster: Cluster | str | Path | TrainingCluster | None = None,
    problem: Problem | TrainingJob | None = None,
    *,
    method: str = "auto",
    limits: Limits | None = None,
    start: Plan | Planned | None = None,
    on_progress: Callable[[Progress], None] | None = None,
    workers: Workers | int | None = None,
) -> Result | JobResult:
    """Plan where the nodes of `workload` run.

    Parameters
    ----------
    workload
        A workload, its file, or the name of a shipped one, as for `load`; for a training job a
        model, as for `estimate`.
    cluster
        Available devices; for a training job as for `estimate`. Default: for a mapping the devices
        of its topology, else the cluster that the workload's file suggests, for an iteration
        without its CPUs.
    problem
        Objective and allowed splits, or the `TrainingJob`; default: `PipelineJob()` for a workload
        with layer configurations, else `Throughput()`. A tensor program needs its `Sharding`.
    method
        ``auto``, which reports its choice, or one of `stagecut.METHODS`. A colon separates the
        argument of a method: ``milp:gurobi`` (a solver that Pyomo knows, in place of HiGHS),
        ``deepspeed-type:REGEX``, ``learned:FILE`` (a policy), ``learned:fine-tune=SECONDS``.
    limits
        Time and gap at which to stop; default: 60 s and a gap of 1 %, or of 0.01 % while that is
        cheap (`Limits.patience`), of 0 for mappings (`stagecut.solvers.DEFAULT_LIMITS`).
        ``Limits()`` is without limits.
    start
        A plan to start from, or the result that holds it, for this cluster or another one whose
        devices in use this one has.
    on_progress
        Called with every better incumbent or bound.
    workers
        Number and place of the processes that search: see `Workers`. Default: one per core; those
        beside this one start after `START_AFTER_S` seconds, for methods that have work for them.

    Returns
    -------
    Result
        With the plan, if there is one, evaluated from its definition. A time limit or Ctrl-C ends
        the search with its results so far. For a training job a `JobResult`: see `solve_job`, which
        has more parameters.

    Raises
    ------
    InputError
        If what is given is wrong or contradictory.

    Examples
    --------
    >>> from stagecut import accelerators_and_cpus
    >>> result = solve("gpt2-xl", accelerators_and_cpus(4), method="greedy")
    >>> result.status
    'feasible'
    """
    if isinstance(problem, TrainingJob):
        if isinstance(workload, Workload) or isinstance(cluster, Cluster) or cluster is None:
            raise InputError(
                "job: it takes a model such as llama3-70b and a cluster such as h100:8x8"
            )
        for name, given in (
            ("method", None if method == "auto" else method), ("start", start),
            ("on_progress", on_progress), ("workers", workers),
        ):  # fmt: skip
            if given is not None:
                raise InputError(f"{name}: a training job's search takes none; leave it out")
        from .job import solve_job

        return solve_job(workload, cluster, problem, limits=limits)
    if isinstance(workload, ModelDescription) or isinstance(cluster, TrainingCluster):
        raise InputError("problem: of a model description it is TrainingJob(global_batch=…)")
    # what is neither is told by `with_defaults`
    cluster = cast("Cluster | None", cluster)
    workload, cluster, problem = with_defaults(workload, cluster, problem)
    limits = DEFAULT_LIMITS[problem.name] if limits is None else checked(limits)
    if start is not None:
        start = plan_of(start)
        start.check_made_for(workload)
        start = _start_on(start, cluster)
    name, options = split_argument(problem.name, method)
    task = pose(workload, cluster, problem, start, options)
    chosen_method = supported_method(task, name)

    judge = Judge(workload, cluster, problem)
    ties = judge.tie if isinstance(problem, DeviceMapping) else None
    search = Search(limits, judge, on_progress, limits.since, ties)
    search.method = name
    if is_iteration(problem):
        _note_exchanges(workload, problem, search)
    run_session(task, chosen_method, search, start, workers)
    return result_of(workload, cluster, problem, search)


def _note_exchanges(workload: Workload, problem: PipelineJob, search: Search[Solution]) -> None:
    """Add a note if gradients of tied weights are exchanged with every microbatch."""
    if problem.batch > 1 and are_copied(workload) and any(tie.exchange for tie in workload.ties):
        once = tied_as(workload, Tied.COPIES, problem.batch)
        if once.fingerprint != workload.fingerprint:
            search.note(
                "tied weights: their gradients are exchanged with every microbatch here; the "
                f'workload tied_as(workload, "copies", {problem.batch}) exchanges them once a batch'
            )


def _start_on(start: Plan, cluster: Cluster) -> Plan:
    """Return a start moved to another cluster, which has all of its devices in use."""
    if start.cluster == cluster:
        return start
    try:
        solution = on_cluster(start.solution, start.cluster, cluster)
    except InputError as error:
        raise InputError(f"start: {error}; plan without it") from None
    return replace(start, cluster=cluster, solution=solution)
