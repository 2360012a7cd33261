"""What ranks do in the tests of our own loop; and small chains of layers to do it with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from ranks import DEVICE
from torch import nn
from torch.nn import functional as F

from stagecut.instances import Link
from stagecut.instances.operator_graph import TensorValue
from stagecut.runtime.execution.gradients import GradientSums, clip_norm
from stagecut.runtime.execution.own_loop.loop import Loop, stage_chain
from stagecut.runtime.execution.split import PieceModule
from stagecut.runtime.schedules import Schedule, make_schedule
from stagecut.runtime.simulate.network import HostMemory
from stagecut.runtime.simulate.stages import chain

WIDTH = 6
ROWS = 3  #: samples of a microbatch


class Part(nn.Module):
    """Layers under their names; the target is relayed to the last piece, which has the loss."""

    def __init__(self, layers: Sequence[tuple[str, nn.Module]], last: bool) -> None:
        super().__init__()
        for name, layer in layers:
            self.add_module(name, layer)
        self.last = last

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        for layer in self.children():
            x = layer(x)
        return (F.mse_loss(x, y),) if self.last else (x, y)


def sparse_gradients(rank: int) -> tuple[torch.Tensor, list[float]]:
    """Return the sum of sparse gradients of two replicas, and the norm of rank 0's and of all."""
    weight = nn.Parameter(torch.ones(4, 2))
    F.embedding(torch.tensor([1, 1, 2]) + rank, weight, sparse=True).sum().backward()
    own, everywhere = {"weight": weight}, frozenset({0, 1})
    norms = [float(clip_norm(own, {"weight": frozenset({0})}, 1e9))]
    GradientSums({"weight": everywhere}).add_up(own)
    norms.append(float(clip_norm(own, {"weight": everywhere}, 1e9)))
    assert weight.grad is not None
    return weight.grad, norms


def layers(count: int) -> nn.Sequential:
    """Return `count` layers with a nonlinearity each."""
    torch.manual_seed(count)
    parts = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(count)]
    return nn.Sequential(*parts)


def pieces_of(model: nn.Sequential, count: int) -> list[PieceModule]:
    """Cut the layers into pieces of about equal length."""
    named = list(model.named_children())
    cuts = [round(len(named) * p / count) for p in range(count + 1)]
    pieces = []
    for p in range(count):
        values = {
            name: TensorValue(name, (ROWS, WIDTH), torch.float32, grad, i)
            for i, (name, grad) in enumerate((("x", p > 0), ("h", True), ("y", False)))
        }
        values["loss"] = TensorValue("loss", (), torch.float32, True, 3)
        module = Part(named[cuts[p] : cuts[p + 1]], p == count - 1)
        inputs = ("x" if p == 0 else "h", "y")
        outputs = ("loss",) if p == count - 1 else ("h", "y")
        learned = dict(module.named_parameters())
        pieces.append(PieceModule(p, p, (), module, inputs, outputs, values, learned))
    return pieces


def microbatch(j: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return inputs and targets of microbatch j of a stream."""
    generator = torch.Generator().manual_seed(1000 + j)
    return (
        torch.randn(ROWS, WIDTH, generator=generator),
        torch.randn(ROWS, WIDTH, generator=generator),
    )


def here(j: int) -> tuple[torch.Tensor, ...]:
    """Return microbatch j where ranks compute."""
    return tuple(x.to(DEVICE) for x in microbatch(j))


def schedule_of(
    name: str, ranks: Sequence[Sequence[int]], world: int, m: int, *, reduces: bool = False
) -> Schedule:
    """Return a schedule for pieces of unlike lengths.

    Parameters
    ----------
    reduces
        Whether all-reduces take time, and so are actions of asynchronous schedules.
    """
    forward = [1.0 + p % 2 for p in range(len(ranks))]
    weights = [float(reduces)] * len(ranks)
    stages = chain(forward, [2 * x for x in forward], replicas=ranks, weight_bytes=weights)
    stages = stages if len(stages.devices) == world else stage_chain(ranks, world, training=True)
    return make_schedule(name, stages, m, HostMemory(all_reduce=Link(0.0, 2.0)))


def state_of(loop: Loop, attribute: str) -> dict[str, torch.Tensor]:
    """Return the values or gradients of this rank's parameters."""
    return {
        name: (x.grad if attribute == "grad" else x).detach().cpu().clone()
        for own in loop.parameters.values()
        for name, x in own.items()
    }


def gradients(_: int, schedule: Schedule, ranks: list[list[int]], recompute: frozenset[int]) -> Any:
    """Return losses and gradients of the second of two batches, their norm, and them clipped."""
    pieces = pieces_of(layers(2 * len(ranks)).to(DEVICE), len(ranks))
    loop = Loop(pieces, ranks, schedule, recompute=recompute)
    for step in range(2):
        loop.run(lambda j, step=step: here(step * schedule.microbatches + j))
    found = state_of(loop, "grad")
    norm = float(loop.clip_gradients(0.01))
    return {j: float(x) for j, x in loop.losses.items()}, found, norm, state_of(loop, "grad")


def train(_: int, schedule: Schedule, ranks: list[list[int]], per_batch: int | None) -> Any:
    """Return losses and parameters after one pass."""
    pieces = pieces_of(layers(2 * len(ranks)).to(DEVICE), len(ranks))
    loop = Loop(pieces, ranks, schedule, optimizer=momentum, microbatches=per_batch)
    loop.run(here)
    return {j: float(x) for j, x in loop.losses.items()}, state_of(loop, "data")


def momentum(parameters: Any) -> torch.optim.Optimizer:
    """Return an optimizer with state."""
    return torch.optim.SGD(parameters, lr=0.2, momentum=0.9)
