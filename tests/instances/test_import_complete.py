"""A profile has all of a model: what tracing loses is refused, and meta costs what a CPU does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest

from stagecut import InputError

torch = pytest.importorskip("torch", reason="the extra `runtime` is not installed")

from odd_models import CASES  # noqa: E402
from torch import nn  # noqa: E402
from torch._higher_order_ops.while_loop import while_loop  # noqa: E402
from torch.nn import functional as F  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402
from torch.utils.flop_counter import FlopCounterMode  # noqa: E402
from torch_counts import custom_mapping  # noqa: E402

from stagecut.instances.pytorch.profile import profile  # noqa: E402
from stagecut.instances.pytorch.record import KernelRecorder  # noqa: E402
from stagecut.instances.pytorch.recorded_model import (  # noqa: E402
    check_complete,
    record_model,
)
from stagecut.instances.pytorch.tensors import tensor_program  # noqa: E402


class Around(nn.Module):
    """Layers around a function of two more."""

    def __init__(self, function: Callable[[Any, Any, Any], Any]) -> None:
        super().__init__()
        self.stem, self.a, self.b, self.head = (nn.Linear(8, 8) for _ in range(4))
        self.function = function

    def forward(self, x: Any) -> Any:
        return self.head(self.function(self.a, self.b, torch.relu(self.stem(x))))


def cond(a: Any, b: Any, x: Any) -> Any:
    return torch.cond(x.sum() > 0, lambda v: a(v), lambda v: b(v), (x,))


def cond_without_gradient(a: Any, b: Any, x: Any) -> Any:
    with torch.no_grad():
        return cond(a, b, x)


def loop(a: Any, b: Any, x: Any) -> Any:
    zero = torch.zeros((), dtype=torch.int64)
    return while_loop(lambda i, _: i < 3, lambda i, v: (i + 1, b(a(v))), (zero, x))[1]


def mapped(a: Any, b: Any, x: Any) -> Any:
    return torch._higher_order_ops.map(lambda row: b(a(row)), x)


@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize("function", [cond, cond_without_gradient, loop, mapped])
def test_operators_that_hold_graphs_are_refused(function: Any, device: str) -> None:
    with torch.device(device):
        model, x = Around(function), torch.randn(4, 8)
    with pytest.raises(InputError, match=r"operator (cond|while_loop|map\w*) \(in ") as error:
        profile(model, (x,), estimate="h100")
    assert "\n" not in str(error.value)


def test_training_graphs_refuse_them_too() -> None:
    with pytest.raises(InputError, match="operator cond"):
        tensor_program(Around(cond), (torch.randn(4, 8),), estimate="h100")


def gated(a: Any, b: Any, x: Any) -> Any:
    return torch.sigmoid(a(x)) * b(x) + x


@pytest.mark.parametrize("training", [False, True])
def test_a_graph_that_lost_any_operator_is_no_profile(training: bool) -> None:
    model, args = Around(gated), (torch.randn(4, 8),)
    recorded = record_model(model, args, {}, training)
    check = partial(check_complete, model, args, {}, training, recorded.recording)
    check(recorded.graph)
    forward = [v for v, op in enumerate(recorded.graph.operators) if not op.backward]
    for lost in forward:
        flows = tuple(f for f in recorded.graph.flows if lost not in (f.source, f.target))
        operators = list(recorded.graph.operators)
        operators[lost] = replace(operators[lost], parts=[])
        with pytest.raises(InputError, match="its trace is not the model"):
            check(replace(recorded.graph, flows=flows, operators=tuple(operators)))


@pytest.mark.parametrize("seed", range(8))
def test_a_graph_that_lost_the_only_edge_between_two_operators_is_no_profile(seed: int) -> None:
    model, args = nn.Sequential(*(nn.Linear(8, 8) for _ in range(5))), (torch.randn(4, 8),)
    recorded = record_model(model, args, {}, False)
    flows = list(recorded.graph.flows)
    del flows[int(np.random.default_rng(seed).integers(len(flows)))]
    with pytest.raises(InputError, match="its output 0 does not depend on"):
        check_complete(
            model, args, {}, False, recorded.recording, replace(recorded.graph, flows=tuple(flows))
        )


def attends(causal: bool, mask: str, dtype: str) -> tuple[nn.Module, tuple[Any, ...]]:
    """Return attention with two heads, its mask a flag, Boolean, additive, or none."""

    class Attends(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(16, 48), nn.Linear(16, 16)

        def forward(self, x: Any, hidden: Any) -> Any:
            q, k, v = self.a(x).view(2, 6, 3, 2, 8).permute(2, 0, 3, 1, 4)
            y = F.scaled_dot_product_attention(q, k, v, hidden, is_causal=causal)
            places = torch.arange(16, device=x.device, dtype=x.dtype)
            return self.b(y.transpose(1, 2).flatten(2)) + places

    kind = getattr(torch, dtype)
    masks = {"none": None, "bool": torch.ones(6, 6).tril().bool(), "float": torch.zeros(6, 6)}
    hidden = masks[mask] if mask != "float" else masks[mask].to(kind)
    return Attends().to(kind), (torch.randn(2, 6, 16, dtype=kind), hidden)


def same_on_meta(make: Callable[[], Any], training: bool) -> None:
    here = make()
    with torch.device("meta"):
        there = make()
    workloads = [
        profile(model, args, kwargs, training=training, estimate="h100").workload
        for model, args, kwargs in (here, there)
    ]
    assert workloads[0].fingerprint == workloads[1].fingerprint
    for key, values in workloads[0].extra.items():
        assert values.tolist() == workloads[1].extra[key].tolist(), key


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("dtype", [pytest.param("float32", marks=pytest.mark.slow), "bfloat16"])
@pytest.mark.parametrize(
    ("causal", "mask"), [(False, "none"), (True, "none"), (False, "bool"), (False, "float")]
)
def test_attention_costs_the_same_on_meta(
    causal: bool, mask: str, dtype: str, training: bool
) -> None:
    same_on_meta(lambda: (*attends(causal, mask, dtype), {}), training)


@pytest.mark.parametrize(
    "name",
    [
        "attention_with_weights", "autocast", "buffers_that_change", "checkpointed", "lstm",
        "tied_weights",
        *(pytest.param(n, marks=pytest.mark.slow)
          for n in ("bfloat16", "complex_numbers", "custom_autograd", "multihead_attention")),
    ],
)  # fmt: skip
def test_models_cost_the_same_on_meta(name: str) -> None:
    same_on_meta(CASES[name], training=True)


@pytest.mark.parametrize(("rows", "columns"), [(6, 6), (4, 9), (9, 4)])
def test_a_causal_mask_saves_what_kernels_skip(rows: int, columns: int) -> None:
    q = torch.randn(2, 3, rows, 8, requires_grad=True)
    k = torch.randn(2, 3, columns, 8, requires_grad=True)
    found = []
    for causal in (False, True):
        counter = FlopCounterMode(display=False, custom_mapping=custom_mapping())
        with KernelRecorder() as watch, counter:
            F.scaled_dot_product_attention(q, k, k, is_causal=causal).sum().backward()
        found.append(sum(kernel.flops for kernel in watch.kernels))
        assert found[-1] == counter.get_total_flops()
        seen = torch.ones(rows, columns).tril() if causal else torch.ones(rows, columns)
        assert found[-1] == 3.5 * 2 * 6 * 16 * float(seen.sum())


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.scale = nn.Linear(8, 8), nn.Parameter(torch.randn(8))

    def forward(self, x: Any, shift: Any = None, _flag: bool = True) -> Any:
        return torch.relu(self.a(x)) * self.scale + shift


class Holder:
    def __init__(self, layer: Any, shift: Any) -> None:
        self.layer, self.shift = layer, shift

    def run(self, x: Any) -> Any:
        return self.layer(x, self.shift)


#: Ways to hand a layer and a tensor to `checkpoint`, as models of libraries do.
WAYS: dict[str, Callable[[Any, Any, Any], Any]] = {
    "call": lambda f, x, s: checkpoint(f, x, s, use_reentrant=False),
    "partial of a call": lambda f, x, s: checkpoint(
        partial(f.__call__, shift=s, _flag=False), x, use_reentrant=False
    ),
    "partial of a function": lambda f, x, s: checkpoint(
        partial(Layer.forward, f, shift=s), x, use_reentrant=False
    ),
    "partial of a partial": lambda f, x, s: checkpoint(
        partial(partial(lambda f, s, x: f(x, s), f), s), x, use_reentrant=False
    ),
    "closure": lambda f, x, s: checkpoint(lambda v: f(v, s), x, use_reentrant=False),
    "closure of a list": lambda f, x, s: checkpoint(
        lambda v, held=[s]: f(v, held[0]),
        x,
        use_reentrant=False,
    ),
    "method": lambda f, x, s: checkpoint(Holder(f, s).run, x, use_reentrant=False),
    "module as an argument": lambda f, x, s: checkpoint(
        lambda f, v, s: f(v, s), f, x, s, use_reentrant=False
    ),
}


class Checkpoints(nn.Module):
    def __init__(self, way: str) -> None:
        super().__init__()
        self.first, self.way = nn.Linear(8, 8), WAYS[way]
        self.layers = nn.ModuleList(Layer() for _ in range(3))

    def forward(self, x: Any) -> Any:
        shift = self.first(x)
        for layer in self.layers:
            x = self.way(layer, x, shift)
        return x.pow(2).mean()


@pytest.mark.parametrize("way", WAYS)
def test_checkpointed_layers_are_parts_however_they_are_called(way: str) -> None:
    torch.manual_seed(0)
    model, x = Checkpoints(way), torch.randn(4, 8)
    traced = profile(model, (x,), training=True, estimate="h100").traced
    assert traced.because == "layers.0, layers.1, layers.2: activation checkpointing"
    found = []
    for run in (model, traced.module):
        loss = run(x)
        found.append((loss, *torch.autograd.grad(loss, list(model.parameters()))))
    for own, other in zip(*found, strict=True):
        torch.testing.assert_close(own, other)
    assert tensor_program(model, (x,), estimate="h100").program is not None


@pytest.mark.parametrize(
    "shift",
    [
        lambda m: m.held,
        lambda _: torch.tensor(2.0),
        lambda _: torch.tensor([1.0 * k for k in range(8)]),
        lambda m: m.held + torch.tensor(0.5),
    ],
)
def test_constants_are_tensors_of_the_program(shift: Callable[[Any], Any]) -> None:
    class Shifts(nn.Linear):
        def forward(self, x: Any) -> Any:
            return (super().forward(x) + shift(self)).pow(2).mean()

    model, x = Shifts(8, 8), (torch.randn(4, 8),)
    model.held = torch.randn(8)
    for estimate in ("h100", None):
        program = tensor_program(model, x, estimate=estimate).program
        assert program is not None
        constants = [o for o in program.operators if o.kind == "constant"]
        assert all(o.role == "parameter" and o.gradient is None for o in constants)
        assert 1 <= len(constants) <= 2
        assert not program.unruled
