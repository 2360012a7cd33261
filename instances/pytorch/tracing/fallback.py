"""When `torch.export` fails: module hooks for chains of modules, then `torch.fx`.

`torch.fx` traces twice. First symbolically: modules that it cannot follow are called whole, so the
graph holds for all inputs. Then, if the model's own code looks at numbers, on the numbers of the
inputs: operators in the order of execution, along the way that these numbers lead.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import fx, nn
from torch.fx import traceback as notes
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._pytree import tree_flatten, tree_unflatten

from ...common.errors import InputError
from .hidden import BackwardLost, as_nodes
from .leaves import known, tensors
from .traced import Traced, fault, flat_inputs, parameters_of, quiet, reason_of
from .unchanged import unchanged


def trace_otherwise(
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
    parameters = parameters_of(model)
    try:
        with unchanged(model, (args, kwargs)), quiet(), torch.set_grad_enabled(training):
            chain = chain_of(model, args, kwargs)
    except Exception as error:  # the model itself does not run with these inputs
        if any(t.is_meta for t in (*model.parameters(), *tensors((args, dict(kwargs))))):
            raise InputError(
                f"model: torch.export failed: {because}; on the device meta nothing else helps"
            ) from None
        raise InputError(f"model: it fails on its inputs: {reason_of(error, model)}") from None
    if chain is not None:
        given = tuple(tensors((args, dict(kwargs))))
        return Traced(_chain_graph(model, chain), given, parameters, "module hooks", because)
    try:
        with unchanged(model, (args, kwargs)), quiet():
            inputs = bound(model, args, kwargs)
            graph = _symbolic(model)
            with torch.set_grad_enabled(training):
                fx.Interpreter(graph).run(*inputs)
        return Traced(graph, inputs, parameters, "torch.fx", because)
    except Exception:  # any code of the model may run here, and fail in any way
        pass
    try:
        with unchanged(model, (args, kwargs)), quiet(), torch.set_grad_enabled(training):
            graph = _on_numbers(model, args, kwargs)
    except Exception as error:  # any code of the model may run here
        raise InputError(
            f"model: torch.export failed: {because}; module hooks: it is no chain of modules; "
            f"torch.fx failed: {reason_of(error, model)}"
        ) from None
    if because.startswith(BackwardLost.__name__):
        because += "; its backward pass is taken as autograd derives it from the operators"
    return Traced(
        graph, flat_inputs(args, kwargs), parameters, "torch.fx on these numbers", because
    )


def chain_of(
    model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> list[str] | None:
    """Return the modules that make up the model, called one after the other, or None.

    A module is taken apart as long as it is a chain itself: one tensor goes in, each child is
    called once with the output of the one before, and the last output is its own.
    """
    calls: list[tuple[str, list[torch.Tensor], list[torch.Tensor]]] = []
    paths = {module: path for path, module in _hookable(model)}
    handles = [
        module.register_forward_hook(
            lambda m, args, kwargs, out: calls.append(
                (paths[m], tensors((args, kwargs)), tensors(out))
            ),
            with_kwargs=True,
        )
        for module in paths
    ]
    try:
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


def _hookable(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    for path, module in model.named_modules():
        if not isinstance(module, torch.jit.ScriptModule):
            yield path, module


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


class _Calls(fx.Tracer):  # type: ignore[misc]  # torch is not typed for mypy here
    """Traces symbolically, but calls the modules in `whole` without looking into them."""

    def __init__(self, whole: set[str]) -> None:
        super().__init__()
        self.whole = whole

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return module_qualified_name in self.whole or super().is_leaf_module(
            m, module_qualified_name
        )


def _symbolic(model: nn.Module) -> fx.GraphModule:
    """Trace, and leave a module whole whenever it cannot be followed, until nothing fails."""
    whole: set[str] = set()
    while True:
        try:
            with as_nodes():
                tracer = _Calls(whole)
                return fx.GraphModule(model, tracer.trace(model))
        except Exception as error:  # any code of the model may run here, and fail in any way
            where = fault(error, model)
            if where is None or not where[0] or where[0] in whole:
                raise
            whole.add(where[0])


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
    for path, module in _hookable(model):
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
