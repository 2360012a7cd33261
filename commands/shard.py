"""`stagecut shard`: split every tensor of a program over a mesh of devices."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer

from ..instances import (
    DeviceMesh,
    InputError,
    Link,
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
from .common.mesh import parse_mesh
from .common.solving import solve_and_save

_LATENCY = re.compile(r"((?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)(s|ms|us|ns|)")
_SECONDS = {"": 1.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}


def shard(
    workload: options.WorkloadArgument,
    mesh: Annotated[str, typer.Option(help="Devices: 4, or 2x4 in two axes, the slow one first.")],
    links: Annotated[
        str | None,
        typer.Option(
            help="Of each axis, LATENCY:BANDWIDTH such as 20us:25GB/s,10us:300GB/s. Default: the "
            "link that the file suggests."
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
) -> None:
    """Choose for every operator of WORKLOAD how its tensors lie on the devices, at least cost.

    WORKLOAD is a file of profile --train --tensors. Exit codes as for solve.
    """
    from ..instances.formats.files import load, load_plan
    from ..runtime import ShardingReport
    from ..solvers import Workers
    from .show.sharding import answer, print_sharding

    check_outputs(output, pictures=[plot], inputs=[workload, start])
    if beta is not None and objective is not ShardingObjective.DISTPAR:
        raise InputError("--beta: it weighs elements for --objective distpar; leave it out")
    loaded = load(workload)
    shape = parse_mesh(mesh)
    problem = Sharding(
        mesh=DeviceMesh(shape, parse_links(links, len(shape), loaded)),
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
    if as_json:
        print_json(answer(loaded, problem, result, report))
    else:
        print_sharding(loaded, problem, result, report)
        if report is not None:
            tell_written(output, plot)
    end_with(result)


def parse_links(text: str | None, axes: int, workload: Workload) -> tuple[Link, ...]:
    """Return the link of each axis; one that is given alone is that of all."""
    if text is None:
        kinds = () if workload.cluster is None else workload.cluster.kinds
        known = [kind.link for kind in kinds if kind.link is not None]
        if not known:
            raise InputError(f"--links: {workload.name} suggests none; give for example 10us:25GB")
        return (known[0],) * axes
    found = []
    for part in text.split(","):
        latency, colon, bandwidth = part.partition(":")
        match = _LATENCY.fullmatch(latency.strip())
        speed = parse_bytes(bandwidth, "--links") if colon and match else None
        if match is None or not speed:
            raise InputError(f"--links: {part!r} is no link; write for example 10us:25GB/s")
        found.append(Link(float(match[1]) * _SECONDS[match[2]], speed))
    if len(found) == 1:
        found *= axes
    if len(found) != axes:
        raise InputError(f"--links: {len(found)} links for {axes} axes of the mesh; give one each")
    return tuple(found)


def _fixed(text: str, workload: Workload) -> tuple[int | str, str]:
    node, equals, signature = text.partition("=")
    if not equals or not signature:
        raise InputError(f"--fix: {text!r}; write NODE=S0,B")
    for known in workload.ids:
        if str(known) == node:
            return known, signature
    return node, signature
