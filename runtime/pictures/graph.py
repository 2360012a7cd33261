"""Pictures of graphs: a workload, coloured by device or property, and the topology of a mapping.

Nodes of a workload are in layers, and edges go around other nodes. Backward passes are beside their
forward passes and run upwards, so that an edge from a node to its own backward pass is short.

References
----------
K. Sugiyama, S. Tagawa, M. Toda, "Methods for visual understanding of hierarchical system
structures", IEEE Transactions on Systems, Man, and Cybernetics 11, 1981.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import networkx as nx
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import FancyArrowPatch, Patch, Rectangle
from matplotlib.path import Path as Path2D
from scipy.optimize import isotonic_regression

from ...instances import (
    DeviceMapping,
    InputError,
    Plan,
    Planned,
    ReplicaPlacement,
    Role,
    Sharding,
    TensorSharding,
    Workload,
    plan_of,
    program_of,
)
from ...instances.common.arrays import Floats
from ...instances.common.escape import plain
from ...instances.common.units import show_count, show_time
from ...instances.formats.writing import PICTURES, check_target
from ...instances.model.sharding import operator_groups
from ...instances.model.topology import Topology
from ..simulate.plan_stages import stages_of
from ..simulate.stages import StageGraph
from ..verify.report import MappingReport
from .style import FILLS, ShownFigure, names_as_they_are, save_picture

if TYPE_CHECKING:
    import pandas as pd


#: Space of a node, and of an edge that passes a layer, in widths of a node.
NODE, PASSING = 1.0, 0.16

#: Space between forward and backward passes, in widths of a node.
BESIDE = 0.5

SWEEPS = 12

Spot = tuple[float, float]
#: Most links of a topology's picture; of more, none is drawn.
MAX_LINKS = 1000
BUSIEST, LINK, SPARE, SWITCH = "#1d2430", "#b0b0b0", "#ffffff", "#666666"
#: Least size of marks with the number of their stage inside.
NUMBERED = 120.0


class GraphLayout(NamedTuple):
    """Places of nodes and edges; x in widths of a node, y in layers, downwards."""

    spots: dict[int, Spot]  # of each node
    # of each edge: its points, ends included
    ways: dict[tuple[int, int], list[Spot]]


EDGE, OUTLINE = "#8a929e", "#5d6673"

#: Most nodes of a graph; larger ones are drawn by stages.
MOST_NODES = 240


def draw_graph(
    workload: Workload, plan: Plan | Planned, path: Path, *, most_nodes: int = MOST_NODES
) -> None:
    """Draw the graph into an SVG, PNG or PDF file, a colour per device, or per property.

    Parameters
    ----------
    workload, plan
        The graph, and the plan that was made for it, or the `Result` that holds it.
    path
        File that ends in ``.svg``, ``.png`` or ``.pdf``.
    most_nodes
        Most nodes that are drawn; of larger workloads the stages are drawn, a box per convex piece
        and pass. The colour of a stage with replicas is that of its first device.

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


@names_as_they_are
def draw_coloured(graph: nx.DiGraph[int], names: Sequence[str], title: str, path: Path) -> None:
    """Draw a graph whose nodes have attributes label, backward, and device, a number."""
    legend = [(plain(name), FILLS[i % len(FILLS)]) for i, name in enumerate(names)]
    if len(names) > len(FILLS):  # colours come again, so that numbers must tell
        legend = [(f"[{i}] {name}", colour) for i, (name, colour) in enumerate(legend)]
        for _, node in graph.nodes(data=True):
            node["label"] = f"[{node['device']}] {node['label']}"
    layout = layers(graph)
    labels = [str(node["label"]) for _, node in graph.nodes(data=True)]
    words = max(len(line) for text in labels for line in text.split("\n"))
    lines = 1 + max(text.count("\n") for text in labels)
    wide, high = 0.35 + 0.085 * words, 0.26 + 0.16 * lines
    left, right, bottom = _extent(layout)
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
                "boxstyle": "round,pad=0.3", "facecolor": FILLS[node["device"] % len(FILLS)],
                "edgecolor": OUTLINE, "linestyle": "--" if node["backward"] else "-",
            },
        )  # fmt: skip
    axes.set_xlim(left, right)
    axes.set_ylim(bottom, -0.6)
    axes.axis("off")
    axes.set_title(title, loc="left", fontsize=11)
    entries = [Patch(facecolor=fill, edgecolor=OUTLINE, label=name) for name, fill in legend]
    if any(late for _, late in graph.nodes(data="backward")):
        entries.append(Patch(facecolor="white", edgecolor=OUTLINE, ls="--", label="backward"))
    figure.legend(
        handles=entries, loc="outside lower center", frameon=False,
        ncols=max(1, min(len(entries), int(figure.get_figwidth() / 1.7))),
    )  # fmt: skip
    save_picture(figure, path, dpi=110)


