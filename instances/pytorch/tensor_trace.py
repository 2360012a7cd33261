"""Training graphs of models: loss and gradients as one graph of ATen operators."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import fx, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._pytree import tree_map

from ..common.errors import InputError
from .tracing.trace import check_operators
from .tracing.traced import (
    as_exported,
    as_fake,
    loss_of,
    quiet,
    reason_of,
    swapped_tensors,
    tensors,
)
from .tracing.unchanged import unchanged


@dataclass(frozen=True, eq=False)
class TrainingGraph:
    """Graph of a model's loss and gradients."""

    # graph of ATen operators, without unused ones; each node's ``meta["val"]`` is its result, as
    # fake tensors
    graph: fx.Graph
    # name of the parameter or buffer of each placeholder, or ``input 0`` and so on, by the
    # placeholder's name
    names: Mapping[str, str]
    # placeholders that are parameters, by name, with the node of the gradient; None for those that
    # have none
    parameters: Mapping[str, fx.Node | None]
    resident: frozenset[str]  # placeholders that are buffers
    losses: tuple[fx.Node, ...]  # nodes that the backward pass starts from
    # buffers that only count, such as batches of a norm, with the number that each step adds
    counted: Mapping[str, float] = field(default_factory=dict)
    # constant tensors in the model's code, by their names in `names`; their placeholders are
    # resident, too
    constants: Mapping[str, torch.Tensor] = field(default_factory=dict)
    # first operator that changes a tensor in place which others read by another name, a view or its
    # base, or first buffer that the model assigns anew; empty if there is none. The graph has edges
    # only from results of operators.
    unseen_write: str = ""

    @property
    def inputs(self) -> tuple[fx.Node, ...]:
        """Placeholders of the model's inputs, in order."""
        stay = {*self.parameters, *self.resident}
        return tuple(
            node
            for node in self.graph.nodes
            if node.op == "placeholder" and node.name in self.names and node.name not in stay
        )


