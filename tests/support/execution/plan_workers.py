"""A rank that plans a model together with the others, and trains it with torch's own schedule."""

from __future__ import annotations

import copy
from typing import Any

import torch
import torch.distributed as dist
from execution_models import MODELS
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.distributed.pipelining.schedules import ScheduleInterleaved1F1B

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
        problem=stagecut.Iteration(MICROBATCHES, schedule),
        estimate="h100",
        limits=stagecut.Limits(nodes=1000),
    )
    dist.barrier()
    plans: list[object] = [None] * world
    dist.all_gather_object(plans, planned.plan.placement.tolist())
    assert all(plan == plans[0] for plan in plans)

    stages = planned.stages(made)
    assert len(stages) == world * planned.plan.problem.chunks_per_device
    sums = stagecut.tied_gradients(stages)
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


def refused(_rank: int) -> None:
    """Every rank learns that rank 0 found no plan."""
    model = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64))
    try:
        stagecut.plan(model, torch.zeros(4, 64), devices=2, memory_bytes=100.0, estimate="h100")
    except stagecut.InfeasibleError:
        return
    raise AssertionError("no error")


def _loss(outputs: Any, _target: torch.Tensor | None = None) -> torch.Tensor:
    return mean_loss(outputs if isinstance(outputs, tuple) else (outputs,))
