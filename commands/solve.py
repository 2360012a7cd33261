"""`stagecut solve`: plan a workload."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..instances import (
    DeviceMapping,
    InputError,
    PipelineJob,
    Plan,
    ReplicaPlacement,
    Sharding,
    is_iteration,
)
from ..instances.formats.problem_toml import Table
from .common import clock, options
from .common.console import (
    INFEASIBLE,
    NO_PLAN,
    OUT,
    check_outputs,
    check_plan_file,
    end,
    end_with,
    print_json,
    progress,
    refuse,
    show_count,
    tell_written,
)
from .common.launchers import exports_of, narrow_for_launcher
from .common.pose import (
    WORKERS,
    ProblemOptions,
    Statement,
    build,
    limits_of,
    load_workload,
    state,
    with_rings,
    workers_of,
)

if TYPE_CHECKING:
    from ..instances import Cluster, Workload
    from ..runtime import Report
    from ..solvers import Limits


def solve(
    workload: options.WorkloadArgument,
    problem: options.ProblemName = None,
    settings: options.Setting = None,
    split: options.PipelineSplit = None,
    microbatches: options.Microbatches = None,
    schedule: options.ScheduleOrAll = None,
    mesh: options.Mesh = None,
    cluster: options.ClusterFile = None,
    accelerators: options.Accelerators = None,
    cpus: options.Cpus = None,
    memory: options.Memory = None,
    launcher: options.For = None,
    method: Annotated[
        str,
        typer.Option(
            autocompletion=options.complete_method,
            show_default=False,
            help="auto (default) reports its choice; an unknown name lists all; with a colon: "
            "milp:gurobi, learned:FILE.",
        ),
    ] = "auto",
    time_limit: options.TimeLimit = None,
    gap: options.Gap = None,
    start: Annotated[Path | None, typer.Option(help="A plan file to start from.")] = None,
    output: options.PlanOutput = None,
    plot: Annotated[
        Path | None, typer.Option(help="Draw the plan: .png, .svg or, for most problems, .pdf.")
    ] = None,
    global_batch: options.GlobalBatch = None,
    sequence: options.SequenceTokens = None,
    as_json: options.AsJson = False,
) -> None:
    """Plan where the nodes of WORKLOAD run, with a bound on how good a plan can be.

    With --global-batch, plan how a model trains on a cluster: solve llama3-70b --cluster h100:8x8
    --global-batch 512; on h100, without a number, on 8 to 512 of them. What no option says stands
    in a problem file, or in --set: fields of the problem, limits.seed, limits.nodes, workers.count.
    Exit codes: 0 a plan, 2 bad input, 3 infeasible, 4 no plan within the limit.
    """
    from ..instances.formats.files import load_plan, save

    requested = ProblemOptions(
        problem, settings or (), cluster, accelerators, cpus, memory, split, microbatches,
        schedule, mesh, launcher,
    )  # fmt: skip
    if global_batch is not None:
        from .job import plan_job, state_job

        others: dict[str, object] = {"--start": start, "--method": method}
        ends = {"seconds": time_limit, "gap": gap}
        job = state_job([workload], requested, global_batch, sequence, ends, others)
        check_outputs(output, pictures=[plot], inputs=[workload, job.cluster])
        plan_job(workload, job, output, plot, as_json=as_json)
        return
    if sequence is not None:
        raise InputError("--sequence: it is for training jobs; give --global-batch, too")
    loaded = load_workload(workload)
    from ..api.solve import solve as solve_workload  # once the files are there
    from ..instances.model.problem import objective_unit
    from ..runtime import evaluate

    stated, requested = narrow_for_launcher(state(requested, loaded), requested, loaded)
    stated, ranked = _split_ranking(stated)
    loaded, posed, devices = build(stated, requested, loaded)
    posed = with_rings(stated, posed, method)
    check_outputs(output, pictures=[plot], inputs=[workload, start, *stated.files])
    check_plan_file(output)
    limits = replace(limits_of(stated, time_limit, gap), since=clock.STARTED)
    workers = workers_of(stated)
    if ranked is not None and is_iteration(posed) and devices is not None:
        others = {
            "--start": start,
            "--plot": plot,
            "workers": stated.others.get(WORKERS),
        }
        refuse(others, "not with --schedule all")
        _rank_schedules(
            loaded, devices, posed, ranked.get("chunks"), method, limits, output, as_json=as_json
        )
        return
    with progress(objective_unit(posed, loaded.time_unit)) as on_progress:
        result = solve_workload(
            loaded,
            devices,
            posed,
            method=method,
            limits=limits,
            start=None if start is None else load_plan(start, loaded),
            on_progress=on_progress,
            workers=workers,
        )
    plan, report = result.plan, None
    if plan is not None:
        report = evaluate(loaded, plan.cluster, posed, plan.solution)
        if output is not None:
            save(plan, output, loaded)
        if plot is not None:
            _draw(loaded, plan, report, plot)
    from .show.plan import as_dict, print_result

    if as_json:
        print_json(as_dict(loaded, posed, result, report))
    else:
        apart = isinstance(posed, DeviceMapping | Sharding)
        exports = "" if plan is None or apart else exports_of(loaded, plan, launcher)
        given = problem is not None or apart
        print_result(loaded, posed, result, report, exports, problem_given=given)
        if report is not None:
            tell_written(output, plot)
    end_with(result.status)


def _split_ranking(stated: Statement) -> tuple[Statement, Table | None]:
    """Return an iteration under ``--schedule all`` without its schedule's fields, and those.

    Any other problem is returned as it is, with None.
    """
    if stated.name != "pipeline" or stated.fields.get("schedule") != "all":
        return stated, None
    apart = {key: value for key, value in stated.fields.items() if key in ("schedule", "chunks")}
    kept = {key: value for key, value in stated.fields.items() if key not in apart}
    return replace(stated, fields=kept), apart


def _rank_schedules(
    workload: Workload,
    cluster: Cluster,
    problem: PipelineJob,
    chunks: int | None,
    method: str,
    limits: Limits,
    output: Path | None,
    *,
    as_json: bool,
) -> None:
    """Plan an iteration under every schedule, show the table, and write the best plan that fits."""
    from ..api.sweeps import rank_schedules
    from ..instances.formats.files import save
    from .show.plan import schedule_table

    with progress(workload.time_unit) as on_progress:
        ranked = rank_schedules(
            workload,
            cluster,
            problem,
            chunks=chunks,
            method=method,
            limits=limits,
            on_progress=on_progress,
        )
    best = ranked.iloc[0]
    if best["fits"] and output is not None:
        save(best["plan"], output, workload)
    if as_json:
        rows = ranked.drop(columns="plan").to_dict("records")
        head = {"workload": workload.name, "problem": problem.name, "time_unit": workload.time_unit}
        print_json({**head, "microbatches": problem.batch, "schedules": rows})
    else:
        title = f"{workload.name}: {show_count(problem.batch, 'microbatch')}"
        unit = "" if workload.time_unit == "unspecified" else f" ({workload.time_unit})"
        OUT.print(schedule_table(ranked, title, unit))
        for row in ranked[~ranked["fits"].astype(bool)].to_dict("records"):
            why = row["reason"] or "no plan found that fits; what is shown needs more memory"
            OUT.print_line(f"{row['schedule']}: {why}")
        if best["fits"] and output is not None:
            OUT.print_line(f"written: {output}, {best['schedule']}")
    if not best["fits"]:
        infeasible = (ranked["status"] == "infeasible").all()
        end(INFEASIBLE if infeasible else NO_PLAN)
    end(0)


def _draw(workload: Workload, plan: Plan, report: Report, path: Path) -> None:
    """Draw a plan: loads of devices, stages on a topology, or a graph coloured by property."""
    problem, solution = plan.problem, plan.solution
    if isinstance(problem, DeviceMapping) and isinstance(solution, ReplicaPlacement):
        from ..runtime.pictures.graph import draw_mapping
        from ..runtime.verify.report import MappingReport

        assert isinstance(report, MappingReport)
        draw_mapping(problem, solution, report, path)
    elif isinstance(problem, Sharding):
        from ..runtime.pictures.graph import draw_graph

        draw_graph(workload, plan, path)
    else:
        from ..runtime.pictures.charts import draw_loads

        draw_loads(report, plan, path)
