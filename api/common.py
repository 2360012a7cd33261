"""Parts that api modules share: defaults of tasks, the judge of solutions, results, split files."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np

from ..instances import (
    Cluster,
    DeviceKind,
    DeviceMapping,
    InputError,
    PipelineJob,
    Plan,
    Problem,
    Sharding,
    Solution,
    Throughput,
    Topology,
    Workload,
    accelerators_and_cpus,
)
from ..instances.common.errors import quote
from ..instances.formats.files import load, load_split
from ..instances.model.completed import assumed
from ..instances.model.problem import suggested_cluster, usual_problem
from ..runtime import evaluate
from ..solvers import Result, Search
from .versions import installed


def with_defaults(
    workload: Workload | str | Path, cluster: Cluster | None, problem: Problem | None
) -> tuple[Workload, Cluster, Problem]:
    """Return workload, cluster and problem, with defaults for None; InputError if there is none."""
    if not isinstance(cluster, Cluster | None):
        raise InputError(
            f"cluster: {quote(cluster)}; give a Cluster, such as accelerators_and_cpus(4); names "
            "such as h100:8 are of a TrainingJob(global_batch=…)"
        )
    if problem is not None:
        checked_problem(problem)
    if not isinstance(workload, Workload):
        workload = load(workload)
    if cluster is None and isinstance(problem, DeviceMapping):
        cluster = devices_of(problem.topology)
    if cluster is None and isinstance(problem, Sharding):
        cluster = accelerators_and_cpus(problem.mesh.size)
    problem = problem or default_problem(workload)
    if isinstance(problem, PipelineJob):
        problem = problem.for_workload(workload)
    cluster = cluster or suggested_cluster(workload, problem.name)
    if cluster is None:
        raise InputError(f"{workload.name}: it suggests no cluster; give one")
    return workload, cluster, problem


def checked_problem(problem: Problem) -> Problem:
    """Return a problem; InputError if it is none on a workload, such as a training job."""
    if not isinstance(problem, Problem):
        raise InputError(f"problem: {quote(problem)}; give one, such as Throughput()")
    return problem


def default_problem(workload: Workload) -> Problem:
    """Return the default problem of a workload; InputError for a program, whose mesh it needs."""
    usual = usual_problem(workload)
    if usual == "sharding":
        raise InputError(
            f"problem: {workload.name} is a tensor program; give Sharding(mesh) of the devices' "
            "mesh, or another problem for its operators"
        )
    return Throughput() if usual == "throughput" else PipelineJob()


def devices_of(topology: Topology) -> Cluster:
    """Return the devices of a topology as a cluster; successive identical devices form a kind."""
    memory, slow = topology.memory_bytes, topology.slowdown
    changes = (memory[1:] != memory[:-1]) | (slow[1:] != slow[:-1])
    first = [0, *(np.flatnonzero(changes) + 1).tolist()]
    if len(first) == 1 and slow[0] == 1:
        return accelerators_and_cpus(topology.size, memory_bytes=float(memory[0]))
    return Cluster(
        tuple(
            DeviceKind(
                f"accelerator {k}",
                end - begin,
                float(memory[begin]),
                times="accelerator",
                slowdown=float(slow[begin]),
            )
            for k, (begin, end) in enumerate(pairwise([*first, topology.size]))
        )
    )


def result_of(
    workload: Workload, cluster: Cluster, problem: Problem, search: Search[Solution]
) -> Result:
    """Return the result of a search: plan, bound, status and notes."""
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
        notes=(*(f"assumed: {assumption}" for assumption in assumed(workload)), *search.notes),
        reason=search.infeasible_because or "",
    )


@dataclass(frozen=True, eq=False)
class Judge:
    """Verifier of a task's solutions: their objectives by definition."""

    workload: Workload  # workload, cluster, problem: of the task
    cluster: Cluster
    problem: Problem

    def __call__(self, solution: Solution) -> float:
        """Return the objective of a solution, `inf` if it breaks a rule."""
        report = evaluate(self.workload, self.cluster, self.problem, solution)
        return math.inf if report.violations else report.objective

    def tie(self, solution: Solution) -> float:
        """Return the tie-breaking key between solutions of one objective."""
        return evaluate(self.workload, self.cluster, self.problem, solution).tie


def plan_from_split(
    path: str | Path,
    workload: Workload,
    cluster: Cluster | None = None,
    problem: Throughput | None = None,
) -> Plan:
    """Return the plan that a split file (``{"fpgas": [{"nodes": […]}], "cpus": […]}``) describes.

    Parameters
    ----------
    path
        The split file.
    workload
        The workload that it splits; nodes that the file leaves out follow their colour.
    cluster
        Devices, in the order of the file's numbers; default: those that the workload suggests.
    problem
        Problem that defines the objective; default: `Throughput()`.

    Returns
    -------
    Plan
        Without a bound.

    Raises
    ------
    InputError
        If the file is broken, does not fit, or breaks a rule of the problem.

    Examples
    --------
    >>> import json, stagecut
    >>> from pathlib import Path
    >>> workload = stagecut.load("gpt2-xl")
    >>> parts = [{"nodes": list(workload.ids[:20])}, {"nodes": list(workload.ids[20:])}]
    >>> _ = Path("split.json").write_text(json.dumps({"fpgas": parts}))
    >>> stagecut.api.plan_from_split("split.json", workload).method
    'split file'
    """
    _, cluster, posed = with_defaults(workload, cluster, problem or Throughput())
    placement = load_split(path, workload, cluster)
    report = evaluate(workload, cluster, posed, placement)
    if report.violations:
        raise InputError(f"{path}: {report.violations[0]}; correct the split")
    return Plan(
        workload_name=workload.name,
        workload_fingerprint=workload.fingerprint,
        cluster=cluster,
        problem=posed,
        solution=placement,
        objective=report.objective,
        bound=-math.inf,
        method="split file",
        time_unit=workload.time_unit,
        provenance={"file": Path(path).name},
    )
