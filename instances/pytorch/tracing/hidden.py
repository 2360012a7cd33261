"""Detection of custom backward passes: autograd functions, activation checkpointing.

A graph of operators has the forward pass only; autograd derives the backward pass from it. An
autograd function derives it in its own way, and checkpointing (or another use of saved-tensor
hooks) recomputes what it did not keep.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

#: Modules whose autograd functions are torch's own; operators keep these, and it exports them.
OF_TORCH = ("torch._library", "torch._higher_order_ops", "torch._functorch", "torch._dynamo")


class BackwardLost(Exception):
    """A part of the model has a backward pass that a graph of operators does not keep."""


@contextmanager
def refused() -> Iterator[None]:
    """Raise `BackwardLost` where the model runs such a part."""

    apply = torch.autograd.Function.__dict__["apply"]

    def refuse(cls: type, *args: Any, **kwargs: Any) -> Any:
        if cls.__module__.startswith(OF_TORCH):
            return apply.__get__(None, cls)(*args, **kwargs)
        raise BackwardLost(
            f"autograd function {cls.__name__} has a backward pass that an exported graph loses"
        )

    with replaced(refuse):
        yield


@contextmanager
def replaced(
    call: Callable[..., Any], allowed: Callable[[], bool] = lambda: False
) -> Iterator[None]:
    """Replace autograd functions by `call`, and refuse saved-tensor hooks unless `allowed`."""
    function, hooks = torch.autograd.Function, torch.autograd.graph.saved_tensors_hooks
    apply, enter = function.__dict__["apply"], hooks.__enter__

    def refuse(own: Any) -> Any:
        if allowed():
            return enter(own)
        raise BackwardLost(
            "activation checkpointing, or another use of saved-tensor hooks, is lost in an "
            "exported graph"
        )

    function.apply, hooks.__enter__ = classmethod(call), refuse
    try:
        yield
    finally:
        function.apply, hooks.__enter__ = apply, enter
