"""Predicted and measured as two Gantt charts, one above the other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from ...instances import InputError
from ...instances.common.escape import plain
from ..pictures.figure import names_as_they_are, save_picture
from ..pictures.timeline import COLOURS, MOST_BOXES, Box, few_boxes, lanes
from .join import Comparison
from .measured_boxes import measured_boxes

WIDTH_IN, LANE_IN = 13.0, 0.42


@names_as_they_are
def draw_comparison(comparison: Comparison, path: Path) -> None:
    """Draw the simulation and the typical step of the run into a PNG, SVG or PDF file.

    Raises
    ------
    InputError
        If there is too much to draw, or the file's ending names no format that can be drawn.
    """
    run = comparison.simulation
    names = [plain(run.stages.devices[d]) for d in run.used]
    predicted = [
        box._replace(start=box.start * comparison.scale, end=box.end * comparison.scale)
        for box in few_boxes(run)
    ]
    measured = measured_boxes(comparison)
    if len(measured) > MOST_BOXES:
        raise InputError(f"plot: {len(measured)} actions in a step are too many to draw")
    heights = [LANE_IN * len(lanes(run)), LANE_IN * len(names)]
    figure = Figure(figsize=(WIDTH_IN, sum(heights) + 2.2), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=heights)
    end = max(box.end for box in (*predicted, *measured))
    _draw(above, predicted, lanes(run), end)
    _draw(below, measured, names, end)
    above.set_xlim(0, 1e3 * end)
    above.set_title(
        f"predicted: {1e3 * comparison.predicted_iteration_s:.4g} ms", loc="left", fontsize=11
    )
    below.set_title(
        f"measured, step {comparison.typical_step}; median of {len(comparison.steps)} steps: "
        f"{1e3 * comparison.measured_iteration_s:.4g} ms; error of the prediction "
        f"{100 * comparison.error:+.1f} %",
        loc="left", fontsize=11,
    )  # fmt: skip
    below.set_xlabel("time (ms)")
    used = [what for what in COLOURS if any(box.what == what for box in (*predicted, *measured))]
    figure.legend(
        handles=[Patch(color=COLOURS[what][0], label=COLOURS[what][1]) for what in used],
        loc="outside lower center", ncols=len(used), frameon=False, fontsize=9,
    )  # fmt: skip
    save_picture(figure, path)


def _draw(axes: Any, found: list[Box], names: list[str], end: float) -> None:
    shapes = [
        [(1e3 * x, box.lane + y) for x, y in (
            (box.start, -0.4), (box.start, 0.4), (box.end, 0.4), (box.end, -0.4),
        )]
        for box in found
    ]  # fmt: skip
    axes.add_collection(
        PolyCollection(
            shapes,
            facecolors=[COLOURS[box.what][0] for box in found],
            edgecolors="white" if len(found) < 3000 else "none",
            linewidths=0.4,
        )
    )
    several = len({(box.lane, box.stage) for box in found}) > len({box.lane for box in found})
    width = end / (WIDTH_IN - 2)
    for box in found if len(found) < 3000 else ():
        text = f"{box.stage}·{box.microbatch}" if several else str(box.microbatch)
        if box.what in "FBIW" and box.end - box.start > 0.075 * width * len(text):
            axes.text(
                500 * (box.start + box.end), box.lane, text,
                ha="center", va="center", fontsize=7, clip_on=True,
            )  # fmt: skip
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.set_yticks(range(len(names)), names)
    axes.tick_params(axis="y", length=0)
    axes.spines[["top", "right", "left"]].set_visible(False)
