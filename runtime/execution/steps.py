"""Steps of a run on a rank, with checkpoints: of plans of pieces, shardings and training jobs.

The first step may be checked: its loss and gradients against those of one process.
"""

from __future__ import annotations

import copy
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._pytree import tree_map_only

from ...instances import InputError, StagecutError
from ...instances.common.units import show_count
from ...instances.pytorch.tracing.traced import loss_of, tensors
from ..measure.group import choose_device, process_group, threads_per_process
from .checkpoint import Trained, save
from .checkpoint_folder import Checkpoint, keep_newest, newest, sole_writer, step_path
from .guard.failures import Guard
from .options import RunOptions, StepResult

#: Arguments of a microbatch, by position and by name.
Inputs = tuple[tuple[Any, ...], Mapping[str, Any]]
#: Largest error of a gradient, relative to its norm, in 32 bits and more, and in fewer: sums are in
#: another order. With a wrong operator or without a part of a sum it is tenths and more.
TOLERANCE, COARSE = 1e-3, 5e-2
#: Errors of gradients below this part of the norm of all are relative to it: some are rounding.
FLOOR = 1e-2
#: Likely reasons of a first step that differs from that of one process.
_WRONG = (
    "the plan's execution is wrong for this model, or it draws random numbers (dropout), which "
    "differ between the stages of a pipeline, and between operators and modules on a GPU, or it "
    "remembers microbatches, of which each replica sees its own"
)


@contextmanager
def joined(
    guard: Guard | None, options: RunOptions, processes: int, identity: Mapping[str, str]
) -> Iterator[torch.device]:
    """Join the process group of ranks of one `identity`; yield this rank's device."""
    if processes > 1 and "RANK" not in os.environ:
        raise InputError(
            f"the plan runs on {processes} processes; start it with: "
            f"torchrun --nproc-per-node {processes} -m stagecut run …"
        )
    before = torch.get_num_threads()
    torch.set_num_threads(options.threads or threads_per_process())
    try:
        if guard is not None:
            guard.join({**identity, "--device": choose_device(options.device).type})
        with process_group(options.device, guard) as device:
            yield device
    finally:
        torch.set_num_threads(before)


@dataclass(frozen=True, kw_only=True)
class RankTraining:
    """Functions and numbers of a training on this rank.

    `run` takes the next `count` items of the data and the number of the step, and returns the loss
    of each batch among them. `trained` returns the state that a checkpoint keeps, and `restore`
    loads one. `plan` and `model` are hashes of `Manifest`, whose `taken` counts `tokens` for each
    item; the newest `kept` checkpoints stay, by default all. `check` is called before the first
    step, and the function that it returns with the step's loss.
    """

    run: Callable[[Sequence[Any], int], list[float]]
    trained: Callable[[], Trained]
    restore: Callable[[Checkpoint], None]
    plan: str
    model: str = ""
    count: int = 1
    tokens: int = 1
    kept: int | None = None
    check: Callable[[Sequence[Any]], Callable[[float], None]] | None = None


def take_steps(
    training: RankTraining,
    data: Iterable[Any],
    options: RunOptions,
    *,
    guard: Guard | None = None,
    on_step: Callable[[StepResult], None] | None = None,
) -> list[StepResult]:
    """Run as many steps as asked for, or until the data ends, and write checkpoints.

    `data` begins with the items of the first step; those that a checkpoint has taken are skipped.
    """
    folder, items, count = options.checkpoint, iter(data), training.count
    done = taken = 0
    steps: list[StepResult] = []

    def keep() -> int:
        if folder is not None:
            names = {"plan": training.plan, "model": training.model}
            save(step_path(folder, done), training.trained(), taken=taken, **names)
            if training.kept is not None:
                keep_newest(folder, training.kept)
        return done

    with sole_writer(folder, resume=options.resume):
        found = None if folder is None else newest(folder, resume=options.resume)
        if found is not None:
            _resume(found, training, items)
            done, taken = found.step, found.manifest.taken
        last = done
        while options.steps is None or done < options.steps:
            batch = list(islice(items, count))
            if len(batch) < count:
                if batch and not done:
                    raise InputError(
                        f"inputs: {show_count(len(batch), 'microbatch')}, and {count} are taken at "
                        "a time: give more, or ask for fewer steps or microbatches"
                    )
                break
            compare = None if training.check is None or steps else training.check(batch)
            begun = time.perf_counter()
            losses = training.run(batch, done)
            seconds = (time.perf_counter() - begun) / len(losses)
            if compare is not None:
                compare(losses[0])
            taken += count * training.tokens
            for loss in losses:
                steps.append(StepResult(done, loss, seconds))
                done += 1
                if on_step is not None and dist.get_rank() == 0:
                    on_step(steps[-1])
            if guard is not None:
                guard.tick()
            every = options.every  # several steps at a time may pass a multiple of it
            if every is not None and done // every > last // every:
                last = keep()
        if last < done:  # the data may have ended early
            keep()
    return steps


