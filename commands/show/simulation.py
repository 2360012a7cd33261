"""Output of simulations: a row per device, makespan, steady state, bubble; sharding timelines."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.table import Table

from ...instances import Plan, Workload
from ...instances.formats.writing import PAGES, write_whole
from ..common.console import (
    OUT,
    new_table,
    print_json,
    show_bytes,
    show_percent,
    show_time,
    tell_written,
)

if TYPE_CHECKING:
    from ...runtime.simulate.result import Simulation


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
    batch = f"{microbatches} {'microbatch' if microbatches == 1 else 'microbatches'}"
    stages = f"{count} {'stage' if count == 1 else 'stages'}"
    table = Table(title=f"{name}: {run.schedule.name}, {stages}, {batch}")
    table.add_column("device", no_wrap=True)
    compute = "compute" if unit == "unspecified" else f"compute ({unit})"
    for title in (compute, "transfer", "idle", "bubble", "in flight", "peak memory"):
        width = {compute: 8, "in flight": 6, "peak memory": 11}.get(title)  # these titles wrap
        table.add_column(title, justify="right", min_width=width or len(title), max_width=width)
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
        OUT.print(f"{name:>12}  {value}", highlight=False)
    for line in run.over_memory:
        OUT.print(f"warning: {line}", style="yellow", highlight=False, soft_wrap=True)


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
    from ...runtime.pictures.sharded import sharded_marks
    from ...runtime.simulate.sharded import sharded_timeline

    timeline = sharded_timeline(workload, plan)
    marks = sharded_marks(timeline)
    if trace is not None:
        import json

        from ...runtime.pictures.trace import trace_of

        about = {"workload": workload.name, "mesh": timeline.mesh}
        write_whole(trace, json.dumps(trace_of(marks, about), ensure_ascii=False))
    if plot is not None:
        title = f"{workload.name}: {plan.method}"
        if plot.suffix.lower() in PAGES:
            from ...runtime.pictures.html_page import page_of

            makespan = show_time(timeline.makespan, timeline.time_unit)
            write_whole(plot, page_of(marks, title, {"makespan": makespan}))
        else:
            from ...runtime.pictures.gantt import draw_marks

            draw_marks(marks, plot, title)
    if graph is not None:
        from ...runtime.pictures.graph import draw_graph

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
    OUT.print(f"makespan  {show_time(timeline.makespan, timeline.time_unit)}", highlight=False)
    tell_written(trace, plot, graph)
