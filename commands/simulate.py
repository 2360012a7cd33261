"""`stagecut simulate`: a plan over time."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..instances import InputError, Plan, Sharding, Workload
from ..instances.formats.source import read_source
from ..instances.formats.writing import PAGES, write_whole
from ..runtime.simulate.network import Sharing
from .common import options
from .common.console import (
    OUT,
    check_outputs,
    fold_titles,
    new_table,
    print_json,
    refuse,
    show_bytes,
    show_count,
    show_percent,
    show_time,
    tell_written,
)
from .common.pose import choose_network, named_plan, names_file

if TYPE_CHECKING:
    from ..runtime.simulate.result import Simulation


def simulate(
    workload: options.WorkloadArgument,
    plan: Annotated[
        Path | None, typer.Argument(help="A plan file; a training job's can stand alone.")
    ] = None,
    schedule: Annotated[
        str | None,
        typer.Option(
            autocompletion=options.complete_simulated,
            help="gpipe, 1f1b, interleaved, pipedream, 2bw, zb-h1, zb-h2, single, inference, or a "
            "CSV file with a row of actions such as 0F0,0B0 per device; default: the plan's, else "
            "1f1b, of latency plans single.",
        ),
    ] = None,
    microbatches: Annotated[
        int | None, typer.Option(help="Number of microbatches; default: the plan's batch, else 8.")
    ] = None,
    weight_share: options.WeightShare = None,
    network: options.NetworkName = None,
    bandwidth: options.LinkBandwidth = None,
    latency: options.LinkLatency = 0.0,
    sharing: Annotated[
        Sharing | None, typer.Option(help="How messages share the bus; default: fair.")
    ] = None,
    overlap: options.Overlap = None,
    relayed: Annotated[
        bool | None,
        typer.Option(help="Whether stages send to their neighbours only; default: the plan's."),
    ] = None,
    trace: Annotated[
        Path | None, typer.Option(help="Write a trace for Perfetto (Chrome JSON).")
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(help="Draw the timeline: .svg, .png, .pdf, or .html.")
    ] = None,
    graph: Annotated[
        Path | None, typer.Option(help="Draw the graph by device: .svg, .png or .pdf.")
    ] = None,
    csv: Annotated[Path | None, typer.Option(help="Write the schedule as CSV.")] = None,
    as_json: options.AsJson = False,
) -> None:
    """Run PLAN in the simulator: timeline, steady state, bubble, memory over time.

    Exit code 2 if the schedule does not fit the plan, is incomplete or deadlocks: the message
    then shows the place in a table of steps and devices.
    """
    from ..instances.formats.files import load, load_plan_with_form
    from ..instances.job.plan import is_job_plan
    from ..runtime.schedules import read_csv
    from ..runtime.simulate.plan_stages import named_schedule, stages_of, usual_schedule
    from ..runtime.simulate.simulator import simulate_stages

    model, plan = named_plan(workload, plan)
    check_outputs(trace, csv, pictures=[graph], page=plot, inputs=[workload, plan, schedule])
    if weight_share is not None and not 0 <= weight_share <= 1:
        raise InputError(f"--weight-share: {weight_share:g}; it must be from 0 to 1")
    others = {
        "--schedule": schedule, "--microbatches": microbatches, "--network": network,
        "--weight-share": weight_share, "--bandwidth": bandwidth, "--sharing": sharing,
        "--overlap": overlap, "--relayed": relayed, "--latency": latency or None,
    }  # fmt: skip
    if is_job_plan(plan):
        from ..api.explain_job import simulate_job
        from .job import PLAN_SAYS, plan_of

        refuse({**others, "--graph": graph}, PLAN_SAYS)
        job = plan_of(model, plan)
        _show(simulate_job(job), job.model.name, plan.name, trace, plot, csv, as_json=as_json)
        if not as_json:
            OUT.print_line(
                f"an iteration takes {job.seconds:.4g} s, with what comes after the schedule: "
                "traffic of replicas, optimizer step"
            )
        return
    loaded, made = load_plan_with_form(plan, load(workload))
    if isinstance(made.problem, Sharding):
        refuse({**others, "--csv": csv}, "a sharding has none")
        show_sharded_timeline(loaded, made, trace, plot, graph, as_json=as_json)
        return
    stages = stages_of(loaded, made, weight_share=weight_share, relayed=relayed)
    moves = choose_network(stages, made, network, bandwidth, latency, sharing, overlap)
    planned = usual_schedule(made) if schedule is None else named_schedule(made, schedule)
    if schedule is not None and names_file(schedule):
        if microbatches is not None:
            raise InputError(f"--microbatches: {schedule} says how many there are; leave it out")
        actions = read_csv(read_source(schedule).text, name=schedule)
        run = simulate_stages(stages, actions, network=moves)
    else:
        run = simulate_stages(stages, planned, microbatches, network=moves)
    if graph is not None:
        from ..runtime.pictures.graph import draw_graph

        draw_graph(loaded, made, graph)
    _show(run, loaded.name, made.method, trace, plot, csv, as_json=as_json)
    if not as_json:
        tell_written(graph)


def _show(
    run: Simulation,
    name: str,
    method: str,
    trace: Path | None,
    plot: Path | None,
    csv: Path | None,
    *,
    as_json: bool,
) -> None:
    """Write a simulation's files, and print its table."""
    from ..runtime.schedules import write_csv

    if trace is not None:
        from ..runtime.pictures.marks import trace_events

        _write_trace(trace, trace_events(run))
    if plot is not None and plot.suffix.lower() in PAGES:
        from ..runtime.pictures.marks import html_page

        write_whole(plot, html_page(run, title=f"{name}: {run.schedule.name}, {method}"))
    elif plot is not None:
        from ..runtime.pictures.gantt import draw_gantt

        draw_gantt(run, plot)
    if csv is not None:
        write_whole(csv, write_csv(run.schedule))
    if as_json:
        print_json(as_dict(name, run))
    else:
        print_simulation(name, run)
        tell_written(trace, plot, csv)


