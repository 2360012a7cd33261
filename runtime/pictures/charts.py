"""Charts: results of methods, loads of a plan, a front of training plans, an estimate's terms."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, NullFormatter, PercentFormatter

from ...instances import Latency, Plan, Planned, is_iteration, plan_of
from ...instances.common.escape import plain
from ...instances.common.units import show_bytes, show_count, show_percent
from ...instances.costs.terms import MEMORY_TERMS, TIME_TERMS
from ..verify.report import Load, Report, loads_of
from .style import (
    COMPUTE,
    FILLS,
    LINES,
    MARKERS,
    MEMORY,
    SYNCHRONISE,
    TRANSFER,
    ShownFigure,
    line_of,
    names_as_they_are,
    save_picture,
)

LINE = "#333333"

#: Largest objective in the picture, over the best one.
MOST_SHOWN = 1.5

LEGEND: Any = {"frameon": False, "fontsize": 8}

#: Seconds, objective and bound of a moment; None or infinite where there is none.
Moment = Sequence[float | None]


class Look(NamedTuple):
    """Colour and mark of a method, the same in every part of a picture."""

    colour: str
    mark: str


def looks(methods: Sequence[str]) -> dict[str, Look]:
    """Return colour and mark of each method."""
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
        Result of `stagecut.compare`, with traces.
    path
        File that ends in ``.png``, ``.svg`` or ``.pdf``.

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
    """Draw the distance of each plan from the best bound of its workload."""
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
    """Return the entries of a legend."""
    entries = [
        Line2D([], [], color=look.colour, marker=look.mark, label=plain(name))
        for name, look in drawn.items()
    ]
    for style, text in (("-", "best plan"), (":", "bound")):
        entries.append(Line2D([], [], color="#666666", linestyle=style, label=text))
    return entries


def _traces(rows: pd.DataFrame) -> dict[str, list[Moment]]:
    """Return the moments of each method, with its end last."""
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
        Unit of the workload, in the axis label.

    Returns
    -------
    matplotlib.figure.Figure
        Solid lines are plans, dotted ones bounds; where the two meet, the plan is proved optimal.
        A mark is the end of a search.

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
    axes.set_ylabel("objective, in the workload's unit", fontsize=8)
    axes.tick_params(labelsize=8)
    axes.spines[["top", "right"]].set_visible(False)


def _is_finite(value: float | None) -> bool:
    return value is not None and math.isfinite(value)


@names_as_they_are
def draw_loads(report: Report, plan: Plan | Planned, path: Path) -> None:
    """Draw a bar per device, with objective and bound as lines, into a PNG, SVG or PDF file.

    Parameters
    ----------
    report
        Report of the plan; see `evaluate`.
    plan
        Plan of any problem but a mapping; or the `Result` that holds it.
    path
        File that ends in ``.png``, ``.svg`` or ``.pdf``.

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
    """Draw the load of each device, with objective and bound as lines; the busiest name is bold."""
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
    """Return the label of the axis of loads: the time that they are of."""
    problem = plan.problem
    if is_iteration(problem):
        return f"load per iteration of {show_count(problem.batch, 'microbatch')}"
    if isinstance(problem, Latency):
        return "load of one request"
    return "load per microbatch"


def _draw_memory(axes: Axes, rows: Sequence[Load]) -> None:
    """Draw the share of each memory in use, or bytes if no device has a limit."""
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