def training_graph(
    model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> TrainingGraph:
    """Trace loss and gradients on fake tensors; nothing is computed.

    A model whose output is no loss is trained on the sum of its outputs. InputError says why it
    cannot be traced.
    """
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    weights, buffers = fake_state(model, mode)
    given, named = tree_map(lambda x: _detached(x, mode), (args, dict(kwargs)))
    trained = {name: value for name, value in weights.items() if value.requires_grad}
    assigned: list[str] = []  # buffers that the model replaces

    def step(
        weights: dict[str, Any], buffers: dict[str, Any], given: Any, named: Any
    ) -> tuple[Any, Any]:
        with swapped_state(model, {**weights, **buffers}):
            losses = loss_of(tensors(model(*given, **named)))
            now = {name: id(value) for name, value in model.named_buffers()}
            assigned[:] = [name for name, value in buffers.items() if now.get(name) != id(value)]
            if not losses:
                raise InputError(f"{type(model).__name__}: no output depends on its parameters")
            ones = [torch.ones_like(loss) for loss in losses]
            wanted = [weights[name] for name in trained]
            return losses, torch.autograd.grad(losses, wanted, ones, allow_unused=True)

    def traced() -> fx.GraphModule:
        # oneDNN's LSTM keeps what its backward pass needs under autograd alone
        plain = torch.backends.mkldnn.flags(enabled=False)
        with unchanged(model, (args, kwargs)), mode, quiet(), plain:
            made: fx.GraphModule = make_fx(step)(weights, buffers, given, named)
            return made

    try:
        try:
            module = traced()
        except RuntimeError:  # of a kernel that needs numbers, in whose place others choose one
            with as_exported():
                module = traced()
    except InputError:
        raise
    except Exception as error:  # the user's code may fail in any way
        raise InputError(
            f"{type(model).__name__}: it cannot be traced as a training graph: "
            f"{reason_of(error, model)}"
        ) from None
    graph = named_graph(module, weights, buffers, list(trained), (given, named))
    return replace(graph, unseen_write=next(iter(assigned), graph.unseen_write))


def _detached(value: Any, mode: FakeTensorMode) -> Any:
    return as_fake(value.detach(), mode) if isinstance(value, torch.Tensor) else value


def fake_state(model: nn.Module, mode: FakeTensorMode) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return fake tensors for the parameters and buffers of a model, by name."""
    weights = {
        name: _detached(value, mode).requires_grad_(value.requires_grad)
        for name, value in model.named_parameters()
    }
    return weights, {name: _detached(value, mode) for name, value in model.named_buffers()}


@contextmanager
def swapped_state(model: nn.Module, state: Mapping[str, torch.Tensor]) -> Iterator[None]:
    """Replace a model's parameters and buffers within the block, its backward pass too."""
    own = (*model.named_parameters(), *model.named_buffers())
    others = {id(value): state[name] for name, value in own}
    with swapped_tensors(model, lambda value: others[id(value)]):
        yield


def named_graph(
    module: fx.GraphModule,
    weights: Mapping[str, Any],
    buffers: Mapping[str, Any],
    trained: list[str],
    given: Any,
) -> TrainingGraph:
    """Return a graph of losses and gradients, and the names of the trained parameters."""
    check_operators(module)
    graph, inputs = module.graph, tensors(given)
    called = [*weights, *buffers, *(f"input {k}" for k in range(len(inputs)))]
    placeholders = [node for node in graph.nodes if node.op == "placeholder"]
    placeholders = [n for n in placeholders if isinstance(n.meta.get("val"), torch.Tensor)]
    assert len(placeholders) == len(called)
    names = {node.name: name for node, name in zip(placeholders, called, strict=True)}
    taken = {*called, *(n.rpartition(".")[0] for n in called if n.rpartition(".")[2].isdecimal())}
    for node in graph.nodes:
        if node.op == "call_function" and node.name in taken:  # a buffer may be called `mean`, too
            node._rename(f"{node.name}_operator")
    output = next(node for node in graph.nodes if node.op == "output")
    outputs = list(output.args[0])
    count = len(outputs) - len(trained)
    losses, gradients = outputs[:count], outputs[count:]
    by_name = {name: node for node, name in zip(placeholders, called, strict=True)}
    parameters: dict[str, fx.Node | None] = {by_name[name].name: None for name in weights}
    for name, node in zip(trained, gradients, strict=True):
        parameters[by_name[name].name] = node
    held = _lifted(module, names)
    constants = {names[name]: value for name, value in held.items()}
    resident = frozenset(by_name[name].name for name in buffers) | held.keys()
    needed: set[fx.Node] = set()
    waiting = [node for node in (*losses, *gradients) if node is not None]
    while waiting:
        node = waiting.pop()
        if node not in needed:
            needed.add(node)
            waiting += node.all_input_nodes
    unseen = _unseen_write(graph, needed, {by_name[name] for name in buffers})
    counted: dict[str, float] = {}
    for node in reversed(list(graph.nodes)):
        if node.op == "call_function" and node not in needed and not node.users:
            if node.target is torch.ops.aten.add_.Tensor and isinstance(node.args[1], int | float):
                buffer = names.get(_changed(node).name, "")
                if buffer in buffers:
                    counted[buffer] = counted.get(buffer, 0) + node.args[1]
            graph.erase_node(node)
    return TrainingGraph(
        graph, names, parameters, resident, tuple(losses), counted, constants, unseen
    )


def _unseen_write(graph: fx.Graph, needed: set[fx.Node], buffers: set[fx.Node]) -> str:
    """Return the first operator whose change in place a needed operator or a buffer does not see.

    Operators that only count steps in a buffer are ignored.
    """
    chains: dict[fx.Node, list[fx.Node]] = {}  # by tensor, it and what shares its memory before it
    writes: dict[fx.Node, list[fx.Node]] = {}  # by the tensor that was there first
    for node in graph.nodes:
        if node in needed:
            for read in node.all_input_nodes:
                own = chains.get(read, [read])
                missed = [write for write in writes.get(own[-1], ()) if write not in own]
                if missed:
                    return str(missed[0].name)
        chains[node] = [node]
        if node.target is operator.getitem and len(chains[node.args[0]]) > 1:  # one of some views
            chains[node] += chains[node.args[0]]
        if not isinstance(node.target, torch._ops.OpOverload) or not node.args:
            continue
        if node.kwargs.get("out") in buffers:
            return str(node.name)
        alias = node.target._schema.arguments[0].alias_info
        if alias is None or not isinstance(node.args[0], fx.Node):
            continue
        chains[node] += chains[node.args[0]]
        if alias.is_write:
            first = chains[node][-1]
            writes.setdefault(first, []).append(node)
            counts = node.target is torch.ops.aten.add_.Tensor and first in buffers
            if first in buffers and not (counts and isinstance(node.args[1], int | float)):
                return str(node.name)
    return ""


def _lifted(module: fx.GraphModule, names: dict[str, str]) -> dict[str, torch.Tensor]:
    """Make a placeholder with a name of each constant, and return these with their numbers."""
    graph = module.graph
    found: dict[str, fx.Node] = {}
    first = next(iter(graph.nodes))
    for node in list(graph.find_nodes(op="get_attr")):
        if node.target not in found:
            with graph.inserting_before(first):
                made = found[node.target] = graph.placeholder(node.target)
            made.meta["val"] = node.meta["val"]
            names[made.name] = f"constant {len(found) - 1}"
        node.replace_all_uses_with(found[node.target])
        graph.erase_node(node)
    return {node.name: getattr(module, target) for target, node in found.items()}


def _changed(node: fx.Node) -> fx.Node:
    """Return the tensor that a chain of in-place additions changes."""
    while node.target is torch.ops.aten.add_.Tensor:
        node = node.args[0]
    return node