def shortened(name: str, side: int) -> str:
    """Return a name with its middle left out beyond `side` letters at each end."""
    return name if len(name) <= 2 * side + 2 else f"{name[:side]}…{name[-side:]}"


def _by_nodes(workload: Workload, plan: Plan) -> nx.DiGraph[int]:
    graph: nx.DiGraph[int] = nx.DiGraph()
    for v in range(workload.n):
        name = plain(workload.names[v])
        graph.add_node(
            v,
            label=shortened(name, 12),
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
                    label=f"{s}{letter}: {show_count(len(nodes), 'node')}\ncompute {time:.4g}",
                    device=int(plan.placement[nodes[0]]),
                    backward=bool(side),
                )
    task_of = {v: 2 * s + p for s, both in enumerate(stages.nodes) for p in (0, 1) for v in both[p]}
    for u, v in workload.edges.tolist():
        if task_of[u] != task_of[v]:
            graph.add_edge(task_of[u], task_of[v])
    return graph


def _extent(layout: GraphLayout) -> tuple[float, float, float]:
    """Return left, right and bottom of a layout with its margins; the top is at -0.6."""
    every = [*(spot for way in layout.ways.values() for spot in way), *layout.spots.values()]
    xs = [x for x, _ in every]
    return min(xs) - 0.6, max(xs) + 0.6, max(y for _, y in every) + 0.6


def _draw_way(axes: Axes, way: list[Spot], half: float, aside: float) -> None:
    """Draw an edge as a smooth line through its points, with an arrow at its end.

    `half` is half the height of a node, in layers, `aside` half the width of the one at its end, in
    points.
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


def layers(graph: nx.DiGraph[int]) -> GraphLayout:
    """Return the layout of an acyclic graph, whose nodes may have the attribute ``backward``."""
    backward = [v for v, late in graph.nodes(data="backward") if late]
    forward = [v for v in graph if v not in set(backward)]
    spots, ways = _one_pass(graph.subgraph(forward), upwards=False)
    if backward and forward:
        later, more = _one_pass(graph.subgraph(backward), upwards=True)
        every = [*spots.values(), *(spot for way in ways.values() for spot in way)]
        right = max(x for x, _ in every) + NODE + BESIDE
        left = min(x for x, _ in (*later.values(), *(s for way in more.values() for s in way)))
        shift = right - left
        spots |= {v: (x + shift, y) for v, (x, y) in later.items()}
        ways |= {edge: [(x + shift, y) for x, y in way] for edge, way in more.items()}
    elif backward:
        spots, ways = _one_pass(graph, upwards=True)
    for u, v in graph.edges:
        ways.setdefault((u, v), [spots[u], spots[v]])
    return GraphLayout(spots, ways)


def _one_pass(
    graph: nx.DiGraph[int], *, upwards: bool
) -> tuple[dict[int, Spot], dict[tuple[int, int], list[Spot]]]:
    """Place one pass; an edge over several layers has a point in each of those between."""
    ordered = graph.reverse() if upwards else graph
    number = {
        v: i for i, row in enumerate(nx.topological_generations(ordered)) for v in sorted(row)
    }
    rows: list[list[object]] = [[] for _ in range(1 + max(number.values(), default=-1))]
    linked: nx.Graph[object] = nx.Graph()
    for v in sorted(number, key=lambda v: (number[v], v)):
        rows[number[v]].append(v)
        linked.add_node(v)
    chains: dict[tuple[int, int], list[object]] = {}
    for u, v in ordered.edges:
        chain: list[object] = [u, *((u, v, i) for i in range(number[u] + 1, number[v])), v]
        for i, point in enumerate(chain[1:-1], number[u] + 1):
            rows[i].append(point)
        nx.add_path(linked, chain)
        chains[(v, u) if upwards else (u, v)] = chain[::-1] if upwards else chain
    x = _places(rows, linked, number)
    spots = {v: (x[v], float(number[v])) for v in number}
    ways = {
        edge: [(x[p], float(p[2] if isinstance(p, tuple) else number[p])) for p in chain]  # type: ignore[index]
        for edge, chain in chains.items()
    }
    return spots, ways


def _places(
    rows: list[list[object]], linked: nx.Graph[object], number: dict[int, int]
) -> dict[object, float]:
    """Return x of all points: layers are ordered by the mean place of neighbours, down and up."""
    layer = {point: i for i, row in enumerate(rows) for point in row}
    x: dict[object, float] = {}
    for row in rows:
        _spread(row, {p: float(k) for k, p in enumerate(row)}, number, x)
    for sweep in range(SWEEPS):
        down = sweep % 2 == 0
        for i in range(len(rows)) if down else reversed(range(len(rows))):
            wanted = {}
            for point in rows[i]:
                near = [x[p] for p in linked[point] if (layer[p] < i) == down and layer[p] != i]
                wanted[point] = sum(near) / len(near) if near else x[point]
            rows[i].sort(key=wanted.__getitem__)
            _spread(rows[i], wanted, number, x)
    return x


def _spread(
    row: list[object], wanted: dict[object, float], number: dict[int, int], x: dict[object, float]
) -> None:
    """Place a layer's points in order, nearest to their wanted places, with space for each."""
    room = np.array([NODE if point in number else PASSING for point in row])
    middle = np.cumsum(room) - room / 2  # of each point if there were no gaps
    gaps = isotonic_regression([wanted[point] for point in row] - middle).x
    x |= dict(zip(row, (middle + gaps).tolist(), strict=True))


