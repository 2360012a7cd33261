"""When `torch.export` fails at the model's own code: operators along the way of these numbers.

Operators in the order of execution, along the way that the numbers of the inputs lead; enough to
plan, not to run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import fx, nn
from torch.fx import traceback as notes
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._pytree import tree_flatten, tree_unflatten

from ...common.errors import InputError
from ...common.units import ON_NUMBERS
from .hidden import BackwardLost
from .leaves import known, tensors
from .traced import Traced, flat_inputs, parameters_of, quiet, reason_of
from .unchanged import unchanged
from .without_numbers import has_no_numbers


def trace_on_numbers(
    model: nn.Module,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    training: bool,
    because: str,
) -> Traced:
    """Trace a model that cannot be exported.

    Parameters
    ----------
    because
        Why not.

    Raises
    ------
    InputError
        If nothing else works either.
    """
    try:
        with unchanged(model, (args, kwargs)), quiet(), torch.set_grad_enabled(training):
            graph = _on_numbers(model, args, kwargs)
    except Exception as error:  # any code of the model may run here
        if has_no_numbers((*model.parameters(), *tensors((args, dict(kwargs))))):
            raise InputError(
                f"model: torch.export failed: {because}; on the device meta nothing else helps"
            ) from None
        try:
            with unchanged(model, (args, kwargs)), quiet(), torch.set_grad_enabled(training):
                model(*args, **kwargs)
        except Exception as own:
            raise InputError(f"model: it fails on its inputs: {reason_of(own, model)}") from None
        raise InputError(
            f"model: torch.export failed: {because}; operator by operator it fails, too: "
            f"{reason_of(error, model)}"
        ) from None
    if because.startswith(BackwardLost.__name__):
        because += "; its backward pass is taken as autograd derives it from the operators"
    given = flat_inputs(args, kwargs)
    return Traced(graph, given, parameters_of(model), ON_NUMBERS, because)


def _on_numbers(
    model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> fx.GraphModule:
    """Trace what runs on these very inputs."""
    flat, form = tree_flatten((args, dict(kwargs)))

    def call(*leaves: Any) -> Any:
        given, named = tree_unflatten(list(leaves), form)
        out = model(*given, **named)
        return out if known(out) else tuple(tensors(out))

    with _annotated(model):
        traced = make_fx(
            call, tracing_mode="real", pre_dispatch=True, _error_on_data_dependent_ops=False
        )
        graph: fx.GraphModule = traced(*flat)
    if any(t.grad_fn is not None for t in tensors(list(vars(graph).values()))):
        raise NotImplementedError("the model differentiates itself; the result became a constant")
    return graph


@contextmanager
def _annotated(model: nn.Module) -> Iterator[None]:
    """Let the nodes of a graph under construction know the modules around them."""
    inside: list[str] = []

    def show() -> None:
        notes.current_meta["nn_module_stack"] = {path: (path, None) for path in inside}

    def enter(path: str) -> None:
        inside.append(path)
        show()

    def leave() -> None:
        inside.pop()
        show()

    handles: list[Any] = []
    for path, module in model.named_modules():
        if isinstance(module, torch.jit.ScriptModule):
            continue  # it takes no hooks
        handles += [
            module.register_forward_pre_hook(lambda *_, path=path: enter(path)),
            module.register_forward_hook(lambda *_: leave()),
        ]
    try:
        with notes.preserve_node_meta():
            yield
    finally:
        for handle in handles:
            handle.remove()
