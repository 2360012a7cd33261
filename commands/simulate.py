"""`stagecut simulate`: a plan over time."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from ..instances import InputError, Link, Plan, Sharding, Workload
from ..instances.formats.files import load, load_plan_with_form
from ..instances.formats.source import read_source
from ..instances.formats.writing import PICTURES, check_target, write_whole
from ..runtime.simulate.network import Sharing
from .console import OUT, check_outputs, parse_bytes, print_json, show_bytes, show_time
from .simulate_sharding import simulate_sharding

if TYPE_CHECKING:
    from ..runtime.simulate.network import Network
    from ..runtime.simulate.result import Simulation
    from ..runtime.simulate.stages import StageGraph

#: Endings of self-contained pages.
PAGES = (".htm", ".html")
NETWORKS = ("host", "p2p", "bus", "topology")


def simulate(
    workload: Annotated[str, typer.Argument(help="A file, or the name of a shipped workload.")],
    plan: Annotated[Path, typer.Argument(help="A plan file.")],
    schedule: Annotated[
        str | None,
        typer.Option(
            help="gpipe, 1f1b, interleaved, pipedream, 2bw, zb-h1, zb-h2, single, inference; "
            "or a CSV file with a row of actions such as 0F0,0B0 per device. "
            "Default: 1f1b, for latency plans single, for iteration and training plans their own."
        ),
    ] = None,
    microbatches: Annotated[
        int | None, typer.Option(help="Samples or microbatches; default: the plan's batch, else 8.")
    ] = None,
    weight_share: Annotated[
        float | None,
        typer.Option(
            help="Part of a backward pass that computes weight gradients; default: the plan's, "
            "else 0.5."
        ),
    ] = None,
    network: Annotated[
        str | None,
        typer.Option(
            help="host: what the plan's problem says, for placements through host memory "
            "(default); p2p; bus: one shared link; topology: of a mapped plan (its default)."
        ),
    ] = None,
    bandwidth: Annotated[
        str | None,
        typer.Option(help="Of p2p links or the bus, such as 25GB/s; host: of all-reduces."),
    ] = None,
    latency: Annotated[float, typer.Option(help="Of p2p links or the bus, in seconds.")] = 0.0,
    sharing: Annotated[Sharing | None, typer.Option(help="On the bus; default: fair.")] = None,
    overlap: Annotated[
        bool | None,
        typer.Option(
            help="Transfers run beside compute; default: as the plan says, over links yes."
        ),
    ] = None,
    relayed: Annotated[
        bool | None,
        typer.Option(
            help="Pieces talk to their neighbours only, as PyTorch runs them; default: as the "
            "plan says."
        ),
    ] = None,
    trace: Annotated[
        Path | None, typer.Option(help="Write a trace for Perfetto (Chrome JSON).")
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(help="Draw the timeline: .svg, .png, .pdf, or a page: .html.")
    ] = None,
    graph: Annotated[
        Path | None, typer.Option(help="Draw the graph coloured by device: .svg, .png or .pdf.")
    ] = None,
    csv: Annotated[Path | None, typer.Option(help="Write the schedule as CSV.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Run PLAN in the simulator: timeline, steady state, bubble, memory over time.

    Exit code 2 if the schedule does not fit the plan, is incomplete or deadlocks: the message
    then shows the place in a table of steps and devices.
    """
    from ..runtime.schedules import read_csv, write_csv
    from ..runtime.simulate.plan_stages import stages_of, usual_schedule
    from ..runtime.simulate.simulator import simulate_stages

    check_outputs(trace, csv, plot, pictures=[graph], inputs=[workload, plan, schedule])
    if plot is not None:
        check_target(plot, (*PICTURES, *PAGES))
    if weight_share is not None and not 0 <= weight_share <= 1:
        raise InputError(f"--weight-share: {weight_share:g}; it must be from 0 to 1")
    loaded, made = load_plan_with_form(plan, load(workload))
    if isinstance(made.problem, Sharding):
        for option, given in (
            ("--schedule", schedule), ("--microbatches", microbatches), ("--network", network),
            ("--weight-share", weight_share), ("--bandwidth", bandwidth), ("--sharing", sharing),
            ("--overlap", overlap), ("--relayed", relayed), ("--csv", csv),
        ):  # fmt: skip
            if given is not None:
                raise InputError(f"{option}: a sharding has none; leave it out")
        simulate_sharding(loaded, made, trace, plot, graph, as_json=as_json)
        return
    stages = stages_of(loaded, made, weight_share=weight_share, relayed=relayed)
    moves = choose_network(stages, made, network, bandwidth, latency, sharing, overlap)
    schedule = schedule or usual_schedule(made)
    if schedule.endswith(".csv"):
        if microbatches is not None:
            raise InputError(f"--microbatches: {schedule} says how many there are; leave it out")
        actions = read_csv(read_source(schedule).text, name=schedule)
        run = simulate_stages(stages, actions, network=moves)
    else:
        run = simulate_stages(stages, schedule, microbatches, network=moves)
    written = []
    if trace is not None:
        import json

        from ..runtime.pictures.trace import trace_events

        write_whole(trace, json.dumps(trace_events(run), ensure_ascii=False))
        written.append(trace)
    if plot is not None:
        _draw(run, plot, f"{loaded.name}: {run.schedule.name}, {made.method}")
        written.append(plot)
    if graph is not None:
        from ..runtime.pictures.graph import draw_graph

        draw_graph(loaded, made, graph)
        written.append(graph)
    if csv is not None:
        write_whole(csv, write_csv(run.schedule))
        written.append(csv)
    if as_json:
        print_json(as_dict(loaded, run))
        return
    _print(loaded, run)
    for path in written:
        OUT.print(f"written: {path}", highlight=False, soft_wrap=True)


