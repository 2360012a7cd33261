"""`stagecut solve`: plan a workload."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from ..api import solve as solve_workload
from ..instances import Cluster, InputError, Problem, Throughput, Workload, accelerators_and_cpus
from ..instances.files import load, load_cluster, load_plan, save
from ..runtime import Report, evaluate
from ..solvers import Limits, Result
from .console import (
    ERR,
    INFEASIBLE,
    NO_PLAN,
    OUT,
    end,
    parse_bytes,
    print_json,
    progress,
    show_bytes,
    show_gap,
    show_time,
)


def solve(
    workload: Annotated[str, typer.Argument(help="A file, or the name of a shipped workload.")],
    accelerators: Annotated[int | None, typer.Option(help="Number of accelerators.")] = None,
    cpus: Annotated[int | None, typer.Option(help="Number of CPU cores.")] = None,
    memory: Annotated[
        str | None, typer.Option(help="Memory of each accelerator, such as 16GiB.")
    ] = None,
    cluster: Annotated[Path | None, typer.Option(help="A cluster file, instead.")] = None,
    objective: Annotated[str, typer.Option(help="throughput.")] = "throughput",
    split: Annotated[
        str, typer.Option(help="contiguous, per-device or noncontiguous.")
    ] = "noncontiguous",
    cpu_split: Annotated[
        str, typer.Option(help="May a CPU core's nodes lie anywhere? contiguous or free.")
    ] = "contiguous",
    pipeline: Annotated[
        str, typer.Option(help="pipedream (1F1B, inference) or gpipe.")
    ] = "pipedream",
    overlap: Annotated[bool, typer.Option(help="Transfers run beside compute.")] = False,
    method: Annotated[str, typer.Option(help="auto chooses and says what it chose.")] = "auto",
    solver: Annotated[str, typer.Option(help="MILP solver that Pyomo knows.")] = "highs",
    time_limit: Annotated[float, typer.Option(help="Seconds.")] = 60.0,
    gap: Annotated[float, typer.Option(help="Stop at this gap; 0.01 is 1 %.")] = 0.01,
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
    from ..cli import STARTED

    loaded = load(workload)
    devices = choose_cluster(loaded, cluster, accelerators, cpus, parse_bytes(memory, "--memory"))
    problem = pose_problem(objective, split, cpu_split, pipeline, overlap)
    for path in (output, plot):
        if path is not None and not path.absolute().parent.is_dir():
            raise InputError(f"{path}: its folder does not exist; create it first")
    limits = Limits(seconds=time_limit, gap=gap, nodes=node_limit, seed=seed)
    first = None if start is None else load_plan(start, loaded)
    with progress(loaded.time_unit) as on_progress:
        result = solve_workload(
            loaded,
            devices,
            problem,
            method=method,
            limits=limits,
            start=first,
            on_progress=on_progress,
            options={"solver": solver},
            started=STARTED,
        )
    report = None
    if result.plan is not None:
        report = evaluate(loaded, devices, problem, result.plan.solution)
        if output is not None:
            save(result.plan, output, loaded)
        if plot is not None:
            from ..runtime.load_chart import draw_loads

            draw_loads(report, result.plan, plot)
    if as_json:
        answer = as_dict(loaded, result, report)
        if trace:
            answer["trace"] = [[p.seconds, p.objective, p.bound] for p in result.trace]
        print_json(answer)
    else:
        print_result(loaded, result, report)
        for path in (output, plot) if report is not None else ():
            if path is not None:
                OUT.print(f"written: {path}", highlight=False)
    end({"infeasible": INFEASIBLE, "no solution": NO_PLAN}.get(result.status, 0))


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


def pose_problem(
    objective: str, split: str, cpu_split: str, pipeline: str, overlap: bool
) -> Problem:
    """Return the problem that the options ask for."""
    if objective == "throughput":
        return Throughput(split, cpu_split, pipeline, overlap)  # type: ignore[arg-type]  # checked
    raise InputError(f"--objective: {objective!r} is not one of throughput")


def as_dict(workload: Workload, result: Result, report: Report | None) -> dict[str, Any]:
    """Return what `--json` prints."""
    devices = [
        {
            "name": device.name,
            "kind": device.kind,
            "load": device.load,
            "compute": device.compute,
            "transfer": device.transfer,
            "memory": device.memory_bytes,
            "capacity": device.capacity_bytes,
            "nodes": list(device.nodes),
        }
        for device in (report.devices if report else ())
    ]
    return {
        "workload": workload.name,
        "problem": "throughput",
        "objective": result.objective,
        "bound": result.bound,
        "gap": result.gap,
        "status": result.status,
        "limit": result.limit,
        "method": result.method,
        "bound_origin": result.bound_origin,
        "seconds": result.seconds,
        "time_unit": workload.time_unit,
        "verified": report is not None and not report.violations,
        "devices": devices,
        "notes": list(result.notes),
        "reason": result.reason,
    }


def print_result(workload: Workload, result: Result, report: Report | None) -> None:
    """Print the table of devices, then objective, bound, gap, method, time."""
    unit = workload.time_unit
    for note in result.notes:
        OUT.print(note, style="dim", highlight=False)
    if report is None:
        if result.status == "infeasible":
            ERR.print(f"infeasible: {result.reason}", highlight=False, soft_wrap=True)
        else:
            ERR.print(
                f"no plan found within the limit ({result.limit}); bound "
                f"{show_time(result.bound, unit)}: "
                "give more time, or another method",
                highlight=False,
                soft_wrap=True,
            )
        return
    table = Table(title=f"{workload.name}: {workload.n} nodes, {len(workload.edges)} edges")
    table.add_column("device", no_wrap=True)
    of_unit = "" if unit == "unspecified" else f" ({unit})"
    for title in ("nodes", f"load{of_unit}", "compute", "transfers", "memory", "of"):
        table.add_column(title, justify="right")
    for device in report.devices:
        limit = device.capacity_bytes
        table.add_row(
            device.name,
            str(len(device.nodes)),
            f"{device.load:.6g}",
            f"{device.compute:.6g}",
            f"{device.transfer:.4g}",
            show_bytes(device.memory_bytes),
            show_bytes(limit),
            style="bold" if device.load == report.objective else "",
        )
    OUT.print(table)
    rows = {
        "objective": f"{show_time(report.objective, unit)} per sample",
        "bound": f"{show_time(result.bound, unit)}"
        + (f" ({result.bound_origin})" if result.bound_origin else ""),
        "gap": f"{show_gap(result.gap or 0.0)} ({result.status})",
        "method": result.method,
        "time": f"{result.seconds:.2f} s"
        + (f", stopped by {result.limit}" if result.limit != "none" else ""),
    }
    for name, value in rows.items():
        OUT.print(f"{name:>9}  {value}", highlight=False)
