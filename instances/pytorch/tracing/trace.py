"""Tracing of a module with example inputs to an fx graph of operators.

Where `torch.export` fails at the model's own code, the graph has the operators in the order of
execution, along the branches taken with these inputs; enough to plan, not to run.

`torch.export` makes one node of a region under autocast or without gradients, whatever its size.
Here each of its operators becomes a node with a region of its own, so that they can be planned
separately, and each still runs under the same context.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import fx, nn
from torch._ops import HigherOrderOperator
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx import traceback as notes
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.modules.module import register_module_buffer_registration_hook
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from ...common.errors import InputError
from ...common.units import ON_NUMBERS
from .around import BackwardLost, export_around, export_uncut, refused
from .traced import (
    Traced,
    has_no_data,
    known,
    on_inputs,
    own,
    quiet,
    reason_of,
    register,
    tensors,
    traced_as,
    why_of,
)
from .unchanged import unchanged

_REGIONS = frozenset({"wrap_with_autocast", "wrap_with_set_grad_enabled"})


class OperatorState(NotImplementedError):
    """Error: operators share a state outside their graph, so that it cannot be cut."""

    def __init__(self, module: fx.GraphModule, path: str) -> None:
        super().__init__("torch.func (vmap) keeps a state between its operators")
        self.module = module  # the graph, which can be planned
        self.path = path  # of the innermost module whose code they are


def trace(
    model: nn.Module,
    args: tuple[Any, ...] = (),
    kwargs: Mapping[str, Any] | None = None,
    training: bool = False,
    *,
    whole: bool = False,
) -> Traced:
    """Return the trace of `model` for inputs of the given shapes, also backward if `training`.

    With `whole` it is a single part, which runs as it is, whatever its code does. InputError, with
    reason and module, if neither `torch.export` nor any fallback can trace it, or what is traced
    holds graphs of its own, as `torch.cond` does.
    """
    args, named = distinct(args, kwargs or {})
    if isinstance(model, torch.jit.ScriptModule):
        raise InputError("model: it is compiled by torch.jit; give the module it was made from")
    export = partial(_exported, model, args, named)
    if whole:
        traced = export_uncut(model, args, named, training, export)
    else:
        try:
            with unchanged(model, (args, named)), quiet(), refused() if training else nullcontext():
                module = export()
            traced = traced_as(module, model, (args, named), "torch.export")
        except Exception as error:  # any code of the model may run here, and fail in any way
            parts = export_around(model, args, named, training, error, export)
            because = why_of(error, model)
            if parts is not None:
                traced = parts
            elif isinstance(error, OperatorState):
                traced = traced_as(error.module, model, (args, named), ON_NUMBERS, because)
            else:
                traced = trace_on_numbers(model, args, named, training, because)
    check_operators(traced.module)
    return traced


def distinct(
    args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the inputs with a copy in place of each further use of a tensor.

    In a graph, inputs that are one tensor (``labels=ids``) become one input for good.
    """
    seen: set[int] = set()

    def own(value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or id(value) not in seen:
            seen.add(id(value))
            return value
        return value.detach().clone().requires_grad_(value.requires_grad)

    register((args, dict(kwargs)))
    return tree_map(own, (args, dict(kwargs)))  # type: ignore[no-any-return]


def _exported(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> fx.GraphModule:
    register((args, kwargs))
    hook = model.register_forward_hook(
        lambda _module, _given, out: out if known(out) else tuple(tensors(out))
    )
    try:
        with _assigned_buffers(model):
            program = torch.export.export(model, args, kwargs, strict=False)
        module: fx.GraphModule = program.module()
    finally:
        hook.remove()
    for n in list(module.graph.nodes):
        if n.op == "call_module" and n.target == "_guards_fn":
            module.graph.erase_node(n)  # checks of the inputs, not part of the model
    if any(isinstance(t, FakeTensor) and own(t) is t for t in vars(module).values()):
        raise NotImplementedError("a tensor that the model makes became a constant without numbers")
    _broadcast_apart(module)
    cut_regions(module)
    for n in _nodes(module):
        if getattr(n.target, "__module__", "") == "torch._functorch.predispatch":
            raise OperatorState(module, _path_of(n))
    return module


@contextmanager
def _assigned_buffers(model: nn.Module) -> Iterator[None]:
    """Copy tensors that a forward pass assigns to buffers into these at its end.

    `torch.export` does so for the outermost module, and loses assignments of all others. Raises
    NotImplementedError in the module's code if shape or type of the buffer change.
    """
    before: dict[tuple[nn.Module, str], torch.Tensor] = {}
    running: list[nn.Module] = []

    def assigned(module: nn.Module, name: str, value: torch.Tensor | None) -> None:
        buffer = module._buffers.get(name)
        if not running or module is model or buffer is None or value is buffer:
            return
        if value is None or (value.shape, value.dtype) != (buffer.shape, buffer.dtype):
            raise NotImplementedError(f"the buffer {name} gets another shape or type")
        before.setdefault((module, name), buffer)

    def copied(*_: Any) -> None:
        running.clear()
        for (module, name), buffer in before.items():
            made = module._buffers[name]
            assert made is not None
            module._buffers[name] = buffer.copy_(made.detach())
        before.clear()

    hooks = (
        register_module_buffer_registration_hook(assigned),
        model.register_forward_pre_hook(lambda *_: running.append(model)),
        model.register_forward_hook(copied),
    )
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _broadcast_apart(module: fx.GraphModule) -> None:
    """Replace common broadcasts by one of each tensor, which need not wait for the others."""
    joint = torch.ops.aten.broadcast_tensors.default
    for n in module.graph.find_nodes(op="call_function", target=joint):
        for user in list(n.users):
            if user.target is not operator.getitem:
                continue
            given, shape = n.args[0][user.args[1]], list(user.meta["val"].shape)
            with module.graph.inserting_before(user):
                made = module.graph.call_function(torch.ops.aten.expand.default, (given, shape))
            made.meta |= user.meta
            user.replace_all_uses_with(made)
            module.graph.erase_node(user)
        if not n.users:
            module.graph.erase_node(n)


def trace_on_numbers(
    model: nn.Module,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    training: bool,
    because: str,
) -> Traced:
    """Return the trace of a model that cannot be exported; InputError if it fails, too."""
    try:
        with unchanged(model, (args, kwargs)), quiet(), torch.set_grad_enabled(training):
            graph = _on_numbers(model, args, kwargs)
    except Exception as error:  # any code of the model may run here
        if has_no_data((*model.parameters(), *tensors((args, dict(kwargs))))):
            raise InputError(
                f"model: torch.export failed: {because}; on the device meta nothing else helps"
            ) from None
        try:
            with unchanged(model, (args, kwargs)), quiet(), torch.set_grad_enabled(training):
                model(*args, **kwargs)
        except Exception as own:
            raise on_inputs(own, model) from None
        raise InputError(
            f"model: torch.export failed: {because}; operator by operator it fails, too: "
            f"{reason_of(error, model)}"
        ) from None
    if because.startswith(BackwardLost.__name__):
        because += "; its backward pass is taken as autograd derives it from the operators"
    return traced_as(graph, model, (args, dict(kwargs)), ON_NUMBERS, because)


def _on_numbers(
    model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> fx.GraphModule:
    """Return the graph of the operators that run on these inputs."""
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
    """Annotate the nodes of a graph under construction with their modules."""
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


def check_operators(module: fx.GraphModule) -> None:
    """Refuse operators that hold graphs, other than regions, as those are opaque.

    InputError says which, and in which module's code.
    """
    for n in _nodes(module):
        if isinstance(n.target, HigherOrderOperator) and n.target.name() not in _REGIONS:
            path = _path_of(n)
            where = f"module {path}" if path else "the model's own code"
            raise InputError(
                f"model: torch's operator {n.target.name()} (in {where}) holds a graph of its own, "
                "which is not looked into; write it with plain operators (for cond: both branches, "
                "and torch.where)"
            )


def _nodes(module: fx.GraphModule) -> Iterator[fx.Node]:
    """Return the nodes of a graph and of all graphs in it."""
    graphs = [inner.graph for inner in module.modules() if isinstance(inner, fx.GraphModule)]
    return (n for graph in graphs for n in graph.nodes)


def _path_of(n: fx.Node) -> str:
    """Return the path of the innermost module whose code made a node, empty for the model."""
    stack = n.meta.get("nn_module_stack") or {}
    return next((str(p).removeprefix("L['self'].") for p, _ in reversed(stack.values())), "")


def cut_regions(module: fx.GraphModule) -> None:
    """Cut all regions of a graph, in place."""
    for n in list(module.graph.nodes):
        if isinstance(n.target, HigherOrderOperator) and n.target.name() in _REGIONS:
            _cut(module, n)
    module.recompile()


def _cut(module: fx.GraphModule, region: fx.Node) -> None:
    if not all(user.target is operator.getitem for user in region.users):
        return
    at = next(i for i, arg in enumerate(region.args) if _is_graph(module, arg))
    name = str(region.args[at].target)
    inner: fx.GraphModule = module.get_submodule(name)
    outer = dict(zip(inner.graph.find_nodes(op="placeholder"), region.args[at + 1 :], strict=True))
    with module.graph.inserting_before(region):
        for n in inner.graph.nodes:
            if n.op == "get_attr":
                outer[n] = module.graph.get_attr(f"{name}.{n.target}")
            elif n.op == "call_function" and n.target is operator.getitem:
                outer[n] = module.graph.call_function(n.target, (outer[n.args[0]], n.args[1]))
            elif n.op == "call_function":
                alone, given = _alone(inner, n)
                path = f"{name}_{n.name}"
                module.add_submodule(path, alone)
                outer[n] = module.graph.create_node(
                    "call_function",
                    region.target,
                    (*region.args[:at], module.graph.get_attr(path), *(outer[g] for g in given)),
                    name=n.name,
                )
            if n in outer and n.op == "call_function":
                outer[n].meta |= n.meta
        (results,) = inner.graph.output_node().args
    for user in list(region.users):
        user.replace_all_uses_with(outer[results[user.args[1]]])
        module.graph.erase_node(user)
    module.graph.erase_node(region)


def _alone(inner: fx.GraphModule, n: fx.Node) -> tuple[fx.GraphModule, list[fx.Node]]:
    """Return a graph of one operator, and the nodes that it reads."""
    graph = fx.Graph()
    given = [g for g in n.all_input_nodes if g.op != "get_attr"]
    inside = {g: graph.placeholder(g.name) for g in given}
    for g in n.all_input_nodes:
        if g.op == "get_attr":
            inside[g] = graph.get_attr(g.target)
    graph.output(graph.node_copy(n, inside.__getitem__))
    return fx.GraphModule(inner, graph), given


def _is_graph(module: fx.GraphModule, arg: Any) -> bool:
    if not isinstance(arg, fx.Node) or arg.op != "get_attr":
        return False
    found: Any = module
    for word in str(arg.target).split("."):
        found = getattr(found, word)
    return isinstance(found, fx.GraphModule)
