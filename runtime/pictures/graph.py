"""The computation graph coloured by device: by Graphviz where it is installed, else matplotlib."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import networkx as nx
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, Patch
from matplotlib.path import Path as Path2D

from ...instances import Plan, Planned, TensorSharding, Workload, plan_of
from ...instances.common.escape import graphviz, markup, plain
from ...instances.common.quantities import show_time
from ...instances.formats.writing import PICTURES, check_target
from ..simulate.plan_stages import stages_of
from ..simulate.stages import StageGraph
from .figure import names_as_they_are, save_picture
from .layers import Spot, layers
from .palette import FILLS
from .sharded import graph_by_property

EDGE = "#8a929e"
#: Graphs of more nodes are drawn by stages.
MOST_NODES = 240
DOT_SECONDS = 60


def draw_graph(
    workload: Workload, plan: Plan | Planned, path: Path, *, most_nodes: int = MOST_NODES
) -> None:
    """Draw the graph into an SVG, PNG or PDF file, a colour per device, or per property.

    Parameters
    ----------
    workload, plan
        The graph, and the plan that was made for it, or the `Result` that holds it.
    path
        Ending in ``.svg``, ``.png`` or ``.pdf``.
    most_nodes
        A workload of more nodes is drawn by its stages: a box per convex piece and pass. The
        colour of a stage with replicas is that of its first device.

    Raises
    ------
    InputError
        If the plan was made for another workload, or the file's ending names no format.

    Examples
    --------
    >>> from pathlib import Path
    >>> import stagecut
    >>> workload = stagecut.load("gpt2-xl")
    >>> cluster = stagecut.accelerators_and_cpus(2)
    >>> plan = stagecut.solve(workload, cluster, method="greedy").plan
    >>> stagecut.draw_graph(workload, plan, Path("graph.svg"), most_nodes=10)
    """
    plan = plan_of(plan)
    plan.check_made_for(workload)
    check_target(path, PICTURES)
    if isinstance(plan.solution, TensorSharding):
        graph, texts = graph_by_property(workload, plan, most_nodes)
        draw_coloured(graph, texts, _title(workload, plan), path)
        return
    if workload.n <= most_nodes:
        graph = _by_nodes(workload, plan)
    else:
        graph = _by_stages(workload, plan, stages_of(workload, plan))
    used = sorted({int(d) for d in plan.placement.tolist()})
    for _, node in graph.nodes(data=True):
        node["device"] = used.index(node["device"])
    draw_coloured(graph, [plan.device_names[d] for d in used], _title(workload, plan), path)


def _title(workload: Workload, plan: Plan) -> str:
    objective = show_time(plan.objective, plan.time_unit)
    return plain(f"{workload.name}: {plan.method}, objective {objective}")


def draw_coloured(graph: nx.DiGraph[int], names: Sequence[str], title: str, path: Path) -> None:
    """Draw a graph whose nodes have a label, whether they are backward, and a device by number."""
    legend = [(plain(name), FILLS[i % len(FILLS)]) for i, name in enumerate(names)]
    if len(names) > len(FILLS):  # colours come again, so that numbers must tell
        legend = [(f"[{i}] {name}", colour) for i, (name, colour) in enumerate(legend)]
        for _, node in graph.nodes(data=True):
            node["label"] = f"[{node['device']}] {node['label']}"
    fill = {i: colour for i, (_, colour) in enumerate(legend)}
    dot = shutil.which("dot")
    if dot is not None and _with_graphviz(dot, graph, fill, legend, title, path):
        return
    _with_matplotlib(graph, fill, legend, title, path)


def _by_nodes(workload: Workload, plan: Plan) -> nx.DiGraph[int]:
    graph: nx.DiGraph[int] = nx.DiGraph()
    for v in range(workload.n):
        name = plain(workload.names[v])
        graph.add_node(
            v,
            label=name if len(name) <= 26 else f"{name[:12]}…{name[-12:]}",
            device=int(plan.placement[v]),
            backward=bool(workload.backward[v]),
        )
    graph.add_edges_from(workload.edges.tolist())
    return graph


def _by_stages(workload: Workload, plan: Plan, stages: StageGraph) -> nx.DiGraph[int]:
    graph: nx.DiGraph[int] = nx.DiGraph()
    for s, passes in enumerate(stages.nodes):
        for side, nodes in enumerate(passes):
            if nodes:
                letter = "FB"[side]
                time = stages.compute[s, side]
                graph.add_node(
                    2 * s + side,
                    label=f"{s}{letter}: {len(nodes)} nodes\ncompute {time:.4g}",
                    device=int(plan.placement[nodes[0]]),
                    backward=bool(side),
                )
    task_of = {v: 2 * s + p for s, both in enumerate(stages.nodes) for p in (0, 1) for v in both[p]}
    for u, v in workload.edges.tolist():
        if task_of[u] != task_of[v]:
            graph.add_edge(task_of[u], task_of[v])
    return graph


def _with_graphviz(
    dot: str,
    graph: nx.DiGraph[int],
    fill: dict[int, str],
    legend: list[tuple[str, str]],
    title: str,
    path: Path,
) -> bool:
    """Draw with Graphviz; False if it takes too long."""
    cells = "".join(
        f'<TD BGCOLOR="{colour}" CELLPADDING="5">{markup(name)}</TD>' for name, colour in legend
    )
    heading = (
        f'<<TABLE BORDER="0" CELLSPACING="6"><TR><TD COLSPAN="{len(legend)}" ALIGN="LEFT">'
        f"{markup(title)}</TD></TR><TR>{cells}</TR></TABLE>>"
    )
    lines = [
        "digraph plan {",
        f'graph [label={heading}, labelloc=t, labeljust=l, fontname="DejaVu Sans", fontsize=16,',
        "  nodesep=0.15, ranksep=0.3, dpi=96];",
        'node [shape=box, style="filled,rounded", fontname="DejaVu Sans", fontsize=11,',
        '  height=0.3, margin="0.1,0.04", color="#5d6673"];',
        'edge [color="#8a929e", arrowsize=0.6];',
    ]
    for v, node in graph.nodes(data=True):
        style = ', style="filled,rounded,dashed"' if node["backward"] else ""
        text = graphviz(node["label"])
        lines.append(f'{v} [label={text}, fillcolor="{fill[node["device"]]}"{style}];')
    lines += [f"{u} -> {v};" for u, v in graph.edges]
    kind = path.suffix.lower()[1:]
    command = [dot, f"-T{kind}", "-o", str(path)]
    try:
        subprocess.run(
            command, input="\n".join([*lines, "}"]), text=True, check=True, capture_output=True,
            timeout=DOT_SECONDS,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return False
    return True


@names_as_they_are
def _with_matplotlib(
    graph: nx.DiGraph[int],
    fill: dict[int, str],
    legend: list[tuple[str, str]],
    title: str,
    path: Path,
) -> None:
    """Draw layer by layer; edges over several layers pass between the nodes."""
    layout = layers(graph)
    labels = [str(node["label"]) for _, node in graph.nodes(data=True)]
    words = max(len(line) for text in labels for line in text.split("\n"))
    lines = 1 + max(text.count("\n") for text in labels)
    wide, high = 0.35 + 0.085 * words, 0.26 + 0.16 * lines
    every = [spot for way in layout.ways.values() for spot in way] + list(layout.spots.values())
    left, right = min(x for x, _ in every) - 0.55, max(x for x, _ in every) + 0.55
    bottom = max(y for _, y in every) + 0.6
    size = (
        max(6.0, min(60.0, wide * (right - left))),
        max(2.5, min(120.0, high * (bottom + 0.6) + 0.9)),
    )
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots()
    for (_, target), way in layout.ways.items():
        text = max(str(graph.nodes[target]["label"]).split("\n"), key=len)
        _draw_way(axes, way, 0.5 * 0.2 * lines / high, 2.25 * len(text) + 5)
    for v, node in graph.nodes(data=True):
        axes.text(
            *layout.spots[v], node["label"], ha="center", va="center", fontsize=8, zorder=3,
            bbox={
                "boxstyle": "round,pad=0.3", "facecolor": fill[node["device"]],
                "edgecolor": "#5d6673", "linestyle": "--" if node["backward"] else "-",
            },
        )  # fmt: skip
    axes.set_xlim(left, right)
    axes.set_ylim(bottom, -0.6)
    axes.axis("off")
    axes.set_title(title, loc="left", fontsize=11)
    entries = [Patch(facecolor=fill, edgecolor="#5d6673", label=name) for name, fill in legend]
    if any(late for _, late in graph.nodes(data="backward")):
        entries.append(Patch(facecolor="white", edgecolor="#5d6673", ls="--", label="backward"))
    figure.legend(
        handles=entries, loc="outside lower center", frameon=False,
        ncols=max(1, min(len(entries), int(figure.get_figwidth() / 1.7))),
    )  # fmt: skip
    save_picture(figure, path, dpi=110)


def _draw_way(axes: Axes, way: list[Spot], half: float, aside: float) -> None:
    """Draw an edge as a smooth line through its points, with an arrow at its end.

    Parameters
    ----------
    half
        Half the height of a node, in layers.
    aside
        Half the width of the node at its end, in points.
    """
    (x, y), (u, v) = way[0], way[-1]
    if y == v:  # beside each other: a forward node and its backward pass
        axes.annotate(
            "", (u, v), (x, y), zorder=1,
            arrowprops={"arrowstyle": "-|>", "color": EDGE, "linewidth": 0.7, "shrinkB": aside},
        )  # fmt: skip
        return
    down = 1.0 if v > y else -1.0
    points = [(x, y + down * half), *way[1:-1], (u, v - down * half)]
    corners, codes = [points[0]], [int(Path2D.MOVETO)]
    for (a, b), (c, d) in pairwise(points):
        middle = (b + d) / 2
        corners += [(a, middle), (c, middle), (c, d)]
        codes += 3 * [int(Path2D.CURVE4)]
    arrow = FancyArrowPatch(
        path=Path2D(corners, codes), arrowstyle="-|>", mutation_scale=7, color=EDGE, linewidth=0.7,
        zorder=1, shrinkA=0, shrinkB=0,
    )  # fmt: skip
    arrow.set_fill(True)
    axes.add_patch(arrow)
