"""What ranks do in the tests of mapped plans: train by a mapping, and note to whom they send."""

from __future__ import annotations

import os
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from execution_models import MODELS
from ranks import DEVICE

import stagecut
from stagecut import InputError, Plan, Workload
from stagecut.instances import DeviceMapping, ReplicaPlacement, topology
from stagecut.instances.pytorch.factory import Made
from stagecut.instances.pytorch.profile import Profile, profile
from stagecut.runtime import evaluate
from stagecut.runtime.execution.options import RunOptions
from stagecut.runtime.execution.run import run

#: Microbatches of a batch for each replica of the pipeline, and batches.
MICROBATCHES, STEPS = 2, 2


@cache
def profiled(name: str) -> Profile:
    model, inputs = MODELS[name]()
    return profile(model, inputs, training=True, estimate="h100")


def plan_of(name: str, where: str, slots: list[list[int]], sends_to: list[list[int]]) -> Plan:
    """Return a plan of balanced stages on these devices."""
    problem = DeviceMapping(topology(where), len(slots), len(slots[0]), microbatches=MICROBATCHES)
    plan = stagecut.solve(profiled(name).workload, problem=problem, method="layouts").plan
    assert plan is not None
    matched = np.array(sends_to, np.int64).reshape(len(slots) - 1, len(slots[0]))
    placed = ReplicaPlacement(plan.solution.stage, slots, matched)
    report = evaluate(profiled(name).workload, plan.cluster, problem, placed)
    assert report.violations == ()
    return replace(plan, solution=placed, objective=report.objective)


def microbatches(name: str, replicas: int) -> list[tuple[torch.Tensor, ...]]:
    """Return those of all batches and replicas, which differ."""
    _, example = MODELS[name]()
    return [
        tuple(x * (1 + 0.1 * j) if x.is_floating_point() else x for x in example)
        for j in range(MICROBATCHES * STEPS * replicas)
    ]


def momentum(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def train(
    _: int, name: str, plan: Plan, workload: Workload, schedule: str | None, said: Path
) -> tuple[list[float], dict[str, torch.Tensor], set[int]]:
    """Return the losses, this rank's weights after them, and the ranks it has sent to."""
    model, inputs = MODELS[name]()
    targets: set[int] = set()
    send = dist.P2POp.__init__

    def noted(op: dist.P2POp, call: Any, tensor: torch.Tensor, peer: int, *rest: Any) -> None:
        if call is dist.isend:
            targets.add(peer)
        send(op, call, tensor, peer, *rest)

    dist.P2POp.__init__ = noted
    data = iter([(one, {}) for one in microbatches(name, plan.problem.replicas)])
    options = RunOptions(
        steps=STEPS, schedule=schedule, optimizer=momentum, threads=1, device=DEVICE, check=True
    )
    try:
        steps = run(plan, Made(model, inputs, {}, data), options, workload=workload)
    except InputError as error:
        said.write_text(str(error))
        os._exit(2)
    own = {n: x.detach() for n, x in model.named_parameters() if x.grad is not None}
    return [step.loss for step in steps], own, targets


def alone(name: str, replicas: int) -> tuple[list[float], dict[str, torch.Tensor]]:
    """Return losses and parameters of the same batches in one process."""
    model, _ = MODELS[name]()
    optimizer = momentum(model.parameters())
    data, count = microbatches(name, replicas), MICROBATCHES * replicas
    losses = []
    for step in range(STEPS):
        optimizer.zero_grad()
        total = 0.0
        for inputs in data[step * count : (step + 1) * count]:
            loss = model.train()(*inputs)
            loss = next(x for x in loss if x.numel() == 1) if isinstance(loss, tuple) else loss
            (loss / count).backward()
            total += loss.item() / count
        optimizer.step()
        losses.append(total)
    return losses, dict(model.named_parameters())
