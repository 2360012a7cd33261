"""A sharding over time, as people and programs read it."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

from ...instances import Plan, Workload
from ...instances.formats.writing import write_whole
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
    from ...runtime.simulate.sharded import sharded_timeline

    timeline = sharded_timeline(workload, plan)
    if trace is not None:
        import json

        from ...runtime.pictures.sharded import sharded_trace

        write_whole(trace, json.dumps(sharded_trace(timeline), ensure_ascii=False))
    if plot is not None:
        from ...runtime.pictures.sharded import draw_sharded_timeline

        draw_sharded_timeline(timeline, plot, f"{workload.name}: {plan.method}")
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
