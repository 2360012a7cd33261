"""Measured links and matrix products take the place of a calibration's, and nothing else does."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stagecut import InputError, Layout, estimate, training_cluster
from stagecut.instances.costs.calibration import Calibration, load_measurements, with_measurements


def said(hosts: list[str], links: dict[tuple[int, int], tuple[float, float]]) -> dict[str, Any]:
    return {
        "ranks": [{"host": host} for host in hosts],
        "pairs": [
            {"ranks": list(pair), "latency_s": latency, "bytes_per_s": speed}
            for pair, (latency, speed) in links.items()
        ],
    }


def write(path: Path, content: object) -> Path:
    path.write_text(json.dumps(content))
    return path


def test_links_are_told_apart_by_host(tmp_path: Path) -> None:
    fast, slow = (2e-6, 3e11), (9e-6, 4e10)
    links = {(0, 1): fast, (2, 3): fast, (0, 2): slow, (0, 3): slow, (1, 2): slow, (1, 3): slow}
    found = load_measurements(write(tmp_path / "m.json", said(["a", "a", "b", "b"], links)))
    cluster = training_cluster("h100:2x2")
    table = with_measurements(Calibration("x"), found, cluster)
    assert table.links.peer * cluster.accelerator.peer_bandwidth == pytest.approx(3e11)
    assert table.links.network * cluster.network.bandwidth == pytest.approx(4e10)
    assert (table.links.peer_latency, table.links.network_latency) == (2e-6, 9e-6)
    assert table.name == "x, measured"
    rest = replace(table, name="x", links=Calibration().links)
    assert rest == Calibration("x")


def test_what_was_not_measured_stays(tmp_path: Path) -> None:
    content = said(["a", "a"], {(0, 1): (2e-6, 3e11)}) | {"products": {"bf16": 6e14, "fp32": 5e13}}
    table = with_measurements(
        Calibration(), load_measurements(write(tmp_path / "m.json", content)),
        training_cluster("h100:8x2"),
    )  # fmt: skip
    assert table.links.network == Calibration().links.network
    assert table.kernels.product == pytest.approx(6e14 / 989.4e12)
    assert table.kernels.product8 == Calibration().kernels.product8


def test_slower_products_make_an_iteration_longer(tmp_path: Path) -> None:
    layout = Layout(data=8, global_batch=64, sequence=4096, zero=1)
    times = []
    for rate in (3e14, 6e14):
        content = said(["a"], {}) | {"products": {"bf16": rate}}
        path = write(tmp_path / "m.json", content)
        times.append(estimate("llama3-8b", layout, "h100:8", measured=path).terms["products"])
    assert times[0] == pytest.approx(2 * times[1], rel=0.1)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ([], "give what stagecut measure --json prints"),
        ({"ranks": []}, "it has no ranks and pairs"),
        ({"ranks": [{"host": "a"}], "pairs": [{"ranks": [0, 1]}]}, "it has no ranks and pairs"),
        (said(["a"], {}) | {"products": {"fp7": 1e12}}, 'products: "fp7" is not one of'),
        (said(["a"], {}) | {"products": {"bf16": -1}}, "products: -1.0; it must be"),
        (said(["a"], {}) | {"products": [1]}, "it has no ranks and pairs"),
    ],
)
def test_what_measure_did_not_print_is_refused(
    tmp_path: Path, content: object, reason: str
) -> None:
    with pytest.raises(InputError, match=reason):
        load_measurements(write(tmp_path / "m.json", content))


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        load_measurements(tmp_path / "none.json")
