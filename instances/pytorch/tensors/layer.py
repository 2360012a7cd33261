"""Tensor programs of single layers: forward and backward pass, replicated inputs and outputs."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from ...common.choices import Role
from ...common.errors import InputError
from ...generate.roofline import Machine
from ...model.sharding.program import COPIED, Operator, Signature, Tensor, TensorProgram
from ..tracing.traced import reason_of
from ..tracing.values import TensorValue
from .program import SAME, program_of_graph
from .rules import name_of
from .trace import TrainingGraph, fake_state, named_graph, swapped_state

#: Name of the operator that reads what leaves a layer.
LEAVES = "leaves"


@dataclass(frozen=True, eq=False)
class LayerProgram:
    """The program of a layer, and which of its tensors cross the layer's ends."""

    graph: TrainingGraph  # of the forward and the backward pass
    program: TensorProgram  # of the graph, and `LEAVES`
    # for each input the number of its tensor; None if nothing reads it
    entering: tuple[int | None, ...]
    outputs: tuple[int, ...]  # for each output the number of its tensor
    # for each output the number of its gradient's tensor; None if nothing reads it
    arriving: tuple[int | None, ...]
    # for each input the number of its gradient's tensor; None if it has none
    gradients: tuple[int | None, ...]


@dataclass(frozen=True, eq=False)
class _Traced:
    """A layer's graph: names of the outputs, which of them and of the inputs have a gradient."""

    graph: TrainingGraph
    outputs: tuple[str, ...]
    learned: tuple[bool, ...]
    gradients: tuple[str | None, ...]


def layer_program(
    module: nn.Module,
    inputs: Sequence[TensorValue],
    outputs: Sequence[int],
    target: Machine,
) -> LayerProgram:
    """Return the program of a layer's forward and backward pass, priced by a machine's roofline.

    Every device has the inputs and the gradients of the outputs whole, and must come to have the
    outputs and the gradients of the inputs so: the operator `LEAVES` reads them as copies, and
    takes no time. So the sharding of a layer does not depend on its neighbours'. The module takes
    the inputs in order and returns a tuple, of which it makes the `outputs` itself; other tensors
    only pass through. InputError says why it cannot be traced.
    """
    traced = _traced(module, inputs, outputs)
    program = program_of_graph(traced.graph, target)
    number = {tensor.name: t for t, tensor in enumerate(program.tensors)}
    made = tuple(number[name] for name in traced.outputs)
    gradients = tuple(None if name is None else number[name] for name in traced.gradients)
    read = sorted({*made, *(t for t in gradients if t is not None)})
    copied = Signature((COPIED,) * len(read), (COPIED,))
    done = len(program.tensors)
    leaves = Operator(LEAVES, tuple(read), (done,), (copied,))
    names = iter(range(len(inputs), len(inputs) + len(made)))
    return LayerProgram(
        traced.graph,
        TensorProgram(
            (*program.tensors, Tensor(LEAVES, ())),
            (*map(_arriving_whole, program.operators), leaves),
        ),
        tuple(number.get(f"input {k}") for k in range(len(inputs))),
        made,
        tuple(number.get(f"input {next(names)}") if has else None for has in traced.learned),
        gradients,
    )


def _arriving_whole(one: Operator) -> Operator:
    if one.role is not Role.INPUT:
        return one
    return replace(one, signatures=(Signature((), (COPIED,)),))


def _traced(module: nn.Module, inputs: Sequence[TensorValue], outputs: Sequence[int]) -> _Traced:
    """Return the training graph, and the names of the tensors that leave the layer."""
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    held = {x.device for x in (*module.parameters(), *module.buffers())}
    device = next((x for x in held if x.type != "meta"), torch.device("cpu"))
    with mode:
        given = [
            torch.empty(x.shape, dtype=x.dtype, device=device, requires_grad=x.grad) for x in inputs
        ]
    weights, buffers = fake_state(module, mode)
    trained = [name for name, value in weights.items() if value.requires_grad]
    learned: list[bool] = []
    reached = [False] * len(given)

    def forward(given: Any) -> list[torch.Tensor]:
        made = module(*given)
        return [made[k] for k in outputs]

    def step(weights: Any, buffers: Any, given: Any, arriving: Any) -> tuple[Any, Any]:
        with swapped_state(module, {**weights, **buffers}):
            return both_ways(weights, given, arriving)

    def both_ways(weights: Any, given: Any, arriving: Any) -> tuple[Any, Any]:
        made = forward(given)
        entering = [k for k, x in enumerate(given) if x.requires_grad]
        wanted = [given[k] for k in entering] + [weights[name] for name in trained]
        learned[:] = [x.requires_grad for x in made]
        if not any(learned) or not wanted:
            return made, [None] * len(trained)
        roots = [x for x in made if x.requires_grad]
        found = torch.autograd.grad(roots, wanted, arriving, allow_unused=True)
        for k, x in zip(entering, found, strict=False):
            reached[k] = x is not None
        count = len(entering)
        return [*made, *(x for x in found[:count] if x is not None)], list(found[count:])

    try:
        with mode:
            with swapped_state(module, {**weights, **buffers}):
                made = forward(given)
            arriving = [torch.empty_like(x) for x in made if x.requires_grad]
            traced = make_fx(step)(weights, buffers, given, [x.detach() for x in arriving])
    except Exception as error:  # the user's code may fail in any way
        raise InputError(
            f"a layer cannot be traced: {reason_of(error, module)}; plan it without tensor degrees"
        ) from None
    if traced.graph.find_nodes(op="get_attr"):
        raise InputError(
            "a layer holds a tensor that is no parameter or buffer; register it as a buffer, or "
            "plan it without tensor degrees"
        )
    graph = named_graph(traced, weights, buffers, trained, (given, arriving))
    after = list(graph.graph.nodes)
    last = max(graph.losses[: len(made)], key=after.index)
    ends = [_tensor_name(graph, node) for node in graph.losses]
    left = iter(ends[len(made) :])
    return _Traced(
        replace(graph, losses=(last,)),
        tuple(ends[: len(made)]),
        tuple(learned),
        tuple(next(left) if one else None for one in reached),
    )


def _tensor_name(graph: TrainingGraph, node: fx.Node) -> str:
    """Return the name that a node's tensor has in the program of its graph."""
    while node.op == "call_function" and name_of(node) in SAME:
        node = node.all_input_nodes[0]
    if node.op == "placeholder":
        return graph.names[node.name]
    if node.target is operator.getitem:
        return f"{node.args[0].name}.{node.args[1]}"
    return str(node.name)
