"""Verification of plans: objective, loads and rules from the definition of each problem."""

from __future__ import annotations

import math
from dataclasses import replace

from ...instances import (
    CallPlacement,
    Cluster,
    DeviceMapping,
    Latency,
    PipelineJob,
    PipelinePlacement,
    Placement,
    Plan,
    Planned,
    Problem,
    ReplicaPlacement,
    Sharding,
    Solution,
    StagePlacement,
    TensorSharding,
    Throughput,
    VerificationError,
    Workload,
    is_iteration,
    is_stream,
    plan_of,
)
from . import job, latency, mapping, sharding, throughput
from .report import Report
from .rules import broken_rules

#: Largest relative excess of a claim over what is computed anew: rounding of sums.
CLAIM_TOLERANCE = 1e-9


def evaluate(workload: Workload, cluster: Cluster, problem: Problem, solution: Solution) -> Report:
    """Return objective, loads and broken rules of a solution of `problem`.

    Parameters
    ----------
    workload, cluster, problem
        Instance that the solution was made for.
    solution
        Solution of the problem's type: `Placement` for `Throughput`, `CallPlacement` for `Latency`,
        `StagePlacement` or `PipelinePlacement` for a `PipelineJob` that is a stream or an
        iteration, `ReplicaPlacement` for `DeviceMapping`, `TensorSharding` for `Sharding`.

    Returns
    -------
    Report
        For a mapping a `MappingReport`, for a sharding a `ShardingReport`. Broken rules are
        listed, not raised.

    Raises
    ------
    VerificationError
        If the solution is of another problem's type.

    Examples
    --------
    >>> import stagecut
    >>> workload = stagecut.load("gpt2-xl")
    >>> cluster = stagecut.accelerators_and_cpus(2)
    >>> plan = stagecut.solve(workload, cluster, method="greedy").plan
    >>> evaluate(workload, cluster, plan.problem, plan.solution).violations
    ()
    """
    if isinstance(problem, PipelineJob):
        problem = problem.for_workload(workload)
    report = _of_problem(workload, cluster, problem, solution)
    if math.isinf(report.objective):
        return report
    broken = broken_rules(workload, cluster, problem, solution)
    return replace(report, violations=(*report.violations, *broken)) if broken else report


def _of_problem(
    workload: Workload, cluster: Cluster, problem: Problem, solution: Solution
) -> Report:
    """Return the report of a problem's module, without placement rules."""
    match problem, solution:
        case Throughput(), Placement():
            return throughput.check(workload, cluster, problem, solution)
        case PipelineJob(), PipelinePlacement() if is_iteration(problem):
            return job.check_iteration(workload, cluster, problem, solution)
        case PipelineJob(), StagePlacement() if is_stream(problem):
            return job.check_stream(workload, cluster, problem, solution)
        case Latency(), CallPlacement():
            return latency.check(workload, cluster, problem, solution)
        case DeviceMapping(), ReplicaPlacement():
            return mapping.check(workload, cluster, problem, solution)
        case Sharding(), TensorSharding():
            return sharding.check(workload, cluster, problem, solution)
    raise VerificationError(
        f"a {type(solution).__name__} is no solution of {problem.name}: plan again"
    )


def verify(workload: Workload, plan: Plan | Planned) -> Report:
    """Check a plan: every rule, and its claims against what the definition gives.

    Parameters
    ----------
    workload
        Workload that the plan was made for.
    plan
        A plan, or the `Result` that holds it.

    Returns
    -------
    Report
        The recomputed objective and loads.

    Raises
    ------
    InputError
        If the plan was made for another workload.
    VerificationError
        If the solution breaks a rule, the objective differs from the recomputed one, or the
        bound is above that.

    Examples
    --------
    >>> import stagecut
    >>> workload = stagecut.load("gpt2-xl")
    >>> cluster = stagecut.accelerators_and_cpus(2)
    >>> plan = stagecut.solve(workload, cluster, method="greedy").plan
    >>> verify(workload, plan).objective == plan.objective
    True
    """
    plan = plan_of(plan)
    plan.check_made_for(workload)
    if len(plan.placement) != workload.n:
        raise VerificationError(
            f"plan: it places {len(plan.placement)} nodes; {workload.name} has {workload.n}"
        )
    report = evaluate(workload, plan.cluster, plan.problem, plan.solution)
    problems = list(report.violations)
    if not math.isclose(plan.objective, report.objective, rel_tol=CLAIM_TOLERANCE):
        problems.append(f"it claims objective {plan.objective!r}; it is {report.objective!r}")
    if not plan.bound <= report.objective * (1 + CLAIM_TOLERANCE):
        problems.append(f"it claims bound {plan.bound!r}, above its objective {report.objective!r}")
    if problems:
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        raise VerificationError(f"plan: {problems[0]}{more}")
    return report
