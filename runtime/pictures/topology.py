"""A mapping as a picture: the topology, stages coloured, and the busiest link marked."""

from __future__ import annotations

from pathlib import Path

import networkx as nx
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from ...instances import DeviceMapping, ReplicaPlacement
from ...instances.common.escape import plain
from ...instances.topologies import Topology
from ..verify.report import MappingReport
from .figure import names_as_they_are, save_picture

#: Links beyond this many are left out; the picture would be a blot.
MAX_LINKS = 1000
BUSIEST, LINK, SPARE, SWITCH = "#c0392b", "#bbbbbb", "#ffffff", "#666666"


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
    place = _places(topology)
    figure = Figure(figsize=(8, 8), layout="constrained")
    axes = figure.subplots()
    if len(topology.links) <= MAX_LINKS:
        for a, b in topology.links.tolist():
            axes.plot(*zip(place[a], place[b], strict=True), color=LINK, linewidth=0.8, zorder=1)
    if report.busiest_link is not None:
        ends = (place[node] for node in report.busiest_link)
        label = f"busiest link: {1e3 * report.busiest_link_s:.3g} ms per batch"
        axes.plot(*zip(*ends, strict=True), color=BUSIEST, linewidth=3, zorder=2, label=label)
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, 0.02), frameon=False)
    stage = np.full(topology.size, -1)
    for s, row in enumerate(solution.slots):
        stage[row] = s
    spots = np.array(place[: topology.size])
    size = max(8.0, 4000.0 / topology.size)
    used = stage >= 0
    axes.scatter(spots[~used, 0], spots[~used, 1], s=size, color=SPARE, edgecolors=SWITCH, zorder=3)
    shown = axes.scatter(
        spots[used, 0], spots[used, 1], s=size, c=stage[used], cmap="turbo", zorder=3
    )
    if topology.switches:
        switches = np.array(place[topology.size :])
        axes.scatter(switches[:, 0], switches[:, 1], s=size / 2, marker="s", color=SWITCH, zorder=3)
    ticks = MaxNLocator(integer=True)
    figure.colorbar(shown, ax=axes, label="stage", shrink=0.7, ticks=ticks)
    title = f"{topology.name}: {problem.stages} × {problem.replicas}, {problem.mode}"
    axes.set_title(plain(title))
    axes.set_axis_off()
    axes.set_aspect("equal")
    save_picture(figure, path)


def _places(topology: Topology) -> list[tuple[float, float]]:
    """Grids as grids (a third side slanted), islands side by side, others around a circle."""
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
