"""Stages of planned models under torch's own schedules compute what the model computes alone."""

from __future__ import annotations

import copy
import re
from pathlib import Path

import pytest
from project import ROOT

torch = pytest.importorskip("torch", reason="the extra `runtime` is not installed")

from execution_models import MODELS  # noqa: E402
from odd_models import CASES as ODD  # noqa: E402
from plan_workers import loop_of_the_page, own_training_loop, planned_with_torch, refused  # noqa: E402
from ranks import on_ranks  # noqa: E402
from torch import distributed as dist  # noqa: E402
from torch import nn  # noqa: E402

import stagecut  # noqa: E402
from stagecut.runtime.execution.gradients import clip_norm  # noqa: E402


@pytest.mark.parametrize(
    ("model", "schedule"), [("gpt", "1f1b"), ("mlp", "gpipe"), ("mlp", "interleaved")]
)
def test_two_processes(model: str, schedule: str) -> None:
    on_ranks(2, planned_with_torch, model, schedule)


def test_all_ranks_learn_that_there_is_no_plan() -> None:
    on_ranks(2, refused)


@pytest.mark.parametrize("schedule", ["1f1b", pytest.param("gpipe", marks=pytest.mark.slow)])
def test_a_training_loop_of_ones_own_trains_as_one_process(schedule: str) -> None:
    on_ranks(2, own_training_loop, schedule)


class Constant(nn.Module):
    """A tensor made in `forward`, a buffer that no state keeps, one that it keeps, and no user."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(8, 8)  # tied, and registered before the first user of its weight
        self.first = nn.Linear(8, 8)
        self.head.weight = self.first.weight
        self.register_buffer("scale", torch.ones(8))
        self.register_buffer("unkept", torch.ones(8), persistent=False)
        self.unused = nn.BatchNorm1d(3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x * self.unkept) + torch.tensor([1.0, 2.0])[0]
        return self.head(x.relu() * self.scale) * torch.tensor(0.5)


#: Models whose tensors are stored, shared and left out in every way.
KEPT = {
    "constant": lambda: (Constant(), (torch.zeros(2, 8),), {}),
    **{name: (lambda name=name: (*MODELS[name](), {})) for name in ("gpt", "resnet", "unet")},
    **{
        name: ODD[name]
        for name in (
            "batch_norm", "branch_in_a_chain", "buffers_that_change", "custom_autograd",
            "experts_by_numbers", "frozen_parameters", "loss_inside", "module_called_twice",
            "parameter_list", "parametrized", "plain_tensor_attribute", "tied_weights",
            "unused_parameters",
        )
    },
}  # fmt: skip


@pytest.mark.parametrize("name", KEPT)
def test_the_states_of_the_stages_are_the_model_s(name: str) -> None:
    """Together they load with `strict=True`, and each again into its own stage."""
    torch.manual_seed(0)
    model, args, kwargs = KEPT[name]()
    done = stagecut.profile(model, args, kwargs, training=True, estimate="h100")
    workload = done.workload
    # Links that cost nothing, so that small models are cut, too.
    kind = stagecut.DeviceKind("gpu", 3, times="accelerator", link=stagecut.Link(0.0, 1e18))
    problem = stagecut.Throughput("contiguous")
    plan = stagecut.solve(workload, stagecut.Cluster((kind,)), problem, method="linear-dp").plan
    stages = stagecut.stage_modules(
        stagecut.split_model(plan, model, args, kwargs, workload=workload)
    )
    own = [stage.state_dict() for stage in stages]
    for stage, state in zip(stages, own, strict=True):
        stage.load_state_dict(state)
    merged = {key: value for state in own for key, value in state.items()}
    model.load_state_dict(merged)
    whole = model.state_dict()
    assert all(torch.equal(merged[key], value) for key, value in whole.items())
    learned = {key for stage in stages for key, _ in stage.named_parameters()}
    left = [x.numel() for key, x in model.named_parameters() if key not in learned]
    assert sum(left) == sum(part.elements for part in done.recording.unused)


@pytest.mark.parametrize("returns_loss", [False, True])
def test_the_loop_of_the_page_trains_as_one_process(
    returns_loss: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    page = (ROOT / "docs" / "plan.md").read_text()
    (*_, loop) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    on_ranks(2, loop_of_the_page, loop, returns_loss)
    assert (tmp_path / "planned" / "plan.json").exists()


class UnderAutocast(nn.Module):
    """A model in 16 bits: each of its operators is a graph of its own."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return self.model(x)