def _resume(found: Checkpoint, training: RankTraining, items: Iterator[Any]) -> None:
    """Skip the data that a checkpoint has taken, and restore its state."""
    if found.manifest.model != training.model:
        raise InputError(f"{found.path}: it is of another model; give the model that was trained")
    count, rest = divmod(found.manifest.taken, training.tokens)
    if rest:
        raise InputError(
            f"{found.path}: {found.manifest.taken} tokens were taken, no whole number of batches "
            f"of {training.tokens}; plan with the batch before"
        )
    if sum(1 for _ in islice(items, count)) < count:
        raise InputError(f"{found.path.parent}: the inputs end before {found.path.name} does")
    training.restore(found)  # after the inputs, which may draw random numbers


class FirstStep(NamedTuple):
    """Loss and gradients of a batch by one process, the gradients by the parameters' names.

    `coarse` says whether tensors of 16 bits are kept for the backward pass, as under autocast.
    """

    loss: float
    gradients: Mapping[str, Tensor]
    coarse: bool = False


def by_one_process(
    model: nn.Module, microbatches: Sequence[Inputs], device: torch.device
) -> FirstStep:
    """Return loss and gradients of a batch, and leave model and random numbers as they were.

    Raises InputError if the model does not return its loss.
    """
    alone = copy.deepcopy(model).to(device)
    if not alone.training:  # as it is traced: modules that are frozen in another mode stay so
        alone.train()
    cards = [device] if device.type == "cuda" else []
    total, coarse = 0.0, False

    def kept(x: Tensor) -> Tensor:
        nonlocal coarse
        coarse = coarse or (x.is_floating_point() and x.element_size() < 4)
        return x

    with torch.random.fork_rng(cards), saved_tensors_hooks(kept, lambda x: x):
        there = tree_map_only(Tensor, lambda x: x.to(device), list(microbatches))
        for args, kwargs in there:
            (loss, *others) = loss_of(tensors(alone(*args, **kwargs)))
            if others or loss.numel() != 1:
                raise InputError("check: the model does not return its loss; leave --check out")
            loss = loss.reshape(()) / len(microbatches)
            loss.backward()
            total += loss.item()
    gradients = ((name, x.grad) for name, x in alone.named_parameters())
    found = {name: x.to_dense() for name, x in gradients if x is not None}
    return FirstStep(total, found, coarse)


def _norm(gradient: Tensor) -> float:
    """Return the Euclidean norm in 32 bits, of complex numbers by both of their parts."""
    return float(gradient.abs().float().norm())


def check_first_step(loss: float, trained: Trained, expected: FirstStep) -> None:
    """Raise StagecutError unless loss and gradients of a rank are those of one process.

    It names the first parameter whose gradient differs.
    """
    if not abs(loss - expected.loss) <= COARSE * abs(expected.loss):
        raise StagecutError(
            f"first step: the loss is {loss:g}, and {expected.loss:g} in one process; {_WRONG}"
        )
    squares = [_norm(x) ** 2 for x in expected.gradients.values()]
    # of a model that has nothing left to learn all gradients are 0
    floor = max(FLOOR * sum(squares) ** 0.5, torch.finfo(torch.float32).tiny)
    for name, parameter in trained.parameters.items():
        whole = expected.gradients.get(name)
        if whole is None or not parameter.requires_grad:
            continue
        wanted = whole if trained.shards is None else trained.shards.part(name, whole)
        found = torch.zeros_like(wanted) if parameter.grad is None else parameter.grad.to_dense()
        error = _norm(found - wanted) / max(_norm(wanted), floor)
        tolerance = COARSE if expected.coarse or wanted.element_size() < 4 else TOLERANCE
        if not error <= tolerance:
            raise StagecutError(
                f"first step: the gradient of {name} is off by {error:.2g} of its norm from that "
                f"of one process; {_WRONG}"
            )
