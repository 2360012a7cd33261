"""What ranks do in the tests of failures and checkpoints: a small model trains by a plan."""

from __future__ import annotations

import os
import random
import resource
import signal
import threading
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from execution_cases import plan_of, scattered
from ranks import DEVICE
from torch import nn

import stagecut
from stagecut import InputError, Plan, StagecutError
from stagecut.instances.pytorch.factory import Made
from stagecut.instances.pytorch.profile import Profile, profile
from stagecut.runtime.execution.options import RunOptions, StepResult
from stagecut.runtime.execution.run import run
from stagecut.runtime.measure.group import leave_group

MICROBATCHES, BATCH = 2, 4


class Model(nn.Module):
    """Layers with dropout, batch norm and their loss, and some that it does not use."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(width)
        self.layers = nn.Sequential(*(nn.Linear(width, width) for _ in range(4)))
        self.drop = nn.Dropout(0.2)
        self.unused = nn.Linear(2, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self.layers(self.drop(self.norm(x))) - x).square().mean()


@cache
def profiled() -> Profile:
    torch.manual_seed(0)
    return profile(Model(), (torch.zeros(BATCH, 8),), training=True, estimate="h100")


def wait_for_ever(rank: int, begun: Path) -> int:
    """Return from rank 0 alone; rank 1 says when it has begun."""
    if rank == 1:
        begun.touch()
        threading.Event().wait()
    return rank


def plan(seed: int) -> Plan:
    """Return a plan for two devices that uses both."""
    for number in range(100 * seed, 100 * seed + 100):
        device = scattered(profiled(), 2, number)
        if len(set(device)) == 2:
            return plan_of(profiled(), device)
    raise AssertionError("no placement uses both devices")


def inputs(rank: int, fault: str) -> Iterator[Any]:
    """Yield microbatches drawn from torch's random numbers; the tenth has the fault, if any."""
    for j in range(MICROBATCHES if fault == "end" else 1000):
        if j == 9 and rank == int(fault != "kill first"):
            if fault.startswith("kill"):
                os.kill(os.getpid(), signal.SIGKILL)
            if fault == "memory":
                torch.empty(1 << 50)
            if fault == "late":
                time.sleep(600)
        yield (torch.randn(BATCH, 8),), {}


def train(
    rank: int, seed: int, fault: str, schedule: str, options: dict[str, Any], said: str
) -> tuple[list[StepResult], dict[str, torch.Tensor]]:
    """Train as one rank; errors go to the file `said`."""
    random.seed(0)
    torch.manual_seed(1 if fault == "model" and rank == 1 else 0)
    while fault == "start" and rank == 1 and not Path(said).exists():
        time.sleep(0.1)  # until the other one has given up
    if fault == "write":
        _die_while_writing(rank)
    if fault == "room":
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 14, resource.RLIM_INFINITY))
    model = Model()
    made = Made(model, (torch.zeros(BATCH, 8),), {}, inputs(rank, fault))
    chosen = plan(seed + 1 if fault == "plan" and rank == 1 else seed)
    try:
        steps = run(
            chosen,
            made,
            RunOptions(
                schedule=schedule,
                optimizer="adam",
                threads=1,
                device=DEVICE,
                **({"microbatches": MICROBATCHES} | options),
            ),
            workload=profiled().workload,
            show=lambda text: _say(said, text),
        )
    except StagecutError as error:
        _say(said, str(error))
        os._exit(2)
    return steps, {name: x.detach() for name, x in model.state_dict().items()}


def train_beside_a_group(rank: int, options: dict[str, Any], said: str) -> tuple[str, Any]:
    """Return what a run says where there is a process group, and what it does without."""
    dist.init_process_group("gloo")
    model = Model()
    try:
        stagecut.run(plan(0), model, (torch.zeros(BATCH, 8),), workload=profiled().workload)
    except InputError as error:
        refusal = str(error)
    dist.barrier()
    leave_group()
    return refusal, train(rank, 0, "", "1f1b", options, said)


def _say(said: str, text: str) -> None:
    with Path(said).open("a") as out:
        out.write(text + "\n")


def _die_while_writing(rank: int) -> None:
    """Be killed in the middle of the second checkpoint."""
    written = 0
    save, write = dcp.save, torch.save

    def half(*given: Any, **named: Any) -> Any:
        nonlocal written
        written += 1
        return save(*given, **named)

    def broken(tensor: Any, out: Any, **named: Any) -> None:
        if written == 2 and rank == 1:
            out.write(b"the begin of a checkpoint")
            out.flush()
            os.kill(os.getpid(), signal.SIGKILL)
        write(tensor, out, **named)

    dcp.save, torch.save = half, broken
