"""A comparison as pictures: how far from the best bound, and incumbent and bound over time."""

from __future__ import annotations

import math
from pathlib import Path

import pandas as pd
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter

from ...instances.common.escape import plain
from .figure import names_as_they_are, save_picture


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
    methods = list(dict.fromkeys(table["method"]))
    colours: dict[str, tuple[float, ...]] = {
        m: colormaps["tab10"](i % 10) for i, m in enumerate(methods)
    }
    columns = min(3, len(names))
    lines = math.ceil(len(names) / columns)
    height = 1.4 + 0.34 * len(names)
    figure = Figure(figsize=(11, height + 2.7 * lines), layout="constrained")
    top, bottom = figure.subfigures(2, 1, height_ratios=[height, 2.7 * lines], squeeze=False)[:, 0]
    _draw_ratios(top.subplots(), table, names, colours)
    grid = bottom.subplots(lines, columns, squeeze=False)
    for axes in grid.flat[len(names) :]:
        axes.set_visible(False)
    for name, axes in zip(names, grid.flat, strict=False):
        _draw_traces(axes, table[table["workload"] == name], name, colours)
    save_picture(figure, path, dpi=130)


def _draw_ratios(
    axes: Axes, table: pd.DataFrame, names: list[str], colours: dict[str, tuple[float, ...]]
) -> None:
    for i, (method, colour) in enumerate(colours.items()):
        rows = table[(table["method"] == method) & table["ratio"].notna()]
        offset = 0.5 * ((i + 0.5) / len(colours) - 0.5)
        at = [names.index(name) + offset for name in rows["workload"]]
        axes.plot(rows["ratio"], at, "o", color=colour, label=method)
    axes.axvline(1.0, color="#333333", linewidth=1)
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 1.5, 2, 3, 5)))
    axes.xaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_yticks(range(len(names)), list(map(plain, names)))
    axes.invert_yaxis()
    axes.set_xlabel("objective / best bound")
    axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5))
    axes.spines[["top", "right"]].set_visible(False)


def _draw_traces(
    axes: Axes, rows: pd.DataFrame, name: str, colours: dict[str, tuple[float, ...]]
) -> None:
    best = rows["objective"].min()
    for row in rows.to_dict("records"):
        trace = row["trace"] if isinstance(row["trace"], list) else []
        ends = [*trace, [row["seconds"], row["objective"], row["bound"]]] if trace else []
        for column, style in ((1, "-"), (2, ":")):
            points = [(point[0], point[column]) for point in ends if point[column] is not None]
            if points:
                seconds, values = zip(*points, strict=True)
                axes.plot(
                    seconds,
                    values,
                    style,
                    color=colours[row["method"]],
                    drawstyle="steps-post",
                )
    if math.isfinite(best) and best > 0:
        axes.set_ylim(0.85 * best, 1.3 * best)
    axes.set_title(plain(name), loc="left", fontsize=9)
    axes.set_xlabel("seconds (plan solid, bound dotted)", fontsize=8)
    axes.tick_params(labelsize=8)
    axes.spines[["top", "right"]].set_visible(False)
