"""`stagecut solve`: plan a workload."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..api.solve import solve_with
from ..instances import (
    CpuSplit,
    InputError,
    Iteration,
    Optimizer,
    Pipeline,
    Precision,
    Recomputation,
    Split,
    Status,
    Throughput,
)
from ..instances.common.choices import Tied
from ..instances.formats.files import load, load_plan, save
from ..instances.model.tied_weights import are_copied, tied_as
from ..runtime import evaluate
from ..solvers.core.limits import DEFAULT_SECONDS, limits_for
from .clock import STARTED
from .console import (
    ERR,
    INFEASIBLE,
    NO_PLAN,
    OUT,
    check_outputs,
    end,
    parse_bytes,
    print_json,
    progress,
)
from .pose import choose_cluster, choose_objective, parse_degrees, pose_problem
from .rank import rank
from .runnable import check_runnable
from .show_pipeline import facts_of
from .show_plan import as_dict, print_result


def solve(
    workload: Annotated[str, typer.Argument(help="A file, or the name of a shipped workload.")],
    accelerators: Annotated[int | None, typer.Option(help="Number of accelerators.")] = None,
    cpus: Annotated[int | None, typer.Option(help="Number of CPU cores.")] = None,
    memory: Annotated[
        str | None, typer.Option(help="Memory of each accelerator, such as 16GiB.")
    ] = None,
    cluster: Annotated[Path | None, typer.Option(help="A cluster file, instead.")] = None,
    tied: Annotated[
        Tied | None,
        typer.Option(
            help="Weights used twice: copies, or colour (one device). Default: as the file has it."
        ),
    ] = None,
    objective: Annotated[
        str | None,
        typer.Option(
            help="throughput, iteration (of --microbatches, fill and drain counted), latency or "
            "training. Default: training for files with layer configurations; else iteration for "
            "training workloads with --microbatches, and throughput."
        ),
    ] = None,
    split: Annotated[
        Split | None,
        typer.Option(help="Default: contiguous for an iteration, noncontiguous for throughput."),
    ] = None,
    cpu_split: Annotated[
        CpuSplit | None,
        typer.Option(help="free: a CPU core's nodes lie anywhere. Default: contiguous."),
    ] = None,
    pipeline: Annotated[
        Pipeline | None, typer.Option(help="pipedream: 1F1B and inference, too; the default.")
    ] = None,
    overlap: Annotated[
        bool | None, typer.Option("--overlap", help="Transfers run beside compute.")
    ] = None,
    relayed: Annotated[
        bool | None,
        typer.Option(
            "--relayed", help="Data is passed from stage to stage, as PyTorch does (contiguous)."
        ),
    ] = None,
    runnable: Annotated[
        bool,
        typer.Option("--runnable", help="Refuse a workload that stagecut run could not run."),
    ] = False,
    calls: Annotated[int | None, typer.Option(help="Latency: calls per accelerator.")] = None,
    microbatches: Annotated[
        int | None, typer.Option(help="Iteration, training: in a batch.")
    ] = None,
    chunks: Annotated[
        int | None, typer.Option(help="Iteration: stages per device, if interleaved; default: 2.")
    ] = None,
    bandwidth: Annotated[
        str | None, typer.Option(help="Training: of each device, such as 25GiB.")
    ] = None,
    replicas: Annotated[
        str | None, typer.Option(help="Training: allowed data-parallel degrees, such as 1,2,4.")
    ] = None,
    degrees: Annotated[
        str | None, typer.Option(help="Training: allowed tensor-parallel degrees.")
    ] = None,
    recomputation: Annotated[
        Recomputation | None, typer.Option(help="Training; default: free.")
    ] = None,
    max_stages: Annotated[
        int | None, typer.Option(help="Iteration, training: at most so many.")
    ] = None,
    schedule: Annotated[
        str | None,
        typer.Option(
            help="Iteration: 1f1b (default), gpipe, interleaved, zb-h1, zb-h2; or all, for a "
            "table. Training: 1f1b (default), gpipe, pipedream or 2bw."
        ),
    ] = None,
    optimizer: Annotated[
        Optimizer | None, typer.Option(help="Training; default: as-given.")
    ] = None,
    precision: Annotated[Precision | None, typer.Option(help="Training; default: fp32.")] = None,
    method: Annotated[str, typer.Option(help="auto chooses and says what it chose.")] = "auto",
    solver: Annotated[
        str | None,
        typer.Option(help="For auto and milp: a MILP solver that Pyomo knows; default: highs."),
    ] = None,
    time_limit: Annotated[float, typer.Option(help="Seconds.")] = DEFAULT_SECONDS,
    gap: Annotated[
        float | None,
        typer.Option(help="Stop at this gap; default: 0.01 (1 %), or 0.0001 while that is cheap."),
    ] = None,
    node_limit: Annotated[int | None, typer.Option(help="Stop after so many nodes.")] = None,
    seed: Annotated[int, typer.Option(help="Of everything random.")] = 0,
    start: Annotated[Path | None, typer.Option(help="A plan file to start from.")] = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Write the plan to this file.")
    ] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw the plan: .png, .svg or .pdf.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    trace: Annotated[
        bool, typer.Option("--trace", help="With --json: plan and bound over time too.")
    ] = False,
) -> None:
    """Plan where the nodes of WORKLOAD run, with a bound on how good a plan can be.

    Options override what the file says. Exit codes: 0 a plan, 2 bad input, 3 infeasible, 4 no
    plan within the limit.
    """

    if trace and not as_json:
        raise InputError("--trace: it is a part of --json; give both")
    loaded = load(workload)
    if runnable:
        check_runnable(loaded)
    if tied is not None and not loaded.ties:
        ERR.print(f"--tied: {loaded.name} names no tied weights", style="dim", highlight=False)
    devices = choose_cluster(loaded, cluster, accelerators, cpus, parse_bytes(memory, "--memory"))
    chosen = choose_objective(loaded, objective, microbatches)
    if tied is not None or (chosen == "iteration" and are_copied(loaded)):
        form = Tied.COPIES if tied is None else tied
        loaded = tied_as(loaded, form, microbatches or 1 if chosen == "iteration" else 1)
    ranked = chosen == "iteration" and schedule == "all"
    pipeline_options = {"split": split, "overlap": overlap, "relayed": relayed}
    batch_options = {
        "microbatches": microbatches,
        "schedule": None if ranked else schedule,
        "max_stages": max_stages,
    }
    problem = pose_problem(
        chosen,
        {
            "throughput": {**pipeline_options, "cpu_split": cpu_split, "pipeline": pipeline},
            "iteration": {
                **pipeline_options,
                **batch_options,
                "chunks": None if ranked else chunks,
            },
            "latency": {"calls": calls},
            "training": {
                **batch_options,
                "bandwidth": parse_bytes(bandwidth, "--bandwidth"),
                "replicas": parse_degrees(replicas, "--replicas"),
                "degrees": parse_degrees(degrees, "--degrees"),
                "recomputation": recomputation,
                "optimizer": optimizer,
                "precision": precision,
            },
        },
    )
    check_outputs(output, pictures=[plot], inputs=[workload, cluster, start])
    if plot is not None and not isinstance(problem, Throughput):
        raise InputError(f"--plot: it draws loads; for {problem.name} use stagecut simulate --plot")
    limits = limits_for(problem.name, time_limit, gap, nodes=node_limit, seed=seed)
    first = None if start is None else load_plan(start, loaded)
    if ranked and isinstance(problem, Iteration):
        given = {"--start": start, "--trace": trace, "--solver": solver}
        for option, value in given.items():
            if value:
                raise InputError(f"{option}: not with --schedule all; leave it out")
        rank(loaded, devices, problem, chunks, method, limits, output, as_json=as_json)
        return
    with progress(loaded.time_unit) as on_progress:
        result = solve_with(
            loaded,
            devices,
            problem,
            method=method,
            limits=limits,
            start=first,
            on_progress=on_progress,
            options={} if solver is None else {"solver": solver},
            started=STARTED,
        )
    report = None
    if result.plan is not None:
        report = evaluate(loaded, devices, problem, result.plan.solution)
        if output is not None:
            save(result.plan, output, loaded)
        if plot is not None:
            from ..runtime.pictures.load_chart import draw_loads

            draw_loads(report, result.plan, plot)
    if objective == "training-batch":
        ERR.print("objective training-batch is now called iteration; the old name will go")
    facts = facts_of(loaded, result, objective_given=objective is not None)
    if as_json:
        answer = as_dict(loaded, problem, result, report, facts)
        if trace:
            answer["trace"] = [[p.seconds, p.objective, p.bound] for p in result.trace]
        print_json(answer)
    else:
        print_result(loaded, result, report, facts)
        for path in (output, plot) if report is not None else ():
            if path is not None:
                OUT.print(f"written: {path}", highlight=False, soft_wrap=True)
    end({Status.INFEASIBLE: INFEASIBLE, Status.NO_SOLUTION: NO_PLAN}.get(result.status, 0))
