"""Explanation of a plan, or of a result without one."""

from __future__ import annotations

from pathlib import Path

from ...instances import (
    Cluster,
    DeviceMapping,
    InputError,
    PipelineJob,
    Plan,
    Planned,
    Problem,
    Sharding,
    Throughput,
    Workload,
    plan_of,
)
from ...instances.formats.files import load
from ...runtime import evaluate
from ...runtime.verify.report import loads_of
from ...solvers import Limits
from ..solve import solve
from .crossings import crossings
from .explanation import Explanation
from .feasibility import made_feasible
from .limiting import limiting, reasons
from .moves import moves
from .remedies import remedies


def explain(
    workload: Workload | str | Path,
    plan: Plan | Planned | None = None,
    *,
    cluster: Cluster | None = None,
    problem: Problem | None = None,
    node: object = None,
    seconds: float = 20.0,
    most: int = 10,
) -> Explanation:
    """Explain a plan: limiting device, costly transfers, remedies, places of nodes.

    Parameters
    ----------
    workload
        What the plan was made for; or its file, or the name of a shipped workload.
    plan
        A plan, or the result that holds it; default: what a search for `cluster` and `problem`
        finds, or why there is no plan, and how much memory, or how many devices, would do.
    cluster, problem
        In place of a plan, as for `solve`.
    node
        Id or name of a node: what it costs to have it, and what shares its colour, elsewhere.
    seconds
        For the searches: what would help is found by solving again, with one thing changed and
        the plan as a start, all changes together in this time. 0: not asked.
    most
        Number of transfers to list.

    Returns
    -------
    Explanation
        It shows itself as text. What it says of the plan is verified; of a change it gives the
        best plan found in the time, and the most that any plan could gain by its bound.

    Raises
    ------
    InputError
        If the plan was made for another workload or is a mapping, the result has none, or there
        is no such node.

    Examples
    --------
    >>> import stagecut
    >>> workload, cluster = stagecut.load("gpt2-xl"), stagecut.accelerators_and_cpus(2)
    >>> plan = stagecut.solve(workload, cluster, method="greedy").plan
    >>> print(stagecut.explain(workload, plan, seconds=0).reasons[0])  # doctest: +ELLIPSIS
    accelerator ... limits: in ... ms it is busy for ... ms (100 %), ... ms compute + ... transfers.
    """
    if not seconds >= 0:
        raise InputError(f"seconds: {seconds:g}; it must be at least 0")
    if not isinstance(workload, Workload):
        workload = load(workload)
    if plan is not None:
        plan = plan_of(plan)
    asked = problem if plan is None else plan.problem
    if isinstance(asked, Sharding):
        raise InputError(
            "explain: it takes no shardings; stagecut simulate shows what takes the time"
        )
    if isinstance(asked, DeviceMapping):
        raise InputError(
            "explain: it takes plans for throughput, pipelines and latency; for a "
            "mapping, stagecut solve shows the stages and the busiest link"
        )
    if plan is None:
        return _searched(workload, cluster, problem, node, seconds, most)
    plan.check_made_for(workload)
    report = evaluate(workload, plan.cluster, plan.problem, plan.solution)
    loads = loads_of(plan.problem, report)
    valid = not report.violations
    name = limiting(workload, plan, loads) if valid else ""
    return Explanation(
        plan=plan,
        unit=workload.time_unit,
        objective=report.objective,
        loads=loads,
        limiting=name,
        reasons=tuple(reasons(workload, plan, report, loads, name)),
        crossings=crossings(workload, plan, report, most) if valid and most > 0 else (),
        remedies=remedies(workload, plan, seconds) if seconds else (),
        node=None if node is None else moves(workload, plan, node),
    )


def _searched(
    workload: Workload,
    cluster: Cluster | None,
    problem: Problem | None,
    node: object,
    seconds: float,
    most: int,
) -> Explanation:
    """Explain the plan that a search finds, or that there is none."""
    if not seconds:
        raise InputError("seconds: 0; without a plan a search must have time: give more")
    half = seconds / 2
    result = solve(workload, cluster, problem, limits=Limits(seconds=half, gap=0.01))
    if result.plan is not None:
        return explain(workload, result.plan, node=node, seconds=half, most=most)
    cluster = cluster or workload.cluster
    assert cluster is not None  # or there would be no result
    why = f"Infeasible: {result.reason}."
    if result.status != "infeasible":
        why = f"No plan was found within {half:g} s, and none was ruled out."
    return Explanation(
        plan=None,
        unit=workload.time_unit,
        objective=float("inf"),
        loads=(),
        limiting="",
        reasons=(why,),
        remedies=made_feasible(workload, cluster, problem or _usual(workload), half),
    )


def _usual(workload: Workload) -> Problem:
    """Return the problem that `solve` takes where none is given."""
    return Throughput() if workload.layers is None else PipelineJob().for_workload(workload)
