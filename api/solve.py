"""The front door in Python: solve a workload, get a verified plan."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from ..formulations.task import Task, pose
from ..instances import (
    Cluster,
    DeviceMapping,
    InputError,
    Limit,
    PipelineJob,
    PipelinePlacement,
    PlacementRules,
    Plan,
    Planned,
    Problem,
    Sharding,
    Solution,
    Throughput,
    Workload,
    accelerators_and_cpus,
    gap_between,
    is_iteration,
    plan_of,
)
from ..instances.common.quantities import show_percent
from ..instances.formats.files import load
from ..instances.model.problem import suggested_cluster
from ..instances.model.solution import on_cluster
from ..solvers import (
    DEFAULT_LIMITS,
    Limits,
    Progress,
    Result,
    Search,
    split_argument,
    supported_method,
)
from ..solvers.core.limits import checked
from ..solvers.core.portfolio.shared_search import SharedSearch
from ..solvers.core.portfolio.workers import Workers
from ..solvers.core.session import run_session
from .judge import Judge
from .versions import installed

#: Part of the time of a search that looking for a faster plan in pieces may take.
PIECES_SHARE = 0.05

#: A plan in pieces is worth a note if it is faster by this much, relatively.
WORTH_SAYING = 1e-3


def solve(
    workload: Workload | str | Path,
    cluster: Cluster | None = None,
    problem: Problem | None = None,
    *,
    method: str = "auto",
    limits: Limits | None = None,
    start: Plan | Planned | None = None,
    on_progress: Callable[[Progress], None] | None = None,
    solver: str = "highs",
    workers: Workers | int | None = None,
) -> Result:
    """Plan where the nodes of `workload` run.

    Parameters
    ----------
    workload
        What runs; or its file, or the name of a shipped workload, as for `load`.
    cluster
        Where it can run; default: for a mapping the devices of its topology, else the cluster
        that the workload's file suggests, for an iteration without its CPUs.
    problem
        What to minimise, and which splits are allowed; default: `PipelineJob()` for a
        workload with layer configurations, else `Throughput()`.
    method
        ``auto`` chooses and says what it chose; others: `stagecut.METHODS`. What some read
        follows a colon: ``deepspeed-type:REGEX``.
    limits
        How long and how well; default: 60 s and a gap of 1 %, or of 0.01 % while that is cheap
        (`Limits.patience`), for mappings of 0, as `stagecut.solvers.DEFAULT_LIMITS` says.
        ``Limits()`` is without limits.
    start
        A plan to start from, or the result that holds it, for this cluster or another one whose
        devices in use this one has.
    on_progress
        Called with every better incumbent or bound.
    solver
        Solver of integer programs: ``highs``, or one that Pyomo knows, for the methods that
        state their program in Pyomo, as `stagecut.METHODS` says.
    workers
        How many processes search at a time, and where: see `Workers`. Default: one per core; those
        beside this one start after `START_AFTER_S` seconds, for methods that have something for
        them to do.

    Returns
    -------
    Result
        With the plan, if there is one, evaluated from its definition. Running out of time or
        Ctrl-C end the search with what it has.

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
    options = {} if solver == "highs" else {"solver": solver}
    return solve_with(
        workload,
        cluster,
        problem,
        method=method,
        limits=limits,
        start=start,
        on_progress=on_progress,
        options=options,
        workers=workers,
    )


def solve_with(
    workload: Workload | str | Path,
    cluster: Cluster | None = None,
    problem: Problem | None = None,
    *,
    method: str = "auto",
    limits: Limits | None = None,
    start: Plan | Planned | None = None,
    on_progress: Callable[[Progress], None] | None = None,
    options: Mapping[str, str] | None = None,
    started: float | None = None,
    workers: Workers | int | None = None,
) -> Result:
    """Solve, with what only the command line and comparisons of methods give.

    Parameters
    ----------
    workload, cluster, problem, method, limits, start, on_progress, workers
        As in `solve`.
    options
        What only some methods read, as `stagecut.METHODS` says, which must read it then.
    started
        `time.monotonic()` from which the deadline counts; default: now.

    Returns
    -------
    Result
        As of `solve`.

    Raises
    ------
    InputError
        As `solve`, and for an option that the method does not read.
    """
    workload, cluster, problem = chosen(workload, cluster, problem)
    limits = DEFAULT_LIMITS[problem.name] if limits is None else checked(limits)
    if start is not None:
        start = plan_of(start)
        start.check_made_for(workload)
        start = _on(start, cluster)
    name, argument = split_argument(problem.name, method)
    task = pose(workload, cluster, problem, start, {**(options or {}), **argument})
    chosen_method = supported_method(task, name)

    judge = Judge(workload, cluster, problem)
    ties = judge.tie if isinstance(problem, DeviceMapping) else None
    search = SharedSearch(limits, judge, on_progress, started, ties)
    search.method = name
    run_session(task, chosen_method, search, start, workers)
    if name == "auto" and is_iteration(problem):
        _say_pieces(task, problem, search)
    return _result(workload, cluster, problem, search)


