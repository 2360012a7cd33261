"""Calls of a training graph's operators on numbers, and the parts that devices have of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from sharded_models import MODELS
from torch import Tensor, fx

from stagecut.instances.model.tensor_program import COPIED, PARTIAL, Signature
from stagecut.instances.pytorch.tensor_rules import CONSTANTS, name_of, signatures_of
from stagecut.instances.pytorch.tensor_trace import training_graph
from stagecut.instances.pytorch.tensors import SAME, tensor_arguments

#: A node, its arguments with whole tensors, and what it makes of them.
CallOnNumbers = tuple[fx.Node, tuple[Any, ...], dict[str, Any], Any]


def calls_of(name: str) -> list[CallOnNumbers]:
    """Return every call of a model's training graph with the numbers that it reads and makes."""
    model, inputs = MODELS[name]()
    traced = training_graph(model, inputs, {})
    found: list[CallOnNumbers] = []

    class Watching(torch.fx.Interpreter):
        def run_node(self, node: Any) -> Any:
            args, kwargs = self.fetch_args_kwargs_from_env(node)
            before = fx.node.map_aggregate(
                args, lambda x: x.clone() if isinstance(x, Tensor) else x
            )
            made = super().run_node(node)
            if node.op == "call_function" and "getitem" not in str(node.target):
                found.append((node, before, kwargs, made))
            return made

    for node in traced.graph.nodes:  # all is computed with twice the digits
        if node.kwargs.get("dtype") is torch.float32:
            node.kwargs = {**node.kwargs, "dtype": torch.float64}
    graph = fx.GraphModule(torch.nn.Module(), traced.graph)
    given = {
        **{name: p.detach().double() for name, p in model.named_parameters()},
        **{name: b.clone() for name, b in model.named_buffers()},
        **{f"input {k}": one for k, one in enumerate(inputs)},
        **traced.constants,
    }
    placeholders = [n for n in traced.graph.nodes if n.op == "placeholder"]
    whole = [given[traced.names[n.name]] if n.name in traced.names else None for n in placeholders]
    doubled = [v.double() if v is not None and v.is_floating_point() else v for v in whole]
    Watching(graph).run(*doubled, enable_io_processing=False)
    return found


def signed_calls(
    name: str, sizes: tuple[int, ...]
) -> Iterator[tuple[CallOnNumbers, Signature | None, int]]:
    """Yield every call with each signature that numbers of devices allow; None without a rule."""
    for call in calls_of(name):
        node = call[0]
        arguments = [one.meta["val"] for one in tensor_arguments(node)]
        around = [*arguments, *tensors_of(node.meta["val"])]
        if name_of(node) in SAME or not (arguments or name_of(node) in CONSTANTS):
            continue
        shapes = [tuple(v.shape) for v in around]
        found = signatures_of(node, shapes[: len(arguments)], shapes[len(arguments) :])
        if found is None:
            yield call, None, 1
        for signature in found or ():
            partial = zip(signature.inputs + signature.outputs, around, strict=True)
            if any(how == PARTIAL and not value.is_floating_point() for how, value in partial):
                continue
            for devices in sizes:
                if signature.extent == 1 or signature.extent % devices == 0:
                    yield call, signature, devices


def tensors_of(made: Any) -> list[Tensor]:
    """Return the tensors among what a call makes."""
    several = made if isinstance(made, tuple | list) else [made]
    return [one for one in several if isinstance(one, Tensor)]


def parts_of(whole: Tensor, how: int, devices: int, generator: torch.Generator) -> list[Tensor]:
    """Return what each device has of a tensor."""
    if how == COPIED:
        return [whole.clone() for _ in range(devices)]
    if how == PARTIAL:
        first = [
            torch.randn(whole.shape, generator=generator, dtype=whole.dtype)
            for _ in range(devices - 1)
        ]
        return [*first, whole - sum(first)]
    return [one.contiguous() for one in whole.chunk(devices, how)]


def replaced(given: Any, of_tensor: Callable[[Tensor], Any]) -> Any:
    """Return arguments of a call with something else in place of each tensor, in order."""
    return fx.node.map_aggregate(given, lambda x: of_tensor(x) if isinstance(x, Tensor) else x)
