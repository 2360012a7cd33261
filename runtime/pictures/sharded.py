"""Pictures of shardings: the timeline as a picture and as a trace, and the graph by property."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import networkx as nx
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from ...instances import InputError, Plan, Role, TensorSharding, Workload, program_of
from ...instances.common.escape import plain
from ...instances.common.units import TIME_UNITS
from ...instances.formats.writing import PICTURES, check_target
from ..simulate.sharded import ShardedTimeline
from .figure import names_as_they_are, save_picture

#: Colour of each kind of event.
KINDS = {
    "forward": "#7fb2e5", "backward": "#f2b56b", "all-gather": "#8fd3b6",
    "reduce-scatter": "#e9b3d2", "all-reduce": "#e59a9a", "all-to-all": "#c3b5e3",
}  # fmt: skip


@names_as_they_are
def draw_sharded_timeline(timeline: ShardedTimeline, path: Path, title: str) -> None:
    """Draw a lane for computing and one for each axis of the mesh into a picture.

    Raises
    ------
    InputError
        If the file's ending names no format.
    """
    check_target(path, PICTURES)
    lanes = ["compute", *(f"axis {d}: {p}" for d, p in enumerate(timeline.mesh))]
    figure = Figure(figsize=(11, 1.2 + 0.6 * len(lanes)), layout="constrained")
    axes = figure.subplots()
    for kind, colour in KINDS.items():
        for lane in range(len(lanes)):
            spans = [
                (e.start, e.end - e.start)
                for e in timeline.events
                if e.kind == kind and e.axis + 1 == lane
            ]
            axes.broken_barh(spans, (lane - 0.4, 0.8), facecolors=colour)
    axes.set_yticks(range(len(lanes)), lanes)
    axes.invert_yaxis()
    axes.set_xlim(0, timeline.makespan or 1.0)
    axes.set_xlabel(f"time ({timeline.time_unit})")
    axes.set_title(plain(title), loc="left")
    used = {e.kind for e in timeline.events}
    patches = [Patch(color=colour, label=kind) for kind, colour in KINDS.items() if kind in used]
    figure.legend(handles=patches, loc="outside lower left", ncols=6, frameon=False)
    save_picture(figure, path)


def sharded_trace(timeline: ShardedTimeline) -> dict[str, Any]:
    """Return the timeline as a trace in the Chrome JSON format: a track per lane."""
    scale = 1e6 * TIME_UNITS[timeline.time_unit]
    events: list[dict[str, Any]] = [
        {"ph": "M", "name": "thread_name", "pid": 1, "tid": lane, "args": {"name": name}}
        for lane, name in enumerate(
            ["compute", *(f"axis {d} of {p}" for d, p in enumerate(timeline.mesh))]
        )
    ]
    events += [
        {
            "ph": "X", "name": e.name, "cat": e.kind, "pid": 1, "tid": e.axis + 1,
            "ts": e.start * scale, "dur": (e.end - e.start) * scale,
            "args": {"kind": e.kind, "bytes": e.bytes},
        }
        for e in timeline.events
    ]  # fmt: skip
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def graph_by_property(
    workload: Workload, plan: Plan, most: int
) -> tuple[nx.DiGraph[int], list[str]]:
    """Return the graph of a sharding, each node with the number of its property, and their texts.

    Parameters
    ----------
    most
        Of more operators those that only look at a tensor are left out, and of more than that all
        but the first ones.
    """
    program, solution = program_of(workload), plan.solution
    assert isinstance(solution, TensorSharding)
    kept = [
        v
        for v, o in enumerate(program.operators)
        if len(program.operators) <= most or not (o.view or o.role is not Role.OPERATOR)
    ][:most]
    if not kept:
        raise InputError(f"plot: {workload.name} has nothing to draw")
    texts: list[str] = []
    graph: nx.DiGraph[int] = nx.DiGraph()
    for v in kept:
        operator = program.operators[v]
        signatures = [operator.signatures[k] for k in solution.signature[v].tolist()]
        how = "x".join(s.text.split("->")[1].split(",")[0] for s in signatures)
        if how not in texts:
            texts.append(how)
        name = plain(str(operator.name))
        graph.add_node(
            v,
            label=name if len(name) <= 26 else f"{name[:12]}…{name[-12:]}",
            device=texts.index(how),
            backward=operator.backward,
        )
    inside = set(kept)
    for v in kept:
        waiting = list(program.operators[v].inputs)
        while waiting:
            u = program.maker[waiting.pop()]
            if u in inside:
                graph.add_edge(u, v)
            elif program.operators[u].view:
                waiting += program.operators[u].inputs
    return graph, texts