def choose_network(
    stages: StageGraph,
    plan: Plan,
    name: str | None,
    bandwidth: str | None,
    latency: float,
    sharing: Sharing | None,
    overlap: bool | None,
) -> Network:
    """Return the network that the options describe."""
    from ..runtime.simulate.network import HostMemory, Links, point_to_point, shared
    from ..runtime.simulate.plan_stages import usual_network

    usual = usual_network(plan)
    own = "topology" if isinstance(usual, Links) else "host"
    name = name or own
    if name not in NETWORKS:
        raise InputError(f"--network: {name!r} is not one of {', '.join(NETWORKS)}")
    if name == "topology" and own != name:
        raise InputError(f"--network topology: the plan is for {plan.problem.name}, not mapped")
    speed = parse_bytes(bandwidth, "--bandwidth")
    link = None if speed is None else Link(latency, speed)
    if sharing is not None and name != "bus":
        raise InputError("--sharing: it is the bus's; leave it out, or add --network bus")
    if isinstance(usual, Links) and name == "topology":
        if link is not None or latency:
            option = "--latency" if link is None else "--bandwidth"
            raise InputError(f"{option}: the topology has its own; leave it out")
        return replace(usual, overlap=overlap is not False)
    if latency and link is None:
        raise InputError("--latency: it is a link's; give its --bandwidth too")
    if name == "host":
        default = isinstance(usual, HostMemory) and usual.overlap
        return HostMemory(default if overlap is None else overlap, all_reduce=link)
    if link is None:
        raise InputError(f"--network {name}: give --bandwidth, such as 25GB/s")
    beside = overlap is not False
    if name == "p2p":
        return point_to_point(len(stages.devices), link, overlap=beside)
    return shared(len(stages.devices), link, sharing=sharing or Sharing.FAIR, overlap=beside)


def as_dict(workload: Workload, run: Simulation) -> dict[str, Any]:
    """Return what `--json` prints."""
    table = run.to_pandas().reset_index()
    devices = [{str(k): v for k, v in row.items()} for row in table.to_dict("records")]
    return {
        "workload": workload.name,
        "schedule": run.schedule.name,
        "microbatches": run.schedule.microbatches,
        "stages": run.stages.count,
        "makespan": run.makespan,
        "time_per_sample": run.time_per_sample,
        "bubble": run.bubble,
        "peak_memory": run.peak_memory,
        "time_unit": workload.time_unit,
        "devices": devices,
        "busiest_link": run.busiest_link and run.busiest_link[0],
        "links": run.link_load.reset_index().to_dict("records"),
        "over_memory": run.over_memory,
    }


def _draw(run: Simulation, path: Path, title: str) -> None:
    if path.suffix.lower() in PAGES:
        from ..runtime.pictures.html_page import html_page

        write_whole(path, html_page(run, title=title))
    else:
        from ..runtime.pictures.gantt import draw_gantt

        draw_gantt(run, path)


def _print(workload: Workload, run: Simulation) -> None:
    unit = workload.time_unit
    table = Table(title=f"{workload.name}: {run.schedule.name}, {run.stages.count} stages")
    table.add_column("device", no_wrap=True)
    for title in ("compute", "transfer", "idle", "bubble", "in flight", "peak memory"):
        width = {"in flight": 6, "peak memory": 11}.get(title)  # these titles wrap
        table.add_column(title, justify="right", min_width=width or len(title), max_width=width)
    frame = run.to_pandas()
    for d in run.used:
        row = frame.iloc[d]
        table.add_row(
            run.stages.devices[d],
            f"{row['compute']:.5g}",
            f"{row['transfer']:.3g}",
            f"{row['idle']:.5g}",
            f"{100 * row['bubble']:.1f} %",
            f"{row['in_flight']:.0f}",
            show_bytes(float(row["peak_bytes"])),
        )
    OUT.print(table)
    rows = {
        "makespan": f"{show_time(run.makespan, unit)} for {run.schedule.microbatches}",
        "steady state": f"{show_time(run.time_per_sample, unit)} per sample",
        "bubble": f"{100 * run.bubble:.2f} %",
    }
    if run.busiest_link is not None:
        name, share = run.busiest_link
        rows["busiest link"] = f"{name}, {100 * share:.1f} % of the makespan"
    for name, value in rows.items():
        OUT.print(f"{name:>12}  {value}", highlight=False)
    for line in run.over_memory:
        OUT.print(f"warning: {line}", style="yellow", highlight=False, soft_wrap=True)
