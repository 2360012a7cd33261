"""`stagecut shard`: split every tensor of a program over a mesh of devices."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..instances import (
    DeviceMesh,
    InputError,
    Optimizer,
    Sharding,
    ShardingObjective,
    Workload,
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
from .common.mesh import parse_links, parse_mesh
from .common.solving import solve_and_save


def shard(
    workload: options.WorkloadArgument,
    mesh: Annotated[str, typer.Option(help="Devices: 4, or 2x4 in two axes, the slow one first.")],
    links: Annotated[
        str | None,
        typer.Option(
            help="Of each axis, LATENCY:BANDWIDTH such as 20us:25GB/s,10us:300GB/s; or a cluster "
            "such as h100:8x2, as estimate prices its collectives. Default: the link that the file "
            "suggests."
        ),
    ] = None,
    objective: Annotated[
        ShardingObjective,
        typer.Option(help="time, or distpar: beta times elements, plus bytes converted."),
    ] = ShardingObjective.TIME,
    beta: Annotated[float | None, typer.Option(help="distpar: weight of elements.")] = None,
    memory: options.Memory = None,
    optimizer: Annotated[
        Optimizer, typer.Option(help="Whose state is kept: sgd, momentum or adam.")
    ] = Optimizer.ADAM,
    fix: Annotated[
        list[str] | None,
        typer.Option(help="NODE=S0,B: the signature of an operator, or how a parameter lies."),
    ] = None,
    method: Annotated[
        str,
        typer.Option(
            help="auto chooses and says what it chose. " + names.methods_help("sharding"),
            autocompletion=names.SHARDING_METHOD,
        ),
    ] = "auto",
    time_limit: options.TimeLimit = DEFAULT_SECONDS,
    gap: Annotated[
        float | None,
        typer.Option(help="Stop at this gap; default: 0.01 (1 %), or 0.0001 while that is cheap."),
    ] = None,
    seed: options.Seed = 0,
    workers: options.WorkerCount = None,
    deterministic: options.Deterministic = False,
    scheduler: options.Scheduler = None,
    start: Annotated[Path | None, typer.Option(help="A plan file to start from.")] = None,
    output: options.PlanOutput = None,
    plot: Annotated[
        Path | None, typer.Option(help="Draw the graph coloured by property: .svg, .png or .pdf.")
    ] = None,
    as_json: options.AsJson = False,
    trace: Annotated[
        bool, typer.Option("--trace", help="With --json: objective and bound over time too.")
    ] = False,
) -> None:
    """Choose for every operator of WORKLOAD how its tensors lie on the devices, at least cost.

    WORKLOAD is a file of profile --train --tensors. Exit codes as for solve.
    """
    from ..instances.formats.files import load, load_plan
    from ..runtime import ShardingReport
    from ..solvers import Workers
    from .show.pipeline import facts_of
    from .show.sharding import answer, print_sharding

    check_outputs(output, pictures=[plot], inputs=[workload, start])
    if beta is not None and objective is not ShardingObjective.DISTPAR:
        raise InputError("--beta: it weighs elements for --objective distpar; leave it out")
    if trace and not as_json:
        raise InputError("--trace: it is a part of --json; give both")
    loaded = load(workload)
    shape = parse_mesh(mesh)
    problem = Sharding(
        mesh=DeviceMesh(shape, parse_links(links, shape, loaded)),
        objective=objective,
        beta=1.0 if beta is None else beta,
        memory_bytes=parse_bytes(memory, "--memory"),
        optimizer=optimizer,
        fixed=tuple(_fixed(text, loaded) for text in fix or ()),
    )
    limits = limits_for("sharding", time_limit, gap, seed=seed)
    first = None if start is None else load_plan(start, loaded)
    result, report = solve_and_save(
        loaded,
        None,
        problem,
        output,
        method=method,
        limits=limits,
        start=first,
        workers=Workers(workers, deterministic, scheduler),
    )
    assert report is None or isinstance(report, ShardingReport)
    if plot is not None and result.plan is not None:
        from ..runtime.pictures.graph import draw_graph

        draw_graph(loaded, result.plan, plot)
    facts = facts_of(loaded, result, objective_given=True)
    if as_json:
        found = answer(loaded, problem, result, report, facts)
        if trace:
            found["trace"] = [[p.seconds, p.objective, p.bound] for p in result.trace]
        print_json(found)
    else:
        print_sharding(loaded, problem, result, report, facts)
        if report is not None:
            tell_written(output, plot)
    end_with(result)


def _fixed(text: str, workload: Workload) -> tuple[int | str, str]:
    node, equals, signature = text.partition("=")
    if not equals or not signature:
        raise InputError(f"--fix: {text!r}; write NODE=S0,B")
    for known in workload.ids:
        if str(known) == node:
            return known, signature
    return node, signature
