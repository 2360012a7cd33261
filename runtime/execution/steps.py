"""Steps of runs, shared by all executors: start, optimizer, checkpoints, resumption."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import psutil
import torch.distributed as dist
from torch import nn

from ...instances import InputError
from ...instances.pytorch.factory import Made
from ..measure.group import of_all_ranks
from .checkpoint import restore, save
from .checkpoint_folder import newest, sole_writer
from .first_step import by_one_process, check_first_step
from .guard.failures import Guard
from .options import RunOptions
from .stage import Tensors
from .trainer import Trainer


@dataclass(frozen=True)
class StepResult:
    """Result of a step: its number from 0 on, the mean loss, and seconds."""

    number: int
    loss: float
    seconds: float


def take_steps(
    trainer: Trainer,
    inputs: Callable[[tuple[Any, ...], Mapping[str, Any]], Tensors],
    made: Made,
    reference: nn.Module | None,
    options: RunOptions,
    hashes: Mapping[str, str],
    guard: Guard | None,
    on_step: Callable[[StepResult], None] | None,
) -> list[StepResult]:
    """Run until there are as many steps as asked for, or the inputs end; keep checkpoints.

    The first step is checked against the `reference`, a model of the same numbers, if given.
    """
    with sole_writer(options.checkpoint, resume=options.resume):
        done = taken = 0
        if options.checkpoint is not None:
            done, taken = _begin(options.checkpoint, trainer, made, options.resume, hashes)
        steps: list[StepResult] = []
        count = trainer.at_once * trainer.per_batch
        while done < options.steps:
            each = list(islice(made.microbatches, count))
            if len(each) < count:
                break
            batches = [inputs(args, kwargs) for args, kwargs in each]
            expected = None
            if reference is not None and not steps:
                expected = by_one_process(reference, each, trainer.device)
            dist.barrier()
            begun = time.perf_counter()
            losses = trainer.run(batches)
            seconds = (time.perf_counter() - begun) / trainer.at_once
            if expected is not None:
                check_first_step(losses[0], trainer.trained(), expected)
            for loss in losses:
                steps.append(StepResult(done, loss, seconds))
                done, taken = done + 1, taken + trainer.per_batch
                if on_step is not None and dist.get_rank() == 0:
                    on_step(steps[-1])
            if guard is not None:
                guard.tick()
            if options.checkpoint is not None and options.is_due(done, last=done == options.steps):
                save(
                    options.checkpoint, done, trainer.trained(), trainer.whole, microbatches=taken,
                    **hashes,
                )  # fmt: skip
        return steps


def _begin(
    folder: Path, trainer: Trainer, made: Made, go_on: bool, hashes: Mapping[str, str]
) -> tuple[int, int]:
    """Return the steps and microbatches that are done: those of the newest checkpoint, or none."""
    found = newest(folder, resume=go_on)
    if found is None:
        return 0, 0
    if found.manifest.model != hashes["model"]:
        raise InputError(f"{found.path}: it is of another model; give the model that was trained")
    taken = found.manifest.microbatches
    if sum(1 for _ in islice(made.microbatches, taken)) < taken:
        raise InputError(f"{folder}: the inputs end before {found.path.name} does")
    restore(found, trainer.trained(), hashes["plan"])  # after the inputs, which may draw numbers
    return found.step, taken


def alone_if_it_can_be(processes: int) -> None:
    """Set up a group of one process where torchrun did not, or say how to start."""
    if "RANK" in os.environ:
        return
    if processes > 1:
        raise InputError(
            f"the plan runs on {processes} processes; start it with: "
            f"torchrun --nproc-per-node {processes} -m stagecut run …"
        )
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK="0", WORLD_SIZE="1")


def threads_per_process(processes: int | None = None) -> int:
    """Return the cores that this process may use, shared by the processes on this host.

    Default: as many as torchrun started here.
    """
    cores = len(psutil.Process().cpu_affinity()) if psutil.LINUX else os.cpu_count() or 1
    return max(1, cores // (processes or int(os.environ.get("LOCAL_WORLD_SIZE", "1"))))


def common_zero() -> float:
    """Return this rank's time of the begin that all ranks share."""
    dist.barrier()
    here = (socket.gethostname(), time.perf_counter())
    everywhere = of_all_ranks(here)
    one_host = len({host for host, _ in everywhere}) == 1
    return everywhere[0][1] if one_host else here[1]
