"""`stagecut solve`: plan a workload."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..instances import (
    InFlight,
    InputError,
    Optimizer,
    Precision,
    Problem,
    Recomputation,
    Workload,
    is_iteration,
)
from ..solvers.core.limits import DEFAULT_SECONDS, limits_for
from .common import names, options
from .common.console import (
    check_outputs,
    end_with,
    parse_bytes,
    print_json,
    tell_written,
)
from .common.pose import (
    check_schedule_file,
    choose_cluster,
    choose_objective,
    choose_ties,
    parse_degrees,
    pose_problem,
    read_schedule,
    with_rules,
)
from .common.runnable import Fitted, choose_runnable, exports_of, fitted
from .common.solving import solve_and_save

if TYPE_CHECKING:
    from ..runtime import Report
    from ..solvers import Result


def solve(
    workload: options.WorkloadArgument,
    accelerators: options.Accelerators = None,
    cpus: options.Cpus = None,
    memory: options.Memory = None,
    cluster: options.ClusterFile = None,
    tied: options.TiedWeights = None,
    objective: Annotated[
        str | None,
        typer.Option(
            autocompletion=names.OBJECTIVE,
            help="throughput, job (training: a stream, or an iteration of --microbatches with fill "
            "and drain) or latency. Default: job for files with layer configurations and for "
            "training workloads with --microbatches, else throughput.",
        ),
    ] = None,
    split: options.PipelineSplit = None,
    cpu_split: options.CpuCoreSplit = None,
    pipeline: options.PipelineOrder = None,
    overlap: options.Overlap = None,
    relayed: options.Relayed = None,
    runnable: options.Runnable = False,
    launcher: options.For = None,
    calls: options.Calls = None,
    microbatches: options.Microbatches = None,
    chunks: options.Chunks = None,
    bandwidth: Annotated[
        str | None, typer.Option(help="Job, stream: of each device, such as 25GiB.")
    ] = None,
    replicas: Annotated[
        str | None, typer.Option(help="Job, stream: allowed data-parallel degrees, such as 1,2,4.")
    ] = None,
    degrees: Annotated[
        str | None, typer.Option(help="Job, stream: allowed tensor-parallel degrees.")
    ] = None,
    recomputation: Annotated[
        Recomputation | None, typer.Option(help="Job, stream; default: free.")
    ] = None,
    schedule: Annotated[
        str | None,
        typer.Option(
            autocompletion=names.SCHEDULE,
            help=f"{options.SCHEDULES}; or all, for a table.",
        ),
    ] = None,
    in_flight: Annotated[
        InFlight | None,
        typer.Option(help="Job, stream: the schedule that says what is kept; default: 1f1b."),
    ] = None,
    optimizer: Annotated[
        Optimizer | None, typer.Option(help="Job, stream; default: as-given.")
    ] = None,
    precision: Annotated[Precision | None, typer.Option(help="Job, stream; default: fp32.")] = None,
    pin: options.Pin = None,
    together: options.Together = None,
    apart: options.Apart = None,
    max_stages: options.MaxStages = None,
    fixed: options.Fixed = None,
    method: Annotated[
        str,
        typer.Option(
            autocompletion=names.METHOD,
            help="auto chooses and says what it chose. " + names.methods_help(*names.SOLVED),
        ),
    ] = "auto",
    solver: Annotated[
        str | None,
        typer.Option(
            autocompletion=names.SOLVER,
            help="For auto and milp: a MILP solver that Pyomo knows, such as glpk, cbc, scip or "
            "gurobi; default: highs.",
        ),
    ] = None,
    policy: Annotated[
        Path | None, typer.Option(help="For learned: a policy file; default: the package's.")
    ] = None,
    fine_tune: Annotated[
        float | None,
        typer.Option(help="For learned: seconds in which the policy learns from its plans."),
    ] = None,
    time_limit: options.TimeLimit = DEFAULT_SECONDS,
    gap: Annotated[
        float | None,
        typer.Option(help="Stop at this gap; default: 0.01 (1 %), or 0.0001 while that is cheap."),
    ] = None,
    node_limit: Annotated[int | None, typer.Option(help="Stop after so many nodes.")] = None,
    seed: options.Seed = 0,
    workers: options.WorkerCount = None,
    deterministic: options.Deterministic = False,
    scheduler: options.Scheduler = None,
    start: Annotated[Path | None, typer.Option(help="A plan file to start from.")] = None,
    output: options.PlanOutput = None,
    plot: Annotated[Path | None, typer.Option(help="Draw the plan: .png, .svg or .pdf.")] = None,
    as_json: options.AsJson = False,
    trace: Annotated[
        bool, typer.Option("--trace", help="With --json: plan and bound over time too.")
    ] = False,
) -> None:
    """Plan where the nodes of WORKLOAD run, with a bound on how good a plan can be.

    Options override what the file says. Exit codes: 0 a plan, 2 bad input, 3 infeasible, 4 no
    plan within the limit.
    """
    from ..instances.formats.files import load, load_plan

    if trace and not as_json:
        raise InputError("--trace: it is a part of --json; give both")
    loaded = load(workload)
    together = choose_runnable(runnable, together, loaded)
    from ..solvers import Workers
    from .show.rank import rank

    asked = read_schedule(schedule, microbatches)
    schedule, microbatches = asked.schedule, asked.microbatches
    chosen = choose_objective(loaded, objective, microbatches)
    check_schedule_file(asked, chosen)
    levels = {"replicas": replicas, "degrees": degrees, "recomputation": recomputation}
    to_fit = Fitted(split, cpus, tied, together, schedule, levels)
    split, cpus, tied, together, *_ = fitted(launcher, chosen, loaded, to_fit)
    limit = parse_bytes(memory, "--memory")
    devices = choose_cluster(loaded, cluster, accelerators, cpus, limit, chosen)
    loaded = choose_ties(loaded, tied, chosen, microbatches)
    ranked = chosen == "pipeline" and loaded.layers is None and schedule == "all"
    placing = {"split": split, "overlap": overlap, "relayed": relayed}
    batch = {"microbatches": microbatches, "schedule": None if ranked else schedule}
    problem = pose_problem(
        chosen,
        {
            "throughput": {**placing, "cpu_split": cpu_split, "pipeline": pipeline},
            "latency": {"calls": calls},
            "pipeline": {
                **placing,
                **batch,
                "actions": asked.actions,
                "chunks": None if ranked else chunks,
                "in_flight": in_flight,
                "bandwidth": parse_bytes(bandwidth, "--bandwidth"),
                "replicas": parse_degrees(replicas, "--replicas"),
                "degrees": parse_degrees(degrees, "--degrees"),
                "recomputation": recomputation,
                "optimizer": optimizer,
                "precision": precision,
            },
        },
        loaded,
    )
    about = {"pin": pin, "together": together, "apart": apart}
    problem = with_rules(
        problem, devices, **about, max_stages=max_stages, fixed=fixed, file=cluster
    )
    check_outputs(
        output, pictures=[plot], inputs=[workload, cluster, start, fixed, asked.file, policy]
    )
    limits = limits_for(problem.name, time_limit, gap, nodes=node_limit, seed=seed)
    read = _given({"solver": solver, "policy": policy, "fine-tune": fine_tune})
    if ranked and is_iteration(problem):
        alone = {"workers": workers, "deterministic": deterministic, "scheduler": scheduler}
        _refuse_for_all_schedules({"start": start, "trace": trace, "plot": plot, **alone, **read})
        rank(loaded, devices, problem, chunks, method, limits, output, as_json=as_json)
        return
    result, report = solve_and_save(
        loaded,
        devices,
        problem,
        output,
        method=method,
        limits=limits,
        start=None if start is None else load_plan(start, loaded),
        options=read,
        workers=Workers(workers, deterministic, scheduler),
    )
    if plot is not None and result.plan is not None and report is not None:
        from ..runtime.pictures.charts import draw_loads

        draw_loads(report, result.plan, plot)
    shown = {"objective_given": objective is not None, "as_json": as_json, "trace": trace}
    _show(loaded, problem, result, report, launcher, **shown)
    if report is not None and not as_json:
        tell_written(output, plot)
    end_with(result)


def _given(options: Mapping[str, object]) -> dict[str, str]:
    """Return the options that are given, as methods read them."""
    return {name: str(value) for name, value in options.items() if value is not None}


def _refuse_for_all_schedules(given: Mapping[str, object]) -> None:
    for option, value in given.items():
        if value:
            raise InputError(f"--{option}: not with --schedule all; leave it out")


def _show(
    workload: Workload,
    problem: Problem,
    result: Result,
    report: Report | None,
    launcher: str | None,
    *,
    objective_given: bool,
    as_json: bool,
    trace: bool,
) -> None:
    """Print a result as a table or as JSON."""
    from .show.pipeline import facts_of
    from .show.plan import as_dict, print_result

    facts = facts_of(workload, result, objective_given=objective_given)
    if not as_json:
        plan = result.plan
        exports = "" if plan is None else exports_of(workload, plan, launcher)
        print_result(workload, result, report, facts, exports)
        return
    answer = as_dict(workload, problem, result, report, facts)
    if trace:
        answer["trace"] = [[p.seconds, p.objective, p.bound] for p in result.trace]
    print_json(answer)
