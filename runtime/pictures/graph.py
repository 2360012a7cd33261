"""The computation graph coloured by device: by Graphviz where it is installed, else matplotlib."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import networkx as nx
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from ...instances import Plan, TensorSharding, Workload
from ...instances.common.escape import graphviz, markup, plain
from ...instances.common.quantities import show_time
from ...instances.formats.writing import PICTURES, check_target
from ..simulate.plan_stages import stages_of
from ..simulate.stages import StageGraph
from .figure import names_as_they_are, save_picture
from .sharded import graph_by_property

#: Fills of devices, light enough for black text; after Okabe and Ito.
FILLS = (
    "#9ecae9", "#fdc27a", "#8fd3b6", "#e9b3d2", "#f4e27c", "#f2a488", "#c3b5e3", "#d0c0a8",
    "#b9d98a", "#c9ccd1",
)  # fmt: skip

#: Graphs of more nodes are drawn by stages.
MOST_NODES = 240
DOT_SECONDS = 60


def draw_graph(workload: Workload, plan: Plan, path: Path, *, most_nodes: int = MOST_NODES) -> None:
    """Draw the graph into an SVG, PNG or PDF file, a colour per device, or per property.

    Parameters
    ----------
    workload, plan
        The graph, and the plan that was made for it.
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
    """Draw layer by layer, nodes of a layer ordered by the mean place of what feeds them."""
    layers = [sorted(layer) for layer in nx.topological_generations(graph)]
    place: dict[int, float] = {}
    for layer in layers:
        wanted = {
            v: sum(place[u] for u in graph.predecessors(v)) / max(1, graph.in_degree(v))
            for v in layer
        }
        layer.sort(key=lambda v: (wanted[v], v))
        for i, v in enumerate(layer):
            place[v] = i - (len(layer) - 1) / 2
    widest = max(len(layer) for layer in layers)
    labels = [str(node["label"]) for _, node in graph.nodes(data=True)]
    words = max(len(line) for text in labels for line in text.split("\n"))
    width, height = 0.35 + 0.085 * words, 0.55
    figure = Figure(
        figsize=(max(6.0, min(60.0, widest * width)), max(3.0, min(120.0, len(layers) * height))),
        layout="constrained",
    )
    axes = figure.subplots()
    spot = {v: (place[v], -float(row)) for row, layer in enumerate(layers) for v in layer}
    lines = 1 + max(text.count("\n") for text in labels)
    for u, v in graph.edges:
        far = spot[u][1] - spot[v][1] > 1 and abs(spot[u][0] - spot[v][0]) < 1
        axes.annotate(
            "", spot[v], spot[u],
            arrowprops={
                "arrowstyle": "-|>", "color": "#8a929e", "linewidth": 0.7,
                "shrinkB": 4 + 5 * lines, "connectionstyle": f"arc3,rad={0.25 if far else 0}",
            },
        )  # fmt: skip
    for v, node in graph.nodes(data=True):
        axes.text(
            *spot[v], node["label"], ha="center", va="center", fontsize=8, zorder=3,
            bbox={
                "boxstyle": "round,pad=0.3", "facecolor": fill[node["device"]],
                "edgecolor": "#5d6673", "linestyle": "--" if node["backward"] else "-",
            },
        )  # fmt: skip
    axes.set_xlim(-widest / 2 - 0.1, widest / 2 + 0.1)
    axes.set_ylim(-len(layers) + 0.4, 0.6)
    axes.axis("off")
    axes.set_title(title, loc="left", fontsize=11)
    figure.legend(
        handles=[Patch(facecolor=fill, edgecolor="#5d6673", label=name) for name, fill in legend],
        loc="outside lower center", frameon=False,
        ncols=max(1, min(len(legend), int(figure.get_figwidth() / 1.7))),
    )  # fmt: skip
    save_picture(figure, path, dpi=110)
