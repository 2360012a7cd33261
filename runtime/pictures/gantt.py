"""A simulation as a Gantt chart: devices and links over time, memory below."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import EngFormatter

from ..simulate.result import Simulation
from .figure import names_as_they_are, save_picture
from .timeline import COLOURS, bands, drawn, few_boxes, lanes, memory_steps

WIDTH_IN = 13.0
LANE_IN = 0.36
UNNUMBERED = ("receive", "send", "reduce", "step")
#: Colours of devices, told apart by people with any colour vision (Okabe and Ito, and mixtures).
DEVICE_COLOURS = (
    "#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#b8a800", "#6a4c93",
    "#7a5230", "#808080",
)  # fmt: skip


@names_as_they_are
def draw_gantt(simulation: Simulation, path: Path, *, title: str = "") -> None:
    """Draw the simulation into a PNG, SVG or PDF file.

    Parameters
    ----------
    simulation
        What is drawn.
    path
        Ending in ``.png``, ``.svg`` or ``.pdf``.
    title
        Default: schedule, makespan and bubble.

    Raises
    ------
    InputError
        If there is too much to draw, or the file's ending names no format that can be drawn.

    Examples
    --------
    >>> import stagecut
    >>> from pathlib import Path
    >>> run = stagecut.simulate_stages(stagecut.chain([1.0, 1.0], [2.0, 2.0]), "gpipe", 4)
    >>> stagecut.draw_gantt(run, Path("gantt.svg"))
    """
    found = few_boxes(simulation)
    names = lanes(simulation, picture=True)
    has_memory = any(m.peak_activations > 0 for m in simulation.memory)
    heights = [LANE_IN * len(names)] + ([1.7] if has_memory else [])
    figure = Figure(figsize=(WIDTH_IN, sum(heights) + 1.7), layout="constrained")
    axes = figure.subplots(len(heights), 1, sharex=True, height_ratios=heights, squeeze=False)
    chart = axes[0][0]
    shapes = np.empty((len(found), 4, 2))
    places = bands(found)
    for i, (box, (low, high)) in enumerate(zip(found, places, strict=True)):
        low, high = box.lane + low, box.lane + high
        shapes[i] = ((box.start, low), (box.start, high), (box.end, high), (box.end, low))
    fine = len(found) < 3000
    chart.add_collection(
        PolyCollection(
            list(shapes),
            facecolors=[COLOURS[box.what][0] for box in found],
            edgecolors="white" if fine else "none",
            linewidths=0.4,
            rasterized=not fine,
        )
    )
    span = simulation.makespan or 1.0
    several = len({s for m in simulation.memory for s in m.in_flight}) > len(simulation.used)
    inches = (WIDTH_IN - 2.0) / span
    for box, (low, high) in zip(found, places, strict=True) if fine else ():
        text = f"{box.stage}·{box.microbatch}" if several else str(box.microbatch)
        size = 7 if len(text) < 3 else 6
        room = (box.end - box.start) * inches > 0.0095 * size * len(text)
        if room and high - low > 0.5 and box.what not in UNNUMBERED:
            chart.text(
                (box.start + box.end) / 2, box.lane + (low + high) / 2, text,
                ha="center", va="center", fontsize=size, clip_on=True,
            )  # fmt: skip
    chart.set_xlim(0, span)
    chart.set_ylim(len(names) - 0.5, -0.5)
    chart.set_yticks(range(len(names)), names)
    chart.tick_params(axis="y", length=0)
    chart.set_title(title or _headline(simulation), loc="left", fontsize=11)
    if has_memory:
        _draw_memory(simulation, axes[1][0])
    unit = simulation.stages.time_unit
    axes[-1][0].set_xlabel("time" if unit == "unspecified" else f"time ({unit})")
    for row in axes:
        row[0].spines[["top", "right"]].set_visible(False)
    chart.spines["left"].set_visible(False)
    used = [what for what in COLOURS if any(box.what == what for box in found)]
    entries = [Patch(color=COLOURS[what][0], label=COLOURS[what][1]) for what in used]
    numbers = "stage·microbatch" if several else "microbatch"
    entries += [Patch(facecolor="white", edgecolor="#999999", label=f"number: {numbers}")]
    figure.legend(
        handles=entries, loc="outside lower center", ncols=len(entries), frameon=False, fontsize=9
    )
    save_picture(figure, path)


def _headline(simulation: Simulation) -> str:
    number = simulation.schedule.microbatches
    return (
        f"{simulation.schedule.name}, {number} microbatch{'es' if number > 1 else ''}: "
        f"makespan {simulation.makespan:.6g}, steady state {simulation.time_per_sample:.6g} "
        f"per sample, bubble {100 * simulation.bubble:.1f} %{_left_out(simulation)}"
    )


def _left_out(simulation: Simulation) -> str:
    number, used = len(drawn(simulation)), len(simulation.used)
    return f"; {number} of {used} devices, one per stage" if number < used else ""


def _draw_memory(simulation: Simulation, axes) -> None:  # type: ignore[no-untyped-def]  # no stubs
    devices = drawn(simulation)
    for i, d in enumerate(devices):
        times, sizes = memory_steps(simulation, d)
        axes.step(
            [*times, simulation.makespan],
            [*sizes, sizes[-1]],
            where="post",
            color=DEVICE_COLOURS[i % len(DEVICE_COLOURS)],
            linestyle=("-", "--", ":")[i // len(DEVICE_COLOURS) % 3],
            linewidth=1.3,
            label=simulation.stages.devices[d],
        )
    axes.set_ylim(0, 1.08 * max(m.peak for m in simulation.memory))
    axes.yaxis.set_major_formatter(EngFormatter(unit="B"))
    axes.set_ylabel("memory")
    if len(devices) <= 16:
        axes.legend(
            loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize=8, frameon=False,
            ncols=1 + (len(devices) - 1) // 8,
        )  # fmt: skip
