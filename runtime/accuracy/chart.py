"""Predicted and measured as two Gantt charts, one above the other."""

from __future__ import annotations

from pathlib import Path

from matplotlib.figure import Figure

from ...instances import InputError
from ...instances.common.quantities import show_percent
from ..pictures.gantt import LANE_IN, WIDTH_IN, add_legend, draw_lanes
from ..pictures.marks import MOST_BARS, marks_of
from ..pictures.style import names_as_they_are, save_picture
from .join import Comparison
from .measured_marks import measured_marks


@names_as_they_are
def draw_comparison(comparison: Comparison, path: Path) -> None:
    """Draw the simulation and the typical step of the run into a PNG, SVG or PDF file.

    Raises
    ------
    InputError
        If there is too much to draw, or the file's ending names no format that can be drawn.
    """
    predicted = marks_of(comparison.simulation, picture=True).in_unit("ms", 1e3 * comparison.scale)
    measured = measured_marks(comparison).in_unit("ms", 1e3)
    if len(measured.bars) > MOST_BARS:
        raise InputError(f"plot: {len(measured.bars)} actions in a step are too many to draw")
    heights = [LANE_IN * len(predicted.lanes), LANE_IN * len(measured.lanes)]
    figure = Figure(figsize=(WIDTH_IN, sum(heights) + 2.2), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=heights)
    end = max(predicted.span, measured.span)
    draw_lanes(above, predicted, end)
    draw_lanes(below, measured, end)
    above.set_xlim(0, end)
    above.set_title(
        f"predicted: {1e3 * comparison.predicted_iteration_s:.4g} ms", loc="left", fontsize=11
    )
    below.set_title(
        f"measured, step {comparison.typical_step}; median of {len(comparison.steps)} steps: "
        f"{1e3 * comparison.measured_iteration_s:.4g} ms; error of the prediction "
        f"{show_percent(comparison.error, signed=True)}",
        loc="left", fontsize=11,
    )  # fmt: skip
    below.set_xlabel("time (ms)")
    numbers = "stage·microbatch" if predicted.by_stage else "microbatch"
    add_legend(figure, (*predicted.bars, *measured.bars), numbers=numbers)
    save_picture(figure, path)
