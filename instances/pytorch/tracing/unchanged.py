"""Restoring of a model's state after it has run."""

from __future__ import annotations

import random
import sys
from collections import deque
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor

#: Packages whose objects are left alone: loggers, locks, generators, process groups.
_LIBRARIES = (sys.stdlib_module_names | {"torch", "numpy"}) - {"__main__"}


@contextmanager
def unchanged(model: nn.Module, inputs: Any = ()) -> Iterator[None]:
    """Restore a model and the random state at the end of the block.

    That is: its modules with parameters, buffers, hooks, modes and all other attributes; containers
    and objects within these, such as a configuration, and within the inputs; the numbers of buffers
    and inputs, copied meanwhile; gradients and hooks of parameters, and whether they are trained;
    the random generators of torch, NumPy and Python. Numbers of parameters that the forward pass
    itself changes (``max_norm`` of an embedding) stay changed.
    """
    undo: list[Callable[[], None]] = []
    tensors = _keep((model, inputs), undo)
    numbers = [
        (t, t.detach().clone())
        for t in tensors
        if not isinstance(t, nn.Parameter | FakeTensor)
        and not t.is_meta
        and t.layout is torch.strided
    ]
    parameters = [(p, p.grad, p.requires_grad, _hooks(p)) for p in model.parameters()]
    for parameter, *_ in parameters:
        parameter.grad = None
    cards = {p.device.index or 0 for p, *_ in parameters if p.device.type == "cuda"}
    python, numpy = random.getstate(), np.random.get_state()  # noqa: NPY002  # models use this one
    try:
        with torch.random.fork_rng(devices=sorted(cards)):
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)  # noqa: NPY002
        for step in undo:
            step()
        with torch.no_grad():
            for tensor, value in numbers:
                if not torch.equal(tensor, value):
                    tensor.copy_(value)
        for parameter, gradient, trained, hooks in parameters:
            parameter.grad = gradient
            if parameter.requires_grad != trained:
                parameter.requires_grad_(trained)
            if _hooks(parameter) != hooks:
                parameter._backward_hooks = None if hooks is None else dict(hooks)


def _hooks(parameter: nn.Parameter) -> dict[int, Any] | None:
    """Return a copy of the hooks of a parameter's gradient."""
    hooks: dict[int, Any] | None = parameter._backward_hooks
    return None if hooks is None else dict(hooks)


def _keep(root: Any, undo: list[Callable[[], None]]) -> list[torch.Tensor]:
    """Add restoring calls for a nested value to `undo`, and return its tensors."""
    tensors: list[torch.Tensor] = []
    kept: dict[int, Any] = {}  # keeps values alive, so that no id is used twice
    waiting = [root]
    while waiting:
        value = waiting.pop()
        if value is None or isinstance(value, str | int | float | type) or id(value) in kept:
            continue
        kept[id(value)] = value
        if isinstance(value, torch.Tensor):
            tensors.append(value)
        elif isinstance(value, dict):
            undo.append(partial(_put_back, value, dict(value)))
            waiting += value.values()
        elif isinstance(value, list | set | deque):
            undo.append(partial(_put_back_members, value, list(value)))
            waiting += value
        elif isinstance(value, tuple):
            waiting += value
        elif _is_open(value):
            undo.append(partial(_put_back, vars(value), dict(vars(value))))
            if isinstance(value, torch.jit.ScriptModule):  # it keeps them elsewhere
                undo.append(partial(setattr, value, "training", value.training))
                tensors += value.buffers()
            waiting += vars(value).values()
    return tensors


def _is_open(value: Any) -> bool:
    """Whether an object is a module, or a plain one of a model's own code."""
    if isinstance(value, nn.Module | SimpleNamespace):
        return True
    package = type(value).__module__.partition(".")[0]
    return package not in _LIBRARIES and hasattr(value, "__dict__") and not callable(value)


def _put_back(table: MutableMapping[Any, Any], before: dict[Any, Any]) -> None:
    if not _identical(table, before):  # a configuration may refuse every change
        table.clear()
        table.update(before)


def _put_back_members(members: Any, before: list[Any]) -> None:
    if [*map(id, members)] == [*map(id, before)]:
        return
    members.clear()
    if isinstance(members, set):
        members.update(before)
    else:
        members.extend(before)


def _identical(now: MutableMapping[Any, Any], before: dict[Any, Any]) -> bool:
    """Whether two mappings hold the same objects in the same order."""
    return [*map(id, now), *map(id, now.values())] == [*map(id, before), *map(id, before.values())]