#: Most nodes of a picture of shares.
MOST_SHARED = 120
#: Width and height of a node.
WIDE, HIGH = 0.86, 0.5


@names_as_they_are
def plot_shares(workload: Workload, shares: pd.DataFrame) -> Figure:
    """Draw the graph with the parts of each node at each place, such as those of a relaxation.

    Parameters
    ----------
    workload
        Workload of at most 120 nodes.
    shares
        A row per node, named as in the workload, a column per place; see `Relaxation`.

    Returns
    -------
    matplotlib.figure.Figure
        Each node is a bar, divided into the colours of places in proportion to its parts.

    Raises
    ------
    InputError
        If there are too many nodes, or rows are missing.

    Examples
    --------
    >>> import stagecut
    >>> workload = stagecut.load("unet-training")
    >>> problem = stagecut.Throughput("noncontiguous")
    >>> weak = stagecut.relax(workload, stagecut.accelerators_and_cpus(2), problem)
    >>> len(stagecut.plot_shares(workload, weak.shares).axes)
    1
    """
    names = [str(name) for name in workload.names]
    if workload.n > MOST_SHARED or not set(names) <= set(shares.index):
        raise InputError(
            f"plot: {workload.name} has {workload.n} nodes (most: {MOST_SHARED}), which must be "
            "the rows of the shares"
        )
    graph: nx.DiGraph[int] = nx.DiGraph()
    graph.add_nodes_from((v, {"backward": bool(workload.backward[v])}) for v in range(workload.n))
    graph.add_edges_from(workload.edges.tolist())
    layout = layers(graph)
    left, right, bottom = _extent(layout)
    size = (max(5.0, 1.25 * (right - left)), max(2.2, 0.4 * (bottom + 0.6) + 0.7))
    figure = ShownFigure(figsize=size, layout="constrained")
    axes = figure.subplots()
    for way in layout.ways.values():
        (x, y), (u, v) = way[0], way[-1]
        beside = [(x, y), (u - WIDE / 2 if u > x else u + WIDE / 2, v)]
        _draw_way(axes, beside if y == v else way, HIGH / 2, 0.0)
    parts = shares.to_numpy(np.float64)
    row = {str(name): i for i, name in enumerate(shares.index)}
    places = [plain(str(place)) for place in shares.columns]
    colours = {place: FILLS[i % len(FILLS)] for i, place in enumerate(places)}
    for v, (x, y) in layout.spots.items():
        at, low = x - WIDE / 2, y - HIGH / 2
        for place, part in zip(places, parts[row[names[v]]].tolist(), strict=True):
            if part > 0:
                axes.add_patch(Rectangle((at, low), part * WIDE, HIGH, fc=colours[place], zorder=2))
                at += part * WIDE
        box = Rectangle((x - WIDE / 2, low), WIDE, HIGH, fc="none", ec=OUTLINE, zorder=3)
        axes.add_patch(box)
        name = plain(names[v])
        axes.text(x, y, shortened(name, 7), ha="center", va="center", fontsize=7, zorder=4)
    axes.set_xlim(left, right)
    axes.set_ylim(bottom, -0.6)
    axes.axis("off")
    entries = [Patch(fc=colour, ec=OUTLINE, label=p) for p, colour in colours.items()]
    columns = max(1, int(size[0] / (0.5 + 0.085 * max(map(len, places)))))
    figure.legend(
        handles=entries, loc="outside lower center", frameon=False, fontsize=8,
        ncols=min(len(entries), columns),
    )  # fmt: skip
    return figure


