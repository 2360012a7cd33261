"""From a module and example inputs to an fx graph of operators."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any

import torch
from torch import fx, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._pytree import tree_map

from ...common.errors import InputError
from .around import export_around, export_uncut
from .fallback import trace_on_numbers
from .hidden import refused
from .leaves import known, register, tensors
from .regions import check_operators, cut_regions
from .traced import Traced, flat_inputs, parameters_of, quiet, why_of
from .unchanged import unchanged
from .without_numbers import own


def trace(
    model: nn.Module,
    args: tuple[Any, ...] = (),
    kwargs: Mapping[str, Any] | None = None,
    training: bool = False,
    *,
    whole: bool = False,
) -> Traced:
    """Trace `model` for inputs of the given shapes.

    Parameters
    ----------
    training
        The backward pass matters, too.
    whole
        As a single part, which runs as it is, whatever its code does.

    Raises
    ------
    InputError
        If neither `torch.export` nor any fallback can trace it, or what is traced holds graphs of
        its own, as `torch.cond` does: the reason and the module.
    """
    args, named = _distinct(args, dict(kwargs or {}))
    if isinstance(model, torch.jit.ScriptModule):
        raise InputError("model: it is compiled by torch.jit; give the module it was made from")
    traced = _traced(model, args, named, training, whole)
    check_operators(traced.module)
    return traced


def _traced(
    model: nn.Module,
    args: tuple[Any, ...],
    named: dict[str, Any],
    training: bool,
    whole: bool,
) -> Traced:
    if whole:
        return export_uncut(model, args, named, training, lambda: _exported(model, args, named))
    try:
        module = _export(model, args, named, training)
    except Exception as error:  # any code of the model may run here, and fail in any way
        parts = export_around(
            model, args, named, training, error, lambda: _exported(model, args, named)
        )
        if parts is not None:
            return parts
        return trace_on_numbers(model, args, named, training, why_of(error, model))
    return Traced(module, flat_inputs(args, named), parameters_of(model), "torch.export")


def _distinct(
    args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the inputs with a copy in place of each further use of a tensor.

    A graph takes inputs that are one tensor (``labels=ids``) for one, whatever comes later.
    """
    seen: set[int] = set()

    def own(value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or id(value) not in seen:
            seen.add(id(value))
            return value
        return value.detach().clone().requires_grad_(value.requires_grad)

    register((args, kwargs))
    return tree_map(own, (args, kwargs))  # type: ignore[no-any-return]


def _export(
    model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], training: bool
) -> fx.GraphModule:
    with unchanged(model, (args, kwargs)), quiet(), refused() if training else nullcontext():
        return _exported(model, args, kwargs)


def _exported(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> fx.GraphModule:
    register((args, kwargs))
    hook = model.register_forward_hook(
        lambda _module, _given, out: out if known(out) else tuple(tensors(out))
    )
    try:
        program = torch.export.export(model, args, kwargs, strict=False)
        module: fx.GraphModule = program.module()
    finally:
        hook.remove()
    for n in list(module.graph.nodes):
        if n.op == "call_module" and n.target == "_guards_fn":
            module.graph.erase_node(n)  # checks of the inputs, not part of the model
    if any(isinstance(t, FakeTensor) and own(t) is t for t in vars(module).values()):
        raise NotImplementedError("a tensor that the model makes became a constant without numbers")
    cut_regions(module)
    return module
