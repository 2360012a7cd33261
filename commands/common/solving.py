"""What all commands do that solve: show the progress, judge the plan, and write it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...instances import Cluster, Problem, Workload
from ...instances.model.problem import objective_unit
from .clock import STARTED
from .console import progress

if TYPE_CHECKING:
    from ...runtime.verify.report import Report
    from ...solvers import Result


def solve_and_save(
    workload: Workload,
    cluster: Cluster | None,
    problem: Problem,
    output: Path | None,
    **options: Any,
) -> tuple[Result, Report | None]:
    """Solve, with a deadline from the start of the process; save the plan, if there is one.

    Parameters
    ----------
    output
        File of the plan; None for none.
    options
        As `solve_with` takes them.

    Returns
    -------
    result, report
        What the solver found, and what the verifier says of it; None without a plan.
    """
    from ...api.solve import solve_with
    from ...instances.formats.files import save
    from ...runtime import evaluate

    with progress(objective_unit(problem, workload.time_unit)) as on_progress:
        result = solve_with(
            workload, cluster, problem, on_progress=on_progress, started=STARTED, **options
        )
    plan = result.plan
    if plan is None:
        return result, None
    report = evaluate(workload, plan.cluster, problem, plan.solution)
    if output is not None:
        save(plan, output, workload)
    return result, report
