"""A rank that plans a model together with the others, and trains it with torch's own schedule."""

from __future__ import annotations

import copy
import os
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from execution_models import MODELS
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.distributed.pipelining.schedules import (
    ScheduleInterleaved1F1B,
    _PipelineScheduleRuntime,
)

import stagecut
from stagecut.runtime.execution.stage import mean_loss

MICROBATCHES = 4


def planned_with_torch(rank: int, model: str, schedule: str) -> None:
    """Compare losses and gradients of a planned pipeline with those of the model alone."""
    made, example = MODELS[model]()
    alone = copy.deepcopy(made)
    world = dist.get_world_size()
    # Links that cost nothing: every rank gets work, however small the model is.
    kind = stagecut.DeviceKind("process", world, times="accelerator", link=stagecut.Link(0.0, 1e18))
    planned = stagecut.plan(
        made,
        example,
        devices=stagecut.Cluster((kind,)),
        problem=stagecut.PipelineJob(MICROBATCHES, schedule),
        estimate="h100",
        limits=stagecut.Limits(nodes=1000),
    )
    dist.barrier()
    plans: list[object] = [None] * world
    dist.all_gather_object(plans, planned.plan.placement.tolist())
    assert all(plan == plans[0] for plan in plans)

    stages = planned.stages(made)
    assert len(stages) == world * planned.plan.problem.chunks_per_device
    sums = stagecut.runtime.execution.tied_gradients(stages)
    own = stages[rank::world]
    wrapped = [
        PipelineStage(
            stage, stage.number, len(stages), torch.device("cpu"),
            input_args=stage.takes, output_args=stage.gives,
        )
        for stage in own
    ]  # fmt: skip
    kinds = {"1f1b": Schedule1F1B, "gpipe": ScheduleGPipe, "interleaved": ScheduleInterleaved1F1B}
    several = schedule == "interleaved"
    runs = kinds[schedule](wrapped if several else wrapped[0], MICROBATCHES, loss_fn=_loss)
    batch = [torch.cat([x] * MICROBATCHES) for x in example]
    losses: list[torch.Tensor] = []
    last = own[-1].number == len(stages) - 1
    runs.step(
        *(batch if rank == 0 else ()),
        target=torch.zeros(MICROBATCHES) if last else None,
        losses=losses if last else None,
        return_outputs=False,  # torch cannot join losses
    )
    sums()
    expected = _loss(alone(*example))
    expected.backward()
    if last:
        torch.testing.assert_close(torch.stack(losses).mean(), expected, rtol=1e-5, atol=1e-6)
    whole = dict(alone.named_parameters())
    compared = 0
    for stage in own:
        for name, parameter in stage.named_parameters():
            assert parameter.grad is not None, (rank, name)
            wanted = whole[name].grad
            assert wanted is not None
            error = (parameter.grad - wanted).norm() / wanted.norm().clamp_min(1e-12)
            assert error <= 1e-5, (model, schedule, rank, name, float(error))
            compared += 1
    assert compared


class Normed(nn.Module):
    """Layers, a part of them in lower precision, batch norm, and weights that are tied."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(64, 64)
        self.middle = nn.Linear(64, 64)
        self.norm = nn.BatchNorm1d(64)
        self.last = nn.Linear(64, 64)
        self.last.weight = self.first.weight
        self.unused = nn.Linear(2, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x).relu()
        with torch.autocast("cpu", torch.bfloat16):
            x = self.middle(x)
        made: torch.Tensor = self.last(self.norm(x.float()).relu())
        return made


def own_training_loop(rank: int, scheduled: str) -> None:
    """Train with an optimizer, learning rates, clipping, data and evaluation of one's own."""
    torch.manual_seed(0)
    made = Normed()
    alone = copy.deepcopy(made)
    data = torch.utils.data.TensorDataset(torch.randn(48, 64), torch.randn(48, 64))
    loader = torch.utils.data.DataLoader(data, batch_size=16)
    world, size = dist.get_world_size(), 16 // MICROBATCHES
    kind = stagecut.DeviceKind("process", world, times="accelerator", link=stagecut.Link(0.0, 1e18))
    planned = stagecut.plan(
        made, torch.zeros(size, 64), devices=stagecut.Cluster((kind,)),
        problem=stagecut.PipelineJob(MICROBATCHES), estimate="h100",
        limits=stagecut.Limits(nodes=1000),
    )  # fmt: skip
    stages = planned.stages(made)
    assert len(stages) == world
    own, last = stages[rank], rank == world - 1
    sums = stagecut.runtime.execution.tied_gradients(stages)
    kinds = {"1f1b": Schedule1F1B, "gpipe": ScheduleGPipe}
    stage = PipelineStage(
        own, rank, world, torch.device("cpu"), input_args=own.takes, output_args=own.gives
    )
    runs = kinds[scheduled](stage, MICROBATCHES, loss_fn=nn.functional.mse_loss)
    optimizers = [torch.optim.AdamW(m.parameters(), lr=0.01) for m in (own, alone)]
    rates = [torch.optim.lr_scheduler.StepLR(o, 2, 0.5) for o in optimizers]
    for x, y in loader:
        runs.step(*([x] if rank == 0 else []), **({"target": y} if last else {}))
        sums()
        norm = stagecut.runtime.execution.clip_gradients(stages, 0.05)
        for a, b in zip(x.chunk(MICROBATCHES), y.chunk(MICROBATCHES), strict=True):
            (nn.functional.mse_loss(alone(a), b) / MICROBATCHES).backward()
        wanted = nn.utils.clip_grad_norm_(alone.parameters(), 0.05)
        torch.testing.assert_close(norm, wanted, rtol=1e-3, atol=0)
        assert norm > 0.05
        for optimizer, rate in zip(optimizers, rates, strict=True):
            optimizer.step()
            rate.step()
            optimizer.zero_grad()
    own.eval()
    alone.eval()
    losses: list[torch.Tensor] = []
    for x, y in loader:
        runs.eval(*([x] if rank == 0 else []), **({"target": y, "losses": losses} if last else {}))
        if last:
            with torch.no_grad():
                wanted = nn.functional.mse_loss(alone(x), y)
            torch.testing.assert_close(torch.stack(losses).mean(), wanted, rtol=1e-2, atol=1e-3)
    parts: list[Any] = [None] * world
    dist.all_gather_object(parts, own.state_dict())
    together = Normed()
    merged = {name: value for part in parts for name, value in part.items()}
    assert not together.load_state_dict(merged, strict=False).unexpected_keys
    whole = alone.state_dict()
    for name, value in together.state_dict().items():
        if not name.startswith("unused"):
            torch.testing.assert_close(value, whole[name], rtol=1e-2, atol=2e-3)


