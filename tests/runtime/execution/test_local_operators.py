"""Every rule on numbers: parts computed under a signature, put together, are the whole."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from sharded_models import MODELS  # noqa: E402

from stagecut.instances import Signature  # noqa: E402
from stagecut.instances.model.sharding.program import COPIED, PARTIAL  # noqa: E402
from stagecut.instances.pytorch.tensors.program import SAME, tensor_arguments  # noqa: E402
from stagecut.instances.pytorch.tensors.rules import (  # noqa: E402
    CONSTANTS,
    name_of,
    signatures_of,
)
from stagecut.instances.pytorch.tensors.trace import training_graph  # noqa: E402
from stagecut.runtime.execution.sharded.local import Call, compute  # noqa: E402


def values_of(name: str) -> list[tuple[Any, list[Any], dict[str, Any], Any]]:
    """Every call of a model's training graph with the numbers that it reads and makes."""
    model, inputs = MODELS[name]()
    traced = training_graph(model, inputs, {})
    found = []

    class Watching(torch.fx.Interpreter):
        def run_node(self, node: Any) -> Any:
            made = super().run_node(node)
            if node.op == "call_function" and "getitem" not in str(node.target):
                args, kwargs = self.fetch_args_kwargs_from_env(node)
                found.append((node, args, kwargs, made))
            return made

    for node in traced.graph.nodes:  # all is computed with twice the digits
        if node.kwargs.get("dtype") is torch.float32:
            node.kwargs = {**node.kwargs, "dtype": torch.float64}
    graph = torch.fx.GraphModule(torch.nn.Module(), traced.graph)
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


def part(tensor: Any, how: int, devices: int, generator: Any) -> list[Any]:
    """What each device has of a tensor."""
    if how == COPIED:
        return [tensor] * devices
    if how == PARTIAL:
        first = [torch.randn(tensor.shape, generator=generator, dtype=tensor.dtype)
                 for _ in range(devices - 1)]  # fmt: skip
        return [*first, tensor - sum(first)]
    return [one.contiguous() for one in tensor.chunk(devices, how)]


def whole(parts: list[Any], how: int) -> Any:
    """The tensor that the devices have."""
    if how == COPIED:
        for other in parts[1:]:
            torch.testing.assert_close(other, parts[0])
        return parts[0]
    return sum(parts) if how == PARTIAL else torch.cat(parts, how)


def on_all(calls: list[Call]) -> list[Any]:
    """What the devices of a mesh of one axis make, exchanging what they yield."""
    running = [compute(call) for call in calls]
    sent: list[Any] = [None] * len(calls)
    while True:
        results, waiting = [], []
        for generator, value in zip(running, sent, strict=True):
            try:
                waiting.append(generator.send(value))
            except StopIteration as done:
                results.append(done.value)
        if results:
            assert not waiting
            return results
        tensors = [one.tensor for one in waiting]
        stacked = torch.stack(tensors)
        both = stacked.sum(0) if waiting[0].how == "sum" else stacked.amax(0)
        sent = [both] * len(calls)


def check(node: Any, args: Any, kwargs: Any, made: Any, signature: Signature, devices: int) -> None:
    """Compute a call on parts and compare."""
    generator = torch.Generator().manual_seed(0)
    outputs = list(made) if isinstance(made, tuple | list) else [made]
    present = [m for m in outputs if isinstance(m, torch.Tensor)]
    arguments = tensor_arguments(node)
    calls = []
    slots = itertools.count()
    parts: list[list[Any]] = []

    def split(value: Any) -> Any:
        if isinstance(value, torch.Tensor) and arguments:  # what a constant is like stays whole
            parts.append(part(value, signature.inputs[next(slots)], devices, generator))
            return len(parts) - 1, "slot"
        return value

    def walk(value: Any, turn: Any) -> Any:
        if isinstance(value, list):
            return [walk(one, turn) for one in value]
        return turn(value)

    marked = [walk(one, split) for one in args]
    named = {key: walk(one, split) for key, one in kwargs.items()}
    assert len(parts) == len(arguments)
    for d in range(devices):

        def of_device(value: Any, d: int = d) -> Any:
            slot = isinstance(value, tuple) and len(value) == 2 and value[1] == "slot"
            return parts[value[0]][d] if slot else value

        calls.append(
            Call(
                name_of(node), node.target,
                tuple(walk(one, of_device) for one in marked),
                {key: walk(one, of_device) for key, one in named.items()},
                [(one,) for one in signature.inputs], [(one,) for one in signature.outputs],
                [tuple(m.shape) for m in present], (devices,), (d,),
            )
        )  # fmt: skip
    results = on_all(calls)
    listed = [list(r) if isinstance(r, tuple | list) else [r] for r in results]
    kept = [[m for m in row if isinstance(m, torch.Tensor)] for row in listed]
    for k, how in enumerate(signature.outputs):
        together = whole([row[k] for row in kept], how)
        torch.testing.assert_close(
            together.to(present[k].dtype), present[k], rtol=1e-5, atol=1e-7,
            msg=lambda said: f"{node.name} {signature.text} on {devices}: {said}",
        )  # fmt: skip


@pytest.mark.parametrize("name", sorted(MODELS))
def test_every_signature_recombined_is_the_whole_operator(name: str) -> None:
    checked = 0
    unruled = set()
    for node, args, kwargs, made in values_of(name):
        arguments = [one.meta["val"] for one in tensor_arguments(node)]
        values = node.meta["val"]
        several = values if isinstance(values, tuple | list) else [values]
        outputs = [tuple(v.shape) for v in several if isinstance(v, torch.Tensor)]
        shapes = [tuple(v.shape) for v in arguments]
        if name_of(node) in SAME or not (arguments or name_of(node) in CONSTANTS):
            continue
        found = signatures_of(node, shapes, outputs)
        if found is None:
            unruled.add(name_of(node))
            continue
        whole_numbers = any(
            not v.is_floating_point() for v in (*arguments, *several) if isinstance(v, torch.Tensor)
        )
        for signature, devices in itertools.product(found, (2, 3, 4)):
            if signature.extent > 1 and signature.extent % devices:
                continue
            partial = PARTIAL in signature.inputs + signature.outputs
            if partial and whole_numbers and not _floating(signature, arguments, several):
                continue
            check(node, args, kwargs, made, signature, devices)
            checked += 1
    assert checked > 200
    assert unruled == set()


def _floating(signature: Signature, arguments: Any, several: Any) -> bool:
    around = [*arguments, *(v for v in several if isinstance(v, torch.Tensor))]
    both = zip(signature.inputs + signature.outputs, around, strict=True)
    return all(one != PARTIAL or value.is_floating_point() for one, value in both)
