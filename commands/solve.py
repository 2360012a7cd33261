"""`stagecut solve`: plan a workload."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..api.solve import solve_with
from ..instances import (
    Cluster,
    CpuSplit,
    InputError,
    Latency,
    Optimizer,
    Pipeline,
    Precision,
    Problem,
    Recomputation,
    Split,
    Status,
    Throughput,
    Training,
    TrainingObjective,
    TrainingSchedule,
    Workload,
    accelerators_and_cpus,
)
from ..instances.formats.files import load, load_cluster, load_plan, save
from ..instances.model.choices import Tied
from ..instances.model.tied_weights import tied_as
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
from .show_plan import as_dict, print_result

OBJECTIVES = ("throughput", "latency", "training", "training-batch")


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
            help="throughput, latency, training or training-batch (fill and drain counted). "
            "Default: training for files with layer configurations, else throughput."
        ),
    ] = None,
    split: Annotated[Split | None, typer.Option(help="Default: noncontiguous.")] = None,
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
    calls: Annotated[int | None, typer.Option(help="Latency: calls per accelerator.")] = None,
    microbatches: Annotated[int | None, typer.Option(help="Training: per batch.")] = None,
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
    max_stages: Annotated[int | None, typer.Option(help="Training: at most so many.")] = None,
    schedule: Annotated[
        TrainingSchedule | None, typer.Option(help="Training; default: 1f1b.")
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
    if tied is not None:
        if not loaded.ties:
            ERR.print(f"--tied: {loaded.name} names no tied weights", style="dim", highlight=False)
        loaded = tied_as(loaded, tied)
    devices = choose_cluster(loaded, cluster, accelerators, cpus, parse_bytes(memory, "--memory"))
    chosen = objective or ("throughput" if loaded.layers is None else "training")
    problem = pose_problem(
        chosen,
        {
            "throughput": {
                "split": split,
                "cpu_split": cpu_split,
                "pipeline": pipeline,
                "overlap": overlap,
                "relayed": relayed,
            },
            "latency": {"calls": calls},
            "training": {
                "microbatches": microbatches,
                "bandwidth": parse_bytes(bandwidth, "--bandwidth"),
                "replicas": parse_degrees(replicas, "--replicas"),
                "degrees": parse_degrees(degrees, "--degrees"),
                "recomputation": recomputation,
                "max_stages": max_stages,
                "schedule": schedule,
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
    if as_json:
        answer = as_dict(loaded, problem, result, report)
        if trace:
            answer["trace"] = [[p.seconds, p.objective, p.bound] for p in result.trace]
        print_json(answer)
    else:
        print_result(loaded, result, report)
        for path in (output, plot) if report is not None else ():
            if path is not None:
                OUT.print(f"written: {path}", highlight=False, soft_wrap=True)
    end({Status.INFEASIBLE: INFEASIBLE, Status.NO_SOLUTION: NO_PLAN}.get(result.status, 0))


def choose_cluster(
    workload: Workload,
    path: Path | None,
    accelerators: int | None,
    cpus: int | None,
    memory_bytes: float | None,
) -> Cluster:
    """Return the cluster that file and options give together; options win."""
    for option, count in (("--accelerators", accelerators), ("--cpus", cpus)):
        if count is not None and count < 0:
            raise InputError(f"{option}: {count}; it must be at least 0")
    cluster = workload.cluster if path is None else load_cluster(path)
    if cluster is None:
        if accelerators is None and cpus is None:
            raise InputError(
                f"{workload.name}: it suggests no cluster; give --accelerators, or --cluster FILE"
            )
        cluster = accelerators_and_cpus(1, 0)
    return cluster.with_counts(accelerators, cpus, memory_bytes)


def parse_degrees(text: str | None, option: str) -> tuple[int, ...] | None:
    """Return the whole numbers in a text such as ``1,2,4``."""
    if text is None:
        return None
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise InputError(
            f"{option}: {text!r} is no list of whole numbers; write for example 1,2,4"
        ) from None


def pose_problem(objective: str, options: dict[str, dict[str, object]]) -> Problem:
    """Return the problem that the options ask for.

    Parameters
    ----------
    options
        By the problem they belong to; None where an option is not given.

    Raises
    ------
    InputError
        If the objective does not exist, or an option belongs to another one.
    """
    if objective not in OBJECTIVES:
        raise InputError(f"--objective: {objective!r} is not one of {', '.join(OBJECTIVES)}")
    mine = objective.removesuffix("-batch")
    for problem, values in options.items():
        for name, value in values.items():
            if value is not None and problem != mine:
                raise InputError(
                    f"--{name.replace('_', '-')}: it belongs to --objective {problem}, "
                    f"and the objective is {mine}; leave it out"
                )
    given = {name: value for name, value in options[mine].items() if value is not None}
    if mine == "throughput":
        return Throughput(**given)  # type: ignore[arg-type]  # the problem checks its fields
    if mine == "latency":
        return Latency(**given)  # type: ignore[arg-type]
    if objective == "training-batch":
        given["objective"] = TrainingObjective.BATCH
    return Training(**given)  # type: ignore[arg-type]
