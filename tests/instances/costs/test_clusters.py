"""The table of accelerators has a source per number; clusters are read from a line or a file."""

from __future__ import annotations

import csv
import json
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from stagecut import InputError
from stagecut.instances.costs.clusters import accelerator, accelerators, training_cluster
from stagecut.instances.costs.hardware import NumberFormat

#: Accelerators that a user may name so.
SPELLINGS = {
    "h100": "h100-sxm", "H100": "h100-sxm", "h100_80gb": "h100-sxm", "8x H100": "h100-sxm",
    "NVIDIA H100 80GB HBM3": "h100-sxm", "H100 NVL": "h100-nvl", "H100 PCIe": "h100-pcie",
    "H100-96GB-HBM2e-500W": "h100-96gb-hbm2e", "A100": "a100-80gb", "A100 (40GB)": "a100-40gb",
    "NVIDIA A100-SXM4-40GB": "a100-40gb", "A100 40 GB SXM": "a100-40gb",
    "A100 80GB PCIe": "a100-pcie-80gb", "V100-16GB (p3.16xlarge)": "v100-16gb",
    "A100-SXM-64GB": "a100-64gb", "Intel Gaudi2": "gaudi2",
    "GB200 NVL72": "gb200", "B300": "b300", "AMD Instinct MI250X": "mi250x", "MI355X": "mi355x",
    "TPU v5e": "tpu-v5e", "v5p": "tpu-v5p", "Trillium": "tpu-v6e", "RTX 4090": "rtx-4090",
    "GeForce RTX 3090": "rtx-3090", "rtx5090": "rtx-5090", "RTX 6000 Ada": "rtx-6000-ada",
}  # fmt: skip


@pytest.mark.parametrize(("spelling", "name"), SPELLINGS.items())
def test_an_accelerator_is_found_by_any_spelling(spelling: str, name: str) -> None:
    assert accelerator(spelling).name == name


@pytest.mark.parametrize(
    ("name", "said"),
    [
        *((name, r"known are v100-32gb, .*tpu-v6e") for name in ("", "h", "sxm")),
        ("A100-60GB", r"did you mean a100-80gb or a100-64gb or a100-40gb\?"),
        ("H10", r"did you mean h100 or h20\?"),
        ("cpu", r"jobs are planned for accelerators, such as h100:8"),
    ],
)
def test_a_name_that_fits_none_is_refused_with_those_known(name: str, said: str) -> None:
    with pytest.raises(InputError, match=rf"is not known; {said}"):
        accelerator(name)


def test_every_name_of_the_table_means_its_own_line() -> None:
    assert [accelerator(one.name) for one in accelerators()] == list(accelerators())


def test_every_number_has_a_source_and_is_plausible() -> None:
    text = (files("stagecut.instances.costs") / "accelerators.csv").read_text(encoding="utf-8")
    for row in csv.DictReader(text.splitlines()):
        assert all(row[f"{what}_source"] for what in ("compute", "memory", "link"))
        assert bool(row["network_gb_s"]) == bool(row["network_source"])
    for one in accelerators():
        peaks = [one.peak.get(p) for p in (NumberFormat.TF32, NumberFormat.BF16, NumberFormat.FP8)]
        known = [peak for peak in peaks if peak is not None]
        assert known == sorted(known)
        # Half as many bits, twice as many operations, but for rounding and what 8 bits lack.
        for faster, slower in zip(known[1:], known, strict=False):
            assert 0.95 < faster / slower < 2.1
        assert one.vector < max(known, default=one.peak.get(NumberFormat.FP16, 0))
        assert 1e9 < one.host_bandwidth <= one.peer_bandwidth or one.domain == 4
        assert one.peer_bandwidth < one.bandwidth


@pytest.mark.parametrize(
    ("line", "devices", "per_node", "bandwidth"),
    [
        ("h100:8x16", 128, 8, 50e9),
        ("h100:128", 128, 8, 50e9),
        ("h100:4", 4, 4, 50e9),
        ("gb200:72x2", 144, 72, 50e9),
        ("a100:8x2,network=100Gb/s", 16, 8, 12.5e9),
        ("a100:8x2,network=25GB/s", 16, 8, 25e9),
        ("rtx4090:8", 8, 8, 25e9),
        ("h100:8x2+a100:8x4", 48, 8, 25e9),
    ],
)
def test_a_cluster_is_read_from_one_line(
    line: str, devices: int, per_node: int, bandwidth: float
) -> None:
    cluster = training_cluster(line)
    assert (cluster.devices, cluster.per_node) == (devices, per_node)
    assert cluster.network.bandwidth == bandwidth


