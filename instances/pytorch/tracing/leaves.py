"""Tensors within inputs and outputs: nested in tuples, dictionaries, dataclasses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from types import BuiltinFunctionType, FunctionType
from typing import Any

import torch
from torch.utils._pytree import register_pytree_node, tree_leaves


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
