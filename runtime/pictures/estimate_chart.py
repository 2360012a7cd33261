"""An estimate as a picture: where an iteration's seconds go, and what fills each rank's memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ...instances.common.escape import plain
from ...instances.common.quantities import show_bytes, show_percent
from ...instances.costs.terms import MEMORY_TERMS, TIME_TERMS
from .style import FILLS, ShownFigure, names_as_they_are

#: Bars of ranks beyond these are left out: first and last ones, and the fullest, stay.
MOST_RANKS = 24
LIMIT, EDGE = "#333333", "#ffffff"
#: A second round of colours is told from the first by its hatch.
HATCHES = ("", "///")


@names_as_they_are
def plot_estimate(
    terms: Mapping[str, float], memory: Sequence[Mapping[str, float]], limit: float, title: str
) -> Figure:
    """Draw seconds by term beside bytes by term and pipeline rank, of at most `limit` a device."""
    shown = shown_ranks(memory)
    figure = ShownFigure(figsize=(11, max(3.6, 1.6 + 0.3 * len(shown))), layout="constrained")
    time, ranks = figure.subplots(1, 2, width_ratios=[2, 3])
    _draw_time(time, terms)
    _draw_memory(ranks, memory, shown, limit)
    figure.suptitle(plain(title), x=0.01, ha="left", fontsize=11)
    return figure


def shown_ranks(memory: Sequence[Mapping[str, float]]) -> list[int]:
    """Return the pipeline ranks that are shown: all, or first, last and fullest of many."""
    count = len(memory)
    if count <= MOST_RANKS:
        return list(range(count))
    fullest = max(range(count), key=lambda rank: sum(memory[rank].values()))
    half = MOST_RANKS // 2
    return sorted({*range(half), *range(count - half, count), fullest})


def _draw_time(axes: Axes, terms: Mapping[str, float]) -> None:
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


def _draw_memory(
    axes: Axes, memory: Sequence[Mapping[str, float]], shown: Sequence[int], limit: float
) -> None:
    """Draw a bar per pipeline rank, divided by term, with the device's memory as a line."""
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
    axes.axvline(limit / 2**30, color=LIMIT, linestyle="--", label=f"device: {show_bytes(limit)}")
    axes.set_yticks(places, [str(rank) for rank in shown], fontsize=8)
    axes.set_ylabel("pipeline rank")
    axes.set_xlabel("GiB")
    axes.set_xlim(0, 1.05 * max(limit / 2**30, *left))
    axes.invert_yaxis()
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(fontsize=7, frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0))