def chosen(
    workload: Workload | str | Path, cluster: Cluster | None, problem: Problem | None
) -> tuple[Workload, Cluster, Problem]:
    """Return what is planned where: what is not given, by default.

    Raises
    ------
    InputError
        If the workload cannot be read, or no cluster is known.
    """
    if not isinstance(workload, Workload):
        workload = load(workload)
    if cluster is None and isinstance(problem, DeviceMapping):
        cluster = accelerators_and_cpus(problem.topology.size)
    if cluster is None and isinstance(problem, Sharding):
        cluster = accelerators_and_cpus(problem.mesh.size)
    problem = problem or (Throughput() if workload.layers is None else PipelineJob())
    if isinstance(problem, PipelineJob):
        problem = problem.for_workload(workload)
    cluster = cluster or suggested_cluster(workload, problem.name)
    if cluster is None:
        raise InputError(f"{workload.name}: it suggests no cluster; give one")
    return workload, cluster, problem


def _on(start: Plan, cluster: Cluster) -> Plan:
    """Return a start for a cluster that has its devices, with other numbers or memories perhaps."""
    if start.cluster == cluster:
        return start
    try:
        solution = on_cluster(start.solution, start.cluster, cluster)
    except InputError as error:
        raise InputError(f"start: {error}; plan without it") from None
    return replace(start, cluster=cluster, solution=solution)


def _say_pieces(task: Task[Problem], problem: PipelineJob, search: Search[Solution]) -> None:
    """Note that a plan in pieces is faster than the chain found, where a short look shows one."""
    chain, seconds = search.best, PIECES_SHARE * search.seconds
    plain = problem.chunks_per_device == 1 and not (problem.order or problem.relayed)
    free = problem.placement_rules == PlacementRules() and problem.split == "contiguous"
    if not (isinstance(chain, PipelinePlacement) and plain and free):
        return
    if search.hit != Limit.NONE or search.seconds_left < 2 * seconds:
        return
    from ..solvers.job.iteration.pieces import pieces_from_chain

    like = replace(problem, split="noncontiguous")
    asked = pose(task.workload, task.cluster, like)
    found = pieces_from_chain(asked, chain, seconds)
    change = gap_between(search.objective, Judge(task.workload, task.cluster, like)(found))
    if change > WORTH_SAYING:
        search.note(f"in pieces: {show_percent(-change, signed=True)} (--split noncontiguous)")


def _result(
    workload: Workload, cluster: Cluster, problem: Problem, search: Search[Solution]
) -> Result:
    versions = {"stagecut": installed("stagecut"), "highspy": installed("highspy")}
    plan = None
    if search.best is not None:
        plan = Plan(
            workload_name=workload.name,
            workload_fingerprint=workload.fingerprint,
            cluster=cluster,
            problem=problem,
            solution=search.best,
            objective=search.objective,
            bound=search.bound,
            method=search.method,
            time_unit=workload.time_unit,
            certificate={"origin": search.bound_origin, **search.certificate},
            provenance={**versions, "seed": search.limits.seed},
        )
    return Result(
        status=search.status,
        limit=search.hit,
        plan=plan,
        bound=search.bound,
        bound_origin=search.bound_origin,
        method=search.method,
        seconds=search.seconds,
        trace=tuple(search.trace),
        phases=dict(search.phases),
        versions=versions,
        notes=tuple(search.notes),
        reason=search.infeasible_because or "",
    )
