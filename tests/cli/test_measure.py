"""Measuring between two processes on this machine."""

from __future__ import annotations

import json
import math

import pytest
import typer
from typer.testing import CliRunner

from stagecut import InputError, load_cluster
from stagecut.commands.measure import measure
from stagecut.instances.costs.calibration import load_measurements
from stagecut.instances.topologies import load_topology

torch = pytest.importorskip("torch", reason="the extra `runtime` is not installed")

from ranks import program_on_ranks  # noqa: E402


def test_two_ranks_write_what_planner_and_mapper_read(tmp_path) -> None:
    ran = program_on_ranks(
        2, "stagecut", "measure", "-o", "cluster.json", "--topology", "t.json",
        "--plot", "fit.png", "--seconds", "0.05", "--largest", "256KiB", "--device", "cpu",
        "--products", "--json", folder=tmp_path,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    said = json.loads(ran.stdout)
    assert min(said["products"].values()) > 1e6
    (tmp_path / "measured.json").write_text(ran.stdout)
    measured = load_measurements(tmp_path / "measured.json")
    assert measured.peer.bytes_per_s == pytest.approx(said["link"]["bytes_per_s"])
    assert said["backend"] == "gloo"
    assert [pair["ranks"] for pair in said["pairs"]] == [[0, 1]]
    assert len(said["pairs"][0]["seconds"]) == 7
    (kind,) = load_cluster(tmp_path / "cluster.json").kinds
    assert kind.count == 2
    # on a busy machine noise may hide how the time grows with the size
    assert kind.link.latency_s > 1e-6
    assert 1e3 < kind.link.bytes_per_s < math.inf
    assert kind.link.latency_s == said["link"]["latency_s"]
    links = load_topology(tmp_path / "t.json")
    assert links.bytes_per_s.tolist() == [kind.link.bytes_per_s]
    assert (tmp_path / "fit.png").stat().st_size > 10_000


@pytest.mark.parametrize(
    ("ranks", "arguments", "reason"),
    [
        ("", ["-o", "c.json"], "torchrun --nproc-per-node 2 -m stagecut measure -o cluster.json"),
        ("1", ["-o", "c.json"], "1 rank; links are between at least 2"),
        ("2", ["-o", "nowhere/c.json"], "its folder does not exist"),
        ("2", ["-o", "c.json", "--largest", "100B"], "--largest"),
        ("2", ["-o", "c.json", "--seconds", "0"], "--seconds"),
        ("2", ["-o", "c.json", "--device", "tpu"], "auto, cpu, cuda"),
        ("2", ["-o", "c.json", "--mesh", "2x"], "--mesh: '2x' is no mesh"),
        ("2", ["-o", "c.json", "--mesh", "2", "--device", "cuda"], "shardings run on CPUs alone"),
        pytest.param(
            "2", ["-o", "c.json", "--device", "cuda"], "2 ranks on this host and 0 GPUs",
            marks=pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is here"),
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_measured_is_refused(
    tmp_path, monkeypatch, ranks: str, arguments: list[str], reason: str
) -> None:
    monkeypatch.chdir(tmp_path)
    for key, value in {"RANK": "0", "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks}.items():
        monkeypatch.setenv(key, value)
        if not ranks:
            monkeypatch.delenv(key)
    app = typer.Typer()
    app.command()(measure)
    result = CliRunner().invoke(app, arguments)
    assert isinstance(result.exception, InputError)
    assert reason in str(result.exception)
    assert list(tmp_path.iterdir()) == []


def test_collectives_along_the_axes_of_a_mesh_are_links_for_shardings(tmp_path) -> None:
    ran = program_on_ranks(
        4, "stagecut", "measure", "-o", "cluster.json", "--mesh", "2x2", "--seconds", "0.05",
        "--largest", "64KiB", "--json", folder=tmp_path,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    said = json.loads(ran.stdout)
    assert [axis["devices"] for axis in said["mesh"]] == [2, 2]
    for axis in said["mesh"]:
        assert set(axis["collectives"]) == {
            "all-gather", "reduce-scatter", "all-reduce", "all-to-all", "gather", "scatter",
            "reduce", "broadcast",
        }  # fmt: skip
        assert 1e-7 < axis["link"]["latency_s"] + 1e3 / axis["link"]["bytes_per_s"] < 1
        assert all(len(fit["seconds"]) == 5 for fit in axis["collectives"].values())
