"""The loads of a plan as a picture: who computes and who transfers, how full the memories are."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ...instances import Iteration, Latency, Plan, Planned, Training, plan_of
from ...instances.common.escape import plain
from ...instances.common.quantities import show_bytes, show_percent
from ..verify.loads import Load, loads_of
from ..verify.report import Report
from .figure import names_as_they_are, save_picture
from .palette import COMPUTE, MEMORY, SYNCHRONISE, TRANSFER

LINE = "#333333"


@names_as_they_are
def draw_loads(report: Report, plan: Plan | Planned, path: Path) -> None:
    """Draw a bar per device, with objective and bound as lines, into a PNG, SVG or PDF file.

    Parameters
    ----------
    report
        Of the plan; see `evaluate`.
    plan
        Of any problem but a mapping; or the `Result` that holds it.
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
    >>> cluster = stagecut.accelerators_and_cpus(2)
    >>> plan = stagecut.solve(workload, cluster, method="greedy").plan
    >>> report = stagecut.evaluate(workload, cluster, plan.problem, plan.solution)
    >>> stagecut.draw_loads(report, plan, Path("loads.svg"))
    """
    plan = plan_of(plan)
    rows = loads_of(plan.problem, report)
    figure = Figure(figsize=(9, 1.6 + 0.42 * len(rows)), layout="constrained")
    loads, memory = figure.subplots(1, 2, sharey=True, width_ratios=[3, 1])
    _draw_times(loads, rows, plan)
    figure.legend(*loads.get_legend_handles_labels(), loc="outside lower center", ncols=5)
    title = f"{plan.workload_name}: {plan.method}, gap {show_percent(plan.gap, 2)}"
    loads.set_title(plain(title), loc="left")
    _draw_memory(memory, rows)
    for axes in (loads, memory):
        axes.spines[["top", "right"]].set_visible(False)
    save_picture(figure, path)


def _draw_times(axes: Axes, rows: Sequence[Load], plan: Plan) -> None:
    """Draw what each device does, with objective and bound as lines; the busiest name is bold."""
    at = range(len(rows))
    overlap = getattr(plan.problem, "overlap", False)
    left = [0.0] * len(rows)
    for label, values, colour in (
        ("compute", [row.compute for row in rows], COMPUTE),
        ("transfers", [row.transfer for row in rows], TRANSFER),
        ("synchronisation", [row.synchronise for row in rows], SYNCHRONISE),
    ):
        if label == "synchronisation" and not any(values):
            continue
        if overlap:  # side by side, as they happen
            upper = label == "compute"
            places = [y + (-0.2 if upper else 0.2) for y in at]
            axes.barh(places, values, height=0.4, color=colour, label=label)
        else:
            axes.barh(at, values, left=left, color=colour, label=label)
            left = [a + b for a, b in zip(left, values, strict=True)]
    axes.axvline(plan.objective, color=LINE, label=f"objective {plan.objective:.6g}")
    if math.isfinite(plan.bound):
        axes.axvline(plan.bound, color=LINE, linestyle=":", label=f"bound {plan.bound:.6g}")
    axes.set_yticks(at, [plain(row.name) for row in rows])
    busiest = max(at, key=lambda y: rows[y].busy, default=0)
    for y, name in enumerate(axes.get_yticklabels()):
        name.set_fontweight("bold" if y == busiest else "normal")
    axes.invert_yaxis()
    unit = "" if plan.time_unit == "unspecified" else f" ({plan.time_unit})"
    axes.set_xlabel(f"{_span(plan)}{unit}")


def _span(plan: Plan) -> str:
    """Say what time the loads are of."""
    problem = plan.problem
    if isinstance(problem, Iteration):
        return f"load per iteration of {problem.microbatches} microbatches"
    if isinstance(problem, Latency):
        return "load of one request"
    batch = isinstance(problem, Training) and problem.objective == "batch"
    return "load per batch" if batch else "load per microbatch"


def _draw_memory(axes: Axes, rows: Sequence[Load]) -> None:
    """Draw how full the memories are; where there is no limit anywhere, what is used of them."""
    limited = [math.isfinite(row.capacity_bytes) for row in rows]
    if any(limited):
        shares = [
            100 * row.memory_bytes / row.capacity_bytes if has and row.capacity_bytes else 0.0
            for row, has in zip(rows, limited, strict=True)
        ]
        axes.set_xlim(0, max(100.0, *shares))
        axes.set_xlabel("memory used (%)")
    else:
        shares = [row.memory_bytes for row in rows]
        axes.set_xlim(0, 1.6 * max([1.0, *shares]))  # room for the sizes behind the bars
        axes.set_xticks([])
        axes.set_xlabel("memory used (no limit)")
        for y, row in enumerate(rows):
            text = f" {show_bytes(row.memory_bytes)}"
            axes.text(row.memory_bytes, y, text, va="center", fontsize="small")
    axes.barh(range(len(rows)), shares, color=MEMORY)