@pytest.mark.parametrize("autocast", [False, True])
def test_evaluation_turns_dropout_off_and_takes_running_statistics(autocast: bool) -> None:
    torch.manual_seed(0)
    norm = nn.BatchNorm1d(16)
    model: nn.Module = nn.Sequential(
        nn.Linear(16, 16),
        norm,
        nn.Dropout(0.5),
        nn.BatchNorm1d(16, track_running_stats=False),
    )
    model = UnderAutocast(model) if autocast else model
    x = torch.randn(8, 16)
    workload = stagecut.profile(model, (x,), training=True, estimate="h100").workload
    cluster = stagecut.accelerators_and_cpus(1, 0)
    plan = stagecut.solve(workload, cluster, stagecut.Throughput("contiguous")).plan
    (stage,) = stagecut.stage_modules(stagecut.split_model(plan, model, (x,), workload=workload))
    stage(x)
    assert int(norm.num_batches_tracked) == 1
    stage.eval()
    found = stage(x)
    torch.testing.assert_close(found, model.eval()(x))
    assert int(norm.num_batches_tracked) == 1
    assert not torch.equal(stage.train()(x), found)
    assert int(norm.num_batches_tracked) == 2


def test_what_is_made_under_autocast_is_made_on_the_device_of_the_stage() -> None:
    class Shifted(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x) + torch.ones(16, device=x.device)

    model, x = UnderAutocast(Shifted(16, 16)), torch.randn(8, 16)
    workload = stagecut.profile(model, (x,), training=True, estimate="h100").workload
    cluster = stagecut.accelerators_and_cpus(1, 0)
    plan = stagecut.solve(workload, cluster, stagecut.Throughput("contiguous")).plan
    prepared = stagecut.split_model(plan, model, (x,), workload=workload)
    (stage,) = stagecut.stage_modules(prepared, torch.device("meta"))
    assert stage(x.to("meta")).device.type == "meta"


def test_parts_of_a_model_may_have_the_names_of_a_stage_s_attributes() -> None:
    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.number, self.takes = nn.Linear(16, 16), nn.BatchNorm1d(16)
            self.gives = nn.Parameter(torch.ones(16))
            self.register_buffer("plan_device", torch.ones(16))
            self.last = nn.ModuleDict({"number": nn.Linear(16, 16), "unused": nn.Linear(2, 2)})

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.takes(self.number(x)).relu() * self.gives + self.plan_device
            return self.last["number"](x)

    torch.manual_seed(0)
    model, x = Named(), torch.randn(8, 16)
    kind = stagecut.DeviceKind("gpu", 2, times="accelerator", link=stagecut.Link(0.0, 1e18))
    planned = stagecut.plan(
        model, x, devices=stagecut.Cluster((kind,)), estimate="h100",
        problem=stagecut.PipelineJob(4), limits=stagecut.Limits(nodes=1000),
    )  # fmt: skip
    first, second = planned.stages(copy.deepcopy(model))
    assert (first.number, second.number) == (0, 1)
    assert first.gives[0].shape == second.takes[0].shape == (8, 16)
    found = second(*first(x))
    torch.testing.assert_close(found, model(x))
    merged = {**first.state_dict(), **second.state_dict()}
    model.load_state_dict(merged)
    model.eval()
    for stage in (first, second):
        stage.load_state_dict(stage.state_dict())
        stage.eval()
    torch.testing.assert_close(second(*first(x)), model(x))


def test_complex_gradients_are_clipped_by_both_of_their_parts() -> None:
    weight = nn.Parameter(torch.zeros(2, dtype=torch.complex64))
    weight.grad = torch.tensor([3.0 + 4.0j, 0.0])
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        norm = clip_norm({"weight": weight}, {"weight": frozenset([0])}, 1.0)
    finally:
        dist.destroy_process_group()
    assert float(norm) == 5.0
    assert float(weight.grad.abs().norm()) == pytest.approx(1.0)