def graph_by_property(
    workload: Workload, plan: Plan, most: int
) -> tuple[nx.DiGraph[int], list[str]]:
    """Return the graph of a sharding, each node with the number of its property, and their texts.

    Of more than `most` operators views, parameters and inputs are left out, and of the others all
    but the first `most`.
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
    assert isinstance(plan.problem, Sharding)
    groups = operator_groups(program, plan.problem.placement)
    graph: nx.DiGraph[int] = nx.DiGraph()
    for v in kept:
        operator = program.operators[v]
        signatures = [operator.signatures[k] for k in solution.signature[v].tolist()]
        how = "x".join(s.text.split("->")[1].split(",")[0] for s in signatures)
        how = how if groups[v] is None else f"{how} on group {groups[v]}"
        if how not in texts:
            texts.append(how)
        name = plain(str(operator.name))
        graph.add_node(
            v,
            label=shortened(name, 12),
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


@names_as_they_are
def draw_mapping(
    problem: DeviceMapping, solution: ReplicaPlacement, report: MappingReport, path: Path
) -> None:
    """Draw the mapping into a PNG, SVG or PDF file.

    Parameters
    ----------
    problem, solution, report
        Mapping, and its report by `evaluate`.
    path
        File that ends in ``.png``, ``.svg`` or ``.pdf``.

    Raises
    ------
    InputError
        If the file's ending names no format that can be drawn.

    Examples
    --------
    >>> from pathlib import Path
    >>> import stagecut
    >>> workload = stagecut.load("gpt2-xl")
    >>> problem = stagecut.DeviceMapping(stagecut.topology("ring:4"), stages=2, replicas=2)
    >>> plan = stagecut.solve(workload, problem=problem, method="layouts").plan
    >>> report = stagecut.evaluate(workload, plan.cluster, problem, plan.solution)
    >>> stagecut.draw_mapping(problem, plan.solution, report, Path("mapping.svg"))
    """
    topology = problem.topology
    place = np.array(_device_places(topology))
    figure = Figure(figsize=_size(place), layout="constrained")
    axes = figure.subplots()
    size = min(420.0, max(8.0, 9000.0 / topology.size))
    busiest = None if report.busiest_link is None else set(report.busiest_link)
    for a, b in topology.links.tolist() if len(topology.links) <= MAX_LINKS else ():
        if {a, b} != busiest:
            _draw_link(axes, topology, place, (a, b), LINK, 0.9)
    if report.busiest_link is not None:
        _draw_link(axes, topology, place, report.busiest_link, BUSIEST, 3.2)
    stage = np.full(topology.size, -1)
    for s, row in enumerate(solution.slots):
        stage[row] = s
    for v, s in enumerate(stage.tolist()):
        x, y = place[v].tolist()
        fill = FILLS[s % len(FILLS)] if s >= 0 else SPARE
        axes.scatter(x, y, s=size, color=fill, edgecolors=OUTLINE, linewidths=0.8, zorder=3)
        if s >= 0 and size >= NUMBERED:
            axes.text(x, y, str(s), ha="center", va="center", fontsize=9, zorder=4)
    if topology.switches:
        switches = place[topology.size :]
        axes.scatter(switches[:, 0], switches[:, 1], s=size / 2, marker="s", color=SWITCH, zorder=3)
    _say(figure, problem, report, spare=bool((stage < 0).any()))
    stages, replicas = show_count(problem.stages, "stage"), show_count(problem.replicas, "replica")
    title = f"{topology.name}: {stages} × {replicas}"
    axes.set_title(plain(title), loc="left", fontsize=11, pad=12)
    axes.set_axis_off()
    axes.set_aspect("equal")
    axes.margins(0.07)
    save_picture(figure, path)


def _say(figure: Figure, problem: DeviceMapping, report: MappingReport, *, spare: bool) -> None:
    """Add a legend of the colours below the picture."""
    entries: list[Patch | Line2D] = []
    if problem.stages <= len(FILLS):
        entries += [
            Patch(facecolor=FILLS[s], edgecolor=OUTLINE, label=f"stage {s}")
            for s in range(problem.stages)
        ]
    else:
        entries.append(Patch(facecolor=FILLS[0], edgecolor=OUTLINE, label="number: stage"))
    if spare:
        entries.append(Patch(facecolor=SPARE, edgecolor=OUTLINE, label="not used"))
    if problem.topology.switches:
        entries.append(Patch(facecolor=SWITCH, label="switch"))
    if report.busiest_link is not None:
        text = f"busiest link: {1e3 * report.busiest_link_s:.3g} ms per batch"
        entries.append(Line2D([], [], color=BUSIEST, linewidth=3.2, label=text))
    figure.legend(
        handles=entries, loc="outside lower center", ncols=min(6, len(entries)), frameon=False,
        fontsize=9,
    )  # fmt: skip


def _draw_link(
    axes: Axes,
    topology: Topology,
    place: Floats,
    ends: tuple[int, int],
    colour: str,
    width: float,
) -> None:
    """Draw a link: straight, or in an arc if it leads around a grid past other devices."""
    (a, b), bend = sorted(ends), 0.0
    if len(topology.shape) in (2, 3) and max(a, b) < topology.size:
        corners = np.unravel_index([a, b], topology.shape)
        bend = 0.2 if max(abs(int(c[0]) - int(c[1])) for c in corners) > 1 else 0.0
    arrow = FancyArrowPatch(
        tuple(place[a]), tuple(place[b]), arrowstyle="-", color=colour, linewidth=width,
        connectionstyle=f"arc3,rad={bend}", shrinkA=0, shrinkB=0, zorder=2 if width > 1 else 1,
    )  # fmt: skip
    axes.add_patch(arrow)


def _size(place: Floats) -> tuple[float, float]:
    """Return width and height of the figure in inches, in proportion to the places."""
    wide, high = np.ptp(place, axis=0).tolist()
    longest = max(wide, high, 1e-9)
    return max(4.6, 7.0 * wide / longest), max(1.2, 6.6 * high / longest) + 1.1


def _device_places(topology: Topology) -> list[tuple[float, float]]:
    """Return places of devices: on a grid (a third axis slanted), by forces, or on a circle."""
    nodes = topology.size + topology.switches
    if len(topology.shape) in (2, 3):
        corners = np.array(list(np.ndindex(*topology.shape)), float)
        slant = 0.3 * corners[:, 2] if len(topology.shape) == 3 else 0.0
        wide = 1.0 if len(topology.shape) == 2 else 1.3
        return [
            (float(x), float(y))
            for x, y in np.stack([corners[:, 1] * wide + slant, slant - corners[:, 0] * wide], 1)
        ]
    if topology.switches and nodes <= 300:
        spots = nx.kamada_kawai_layout(topology.to_networkx())
        return [(float(spots[v][0]), float(spots[v][1])) for v in range(nodes)]
    turn = 2 * np.pi * np.arange(nodes) / nodes
    return [(float(np.cos(t)), float(np.sin(t))) for t in turn]
