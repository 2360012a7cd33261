"""Check of a run's first step: its loss and gradients against those of one process."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from ...instances import InputError, StagecutError
from ...instances.pytorch.tracing.traced import loss_of, tensors
from .checkpoint import Trained

#: Inputs of a microbatch, by position and by name.
Given = tuple[tuple[Any, ...], Mapping[str, Any]]
#: Largest error of a gradient, relative to its norm, in 32 bits and more, and in fewer: sums are in
#: another order. A wrong operator or a lost part of a sum is off by tenths and more.
TOLERANCE, COARSE = 1e-3, 5e-2
#: Gradients below this part of the norm of all are compared with it: some are rounding alone.
FLOOR = 1e-2
#: Likely reasons of a first step that is another one.
_WRONG = (
    "the plan's execution is wrong for this model, or it draws random numbers (dropout), which "
    "differ between the stages of a pipeline, and between operators and modules on a GPU"
)


class FirstStep(NamedTuple):
    """Loss and gradients of a batch by one process, the gradients by the parameters' names."""

    loss: float
    gradients: Mapping[str, Tensor]


def by_one_process(
    model: nn.Module, microbatches: Sequence[Given], device: torch.device
) -> FirstStep:
    """Return loss and gradients of a batch, and leave model and random numbers as they were.

    Raises InputError if the model does not return its loss.
    """
    alone = copy.deepcopy(model).to(device).train()
    cards = [device] if device.type == "cuda" else []
    total = 0.0
    with torch.random.fork_rng(cards):
        there = tree_map_only(Tensor, lambda x: x.to(device), list(microbatches))
        for args, kwargs in there:
            (loss, *others) = loss_of(tensors(alone(*args, **kwargs)))
            if others or loss.numel() != 1:
                raise InputError("check: the model does not return its loss; leave --check out")
            loss = loss.reshape(()) / len(microbatches)
            loss.backward()
            total += loss.item()
    found = {name: x.grad for name, x in alone.named_parameters() if x.grad is not None}
    return FirstStep(total, found)


def _norm(gradient: Tensor) -> float:
    """Return the Euclidean norm in 32 bits, of complex numbers by both of their parts."""
    return float(gradient.abs().float().norm())


def check_first_step(loss: float, trained: Trained, expected: FirstStep) -> None:
    """Raise StagecutError unless loss and gradients of a rank are those of one process.

    It names the first parameter whose gradient is another one.
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
        wanted = whole if trained.part is None else trained.part(name, whole)
        found = torch.zeros_like(wanted) if parameter.grad is None else parameter.grad
        error = _norm(found - wanted) / max(_norm(wanted), floor)
        tolerance = COARSE if wanted.element_size() < 4 else TOLERANCE
        if not error <= tolerance:
            raise StagecutError(
                f"first step: the gradient of {name} is off by {error:.2g} of its norm from that "
                f"of one process; {_WRONG}"
            )
