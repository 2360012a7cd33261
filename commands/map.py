"""`stagecut map`: map the stages and replicas of a workload to a topology."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from ..api import solve
from ..instances import Mapped, Mapping
from ..instances.files import load, save
from ..instances.topologies import topology as read_topology
from ..runtime import evaluate
from ..runtime.check_mapping import MappingReport
from ..solvers import Limits
from .console import INFEASIBLE, NO_PLAN, OUT, end, print_json, progress, show_gap, show_time
from .show_plan import as_dict


def map_stages(
    workload: Annotated[str, typer.Argument(help="A file, or the name of a shipped workload.")],
    topology: Annotated[
        str,
        typer.Option(
            help="mesh2d:4x8, torus2d:4x8, mesh3d:2x4x4, ring:8, fattree:4, islands:4x8, "
            "random_blk_1:64@seed=0, uniform_dist:64@seed=0, nvidia:FILE, or FILE.json."
        ),
    ],
    stages: Annotated[int, typer.Option(help="Number of stages.")],
    replicas: Annotated[int, typer.Option(help="Replicas of each stage.")] = 1,
    mode: Annotated[
        str, typer.Option(help="What counts: p2p, allr (all-reduce) or both.")
    ] = "both",
    microbatches: Annotated[int, typer.Option(help="Per batch.")] = 1,
    method: Annotated[str, typer.Option(help="auto, layouts or milp.")] = "auto",
    time_limit: Annotated[float, typer.Option(help="Seconds.")] = 60.0,
    gap: Annotated[float, typer.Option(help="Stop at this gap; 0.01 is 1 %.")] = 0.0,
    seed: Annotated[int, typer.Option(help="Of everything random.")] = 0,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Write the plan to this file.")
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(help="Draw the topology with its stages: .png or .svg.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Cut WORKLOAD into stages and map their replicas to the devices of a topology.

    The bound is for the stages that were cut. Exit codes as for solve.
    """
    from ..cli import STARTED

    loaded = load(workload)
    links = read_topology(topology)
    problem = Mapping(links, stages, replicas, mode, microbatches)  # type: ignore[arg-type]
    limits = Limits(seconds=time_limit, gap=gap, seed=seed)
    with progress(loaded.time_unit) as on_progress:
        result = solve(
            loaded,
            problem=problem,
            method=method,
            limits=limits,
            on_progress=on_progress,
            started=STARTED,
        )
    report = None
    if result.plan is not None:
        report = evaluate(loaded, result.plan.cluster, problem, result.plan.solution)
        if output is not None:
            save(result.plan, output, loaded)
        solution = result.plan.solution
        if plot and isinstance(solution, Mapped) and isinstance(report, MappingReport):
            from ..runtime.topology_picture import draw_mapping

            draw_mapping(problem, solution, report, plot)
    if as_json:
        print_json(as_dict(loaded, problem, result, report))
    elif report is None:
        OUT.print(f"no mapping: {result.reason or result.limit}", highlight=False)
    else:
        table = Table("device", "load", title=f"{loaded.name} on {links.name}")
        for device in sorted(report.devices, key=lambda d: -d.load)[:16]:
            table.add_row(device.name, show_time(device.load, loaded.time_unit))
        OUT.print(table)
        OUT.print(
            f"objective {show_time(result.plan.objective, loaded.time_unit) if result.plan else ''}"
            f", bound {show_time(result.bound, loaded.time_unit)} ({result.bound_origin}), "
            f"gap {show_gap(result.gap or 0.0)}, {result.seconds:.2f} s",
            highlight=False,
            soft_wrap=True,
        )
    end({"infeasible": INFEASIBLE, "no solution": NO_PLAN}.get(result.status, 0))
