"""Pictures can be read: colours apart to all eyes, no node upon another, marks within the axes."""

from __future__ import annotations

import math
from itertools import combinations
from pathlib import Path

import networkx as nx
import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

import stagecut
from stagecut import InputError, Limits, Throughput, accelerators_and_cpus, plot_traces, solve
from stagecut.runtime.pictures import style as palette
from stagecut.runtime.pictures.charts import draw_comparison, draw_traces, looks
from stagecut.runtime.pictures.graph import NODE, WIDE, layers

#: How colours are seen, in linear RGB; after Machado, Oliveira and Fernandes, "A physiologically-
#: based model for simulation of color vision deficiency", 2009.
EYES = {
    "normal": np.eye(3),
    "deuteranopia": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413],
         [-0.011820, 0.042940, 0.968881]]
    ),
    "protanopia": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216],
         [-0.003882, -0.048116, 1.051998]]
    ),
}  # fmt: skip

PALETTES = {
    "bars": {colour for what, (colour, _) in palette.BARS.items() if what != "I"},
    "collectives": {colour for colour, _ in palette.COLLECTIVES.values()},
    "fills": set(palette.FILLS),
    "lines": set(palette.LINES),
    "loads": {palette.COMPUTE, palette.TRANSFER, palette.SYNCHRONISE, palette.MEMORY},
}


def lab(colour: str, eyes: np.ndarray) -> np.ndarray:
    """CIE 1976 L*a*b* of a colour as these eyes see it."""
    rgb = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    seen = np.clip(eyes @ linear, 0, 1)
    to_xyz = np.array(
        [[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]
    )
    xyz = to_xyz @ seen / np.array([0.95047, 1.0, 1.08883])
    f = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


@pytest.mark.parametrize("eyes", EYES)
@pytest.mark.parametrize("name", PALETTES)
def test_colours_differ_to_all_eyes(name: str, eyes: str) -> None:
    seen = {colour: lab(colour, EYES[eyes]) for colour in PALETTES[name]}
    for a, b in combinations(seen, 2):
        assert np.linalg.norm(seen[a] - seen[b]) > 15, (a, b)


@pytest.mark.parametrize("colour", [*palette.FILLS, *(palette.BARS[what][0] for what in "FBIW")])
def test_what_has_text_in_it_is_light(colour: str) -> None:
    assert lab(colour, EYES["normal"])[0] > 60


@pytest.mark.parametrize("seed", range(20))
def test_no_node_is_drawn_upon_another_and_edges_pass_between(seed: int) -> None:
    rng = np.random.default_rng(seed)
    n = int(rng.integers(1, 25))
    graph: nx.DiGraph[int] = nx.DiGraph()
    graph.add_nodes_from((v, {"backward": bool(v > 0.6 * n and seed % 3)}) for v in range(n))
    graph.add_edges_from(
        (int(min(a, b)), int(max(a, b))) for a, b in rng.integers(0, n, (2 * n, 2)) if a != b
    )
    layout = layers(graph)
    assert layout.spots.keys() == set(graph)
    assert layout.ways.keys() == set(graph.edges)
    for (x, y), (u, v) in combinations(layout.spots.values(), 2):
        assert y != v or abs(x - u) >= NODE - 1e-9
    for (u, v), way in layout.ways.items():
        assert (way[0], way[-1]) == (layout.spots[u], layout.spots[v])
        for x, y in way[1:-1]:
            beside = [abs(x - at) for at, row in layout.spots.values() if row == y]
            assert min(beside, default=NODE) >= NODE / 2


def test_comparisons_have_room_for_methods_without_a_plan(tmp_path: Path) -> None:
    """Warnings are errors: matplotlib's says that a layout collapsed."""
    trace = [[0.1, None, 1.0], [0.5, 8.0, 4.0]]
    rows = [
        ("unet", "dp", 1.0, 1.0, 6.6, 6.6, trace),
        ("unet", "milp", math.nan, 9.0, math.nan, 4.0, trace[:1]),
    ]
    columns = ["workload", "method", "ratio", "seconds", "objective", "bound", "trace"]
    draw_comparison(pd.DataFrame(rows, columns=columns), tmp_path / "x.png")


def test_shares_are_drawn_of_all_nodes() -> None:
    workload = stagecut.load("unet-training")
    problem = Throughput("noncontiguous")
    found = stagecut.relax(workload, accelerators_and_cpus(2), problem)
    axes = stagecut.plot_shares(workload, found.shares).axes[0]
    parts = [p for p in axes.patches if isinstance(p, Rectangle) and p.get_facecolor()[3]]
    wide = sum(part.get_width() for part in parts)
    assert wide == pytest.approx(WIDE * workload.n)
    with pytest.raises(InputError, match="rows of the shares"):
        stagecut.plot_shares(stagecut.load("gpt2-xl"), found.shares)


def test_traces_show_where_every_search_ends() -> None:
    result = solve(
        "gpt2-xl", accelerators_and_cpus(2), Throughput("contiguous"), method="dp", limits=Limits()
    )
    axes = plot_traces({"dp": result}, "ms").axes[0]
    low, high = axes.get_ylim()
    assert low <= result.bound <= result.objective <= high
    assert axes.get_ylabel() == "objective (ms)"
    figure = Figure()
    axes = figure.subplots()
    moments = {"none": [], "all": [(0.1, None, 1.0), (0.2, 3.0, 2.0)], "poor": [(1.0, 9.0, -1.0)]}
    draw_traces(axes, moments, looks(list(moments)))
    low, high = axes.get_ylim()
    assert low < 2.0 < 3.0 < high < 9.0
