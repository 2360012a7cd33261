"""A relaxation on the graph: each node as a bar that is divided as the node is."""

from __future__ import annotations

from typing import TYPE_CHECKING

import networkx as nx
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, Patch, Rectangle

from ...instances import InputError, Workload
from ...instances.common.escape import plain
from .graph import Spot, layers
from .style import FILLS, ShownFigure, names_as_they_are

if TYPE_CHECKING:
    import pandas as pd

#: Beyond these a picture shows nothing.
MOST_NODES = 120
#: Width and height of a node.
WIDE, HIGH = 0.86, 0.5
EDGE, OUTLINE = "#8a929e", "#5d6673"


@names_as_they_are
def plot_shares(workload: Workload, shares: pd.DataFrame) -> Figure:
    """Draw the graph with the parts of each node at each place, such as those of a relaxation.

    Parameters
    ----------
    workload
        Of at most 120 nodes.
    shares
        A row per node, named as in the workload, a column per place; see `Relaxation`.

    Returns
    -------
    matplotlib.figure.Figure
        Each node is a bar; its colours are places, and as wide as its parts.

    Raises
    ------
    InputError
        If there are too many nodes, or the rows are others.

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
    if workload.n > MOST_NODES or not set(names) <= set(shares.index):
        raise InputError(
            f"plot: {workload.name} has {workload.n} nodes (most: {MOST_NODES}), which must be the "
            "rows of the shares"
        )
    graph: nx.DiGraph[int] = nx.DiGraph()
    graph.add_nodes_from((v, {"backward": bool(workload.backward[v])}) for v in range(workload.n))
    graph.add_edges_from(workload.edges.tolist())
    layout = layers(graph)
    every = [spot for way in layout.ways.values() for spot in way]
    every += layout.spots.values()
    left, right = min(x for x, _ in every) - 0.6, max(x for x, _ in every) + 0.6
    bottom = max(y for _, y in every) + 0.6
    size = (max(5.0, 1.25 * (right - left)), max(2.2, 0.4 * (bottom + 0.6) + 0.7))
    figure = ShownFigure(figsize=size, layout="constrained")
    axes = figure.subplots()
    for way in layout.ways.values():
        _draw_way(axes, way)
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
        text = name if len(name) <= 16 else f"{name[:7]}…{name[-8:]}"
        axes.text(x, y, text, ha="center", va="center", fontsize=7, zorder=4)
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


def _draw_way(axes: Axes, way: list[Spot]) -> None:
    """Draw an edge through its points, with an arrow at its end."""
    (x, y), (u, v) = way[0], way[-1]
    if y == v:
        aside = WIDE / 2 if u > x else -WIDE / 2
        points = [(x + aside, y), (u - aside, v)]
    else:
        down = HIGH / 2 if v > y else -HIGH / 2
        past = [(a, b + side) for a, b in way[1:-1] for side in (-down, down)]  # straight by a row
        points = [(x, y + down), *past, (u, v - down)]
    if len(points) > 2:
        axes.plot(*zip(*points[:-1], strict=True), color=EDGE, linewidth=0.7, zorder=1)
    arrow = FancyArrowPatch(
        points[-2], points[-1], arrowstyle="-|>", mutation_scale=7, color=EDGE, linewidth=0.7,
        shrinkA=0, shrinkB=0, zorder=1,
    )  # fmt: skip
    axes.add_patch(arrow)