def _write_trace(path: Path, trace: dict[str, Any]) -> None:
    write_whole(path, json.dumps(trace, ensure_ascii=False))


def as_dict(name: str, run: Simulation) -> dict[str, Any]:
    """Return the object for `--json`."""
    table = run.to_pandas().reset_index()
    devices = [{str(k): v for k, v in row.items()} for row in table.to_dict("records")]
    return {
        "workload": name,
        "schedule": run.schedule.name,
        "microbatches": run.schedule.microbatches,
        "stages": run.stages.count,
        "makespan": run.makespan,
        "time_per_sample": run.time_per_sample,
        "bubble": run.bubble,
        "peak_memory": run.peak_memory,
        "time_unit": run.stages.time_unit,
        "devices": devices,
        "busiest_link": run.busiest_link and run.busiest_link[0],
        "links": run.link_load.reset_index().to_dict("records"),
        "over_memory": run.over_memory,
    }


def print_simulation(name: str, run: Simulation) -> None:
    """Print the table of devices, then makespan, steady state, bubble and busiest link."""
    unit, microbatches, count = run.stages.time_unit, run.schedule.microbatches, run.stages.count
    batch = show_count(microbatches, "microbatch")
    stages = show_count(count, "stage")
    compute = "compute" if unit == "unspecified" else f"compute ({unit})"
    titles = (compute, "transfer", "idle", "bubble", "in flight", "peak memory")
    table = new_table(f"{name}: {run.schedule.name}, {stages}, {batch}", "device", titles)
    frame = run.to_pandas()
    for d in run.used:
        row = frame.iloc[d]
        table.add_row(
            run.stages.devices[d],
            f"{row['compute']:.5g}",
            f"{row['transfer']:.3g}",
            f"{row['idle']:.5g}",
            show_percent(row["bubble"]),
            f"{row['in_flight']:.0f}",
            show_bytes(float(row["peak_bytes"])),
        )
    fold_titles(table)
    OUT.print(table)
    rows = {
        "makespan": f"{show_time(run.makespan, unit)} for {batch}",
        "steady state": f"{show_time(run.time_per_sample, unit)} per microbatch",
        "bubble": show_percent(run.bubble, 2),
    }
    if run.network.overlap and not run.link_load.empty:
        rows["transfers"] = "beside compute; the table has what keeps a device busy"
    if run.busiest_link is not None:
        name, share = run.busiest_link
        alone = any(len(ring) > 1 for ring in run.stages.replicas)
        rows["busiest link"] = f"{name}, {show_percent(share)} of the makespan" + (
            ", by messages without all-reduces" if alone else ""
        )
    for name, value in rows.items():
        OUT.print_wrapped(f"{name:>12}  {value}")
    for line in run.over_memory:
        OUT.print_line(f"warning: {line}", style="yellow")


def show_sharded_timeline(
    workload: Workload,
    plan: Plan,
    trace: Path | None,
    plot: Path | None,
    graph: Path | None,
    *,
    as_json: bool,
) -> None:
    """Print, draw and trace the timeline of a sharding."""
    from ..runtime.pictures.marks import sharded_marks
    from ..runtime.verify.sharding import ShardingReport
    from ..runtime.verify.verify import evaluate

    plan.check_made_for(workload)
    report = evaluate(workload, plan.cluster, plan.problem, plan.solution)
    assert isinstance(report, ShardingReport)
    if not report.lying:
        raise InputError(f"plan: {report.violations[0]}; plan again")
    timeline = report.timeline
    marks = sharded_marks(timeline)
    if trace is not None:
        from ..runtime.pictures.marks import trace_of

        _write_trace(trace, trace_of(marks, {"workload": workload.name, "mesh": timeline.mesh}))
    if plot is not None:
        title = f"{workload.name}: {plan.method}"
        if plot.suffix.lower() in PAGES:
            from ..runtime.pictures.marks import page_of

            makespan = show_time(timeline.makespan, timeline.time_unit)
            write_whole(plot, page_of(marks, title, {"makespan": makespan}))
        else:
            from ..runtime.pictures.gantt import draw_marks

            draw_marks(marks, plot, title)
    if graph is not None:
        from ..runtime.pictures.graph import draw_graph

        draw_graph(workload, plan, graph)
    times: dict[str, float] = defaultdict(float)
    sizes: dict[str, float] = defaultdict(float)
    for event in timeline.events:
        times[event.kind] += event.end - event.start
        sizes[event.kind] += event.bytes
    if as_json:
        print_json(
            {
                "workload": workload.name,
                "makespan": timeline.makespan,
                "time_unit": timeline.time_unit,
                "events": len(timeline.events),
                "times": dict(times),
                "bytes": dict(sizes),
            }
        )
        return
    table = new_table(workload.name, "what", (f"time ({timeline.time_unit})", "bytes"))
    for kind, time in times.items():
        table.add_row(kind, f"{time:.6g}", show_bytes(sizes[kind]) if sizes[kind] else "")
    OUT.print(table)
    OUT.print_wrapped(f"makespan  {show_time(timeline.makespan, timeline.time_unit)}")
    tell_written(trace, plot, graph)
