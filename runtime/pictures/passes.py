"""Passes that may overlap, such as those of a relaxation, over time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from matplotlib.figure import Figure

from ...instances.common.escape import plain
from ..schedules.actions import parse_action
from .figure import ShownFigure, names_as_they_are
from .gantt import LANE_IN, WIDTH_IN, add_legend, draw_lanes, time_axis
from .marks import Bar, Marks, rows, what_of

if TYPE_CHECKING:
    import pandas as pd


@names_as_they_are
def plot_passes(passes: pd.DataFrame, time_unit: str = "unspecified") -> Figure:
    """Draw passes over time; those of a device that overlap lie below each other.

    Parameters
    ----------
    passes
        A row per pass, with its name as index and `device`, `begin` and `end`; see `Relaxation`.
    time_unit
        For the axis label.

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
    >>> weak = stagecut.relax_schedule(stagecut.chain([2.0, 2.0], [4.0, 1.0]), 3)
    >>> len(stagecut.plot_passes(weak.passes).axes)
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
