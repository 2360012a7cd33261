"""`stagecut explain`: limits of a plan, and remedies."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .common import options
from .common.clock import seconds_left
from .common.console import (
    INFEASIBLE,
    OUT,
    check_outputs,
    end,
    print_json,
    refuse,
    tell_written,
)
from .common.pose import ProblemOptions, build, named_plan, state


def explain(
    workload: options.WorkloadArgument,
    plan: Annotated[
        Path | None,
        typer.Argument(
            help="A plan file; default: plan first, by the options. A training job's can "
            "stand alone."
        ),
    ] = None,
    node: Annotated[
        str | None, typer.Option(help="Why this node is where it is: its id or name.")
    ] = None,
    most: Annotated[int, typer.Option(min=0, help="Transfers to list.")] = 10,
    time_limit: Annotated[
        float,
        typer.Option(min=0, help="Seconds for all searches of what would help; 0: none."),
    ] = 20.0,
    problem: options.ProblemName = None,
    settings: options.Setting = None,
    microbatches: options.Microbatches = None,
    cluster: options.ClusterFile = None,
    accelerators: options.Accelerators = None,
    cpus: options.Cpus = None,
    memory: options.Memory = None,
    plot: Annotated[
        Path | None, typer.Option(help="Draw loads and memories: .png, .svg or .pdf.")
    ] = None,
    as_json: options.AsJson = False,
) -> None:
    """Say which device limits PLAN, which transfers cost most, what would help.

    Without PLAN it is planned first, by the options of solve; where there is none, it says why, and
    how much memory or how many devices would do. Exit codes: 2 bad input, 3 no plan.
    """
    from ..instances.formats.files import load, load_plan_with_form
    from ..instances.job.plan import is_job_plan

    check_outputs(pictures=[plot], inputs=[workload, plan, cluster])
    requested = ProblemOptions(
        problem, settings or (), cluster, accelerators, cpus, memory, microbatches=microbatches
    )
    model: str | None = workload
    if plan is None and is_job_plan(workload):
        model, plan = named_plan(workload, plan)
    if plan is not None and is_job_plan(plan):
        from .job import PLAN_SAYS, explain_job_plan

        refuse({"--node": node, **requested.given}, PLAN_SAYS)
        explain_job_plan(model, plan, time_limit, plot, as_json=as_json)
        return
    loaded = load(workload)
    from ..api.explain import explain as explain_plan  # once the files are there

    seconds = seconds_left(time_limit)
    if plan is not None:
        refuse(requested.given, "the plan says it")
        loaded, made = load_plan_with_form(plan, loaded)
        found = explain_plan(loaded, made, node=node, seconds=seconds, most=most)
    else:
        loaded, posed, devices = build(state(requested, loaded, ()), requested, loaded)
        found = explain_plan(
            loaded, cluster=devices, problem=posed, node=node, seconds=seconds, most=most
        )
    if plot is not None and found.plan is not None:
        from ..runtime import evaluate
        from ..runtime.pictures.charts import draw_loads

        report = evaluate(loaded, found.plan.cluster, found.plan.problem, found.plan.solution)
        draw_loads(report, found.plan, plot)
    if as_json:
        print_json({"workload": loaded.name, **found.to_dict()})
    else:
        OUT.print_line(str(found))
        if found.plan is not None:
            tell_written(plot)
    end(INFEASIBLE if found.plan is None else 0)