def test_the_network_s_options_are_read() -> None:
    network = training_cluster("h100:8x512,latency=8us,oversubscription=7,leaf=3072").network
    assert (network.latency, network.oversubscription, network.leaf) == (8e-6, 7.0, 3072)
    peer = training_cluster("h100:8,peer=200GB/s").accelerator.peer_bandwidth
    assert peer == 200e9
    assert training_cluster("gb300:72x2").domain == 72
    assert training_cluster("gb300:4x36").domain == 72
    assert training_cluster("h100:8x2").domain == 8


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("h100", "write NAME:PER_NODExNODES"),
        ("h100:8x", "write NAME:PER_NODExNODES"),
        ("h100:0x4", "write NAME:PER_NODExNODES"),
        ("h100:12", "12 devices in nodes of 8; write h100:PER_NODExNODES, such as h100:4x3"),
        ("h9:8", "is not known"),
        ("rtx4090:8x2", "no usual network; add ,network="),
        ("h100:8x2,foo=1", '"foo=1" is none of network'),
        ("h100:8x2,network=fast", 'network: "fast"; write a rate'),
        ("h100:8x2,network=0Gb/s", "write a rate"),
        ("h100:8x2,network=100Gb", "write a rate"),
        ("h100:8x2,leaf=8,leaf=16", "leaf is given twice"),
        ("h100:8x2,latency=1h", 'latency: "1h"; write a time'),
        ("h100:8x2,oversubscription=0.5", "it must be a number of at least 1"),
        ("h100:8x2,leaf=1.5", "it must be a whole number"),
        ("h100:8x99999999", "at most 10000000"),
    ],
)
def test_a_wrong_line_is_refused_with_the_remedy(line: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        training_cluster(line)


def write(path: Path, content: object) -> Path:
    path.write_text(json.dumps(content))
    return path


def test_a_file_may_put_measured_numbers_in_place_of_the_sheet_s(tmp_path: Path) -> None:
    nodes = [
        {"accelerator": "h100", "count": 2, "peak": {"bf16": 7e14}, "peer_bandwidth": 4e11},
        {"accelerator": "a100", "per_node": 4, "count": 1},
    ]
    network = {"bandwidth": 4e10, "latency": 7e-6, "leaf": 16}
    path = write(tmp_path / "c.json", {"nodes": nodes, "network": network})
    cluster = training_cluster(path)
    assert cluster.devices == 20
    assert cluster.accelerator.peak[NumberFormat.BF16] == 7e14
    assert cluster.accelerator.peak[NumberFormat.FP8] == accelerator("h100").peak[NumberFormat.FP8]
    assert cluster.accelerator.peer_bandwidth == 4e11
    assert (cluster.network.bandwidth, cluster.network.leaf) == (4e10, 16)
    assert training_cluster(str(path)) == cluster


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ([], "it must be an object {…}; give a cluster file"),
        ({}, "nodes is missing; add it"),
        ({"nodes": []}, "nodes: .*length"),
        ({"format": "stagecut-cluster", "version": 1}, "it is no cluster of training jobs"),
        ({"nodes": [{"accelerator": "mine"}]}, r"^\S+c.json: accelerator.*with its own numbers"),
        ({"nodes": [1]}, r"nodes\[0\] is 1; it must be an object"),
        ({"nodes": [{"accelerator": 1}]}, r"nodes\[0\]: accelerator is 1; it must be a text"),
        ({"nodes": [{"accelerator": "h100", "count": 0}]}, "count is 0; it must be at least 1"),
        ({"nodes": [{"accelerator": "h100", "speed": 1}]}, r'nodes\[0\]: unknown key "speed"'),
        (
            {"nodes": [{"accelerator": "h100", "peak": {"fp7": 1}}]},
            'key is "fp7"; it must be one of fp32, tf32',
        ),
        (
            {"nodes": [{"accelerator": "h100", "peak": {"fp8": 1e15, "bf16": 0}}]},
            "peak: bf16 is 0; it must be above 0",
        ),
        (
            {"nodes": [{"accelerator": "h100"}], "network": {"oversubscription": 0.5}},
            "network: oversubscription is 0.5; it must be at least 1",
        ),
        (
            {"nodes": [{"accelerator": "h100", "bandwidth": -1}]},
            "bandwidth is -1; it must be above",
        ),
        ({"nodes": [{"accelerator": "h100"}], "network": {"speed": 1}}, 'network: unknown key "sp'),
        ({"nodes": [{"accelerator": "h100"}], "network": 1}, "network is 1; it must be an object"),
    ],
)
def test_a_wrong_file_is_refused_by_field(tmp_path: Path, content: Any, said: str) -> None:
    with pytest.raises(InputError, match=said):
        training_cluster(write(tmp_path / "c.json", content))


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        training_cluster("no/such/cluster.json")
    (tmp_path / "c.json").write_text("{")
    with pytest.raises(InputError, match="its JSON ends too early"):
        training_cluster(tmp_path / "c.json")
