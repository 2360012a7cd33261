"""Leave a model as it was found, whatever runs meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from .leaves import tensors

#: What every module has; it is put back otherwise, or does not change.
_OF_ALL = frozenset(vars(nn.Module()))


@contextmanager
def unchanged(model: nn.Module, inputs: Any = ()) -> Iterator[None]:
    """Put back what running a model changes, when the block ends.

    That is: modes, buffers, other attributes of its modules, gradients, numbers in the inputs, and
    the state of torch's random generators. Parameters that the forward pass itself changes
    (``max_norm`` of an embedding) stay changed.

    Notes
    -----
    Holds a copy of buffers and inputs meanwhile.
    """
    modules = list(model.modules())
    modes = [module.training for module in modules]
    attributes = [_attributes(module) for module in modules]
    lists = [(v, list(v)) for own in attributes for v in own.values() if isinstance(v, list)]
    mappings = [(v, dict(v)) for own in attributes for v in own.values() if isinstance(v, dict)]
    buffers = [dict(module._buffers) for module in modules]
    held = [tensor for values in (*attributes, *buffers) for tensor in tensors(values)]
    held += tensors(inputs)
    kept = [(t, t.detach().clone()) for t in held if not t.is_meta and t.layout is torch.strided]
    gradients = [(parameter, parameter.grad) for parameter in model.parameters()]
    for parameter, _ in gradients:
        parameter.grad = None
    cards = {p.device.index or 0 for p, _ in gradients if p.device.type == "cuda"}
    try:
        with torch.random.fork_rng(devices=sorted(cards)):
            yield
    finally:
        for module, mode, own, of_buffers in zip(modules, modes, attributes, buffers, strict=True):
            module.training = mode
            for key in set(_attributes(module)) - set(own):
                delattr(module, key)
            vars(module).update(own)
            if not isinstance(module, torch.jit.ScriptModule):  # it cannot put others in place
                module._buffers.update(of_buffers)
        for values, before in lists:
            values[:] = before
        for table, entries in mappings:
            if not _identical(table, entries):  # a configuration may refuse every change
                table.clear()
                table.update(entries)
        with torch.no_grad():
            for tensor, value in kept:
                if not torch.equal(tensor, value):
                    tensor.copy_(value)
        for parameter, gradient in gradients:
            parameter.grad = gradient


def _identical(now: dict[Any, Any], before: dict[Any, Any]) -> bool:
    """Whether two mappings have the same objects in the same order."""
    return [*map(id, now), *map(id, now.values())] == [*map(id, before), *map(id, before.values())]


def _attributes(module: nn.Module) -> dict[str, Any]:
    return {key: value for key, value in vars(module).items() if key not in _OF_ALL}