class WithLoss(nn.Module):
    """A model that returns its loss, and has a tied weight, a constant and a part without use."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Normed()

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        loss: torch.Tensor = nn.functional.mse_loss(self.inner(x), y) * torch.tensor(2.0)
        return loss


def loop_of_the_page(rank: int, code: str, returns_loss: bool) -> None:
    """Run the loop of docs/plan.md, and again from its checkpoint; compare with one process.

    Parameters
    ----------
    code
        Of the page; links that cost nothing take the place of those that were measured.
    """
    world, size = dist.get_world_size(), 4
    torch.manual_seed(0)
    model = WithLoss() if returns_loss else Normed()
    alone = copy.deepcopy(model)
    data = torch.utils.data.TensorDataset(torch.randn(64, 64), torch.randn(64, 64))
    loader = torch.utils.data.DataLoader(data, batch_size=8 * size)
    kind = stagecut.DeviceKind("process", world, times="accelerator", link=stagecut.Link(0.0, 1e18))
    one = torch.zeros(size, 64)
    names: dict[str, Any] = {
        "os": os, "torch": torch, "dist": dist, "stagecut": stagecut, "rank": rank, "world": world,
        "PipelineStage": PipelineStage, "Schedule1F1B": Schedule1F1B, "loader": loader,
        "inputs": (one, one) if returns_loss else one, "loss_fn": nn.functional.mse_loss,
        "cluster": stagecut.Cluster((kind,)),
    }  # fmt: skip
    planned = "devices=world,"
    assert planned in code
    code = code.replace(planned, "devices=cluster, estimate='h100',")
    if returns_loss:  # the changes in the page's comments
        for old, new in (("=loss_fn)", "=lambda loss, _: loss)"), ("[x] if", "[x, y] if")):
            assert old in code
            code = code.replace(old, new)
    optimizer = torch.optim.AdamW(alone.parameters(), lr=1e-3)
    rates = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, total_steps=2 * len(loader))
    for start in range(2):  # the second goes on from the checkpoint of the first
        if start:
            names["stagecut"] = SimpleNamespace(**{**vars(stagecut), "profile": None})
        exec(code, names | {"model": copy.deepcopy(model)})
        for x, y in loader:
            for a, b in zip(x.chunk(8), y.chunk(8), strict=True):
                loss = alone(a, b) if returns_loss else nn.functional.mse_loss(alone(a), b)
                (loss / 8).backward()
            nn.utils.clip_grad_norm_(alone.parameters(), 1.0)
            optimizer.step()
            rates.step()
            optimizer.zero_grad()
        dist.barrier()
        found, whole = torch.load("model.pt"), alone.state_dict()
        assert set(found) == set(whole)
        for name, value in whole.items():
            torch.testing.assert_close(found[name], value, rtol=1e-2, atol=2e-3)


def trained_by_a_csv(rank: int, file: str, owner: list[int]) -> None:
    """Train a step on torch's own runtime by a file, and compare with the model alone."""
    torch.manual_seed(0)
    layers = [nn.Linear(8, 8) for _ in owner]
    alone = copy.deepcopy(nn.Sequential(*layers))
    own = [s for s, holder in enumerate(owner) if holder == rank]
    example = torch.zeros(2, 8)
    stages = [
        PipelineStage(
            layers[s], s, len(owner), torch.device("cpu"),
            input_args=example.clone().requires_grad_(s > 0), output_args=layers[s](example),
        )
        for s in own
    ]  # fmt: skip
    runs = _PipelineScheduleRuntime(stages, MICROBATCHES, loss_fn=nn.functional.mse_loss)
    runs._load_csv(file, format="compute_only")
    batch = torch.randn(2 * MICROBATCHES, 8)
    runs.step(
        *([batch] if 0 in own else []), target=batch if len(owner) - 1 in own else None,
        return_outputs=False,
    )  # fmt: skip
    nn.functional.mse_loss(alone(batch), batch).backward()
    for s in own:
        torch.testing.assert_close(layers[s].weight.grad, alone[s].weight.grad)


def refused(_rank: int) -> None:
    """Every rank learns that rank 0 found no plan."""
    model = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64))
    try:
        small = stagecut.DeviceKind("gpu", 2, 100.0, times="accelerator")
        cluster = stagecut.Cluster((small,))
        stagecut.plan(model, torch.zeros(4, 64), devices=cluster, estimate="h100")
    except stagecut.InfeasibleError:
        return
    raise AssertionError("no error")


def _loss(outputs: Any, _target: torch.Tensor | None = None) -> torch.Tensor:
    return mean_loss(outputs if isinstance(outputs, tuple) else (outputs,))