def plot_front(front: pd.DataFrame, time_unit: str = "unspecified") -> Figure:
    """Draw time per microbatch against devices or, if those do not vary, against memory.

    Parameters
    ----------
    front
        Result of `pareto`; a line is drawn for each value of the quantity that is not on the axis.
    time_unit
        Unit in the axis label.

    Returns
    -------
    matplotlib.figure.Figure
        Filled marks are efficient plans.

    Examples
    --------
    >>> import stagecut
    >>> workload = stagecut.training_layers(stagecut.load("gpt2-xl-training"))
    >>> cluster = stagecut.accelerators_and_cpus(4, memory_bytes=80e9)
    >>> problem = stagecut.PipelineJob(microbatches=8, bandwidth=1e8)
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


#: Most bars of ranks; of more, the first and last ones and the fullest are drawn.
MOST_RANKS = 24
LIMIT, EDGE = "#333333", "#ffffff"
#: Hatches of the first and the second round of colours.
HATCHES = ("", "///")


@names_as_they_are
def plot_estimate(
    terms: Mapping[str, float],
    memory: Sequence[Mapping[str, float]],
    limits: Sequence[float],
    title: str,
) -> Figure:
    """Draw seconds by term beside bytes by term and pipeline rank, with `limits` of their devices.

    Of many ranks the first and last ones, and the one with least memory left, are shown.
    """
    shown = shown_ranks(memory, limits)
    figure = ShownFigure(figsize=(11, max(3.6, 1.6 + 0.3 * len(shown))), layout="constrained")
    time, ranks = figure.subplots(1, 2, width_ratios=[2, 3])
    _draw_terms(time, terms)
    _draw_rank_memory(ranks, memory, shown, limits)
    figure.suptitle(plain(title), x=0.01, ha="left", fontsize=11)
    return figure


def shown_ranks(memory: Sequence[Mapping[str, float]], limits: Sequence[float]) -> list[int]:
    """Return the pipeline ranks that are shown: all, or first, last and fullest of many."""
    count = len(memory)
    if count <= MOST_RANKS:
        return list(range(count))
    fullest = max(range(count), key=lambda rank: sum(memory[rank].values()) - limits[rank])
    half = MOST_RANKS // 2
    return sorted({*range(half), *range(count - half, count), fullest})


def _draw_terms(axes: Axes, terms: Mapping[str, float]) -> None:
    """Draw a bar per term, the longest part of the iteration on top."""
    rows = [(label, terms.get(key, 0.0)) for key, label in TIME_TERMS.items()]
    rows = [(label, seconds) for label, seconds in rows if seconds > 0]
    whole = sum(seconds for _, seconds in rows)
    at = range(len(rows))
    axes.barh(at, [seconds for _, seconds in rows], color=FILLS[0])
    for y, (_, seconds) in enumerate(rows):
        axes.text(seconds, y, f" {show_percent(seconds / whole)}", va="center", fontsize=8)
    axes.set_yticks(at, [label for label, _ in rows], fontsize=8)
    axes.set_xlim(0, 1.2 * max((seconds for _, seconds in rows), default=1.0))
    axes.invert_yaxis()
    axes.set_xlabel(f"seconds of an iteration of {whole:.4g} s")
    axes.spines[["top", "right"]].set_visible(False)


def _draw_rank_memory(
    axes: Axes, memory: Sequence[Mapping[str, float]], shown: Sequence[int], limits: Sequence[float]
) -> None:
    """Draw a bar per pipeline rank, divided by term, with its device's memory as a line."""
    left = [0.0] * len(shown)
    places = range(len(shown))
    for k, (key, label) in enumerate(MEMORY_TERMS.items()):
        values = [memory[rank].get(key, 0.0) / 2**30 for rank in shown]
        if not any(values):
            continue
        axes.barh(
            places, values, left=left, label=label, color=FILLS[k % len(FILLS)],
            hatch=HATCHES[k // len(FILLS)], edgecolor=EDGE, linewidth=0.5,
        )  # fmt: skip
        left = [a + b for a, b in zip(left, values, strict=True)]
    for limit in sorted({limits[rank] for rank in shown}):
        own = [place for place in places if limits[shown[place]] == limit]
        label = f"device: {show_bytes(limit)}"
        ends = min(own) - 0.5, max(own) + 0.5
        axes.vlines(limit / 2**30, *ends, color=LIMIT, linestyle="--", label=label)
    axes.set_yticks(places, [str(rank) for rank in shown], fontsize=8)
    axes.set_ylabel("pipeline rank")
    axes.set_xlabel("GiB")
    axes.set_xlim(0, 1.05 * max(*(limit / 2**30 for limit in limits), *left))
    axes.invert_yaxis()
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(fontsize=7, frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0))
