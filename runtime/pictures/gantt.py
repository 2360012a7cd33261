"""Gantt charts: devices and links over time with memory below, and passes that may overlap."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection, PolyCollection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from ...instances.common.escape import plain
from ...instances.common.units import show_count, show_percent, show_time
from ..schedules.actions import parse_action
from ..simulate.result import Simulation
from .marks import Bar, Marks, bands, drawn, marks_of, rows, what_of
from .style import COLOURS, ShownFigure, line_of, names_as_they_are, save_picture

if TYPE_CHECKING:
    import pandas as pd


WIDTH_IN = 13.0

LANE_IN = 0.36

#: Most bars with labels and outlines; more are drawn as pixels.
FINE = 3000

CRITICAL = "#1d2430"


@names_as_they_are
def draw_gantt(simulation: Simulation, path: Path, *, title: str = "") -> None:
    """Draw the simulation into a PNG, SVG or PDF file.

    Parameters
    ----------
    simulation
        Simulation to draw.
    path
        File that ends in ``.png``, ``.svg`` or ``.pdf``.
    title
        Title; default: schedule, makespan and bubble.

    Raises
    ------
    InputError
        If there is too much to draw, or the file's ending names no format that can be drawn.

    Examples
    --------
    >>> import stagecut
    >>> from stagecut.runtime.simulate import chain, simulate_stages
    >>> from pathlib import Path
    >>> run = simulate_stages(chain([1.0, 1.0], [2.0, 2.0]), "gpipe", 4)
    >>> stagecut.draw_gantt(run, Path("gantt.svg"))
    """
    draw_marks(marks_of(simulation, picture=True), path, title or _headline(simulation))


@names_as_they_are
def draw_marks(marks: Marks, path: Path, title: str) -> None:
    """Draw marks into a PNG, SVG or PDF file; InputError for another ending."""
    has_memory = any(max(level.sizes) > min(level.sizes) for level in marks.memory)
    heights = [LANE_IN * len(marks.lanes)] + ([1.7] if has_memory else [])
    figure = Figure(figsize=(WIDTH_IN, sum(heights) + 1.7), layout="constrained")
    axes = figure.subplots(len(heights), 1, sharex=True, height_ratios=heights, squeeze=False)[:, 0]
    draw_lanes(axes[0], marks)
    axes[0].set_xlim(0, marks.span or 1.0)
    axes[0].set_title(plain(title), loc="left", fontsize=11)
    if has_memory:
        _draw_memory(marks, axes[1])
    axes[-1].set_xlabel(time_axis(marks.time_unit))
    add_legend(figure, marks.bars, numbers="stage·microbatch" if marks.by_stage else "microbatch")
    save_picture(figure, path)


def time_axis(unit: str) -> str:
    """Return the label of an axis of time."""
    return "time" if unit == "unspecified" else f"time ({unit})"


def draw_lanes(chart: Axes, marks: Marks, span: float | None = None) -> None:
    """Draw the bars with their labels, lane by lane; the critical path is underlined.

    The labels fit an axis of `span`, by default that of the marks.
    """
    bars = marks.bars
    shapes = np.empty((len(bars), 4, 2))
    placed = zip(bars, bands(bars), strict=True)
    places = [(bar.lane + low, bar.lane + high) for bar, (low, high) in placed]
    for i, (bar, (low, high)) in enumerate(zip(bars, places, strict=True)):
        shapes[i] = ((bar.start, low), (bar.start, high), (bar.end, high), (bar.end, low))
    fine = len(bars) < FINE
    chart.add_collection(
        PolyCollection(
            list(shapes),
            facecolors=[COLOURS[bar.what][0] for bar in bars],
            edgecolors="white" if fine else "none",
            linewidths=0.4,
            antialiaseds=fine,  # bars thinner than a pixel would blend into other colours
            rasterized=not fine,
        )
    )
    if fine:
        underlined = [shapes[i][1:3] for i, bar in enumerate(bars) if bar.critical]
        chart.add_collection(LineCollection(underlined, colors=CRITICAL, linewidths=1.6))
    inches = (WIDTH_IN - 2.0) / (span or marks.span or 1.0)
    for bar, (low, high) in zip(bars, places, strict=True) if fine else ():
        text = marks.label(bar)
        size = 7 if len(text) < 3 else 6
        if high - low > 0.5 and (bar.end - bar.start) * inches > 0.0095 * size * len(text) > 0:
            chart.text(
                (bar.start + bar.end) / 2, (low + high) / 2, text,
                ha="center", va="center", fontsize=size, clip_on=True,
            )  # fmt: skip
    chart.set_ylim(len(marks.lanes) - 0.5, -0.5)
    chart.set_yticks(range(len(marks.lanes)), marks.lanes)
    chart.tick_params(axis="y", length=0)
    chart.spines[["top", "right", "left"]].set_visible(False)


def add_legend(figure: Figure, bars: Iterable[Bar], *, numbers: str) -> None:
    """Add a legend of colours and numbers below a figure."""
    bars = list(bars)
    found = {bar.what for bar in bars}
    names = {name: colour for what, (colour, name) in COLOURS.items() if what in found}
    entries: list[Patch | Line2D] = [Patch(color=colour, label=n) for n, colour in names.items()]
    fine = len(bars) < FINE
    if fine and any(bar.critical for bar in bars):
        entries.append(Line2D([], [], color=CRITICAL, linewidth=1.6, label="critical path"))
    if fine and found & {"F", "B", "I", "W", "message"}:
        entries.append(Patch(facecolor="white", edgecolor="#999999", label=f"number: {numbers}"))
    figure.legend(
        handles=entries, loc="outside lower center", ncols=len(entries), frameon=False, fontsize=9
    )


def _headline(simulation: Simulation) -> str:
    unit = simulation.stages.time_unit
    number, used = len(drawn(simulation)), len(simulation.used)
    left_out = f"; {number} of {used} devices, one per stage" if number < used else ""
    return (
        f"{simulation.schedule.name}, "
        f"{show_count(simulation.schedule.microbatches, 'microbatch')}: "
        f"makespan {show_time(simulation.makespan, unit)}, steady state "
        f"{show_time(simulation.time_per_sample, unit)} per microbatch, "
        f"bubble {show_percent(simulation.bubble)}{left_out}"
    )


#: Units of memory by their power of two, the largest first.
_UNITS = {"GiB": 30, "MiB": 20, "KiB": 10, "B": 0}


def _draw_memory(marks: Marks, axes: Axes) -> None:
    # binary units, as in all tables
    most = max(max(level.sizes) for level in marks.memory)
    unit, size = next((name, 1 << k) for name, k in _UNITS.items() if most >= 1 << k or not k)
    for i, level in enumerate(marks.memory):
        colour, style = line_of(i)
        axes.step(
            [*level.times, marks.span],
            [value / size for value in (*level.sizes, level.sizes[-1])],
            where="post",
            color=colour,
            linestyle=style,
            linewidth=1.3,
            label=level.name,
        )
    axes.set_ylim(0, 1.08 * most / size)
    axes.set_ylabel(f"memory ({unit})")
    axes.spines[["top", "right"]].set_visible(False)
    if len(marks.memory) <= 16:
        axes.legend(
            loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize=8, frameon=False,
            ncols=1 + (len(marks.memory) - 1) // 8,
        )  # fmt: skip


@names_as_they_are
def plot_passes(passes: pd.DataFrame, time_unit: str = "unspecified") -> Figure:
    """Draw passes over time; overlapping ones of a device are in lanes below each other.

    Parameters
    ----------
    passes
        A row per pass, with its name as index and `device`, `begin` and `end`; see `Relaxation`.
    time_unit
        Unit in the axis label.

    Returns
    -------
    matplotlib.figure.Figure
        As many lanes for each device as it has passes at once.

    Raises
    ------
    InputError
        If a row's name is no pass, such as ``0F1``.

    Examples
    --------
    >>> import stagecut
    >>> from stagecut.api import relax_schedule
    >>> from stagecut.runtime.pictures import plot_passes
    >>> from stagecut.runtime.simulate import chain
    >>> weak = relax_schedule(chain([2.0, 2.0], [4.0, 1.0]), 3)
    >>> len(plot_passes(weak.passes).axes)
    1
    """
    devices = list(dict.fromkeys(passes["device"]))
    bars = []
    for name, row in zip(map(str, passes.index), passes.to_dict("records"), strict=True):
        action = parse_action(name)
        lane = devices.index(row["device"])
        what, start, end = what_of(action.kind), float(row["begin"]), float(row["end"])
        bars.append(Bar(lane, what, name, start, end, action.stage, action.microbatch))
    below = rows(tuple(bars))
    lanes = sorted({(bar.lane, r) for bar, r in zip(bars, below, strict=True)})
    number = {lane: i for i, lane in enumerate(lanes)}
    names = [plain(str(devices[d])) if r == 0 else "" for d, r in lanes]
    placed = [b._replace(lane=number[b.lane, r]) for b, r in zip(bars, below, strict=True)]
    span = max((bar.end for bar in bars), default=1.0)
    marks = Marks(tuple(names), len(lanes), tuple(placed), span, time_unit)
    figure = ShownFigure(figsize=(WIDTH_IN, LANE_IN * len(lanes) + 1.4), layout="constrained")
    axes = figure.subplots()
    draw_lanes(axes, marks)
    for (d, r), place in number.items():
        if r == 0 and d:
            axes.axhline(place - 0.5, color="#c9ced6", linewidth=0.8)
    axes.set_xlim(0, span)
    axes.set_xlabel(time_axis(time_unit))
    add_legend(figure, placed, numbers="microbatch")
    return figure
