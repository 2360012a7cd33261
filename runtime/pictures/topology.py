"""A mapping as a picture: the topology, stages by colour and number, the busiest link marked."""

from __future__ import annotations

from pathlib import Path

import networkx as nx
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import FancyArrowPatch, Patch

from ...instances import DeviceMapping, ReplicaPlacement
from ...instances.common.arrays import Floats
from ...instances.common.escape import plain
from ...instances.common.quantities import show_count
from ...instances.topologies import Topology
from ..verify.report import MappingReport
from .style import FILLS, names_as_they_are, save_picture

#: Most links of a picture; of more, none is drawn.
MAX_LINKS = 1000
BUSIEST, LINK, SPARE, SWITCH, OUTLINE = "#1d2430", "#b0b0b0", "#ffffff", "#666666", "#5d6673"
#: Least size of marks that have the number of their stage inside.
NUMBERED = 120.0


@names_as_they_are
def draw_mapping(
    problem: DeviceMapping, solution: ReplicaPlacement, report: MappingReport, path: Path
) -> None:
    """Draw the mapping into a PNG, SVG or PDF file.

    Parameters
    ----------
    problem, solution, report
        The mapping, and what `evaluate` says of it.
    path
        Ending in ``.png``, ``.svg`` or ``.pdf``.

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
    place = np.array(_places(topology))
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
    """Say below the picture what its colours are."""
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
    """Return width and height of the figure in inches: as wide as is read, no empty margins."""
    wide, high = np.ptp(place, axis=0).tolist()
    longest = max(wide, high, 1e-9)
    return max(4.6, 7.0 * wide / longest), max(1.2, 6.6 * high / longest) + 1.1


def _places(topology: Topology) -> list[tuple[float, float]]:
    """Places of devices: in grids (a third side slanted), islands side by side, or on a circle."""
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
