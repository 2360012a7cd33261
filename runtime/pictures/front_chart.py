"""Picture of a Pareto front of training plans."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter

from .figure import ShownFigure
from .palette import MARKERS, line_of


def plot_front(front: pd.DataFrame, time_unit: str = "unspecified") -> Figure:
    """Draw time per microbatch against devices or, if those do not vary, against memory.

    Parameters
    ----------
    front
        What `pareto` returns; a line is drawn for each value of what is not on the axis.
    time_unit
        For the axis label.

    Returns
    -------
    matplotlib.figure.Figure
        Filled marks are efficient plans.

    Examples
    --------
    >>> import stagecut
    >>> workload = stagecut.training_layers(stagecut.load("gpt2-xl-training"))
    >>> cluster = stagecut.accelerators_and_cpus(4, memory_bytes=80e9)
    >>> problem = stagecut.Training(microbatches=8, bandwidth=1e8)
    >>> front = stagecut.pareto(workload, cluster, problem, devices=(2, 4), method="equal-stages")
    >>> len(stagecut.plot_front(front, workload.time_unit).axes)
    1
    """
    against, other = "devices", "memory_bytes"
    if front["devices"].nunique() == 1 and front["memory_bytes"].nunique() > 1:
        against, other = other, against
    scale = {"devices": 1.0, "memory_bytes": 2.0**30}
    names = {"devices": "devices", "memory_bytes": "memory per device (GiB)"}
    figure = ShownFigure(figsize=(6.4, 4.0), layout="constrained")
    axes = figure.subplots()
    found = front[front["objective"] < float("inf")]
    for number, value in enumerate(sorted(found[other].unique().tolist())):
        line = found[found[other] == value].sort_values(against)
        x = line[against] / scale[against]
        colour, style = line_of(number)
        (drawn,) = axes.plot(
            x,
            line["objective"],
            style,
            color=colour,
            marker=MARKERS[number % len(MARKERS)],
            label=f"{value / scale[other]:.3g}",
        )  # fmt: skip
        for efficient, face in ((True, drawn.get_color()), (False, "white")):
            marks = line[line["efficient"] == efficient]
            axes.plot(
                marks[against] / scale[against], marks["objective"], MARKERS[number % len(MARKERS)],
                markerfacecolor=face, markeredgecolor=drawn.get_color(),
            )  # fmt: skip
    if (found["objective"] > 0).all() and len(found):
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.set_xticks(sorted((found[against] / scale[against]).unique().tolist()))
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 3, 5)))
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_formatter("{x:g}")
            axis.set_minor_formatter(NullFormatter())
    axes.set_xlabel(names[against])
    axes.set_ylabel("objective" if time_unit == "unspecified" else f"objective ({time_unit})")
    axes.grid(alpha=0.3)
    if found[other].nunique() > 1:
        axes.legend(title=names[other])
    return figure
