"""When `torch.export` fails: module hooks for chains of modules, then `torch.fx`.

Both give graphs whose nodes are module calls. What made the export fail may fail without real
numbers too, so these graphs are recorded on real numbers.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import torch
from torch import fx, nn

from ..errors import InputError
from .trace import Traced, flat_inputs, parameters_of, reason_of
from .watch import tensors


def trace_otherwise(
    model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], because: str
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
        chain = chain_of(model, args, kwargs)
    except Exception as error:  # the model itself does not run with these inputs
        raise InputError(f"model: it fails on its inputs: {reason_of(error, model)}") from None
    parameters = parameters_of(model)
    if chain is not None:
        graph = _chain_graph(model, chain)
        return Traced(graph, flat_inputs(args, kwargs), parameters, "module hooks", because)
    try:
        traced = fx.symbolic_trace(model)
    except Exception as error:  # any code of the model may run here, and fail in any way
        raise InputError(
            f"model: torch.export failed: {because}; module hooks: it is no chain of modules; "
            f"torch.fx failed: {reason_of(error, model)}"
        ) from None
    return Traced(traced, bound(model, args, kwargs), parameters, "torch.fx", because)


def chain_of(
    model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> list[str] | None:
    """Return the modules that make up the model, called one after the other, or None.

    A module is taken apart as long as it is a chain itself: one tensor goes in, each child is
    called once with the output of the one before, and the last output is its own.
    """
    calls: list[tuple[str, list[torch.Tensor], list[torch.Tensor]]] = []
    paths = {module: path for path, module in model.named_modules()}
    handles = [
        module.register_forward_hook(
            lambda m, given, out: calls.append((paths[m], tensors(given), tensors(out)))
        )
        for module in paths
    ]
    try:
        with torch.no_grad():
            model(*args, **kwargs)
    finally:
        for handle in handles:
            handle.remove()
    if len(tensors((args, dict(kwargs)))) != 1:
        return None
    made = {path: (given, out) for path, given, out in calls}
    once = {path for path in made if sum(path == p for p, _, _ in calls) == 1}
    chain = _apart("", model, made, once)
    return chain if chain != [""] else None


def _apart(
    path: str,
    module: nn.Module,
    made: dict[str, tuple[list[torch.Tensor], list[torch.Tensor]]],
    once: set[str],
) -> list[str]:
    """Return the chain that a module is, or the module itself."""
    prefix = f"{path}." if path else ""
    called = _called_below(module, prefix, made)
    if not called or path not in once or not set(called) <= once:
        return [path]
    at, end = made[path]
    ordered = sorted(called, key=list(made).index)
    for below in ordered:
        given, out = made[below]
        if len(given) != 1 or len(out) != 1 or given[0] is not at[0]:
            return [path]
        at = out
    if len(end) != 1 or at[0] is not end[0]:
        return [path]
    return [p for below in ordered for p in _apart(below, _at(module, below, prefix), made, once)]


def _called_below(module: nn.Module, prefix: str, made: Mapping[str, object]) -> list[str]:
    """Return the outermost modules inside that were called."""
    found: list[str] = []
    for name, child in module.named_children():
        path = prefix + name
        found += [path] if path in made else _called_below(child, f"{path}.", made)
    return found


def _at(module: nn.Module, path: str, prefix: str) -> nn.Module:
    return module.get_submodule(path.removeprefix(prefix))


def _chain_graph(model: nn.Module, chain: list[str]) -> fx.GraphModule:
    graph = fx.Graph()
    value = graph.placeholder("input")
    for path in chain:
        value = graph.call_module(path, (value,))
        words = path.split(".")
        inside = [".".join(words[:k]) for k in range(len(words) + 1)]
        value.meta["nn_module_stack"] = {p: (p, None) for p in inside}
    graph.output(value)
    return fx.GraphModule(model, graph)


def bound(model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return one value per parameter of `forward`, as the placeholders of `torch.fx` want."""
    bound = inspect.signature(model.forward).bind(*args, **kwargs)
    bound.apply_defaults()
    return tuple(bound.arguments.values())
