"""How methods did as pictures: how far from the best bound, and plan and bound over time."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import PercentFormatter

from ...instances.common.escape import plain
from .figure import ShownFigure, names_as_they_are, save_picture
from .palette import LINES, MARKERS

#: Plans that end above so many times the best one are left out of the picture.
MOST_SHOWN = 1.5
LEGEND: Any = {"frameon": False, "fontsize": 8}
#: Seconds, objective and bound of a moment; None or infinite where there is none.
Moment = Sequence[float | None]


class Look(NamedTuple):
    """Colour and mark of a method, the same in every part of a picture."""

    colour: str
    mark: str


def looks(methods: Sequence[str]) -> dict[str, Look]:
    """Return how each method is drawn."""
    return {
        method: Look(LINES[i % len(LINES)], MARKERS[i % len(MARKERS)])
        for i, method in enumerate(methods)
    }


@names_as_they_are
def draw_comparison(table: pd.DataFrame, path: Path) -> None:
    """Draw a comparison table into a PNG, SVG or PDF file.

    Parameters
    ----------
    table
        As `stagecut.compare` returns it, traces included.
    path
        Ending in ``.png``, ``.svg`` or ``.pdf``.

    Raises
    ------
    InputError
        If the file's ending names no format that can be drawn.

    Examples
    --------
    >>> import stagecut
    >>> from pathlib import Path
    >>> cluster = stagecut.accelerators_and_cpus(2)
    >>> table = stagecut.compare("gpt2-xl", methods=["single", "greedy"], cluster=cluster)
    >>> stagecut.draw_comparison(table, Path("comparison.svg"))
    """
    names = list(dict.fromkeys(table["workload"]))
    drawn = looks(list(dict.fromkeys(table["method"])))
    columns = min(3, len(names))
    lines = math.ceil(len(names) / columns)
    height = 0.9 + 0.4 * len(names)
    figure = Figure(figsize=(11, 0.6 + height + 2.7 * lines), layout="constrained")
    grid = figure.add_gridspec(1 + lines, columns, height_ratios=[height, *lines * [2.7]])
    _draw_gaps(figure.add_subplot(grid[0, :]), table, names, drawn)
    for i, name in enumerate(names):
        axes = figure.add_subplot(grid[1 + i // columns, i % columns])
        draw_traces(axes, _traces(table[table["workload"] == name]), drawn)
        axes.set_title(plain(name), loc="left", fontsize=9)
    entries = _entries(drawn)
    figure.legend(handles=entries, loc="outside lower center", ncols=min(8, len(entries)), **LEGEND)
    save_picture(figure, path, dpi=130)


def _draw_gaps(axes: Axes, table: pd.DataFrame, names: list[str], drawn: dict[str, Look]) -> None:
    """Draw how far each plan is above the best bound of its workload."""
    for i, (method, look) in enumerate(drawn.items()):
        rows = table[(table["method"] == method) & table["ratio"].notna()]
        offset = 0.5 * ((i + 0.5) / len(drawn) - 0.5)
        at = [names.index(name) + offset for name in rows["workload"]]
        if at:  # a mark that is nowhere would stretch the layout
            axes.plot(rows["ratio"] - 1, at, look.mark, color=look.colour, clip_on=False)
    axes.set_xlim(0, 1.05 * max(0.01, table["ratio"].max(skipna=True) - 1))
    axes.xaxis.set_major_formatter(PercentFormatter(1.0))
    axes.set_yticks(range(len(names)), list(map(plain, names)))
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.grid(axis="x", alpha=0.3)
    axes.set_xlabel("plan above the best bound")
    axes.spines[["top", "right"]].set_visible(False)


def _entries(drawn: Mapping[str, Look]) -> list[Line2D]:
    """Return what a legend says."""
    entries = [
        Line2D([], [], color=look.colour, marker=look.mark, label=plain(name))
        for name, look in drawn.items()
    ]
    for style, text in (("-", "best plan"), (":", "bound")):
        entries.append(Line2D([], [], color="#666666", linestyle=style, label=text))
    return entries


def _traces(rows: pd.DataFrame) -> dict[str, list[Moment]]:
    """Return the moments of each method, the last of them its end."""
    found = {}
    for row in rows.to_dict("records"):
        trace = row["trace"] if isinstance(row["trace"], list) else []
        ends = [[row["seconds"], row["objective"], row["bound"]]] if trace else []
        found[str(row["method"])] = [*trace, *ends]
    return found


@names_as_they_are
def plot_traces(results: Mapping[str, Any], time_unit: str = "unspecified") -> Figure:
    """Draw the best plan and the bound of searches over time.

    Parameters
    ----------
    results
        A `Result`, or a `BestSchedule`, for each name.
    time_unit
        For the axis label; the workload's.

    Returns
    -------
    matplotlib.figure.Figure
        Plans are solid, bounds dotted; where the two meet, the plan is proved optimal. A mark is
        where a search ended.

    Examples
    --------
    >>> import stagecut
    >>> cluster = stagecut.accelerators_and_cpus(2)
    >>> problem = stagecut.Throughput("contiguous")
    >>> result = stagecut.solve("gpt2-xl", cluster, problem, method="dp")
    >>> len(stagecut.plot_traces({"dp": result}, "ms").axes)
    1
    """
    figure = ShownFigure(figsize=(7.6, 3.6), layout="constrained")
    axes = figure.subplots()
    moments: dict[str, list[Moment]] = {}
    for name, result in results.items():
        last = [result.seconds, result.objective, result.bound]
        moments[name] = [*([p.seconds, p.objective, p.bound] for p in result.trace), last]
    drawn = looks(list(results))
    draw_traces(axes, moments, drawn)
    axes.legend(handles=_entries(drawn), loc="center left", bbox_to_anchor=(1.01, 0.5), **LEGEND)
    axes.set_ylabel("objective" if time_unit == "unspecified" else f"objective ({time_unit})")
    return figure


def draw_traces(
    axes: Axes, traces: Mapping[str, Sequence[Moment]], drawn: Mapping[str, Look]
) -> None:
    """Draw plan and bound over time."""
    best, lowest, highest = math.inf, math.inf, 0.0
    for name, moments in traces.items():
        look = drawn[name]
        for column, style in ((1, "-"), (2, ":")):
            points = [(p[0], p[column]) for p in moments if _is_finite(p[column])]
            if not points:
                continue
            seconds, values = zip(*points, strict=True)
            axes.plot(seconds, values, style, color=look.colour, drawstyle="steps-post")
            axes.plot(seconds[-1:], values[-1:], look.mark, color=look.colour)
            if column == 1:
                best, highest = min(best, values[-1]), max(highest, values[-1])
            lowest = min(lowest, values[-1])
    if math.isfinite(best) and best > 0:
        least, most = max(0.0, lowest), min(highest, MOST_SHOWN * best)
        room = max(most - least, 0.04 * best)
        axes.set_ylim(max(0.0, least - 0.3 * room), most + 0.5 * room)
    axes.set_xlim(left=0)
    axes.set_xlabel("seconds", fontsize=8)
    axes.tick_params(labelsize=8)
    axes.spines[["top", "right"]].set_visible(False)


def _is_finite(value: float | None) -> bool:
    return value is not None and math.isfinite(value)
