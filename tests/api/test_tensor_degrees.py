"""Layers sharded over several devices, and training plans that choose how many."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from sharded_models import Language
from torch import nn

from stagecut import (
    Cluster,
    DeviceKind,
    InputError,
    Limits,
    Link,
    PipelineJob,
    Workload,
    load,
    profile,
    save,
    solve,
    training_layers,
    verify,
)
from stagecut.api import layers_by_degree
from stagecut.cli import run_command
from stagecut.instances.pytorch.profile import Profile

LINK = Link(1e-6, 100e9)


@pytest.fixture(scope="module")
def wide() -> Profile:
    """Two wide layers of which one device cannot make much, and what lies between."""
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(4096, 16384), nn.ReLU(), nn.Linear(16384, 4096), nn.Tanh())
        inputs = (torch.zeros(2048, 4096),)
    return profile(model, inputs, training=True, estimate="h100", depth=1)


@pytest.fixture(scope="module")
def layers(wide: Profile) -> Workload:
    """The same with configurations for one, two and four devices."""
    return layers_by_degree(wide, (4, 1, 2), estimate="h100", link=LINK)


def test_one_device_is_as_before(wide: Profile, layers: Workload) -> None:
    plain, many = training_layers(wide.workload).layers, layers.layers
    assert plain is not None
    assert many is not None
    one = many.degree == 1
    for key in ("node", "recomputes", "time", "weight_bytes", "bytes_per_microbatch"):
        assert (getattr(many, key)[one] == getattr(plain, key)).all(), key
    assert [x for x, alone in zip(many.label, one, strict=True) if alone] == list(plain.label)
    assert (
        layers_by_degree(wide, (1,)).layers == plain or layers_by_degree(wide, (1,)).n == layers.n
    )


def test_a_layer_takes_what_its_sharding_takes(layers: Workload) -> None:
    """A product of 4096 and 16384 by columns: half the work, and one all-reduce of the input's
    gradient; its output is gathered."""
    many = layers.layers
    assert many is not None
    tokens, few, wide = 2048, 4096, 16384
    first = [c for c in range(many.size) if many.node[c] == 0 and not many.recomputes[c]]
    by_degree = {int(many.degree[c]): c for c in first if many.label[c] in ("vanilla", "tensor")}
    for t in (2, 4):
        seconds = many.time[by_degree[t]] * 1e-3
        weight = many.weight_bytes[by_degree[t]]
        gather = (t - 1) * (LINK.latency_s + tokens * wide * 4 / t / LINK.bytes_per_s)
        least = many.time[by_degree[1]] * 1e-3 / t
        assert seconds >= least
        assert seconds <= many.time[by_degree[1]] * 1e-3 + 1e-12
        assert weight <= 4 * (few * wide + wide) + 1
        assert gather > 0
    assert many.time[by_degree[4]] < many.time[by_degree[1]]


def test_recomputing_takes_the_forward_pass_again(layers: Workload) -> None:
    many = layers.layers
    assert many is not None
    for c, label in enumerate(many.label):
        if label.endswith("-recompute"):
            kept = c - 1
            assert many.label[kept] == label.removesuffix("-recompute")
            assert many.time[kept] <= many.time[c] <= 2 * many.time[kept]
            assert many.bytes_per_microbatch[c] + many.fixed_bytes[c] >= many.fixed_bytes[kept]


@pytest.mark.parametrize("microbatches", [1, 8])
def test_joined_plans_are_never_behind(layers: Workload, microbatches: int) -> None:
    many = layers.layers
    assert many is not None
    plain = many.degree == 1
    whole = float((many.fixed_bytes + many.bytes_per_microbatch)[plain].sum())
    for memory in (80e9, whole / 3):
        cluster = Cluster((DeviceKind("gpu", 4, memory, link=LINK),))
        found = {}
        for name, options in {
            "joined": {},
            "pipeline": {"degrees": (1,), "replicas": (1,)},
            "data": {"degrees": (1,)},
            "tensor": {"degrees": (4,), "replicas": (1,)},
        }.items():
            problem = PipelineJob(microbatches=microbatches, bandwidth=100e9, **options)  # type: ignore[arg-type]
            result = solve(layers, cluster, problem, limits=Limits(seconds=60, gap=1e-6))
            found[name] = result.objective
            if result.plan is not None:
                verify(layers, result.plan)
        assert found["joined"] is not None
        for name, objective in found.items():
            assert objective is None or found["joined"] <= objective * (1 + 1e-6), name
        if microbatches == 1:
            assert found["pipeline"] is None or found["joined"] < found["pipeline"]


def test_layers_alike_are_alike() -> None:
    with torch.device("meta"):
        words = torch.zeros(8, 12, dtype=torch.int64)
        model = Language(3)
    done = profile(model, (words, words), training=True, estimate="h100", depth="auto")
    workload = layers_by_degree(done, (1, 2), estimate="h100", link=LINK)
    many = workload.layers
    assert many is not None
    blocks = [v for v, node in enumerate(workload.ids) if str(node).startswith("blocks")]
    rows = [
        [(many.label[c], many.time[c], many.fixed_bytes[c]) for c in np.flatnonzero(many.node == v)]
        for v in blocks
    ]
    assert len(rows) == 3
    alike = [row for row in rows if row[0] == rows[1][0]]
    assert len(alike) > 1
    assert all(row == alike[0] for row in alike)


def test_bad_degrees_are_refused(wide: Profile) -> None:
    for degrees in ((0,), (2, -1), (1.5,)):
        with pytest.raises(InputError, match="degrees"):
            layers_by_degree(wide, degrees, estimate="h100")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="accelerator: "):
        layers_by_degree(wide, (2,), estimate="nonsense")


MODEL = """
import torch
def make():
    model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 64))
    return model, torch.zeros(32, 64)
"""


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, out = tmp_path / "model.py", tmp_path / "layers.json"
    model.write_text(MODEL)
    asked = ["profile", f"{model}:make", "--train", "--estimate", "h100", "-o", str(out)]
    assert run_command([*asked, "--layers", "--degrees", "1,2"]) == 0
    workload = load(out)
    assert workload.layers is not None
    assert set(workload.layers.degree.tolist()) == {1, 2}
    save(workload, tmp_path / "again.json")
    assert load(tmp_path / "again.json").fingerprint == workload.fingerprint
    capsys.readouterr()
    plan = str(tmp_path / "plan.json")
    solved = ["solve", str(out), "--accelerators", "2", "--microbatches", "1", "-o", plan, "--json"]
    assert run_command(solved) == 0
    assert json.loads(capsys.readouterr().out)["status"] == "optimal"
    for wrong in (
        ["--degrees", "2"],
        ["--layers", "--degrees", "two"],
        ["--layers", "--degrees", "0"],
    ):
        assert run_command([*asked, *wrong]) == 2
        assert capsys.readouterr().err.count("\n") == 1
