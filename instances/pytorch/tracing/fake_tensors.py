"""Replacement of a model's tensors by fake ones.

A model on the device ``meta`` is traced and recorded as one on the CPU: there, operators such as
attention have their fused kernels, which ``meta`` does not know.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._pytree import tree_map

from .leaves import tensors

Inputs = tuple[tuple[Any, ...], dict[str, Any]]


def has_no_data(candidates: Iterable[torch.Tensor]) -> bool:
    """Whether one of these tensors has no data (``meta`` or fake)."""
    return any(t.is_meta or isinstance(t, FakeTensor) for t in candidates)


def mode_of(candidates: Iterable[torch.Tensor]) -> FakeTensorMode:
    """Return the mode that fake tensors belong to; a new one if there are none."""
    modes = (t.fake_mode for t in candidates if isinstance(t, FakeTensor))
    return next(modes, None) or FakeTensorMode(allow_non_fake_inputs=True)


def as_fake(value: Any, mode: FakeTensorMode) -> Any:
    """Return a fake tensor for a tensor, on its device, or on the CPU for ``meta``."""
    if not isinstance(value, torch.Tensor) or isinstance(value, FakeTensor):
        return value
    if not value.is_meta:
        return mode.from_tensor(value)
    made: Any = FakeTensor(mode, value.detach(), torch.device("cpu"))
    if isinstance(value, nn.Parameter):
        return nn.Parameter(made, value.requires_grad)
    return made.requires_grad_(value.requires_grad)


@contextmanager
def swapped_tensors(
    model: nn.Module, convert: Callable[[torch.Tensor], torch.Tensor]
) -> Iterator[Callable[[Any], Any]]:
    """Replace a model's tensors within the block; yield the conversion of a nested value.

    One tensor becomes one other, wherever it is.
    """
    made: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def other(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        if id(value) not in made:
            made[id(value)] = value, convert(value)
        return made[id(value)][1]

    tables = [t for m in model.modules() for t in (m._parameters, m._buffers)]
    before = [dict(table) for table in tables]
    try:
        for table in tables:
            table.update({name: other(value) for name, value in table.items()})
        yield other
    finally:
        for table, own in zip(tables, before, strict=True):
            table.update(own)


@contextmanager
def off_meta(
    model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Iterator[Inputs]:
    """Replace ``meta`` tensors of a model by fake CPU ones; yield its inputs likewise.

    A model that is elsewhere stays as it is.
    """
    inputs: Inputs = args, dict(kwargs)
    held = [*model.parameters(), *model.buffers(), *tensors(inputs)]
    if not any(t.is_meta for t in held):
        yield inputs
        return
    mode = FakeTensorMode(allow_non_fake_inputs=True)

    def convert(value: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = as_fake(value, mode)
        made.stands_for = value
        return made

    with swapped_tensors(model, convert) as other:
        yield tree_map(other, inputs)


def own(value: Any) -> Any:
    """Return the tensor that `off_meta` put another one in the place of; others as they are."""
    return getattr(value, "stands_for", value)
