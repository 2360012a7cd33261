"""Runs of a training job's plan: the model of its description or a user's, and its tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ....instances import InputError
from ....instances.common.arrays import Ints
from ....instances.job.plan import JobPlan
from ....instances.pytorch.factory import call_factory
from ..steps import StepResult
from .parallelize import ParallelizePlan
from .run import JobOptions, JobRun, MakeOptimizer, run_made
from .transformer import transformer

#: Types of the numbers in a file of tokens without a header, by its ending.
_RAW = {".bin": np.uint16, ".u32": np.uint32}


def run_planned_job(
    plan: JobPlan,
    reference: str | None,
    tokens: Path | None,
    steps: int,
    optimizer: MakeOptimizer,
    options: JobOptions,
    on_step: Callable[[StepResult], None] | None = None,
) -> JobRun:
    """Train a plan's model as one of its processes, for `steps` in all, those resumed included.

    `reference` is ``module:factory`` or ``file.py:factory`` of a model and its `ParallelizePlan`;
    without, the model is made from the plan's description. For `tokens` see `token_batches`. Raises
    InputError if model, plan, tokens and number of processes do not fit together.
    """
    batches = islice(token_batches(plan, tokens), steps)
    make = partial(_make, plan, reference)
    return run_made(make, plan.layout, batches, optimizer, options, on_step)


def token_batches(plan: JobPlan, path: Path | None) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield tokens and targets of whole batches without an end.

    The file at `path` is one line of token numbers: ``.npy`` of whole numbers, ``.bin`` of 16 and
    ``.u32`` of 32 bits without a header; each sequence takes the next tokens, and the first ones
    follow the last. Without a file they are random. Raises InputError if the file is none, too
    short, or has tokens that the model has not.
    """
    layout, words = plan.layout, plan.model.vocabulary
    count, length = layout.global_batch, layout.sequence + 1
    if path is None:
        draw = torch.Generator().manual_seed(0)
        while True:
            drawn = torch.randint(0, words, (count, length), generator=draw)
            yield drawn[:, :-1], drawn[:, 1:]
    line = _read(path)
    sequences = (len(line) - 1) // layout.sequence
    if not sequences:
        raise InputError(f"{path}: {len(line)} tokens; a sequence takes {length}")
    at = 0
    while True:
        begins = [(at + k) % sequences * layout.sequence for k in range(count)]
        batch = torch.from_numpy(np.stack([line[b : b + length].astype(np.int64) for b in begins]))
        if int(batch.max()) >= words or int(batch.min()) < 0:
            raise InputError(f"{path}: token {int(batch.max())}; {plan.model.name} has {words}")
        yield batch[:, :-1], batch[:, 1:]
        at += count


def _read(path: Path) -> Ints:
    """Return a file's tokens without reading them all."""
    try:
        if path.suffix == ".npy":
            line: Ints = np.load(path, mmap_mode="r")
        elif path.suffix in _RAW:
            line = np.memmap(path, dtype=_RAW[path.suffix], mode="r")
        else:
            raise InputError(f"{path}: tokens are in .npy, .bin (16 bits) or .u32 (32 bits)")
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: no tokens can be read: {error}") from None
    if line.ndim != 1 or not np.issubdtype(line.dtype, np.integer):
        raise InputError(f"{path}: {line.dtype} of shape {line.shape}; one line of whole numbers")
    return line


def _make(plan: JobPlan, reference: str | None) -> tuple[nn.Module, ParallelizePlan]:
    """Return the model of the plan, and how it is divided."""
    if reference is None:
        return transformer(plan.model)
    made: Any = call_factory(reference)
    fits = isinstance(made, tuple) and len(made) == 2
    if not fits or not isinstance(made[0], nn.Module) or not isinstance(made[1], ParallelizePlan):
        raise InputError(
            f"{reference}: for a training job it returns the model and its ParallelizePlan"
        )
    model, modules = made
    try:
        layers = len(list(model.get_submodule(modules.blocks).children()))
    except AttributeError:
        raise InputError(f"{reference}: the model has no module {modules.blocks}") from None
    if layers != plan.model.layers:
        raise InputError(
            f"{reference}: its model has {layers} layers, and {plan.model.name} of the plan "
            f"{plan.model.layers}"
        )
    return model, modules
