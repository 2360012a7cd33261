"""`stagecut map`: map the stages and replicas of a workload to a topology."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..instances import (
    Collective,
    DeviceMapping,
    InputError,
    MappingMode,
    MappingObjective,
    ReplicaPlacement,
)
from ..solvers.core.limits import DEFAULT_SECONDS, MAPPING_GAP
from .common import names, options
from .common.console import check_outputs, end_with, file_of, print_json, tell_written
from .common.solving import solve_and_save


def map_stages(
    workload: options.WorkloadArgument,
    topology: Annotated[
        str,
        typer.Option(
            autocompletion=names.complete_topology,
            help="mesh2d:4x8, torus2d:4x8, mesh3d:2x4x4, ring:8, fattree:4, islands:4x8, "
            "random_blk_1:64@seed=0, uniform_dist:64@seed=0, nvidia:FILE, or FILE.json.",
        ),
    ],
    stages: Annotated[int, typer.Option(help="Number of stages.")],
    replicas: Annotated[int, typer.Option(help="Replicas of each stage.")] = 1,
    mode: Annotated[
        MappingMode, typer.Option(help="What counts: messages, all-reduces (allr) or both.")
    ] = MappingMode.BOTH,
    microbatches: Annotated[int, typer.Option(help="Of each replica, per batch.")] = 1,
    objective: Annotated[
        MappingObjective, typer.Option(help="busiest-link: the seconds of the fullest link.")
    ] = MappingObjective.STAGE_TIME,
    collective: Annotated[
        Collective | None,
        typer.Option(
            help="All-reduce by ring, or by the cheapest of ring, tree and hierarchical. "
            "Default: cheapest; for milp, joint and busiest-link ring, which is all they know."
        ),
    ] = None,
    gradients: Annotated[
        bool, typer.Option("--gradients/--no-gradients", help="Count gradients sent back.")
    ] = True,
    overlap: Annotated[bool, typer.Option("--overlap", help="Messages beside compute.")] = False,
    method: Annotated[
        str,
        typer.Option(autocompletion=names.MAPPING_METHOD, help="auto, layouts, milp or joint."),
    ] = "auto",
    joint: Annotated[
        bool, typer.Option("--joint", help="The same as --method joint: cut and map at once.")
    ] = False,
    time_limit: options.TimeLimit = DEFAULT_SECONDS,
    gap: Annotated[float, typer.Option(help="Stop at this gap; 0.01 is 1 %.")] = MAPPING_GAP,
    seed: options.Seed = 0,
    workers: options.WorkerCount = None,
    deterministic: options.Deterministic = False,
    scheduler: options.Scheduler = None,
    output: options.PlanOutput = None,
    plot: Annotated[
        Path | None, typer.Option(help="Draw the topology with its stages: .png or .svg.")
    ] = None,
    as_json: options.AsJson = False,
) -> None:
    """Cut WORKLOAD into stages and map their replicas to the devices of a topology.

    The bound is for the stages that were cut, with --joint for all cuts. Exit codes as for solve.
    """
    from ..instances.formats.files import load

    check_outputs(output, pictures=[plot], inputs=[workload, file_of(topology)])
    if joint and method not in ("auto", "joint"):
        raise InputError(f"--joint: the method is {method}; leave one of the two out")
    method = "joint" if joint else method
    if collective is None and method in ("milp", "joint"):
        collective = Collective.RING
    loaded = load(workload)

    from ..instances.topologies import topology as read_topology  # a missing file need not wait
    from ..runtime.verify.report import MappingReport
    from ..solvers import Limits, Workers
    from .show.mapping import answer, print_mapping

    links = read_topology(topology)
    problem = DeviceMapping(
        links,
        stages,
        replicas,
        mode,
        microbatches,
        gradients=gradients,
        collective=collective,
        objective=objective,
        overlap=overlap,
    )
    limits = Limits(seconds=time_limit, gap=gap, seed=seed)
    result, report = solve_and_save(
        loaded,
        None,
        problem,
        output,
        method=method,
        limits=limits,
        workers=Workers(workers, deterministic, scheduler),
    )
    solution = None if result.plan is None else result.plan.solution
    if plot and isinstance(solution, ReplicaPlacement) and isinstance(report, MappingReport):
        from ..runtime.pictures.topology import draw_mapping

        draw_mapping(problem, solution, report, plot)
    if as_json:
        print_json(answer(loaded, problem, result, report))
    else:
        print_mapping(loaded, problem, result, report)
        if report is not None:
            tell_written(output, plot)
    end_with(result)
