"""Tensors within inputs, outputs and models: found in nested values, and replaced by fake ones.

A model on the device ``meta`` is traced and recorded as one on the CPU: there, operators such as
attention have their fused kernels, which ``meta`` does not know.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from enum import Enum
from types import BuiltinFunctionType, FunctionType
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._pytree import register_pytree_node, tree_leaves, tree_map


def tensors(tree: Any) -> list[torch.Tensor]:
    """Return the tensors in a nested value, in order."""
    found: list[torch.Tensor] = []
    for leaf in tree_leaves(tree):
        if isinstance(leaf, torch.Tensor):
            found.append(leaf)
        elif isinstance(leaf, Mapping):
            found += tensors(tuple(leaf.values()))
        elif _is_record(leaf):
            found += tensors(tuple(getattr(leaf, f.name) for f in fields(leaf)))
    return found


def known(tree: Any) -> bool:
    """Whether torch can look into all of a nested value."""
    return all(isinstance(leaf, _PLAIN) for leaf in tree_leaves(tree))


def register(tree: Any) -> None:
    """Tell torch about the dataclasses in a nested value, so that it looks into them."""
    for leaf in tree_leaves(tree):
        if _is_record(leaf):
            torch.export.register_dataclass(type(leaf))
            register(leaf)


def is_plain(leaf: Any) -> bool:
    """Whether a value is a tensor, or the same in every run and equal to itself alone."""
    return isinstance(leaf, _CONSTANT)


def is_fixed(leaf: Any) -> bool:
    """Whether a value is plain, or a module or function, which is the same object in every run."""
    return is_plain(leaf) or isinstance(leaf, torch.nn.Module | FunctionType | BuiltinFunctionType)


def look_into(tree: Any) -> None:
    """Tell torch about the plain objects in a nested value, so that it looks into them."""
    register(tree)
    for leaf in tree_leaves(tree):
        kind = type(leaf)
        if is_plain(leaf) or callable(leaf) or not hasattr(leaf, "__dict__"):
            continue

        def made(values: Any, names: Any, kind: type = kind) -> Any:
            again: Any = object.__new__(kind)
            vars(again).update(zip(names, values, strict=True))
            return again

        register_pytree_node(kind, lambda own: (list(vars(own).values()), tuple(vars(own))), made)
        look_into(leaf)


def _is_record(value: Any) -> bool:
    return is_dataclass(value) and not isinstance(value, type)


_PLAIN = (torch.Tensor, int, float, complex, str, bool, type(None), torch.SymInt, torch.SymFloat)

_CONSTANT = (
    torch.Tensor, int, float, complex, str, bytes, type(None),
    torch.dtype, torch.device, torch.memory_format, Enum,
)  # fmt: skip


def plain(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor below `torch.func`'s wrappers, such as those of `vmap`."""
    while torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        tensor = torch._C._functorch.get_unwrapped(tensor)
    return tensor


def size(tensor: torch.Tensor) -> float:
    """Return the bytes that a tensor shows; of an expanded one, those that exist."""
    if tensor.layout is torch.sparse_coo:
        return size(tensor._indices()) + size(tensor._values())
    shown = tensor.numel() * tensor.element_size()
    return float(min(shown, tensor.untyped_storage().nbytes()))


def loss_of(outputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return the outputs to start the backward pass from."""
    derivable = [t for t in outputs if t.requires_grad]
    single = [t for t in derivable if t.numel() == 1]
    return single[:1] or derivable


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
