"""Picture of a measurement: times of messages, fits, and residuals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, PercentFormatter

from ...instances import Link
from ..pictures.style import LINES, names_as_they_are, save_picture
from .fit import Fit
from .measurement import Measurement, MessageTimes

#: More pairs than this are drawn in one colour.
MOST_NAMED = 6
MOST_TICKS = 6


@names_as_they_are
def draw_measurement(measurement: Measurement, path: Path) -> None:
    """Draw times and fits, residuals, and for more than two ranks the table of links.

    Parameters
    ----------
    measurement
        Measurement by `measure`.
    path
        File to write, ending in ``.png``, ``.svg`` or ``.pdf``.

    Raises
    ------
    InputError
        If the file's ending names no format of pictures.

    Examples
    --------
    >>> from pathlib import Path
    >>> import stagecut
    >>> from stagecut.runtime.measure.measurement import Measurement, MessageTimes
    >>> from stagecut.runtime.measure.measurement import RankMachine, RankPair
    >>> ranks = tuple(RankMachine("host", f"cuda:{r}", "H100", 80e9) for r in range(2))
    >>> sizes = np.array([1e3, 1e6, 1e9])
    >>> timed = MessageTimes(sizes, tuple(np.full(5, 1e-5 + size / 25e9) for size in sizes))
    >>> measurement = Measurement("nccl", ranks, (RankPair(0, 1, timed),), timed)
    >>> stagecut.runtime.measure.draw_measurement(measurement, Path("measurement.svg"))
    """
    ranks = len(measurement.ranks)
    rows = 2 if ranks > 2 else 1
    figure = Figure(figsize=(12.5, 4.8 * rows), layout="constrained")
    axes = figure.subplots(rows, 2, squeeze=False)
    named = len(measurement.pairs) <= MOST_NAMED
    for i, pair in enumerate(measurement.pairs):
        colour = LINES[i % len(LINES)] if named else LINES[0]
        label = f"ranks {pair.first} and {pair.second}: {_words(pair.fit.link)}"
        if not named:
            label = f"{len(measurement.pairs)} pairs" if i == 0 else ""
        _draw_fit(axes[0], pair.timed, pair.fit, colour, "o", label)
    label = f"all-reduce of {ranks}: {_words(measurement.ring.link)}"
    _draw_fit(axes[0], measurement.all_reduce, measurement.ring, "#444444", "s", label)
    times, errors = axes[0]
    times.set_yscale("log")
    times.yaxis.set_major_formatter(EngFormatter(unit="s"))
    times.set_title(
        f"{measurement.backend}: median and quartiles (marks), model (lines)",
        loc="left", fontsize=11,
    )  # fmt: skip
    times.legend(frameon=False, fontsize=8, loc="upper left")
    errors.axhline(0, color="#999999", linewidth=0.8)
    errors.yaxis.set_major_formatter(PercentFormatter(1.0))
    errors.set_title("residuals: model / measured − 1", loc="left", fontsize=11)
    sizes = np.unique(measurement.all_reduce.size_bytes)
    ticks = sizes[:: -(-len(sizes) // MOST_TICKS)]
    for chart in (times, errors):
        chart.set_xscale("log", base=2)
        chart.set_xticks(ticks, minor=False)
        chart.minorticks_off()
        chart.xaxis.set_major_formatter(_size)
        chart.set_xlabel("size of the message")
        chart.grid(alpha=0.25)
        chart.spines[["top", "right"]].set_visible(False)
    if ranks > 2:
        latency, bandwidth = np.full((ranks, ranks), np.nan), np.full((ranks, ranks), np.nan)
        for pair in measurement.pairs:
            for a, b in ((pair.first, pair.second), (pair.second, pair.first)):
                latency[a, b] = pair.fit.link.latency_s
                bandwidth[a, b] = pair.fit.link.bytes_per_s
        _draw_table(figure, axes[1][0], latency, "latency", "s", "viridis_r")
        _draw_table(figure, axes[1][1], bandwidth, "bandwidth", "B/s", "viridis")
    save_picture(figure, path)


def _draw_fit(axes: Any, timed: MessageTimes, fit: Fit, colour: str, mark: str, label: str) -> None:
    low, middle, high = timed.quartiles_s
    times, errors = axes
    times.errorbar(
        timed.size_bytes, middle, (middle - low, high - middle),
        fmt=mark, color=colour, markersize=4, capsize=2, linewidth=0.8, label=label or None,
    )  # fmt: skip
    sizes = np.geomspace(timed.size_bytes.min(), timed.size_bytes.max(), 100)
    model = np.interp(sizes, np.sort(fit.size_bytes), np.sort(fit.model_s))  # it is a line
    times.plot(sizes, model, color=colour, linewidth=1.0)
    errors.plot(
        fit.size_bytes, fit.residuals, marker=mark, color=colour, markersize=4, linewidth=0.8
    )


def _draw_table(figure: Figure, chart: Any, table: Any, name: str, unit: str, colours: str) -> None:
    image = chart.imshow(table, cmap=colours)
    chart.set_title(f"{name} between ranks", loc="left", fontsize=11)
    chart.set_xticks(range(len(table)))
    chart.set_yticks(range(len(table)))
    figure.colorbar(image, ax=chart, format=EngFormatter(unit=unit))


def _words(link: Link) -> str:
    latency = EngFormatter(unit="s", places=1)(link.latency_s)
    return f"{latency}, {EngFormatter(unit='B/s', places=2)(link.bytes_per_s)}"


def _size(value: float, _position: int) -> str:
    for unit in ("B", "KiB", "MiB"):
        if value < 1024:
            return f"{value:.0f} {unit}"
        value /= 1024
    return f"{value:.0f} GiB"
