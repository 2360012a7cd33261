"""A sharding over time, as people and programs read it."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

from ...instances import Plan, Workload
from ...instances.formats.writing import PAGES, write_whole
from ..common.console import OUT, new_table, print_json, show_bytes, show_time, tell_written


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
