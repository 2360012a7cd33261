"""What is exported, read by the programs that it is for; each is skipped where it is missing."""

from __future__ import annotations

import json
import re
import shlex
import warnings
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pipelines import plan_of

import stagecut
from stagecut import Cluster, DeviceKind, Workload
from stagecut.runtime.export.registry import launcher_file, torch_schedule
from stagecut.runtime.schedules import write_csv

torch = pytest.importorskip("torch", reason="the extra `runtime` is not installed")

from plan_workers import trained_by_a_csv  # noqa: E402
from ranks import on_ranks  # noqa: E402
from torch import nn  # noqa: E402

LAUNCHERS = "the extra `launchers` is not installed"


def chain(names: list[str], devices: list[int]) -> tuple[Workload, stagecut.Plan]:
    """Return nodes one after the other, and the plan with these devices."""
    n = len(names)
    workload = Workload(
        name="net",
        ids=tuple(names),
        edges=np.array(list(pairwise(range(n)))),
        times={"accelerator": np.ones(n)},
        memory_bytes=np.ones(n),
        transfer=np.zeros(n),
        extra={"parameters": np.ones(n)},
    )
    kind = DeviceKind("accelerator", max(devices) + 1)
    return workload, plan_of(workload, Cluster((kind,)), np.array(devices))


class Net(nn.Module):
    """An embedding, layers and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(16, 8)
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(4))
        self.head = nn.Linear(8, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.embed(x)
        for layer in self.layers:
            x = layer(x).relu()
        made: torch.Tensor = self.head(x)
        return made


NAMES = ["embed", *(f"layers.{k}" for k in range(4)), "head"]


def test_accelerate_runs_a_model_by_the_device_map(tmp_path: Path) -> None:
    accelerate = pytest.importorskip("accelerate", reason=LAUNCHERS)
    from accelerate.utils import check_device_map

    text, _ = launcher_file(*chain(NAMES, [0, 0, 0, 1, 1, 1]), "accelerate")
    given = json.loads(text)
    torch.manual_seed(0)
    model, x = Net(), torch.arange(16).view(2, 8)
    wanted = model(x)
    check_device_map(model, given)
    where = {name: ("cpu", "disk")[number] for name, number in given.items()}  # no accelerators
    placed = accelerate.dispatch_model(model, where, offload_dir=tmp_path)
    assert placed.hf_device_map == where
    assert placed.layers[3].weight.device.type == "meta"
    assert placed.layers[0].weight.device.type == "cpu"
    torch.testing.assert_close(placed(x), wanted)


def megatron_layout(text: str) -> Any:
    """Return what Megatron-Core reads of our arguments, checked by it."""
    pytest.importorskip("megatron.core", reason=LAUNCHERS)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from megatron.core.transformer.pipeline_parallel_layer_layout import (
            PipelineParallelLayerLayout,
        )
    value = dict(pairwise(shlex.split(text, comments=True)))
    ranks = int(value["--pipeline-model-parallel-size"])
    layout = PipelineParallelLayerLayout(value["--pipeline-model-parallel-layout"], ranks)
    ahead = value.get("--mtp-num-layers")
    layout.validate_layer_layout(int(value["--num-layers"]), None if ahead is None else int(ahead))
    return layout


@pytest.mark.parametrize("seed", range(4))
def test_megatron_reads_the_layout_as_planned(seed: int) -> None:
    rng = np.random.default_rng(seed)
    layers, ranks, rounds = 8, 2, 1 + seed % 2
    names = ["embed", *(f"layers.{k}" for k in range(layers)), "norm", "head"]
    parts = ranks * rounds
    cuts = [0, *np.sort(rng.choice(np.arange(2, layers), parts - 1, replace=False)), len(names)]
    devices = np.repeat([s % ranks for s in range(parts)], np.diff(cuts)).tolist()
    layout = megatron_layout(launcher_file(*chain(names, devices), "megatron")[0])
    found = [[kind.name for kind in layout.layout[s % ranks][s // ranks]] for s in range(parts)]
    kinds = ["embedding", *["decoder"] * layers, "loss"]
    ends = [*cuts[:-1], len(kinds)]  # norm and head are one letter
    assert found == [kinds[a:b] for a, b in pairwise(ends)]


def test_megatron_reads_multi_token_prediction() -> None:
    names = [*NAMES[:-1], "mtp.0", "head"]
    layout = megatron_layout(launcher_file(*chain(names, [0, 0, 0, 1, 1, 1, 1]), "megatron")[0])
    assert [kind.name for kind in layout.layout[1][0]] == ["decoder", "decoder", "mtp", "loss"]


@pytest.mark.parametrize("schedule", ["1f1b", "zb-h1"])
def test_torch_trains_by_the_csv(schedule: str, tmp_path: Path) -> None:
    workload = stagecut.load("unet-training")
    names = [name.removesuffix(".backward") for name in workload.ids]
    number = {name: k for k, name in enumerate(dict.fromkeys(names))}
    devices = [int(2 * number[name] >= len(number)) for name in names]
    kind = DeviceKind("accelerator", 2)
    plan = plan_of(workload, Cluster((kind,)), np.array(devices))
    made, _ = torch_schedule(workload, plan, schedule, 4)
    stages = {action.stage for rank in range(2) for action in made.of(rank)}
    file = tmp_path / "schedule.csv"
    file.write_text(write_csv(made))
    owner = [
        next(r for r in range(2) if s in {a.stage for a in made.of(r)}) for s in sorted(stages)
    ]
    on_ranks(2, trained_by_a_csv, str(file), owner)
    assert re.search(r"\d+[BI]\d+", file.read_text())
