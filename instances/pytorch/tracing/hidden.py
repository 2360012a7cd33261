"""Backward passes that operators do not tell: autograd functions, activation checkpointing.

A graph of operators has the forward pass only; autograd derives the backward pass from it. An
autograd function derives it in its own way, and checkpointing (or another use of saved-tensor
hooks) recomputes what it did not keep.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import fx


class BackwardLost(Exception):
    """A part of the model has a backward pass that a graph of operators does not keep."""


@contextmanager
def refused() -> Iterator[None]:
    """Raise `BackwardLost` where the model runs such a part."""

    def refuse(cls: type, *_: Any, **__: Any) -> None:
        raise BackwardLost(
            f"autograd function {cls.__name__} has a backward pass that an exported graph loses"
        )

    with _replaced(refuse):
        yield


@contextmanager
def as_nodes() -> Iterator[None]:
    """Make a call of an autograd function one node of a symbolic graph, and refuse the rest."""

    apply = torch.autograd.Function.__dict__["apply"]

    def call(cls: Any, *args: Any, **kwargs: Any) -> Any:
        proxy = next((a for a in args if isinstance(a, fx.Proxy)), None)
        if proxy is None:
            raise BackwardLost(f"autograd function {cls.__name__} is called on no traced tensor")
        own = apply.__get__(None, cls)
        name = cls.__name__.lower()
        return proxy.tracer.create_proxy("call_function", own, args, kwargs, name=name)

    with _replaced(call):
        yield


@contextmanager
def _replaced(call: Callable[..., Any]) -> Iterator[None]:
    """Let autograd functions do `call`, and refuse saved-tensor hooks."""
    function, hooks = torch.autograd.Function, torch.autograd.graph.saved_tensors_hooks
    apply, enter = function.__dict__["apply"], hooks.__enter__

    def refuse(_: Any) -> None:
        raise BackwardLost(
            "activation checkpointing, or another use of saved-tensor hooks, is lost in an "
            "exported graph"
        )

    function.apply, hooks.__enter__ = classmethod(call), refuse
    try:
        yield
    finally:
        function.apply, hooks.__enter__ = apply, enter
