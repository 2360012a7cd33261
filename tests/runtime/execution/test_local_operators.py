"""Every rule on numbers: parts computed under a signature, put together, are the whole."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from sharded_calls import (  # noqa: E402
    CallOnNumbers,
    parts_of,
    replaced,
    signed_calls,
    tensors_of,
)
from sharded_models import MODELS  # noqa: E402
from torch.fx.node import map_aggregate  # noqa: E402

from stagecut.instances import Signature  # noqa: E402
from stagecut.instances.model.tensor_program import COPIED, PARTIAL  # noqa: E402
from stagecut.instances.pytorch.tensor_rules import CONSTANTS, name_of  # noqa: E402
from stagecut.instances.pytorch.tensors import tensor_arguments  # noqa: E402
from stagecut.runtime.execution.sharded.local import Call, compute  # noqa: E402


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


def check(call: CallOnNumbers, signature: Signature, devices: int) -> None:
    """Compute a call on parts and compare."""
    node, args, kwargs, made = call
    generator = torch.Generator().manual_seed(0)
    present = tensors_of(made)
    lying = iter(signature.inputs)
    parts: list[list[Any]] = []

    def split(value: Any) -> Any:
        if name_of(node) in CONSTANTS:  # what a constant is like stays whole
            return value
        parts.append(parts_of(value, next(lying), devices, generator))
        return Slot(len(parts) - 1)

    marked, named = replaced(args, split), replaced(kwargs, split)
    assert len(parts) == len(signature.inputs)
    calls = []
    for d in range(devices):

        def of_device(value: Any, d: int = d) -> Any:
            return parts[value.number][d] if isinstance(value, Slot) else value

        calls.append(
            Call(
                name_of(node), node.target,
                map_aggregate(marked, of_device), map_aggregate(named, of_device),
                [(one,) for one in signature.inputs], [(one,) for one in signature.outputs],
                [tuple(m.shape) for m in present], (devices,), (d,),
                torch.device("cpu"),
            )
        )  # fmt: skip
    kept = [tensors_of(result) for result in on_all(calls)]
    for k, how in enumerate(signature.outputs):
        together = whole([row[k] for row in kept], how)
        torch.testing.assert_close(
            together.to(present[k].dtype), present[k], rtol=1e-5, atol=1e-7,
            msg=lambda said: f"{node.name} {signature.text} on {devices}: {said}",
        )  # fmt: skip


@dataclass(frozen=True)
class Slot:
    """Place of a tensor's parts in a call."""

    number: int


#: Operators that are whole under some options.
WHOLE = ("nll_loss_forward", "nll_loss_backward", "embedding_dense_backward",
         "max_pool2d_with_indices", "max_pool2d_with_indices_backward")  # fmt: skip


@pytest.mark.parametrize("name", sorted(MODELS))
def test_every_signature_recombined_is_the_whole_operator(name: str) -> None:
    checked = 0
    for call, signature, devices in signed_calls(name, (2, 3, 4)):
        if signature is None:  # an operator without a rule
            assert name_of(call[0]) in WHOLE
            count = len(tensor_arguments(call[0])), len(tensors_of(call[3]))
            signature = Signature((COPIED,) * count[0], (COPIED,) * count[1])
        check(call, signature, devices)
        checked += 1
    assert checked > 200


ATEN = torch.ops.aten
LOG, ONE = torch.linspace(-2, 1, 12).reshape(3, 4), torch.ones(())
CLASSES, WEIGHTS = torch.tensor([0, 2, 1]), torch.tensor([0.5, 0.25, 0.75, 1.0])


@pytest.mark.parametrize(
    ("operator", "args"),
    [
        (ATEN.nll_loss_forward, (LOG, CLASSES, WEIGHTS, 1, -100)),
        (ATEN.nll_loss_forward, (LOG, CLASSES, None, 0, -100)),
        (ATEN.nll_loss_backward, (ONE, LOG, CLASSES, WEIGHTS, 1, -100, WEIGHTS[CLASSES].sum())),
        (ATEN.embedding_dense_backward, (LOG, CLASSES, 3, 1, True)),
    ],
    ids=("weights", "by sample", "gradient", "embedding"),
)
def test_whole_tensors_are_computed_with_all_options(operator: Any, args: tuple[Any, ...]) -> None:
    """Options without a rule for parts: weights of classes, no reduction, counts of words."""
    wanted = operator(*args)
    lying = [(COPIED,)] * len(args)
    call = Call(
        operator._qualified_op_name.split("::")[1], operator.default, args, {}, lying, lying,
        [tuple(one.shape) for one in tensors_of(wanted)], (2,), (0,), torch.device("cpu"),
    )  # fmt: skip
    for one, other in zip(tensors_of(on_all([call])[0]), tensors_of(wanted), strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("shared", [4, 2])
@pytest.mark.parametrize("causal", [False, True])
def test_attention_off_the_cpu_is_the_cpus_kernel(causal: bool, shared: int) -> None:
    """What runs where the kernel that was traced does not: compared here, on the CPU."""
    torch.manual_seed(0)
    q, k, v, gradient = (torch.randn(2, n, 5, 8).double() for n in (4, shared, shared, 4))
    kernel = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    later = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
    made, rows = kernel(q, k, v, 0.0, causal, scale=0.2)
    wanted = later(gradient, q, k, v, made, rows, 0.0, causal, scale=0.2)
    shapes, lying = [tuple(made.shape), tuple(rows.shape)], [(COPIED,)] * 7

    def found(kind: Any, *args: Any) -> Any:
        running = compute(Call(
            kind._qualified_op_name.split("::")[1], kind.default, args, {"scale": 0.2},
            lying, lying, shapes, (1,), (0,), torch.device("meta"),
        ))  # fmt: skip
        with pytest.raises(StopIteration) as done:
            next(running)
        return done.value.value

    torch.testing.assert_close(found(kernel, q, k, v, 0.0, causal)[0], made)
    again = found(later, gradient, q, k, v, made, rows, 0.0, causal)
    for one, other in zip(again, wanted, strict=True):
        torch.testing.assert_close(one, other)


def test_operators_in_place_write_into_zeros_of_what_is_elsewhere() -> None:
    """A device without a share of partial sums has zeros that take no memory."""
    values = torch.ones(4, 3)
    call = Call(
        "mul", torch.ops.aten.mul_.Tensor, (torch.zeros(()).expand(4, 3), values), {},
        [(PARTIAL,), (COPIED,)], [(PARTIAL,)], [(4, 3)], (2,), (1,), torch.device("cpu"),
    )  # fmt: skip
    assert torch.equal(on_all([call])[0], torch.zeros(4, 3))
