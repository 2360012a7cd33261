"""Every function that takes a model leaves it as it was, whatever its code does at first."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import stagecut
from stagecut import Limits

torch = pytest.importorskip("torch", reason="the extra `runtime` is not installed")

from torch import nn  # noqa: E402
from torch_counts import counted_by_torch  # noqa: E402

from stagecut.instances.pytorch import operator_times  # noqa: E402
from stagecut.instances.pytorch.profile import profile  # noqa: E402
from stagecut.instances.pytorch.tracing.unchanged import unchanged  # noqa: E402
from stagecut.runtime.execution.sharded.prepare import prepare_sharding  # noqa: E402


class Settings:
    """A configuration of a model, with a part of its own."""

    def __init__(self) -> None:
        self.width, self.inner = 8, SimpleNamespace(attention="unset")


class Starts(nn.Module):
    """Settles much when it first runs: hooks, settings, lists, modules, numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))
        self.norm = nn.BatchNorm1d(8)
        self.config, self.seen, self.recent, self.kinds = Settings(), {"calls": 0}, deque(), set()
        self.ready = False
        self.states: list[Any] = []

    def start(self) -> None:
        for layer in self.layers:
            layer.register_forward_hook(lambda _m, _x, out: self.states.append(out))
            layer.register_forward_pre_hook(lambda _m, _x: None)
        self.layers[1].register_full_backward_hook(lambda _m, _x, _y: None)
        self.layers[0].weight.register_hook(lambda gradient: gradient)
        self.register_buffer("scale", torch.ones(8))
        self.extra = nn.Identity()
        self.config.inner.attention, self.config.chosen = "eager", True
        self.ready = True

    def forward(self, x: Any) -> Any:
        if not self.ready:
            self.start()
        self.states = []
        self.seen["calls"] += 1
        self.recent.append(random.random())
        self.kinds.add(float(np.random.rand()))  # noqa: NPY002  # what models use
        for layer in self.layers:
            x = torch.relu(layer(x))
        x = self.norm(x) * self.scale
        assert len(self.states) == 3
        return x.pow(2).mean() + sum(state.mean() for state in self.states)


def state_of(model: Any) -> dict[str, Any]:
    """Return all that there is to a model, hooks, objects and numbers included."""
    found: dict[str, Any] = {}
    for path, module in model.named_modules():
        for key, value in vars(module).items():
            if isinstance(value, dict):
                value = [(name, id(one)) for name, one in value.items()]
            elif isinstance(value, list | deque | set):
                value = [*value]
            found[f"{path}.{key}"] = repr(value) if isinstance(value, Settings) else value
        found[f"{path}.class"] = type(module)
    for name, value in (*model.named_parameters(), *model.named_buffers()):
        hooks = value._backward_hooks
        found[f"{name}!"] = (value.tolist(), value.requires_grad, value.grad, dict(hooks or {}))
    found["settings"] = {**vars(model.config), "inner": vars(model.config.inner).copy()}
    found["random"] = (random.getstate(), str(np.random.get_state()))  # noqa: NPY002
    found["torch"] = torch.get_rng_state().tolist()
    return found


def planned(model: Any, x: Any) -> Any:
    """Plan a model; None if it cannot be exported, and so is refused."""
    with suppress(stagecut.InputError):
        return stagecut.plan(model, x, devices=2, estimate="h100", limits=Limits(seconds=5))
    return None


def sharded(model: Any, x: Any) -> None:
    workload = stagecut.tensor_program(model, (x,), estimate="h100")
    mesh = stagecut.DeviceMesh((1,), (stagecut.Link(1e-6, 1e10),))
    plan = stagecut.solve(workload, problem=stagecut.Sharding(mesh), method="replicate").plan
    prepare_sharding(plan, model, (x,), workload=workload)


def cut(model: Any, x: Any) -> None:
    done = profile(model, (x,), training=True, estimate="h100")
    cluster = done.workload.cluster.with_counts(2, 0)
    plan = stagecut.solve(done.workload, cluster, method="greedy").plan
    stagecut.split_model(plan, model, (x,), workload=done.workload)


TAKERS: dict[str, Callable[[Any, Any], Any]] = {
    "profile": lambda model, x: profile(model, (x,), training=True, estimate="h100"),
    "profile, evaluation": lambda model, x: profile(model, (x,), estimate="h100"),
    "profile, measured": lambda model, x: profile(model, (x,), training=True),
    "plan": planned,
    "stages": lambda model, x: (made := planned(model, x)) and made.stages(model),
    "split_model": cut,
    "tensor_program": lambda model, x: stagecut.tensor_program(model, (x,), estimate="h100"),
    "tensor_program, measured": lambda model, x: stagecut.tensor_program(model, (x,)),
    "prepare_sharding": sharded,
    "counted_by_torch": lambda model, x: counted_by_torch(model, (x,), training=True),
}


@pytest.mark.parametrize("taker", TAKERS)
@pytest.mark.parametrize(
    "ready",
    [
        pytest.param(False, id="first run", marks=pytest.mark.slow),
        pytest.param(True, id="run before"),
    ],
)
def test_functions_that_take_a_model_leave_it_as_it_was(
    taker: str, ready: bool, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(operator_times, "BUDGET_S", 0.0)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    torch.manual_seed(0)
    model, x = Starts(), torch.randn(16, 8)
    if ready:
        model(x).backward()
    before = state_of(model)
    TAKERS[taker](model, x)
    after = state_of(model)
    assert before.keys() == after.keys()
    assert [key for key in before if before[key] != after[key]] == []
    assert torch.isfinite(model(x))
    assert len(model.states) == 3


def test_parameters_are_trained_and_heard_of_as_before() -> None:
    model = nn.Linear(2, 2)
    model.bias.requires_grad_(False)
    model.weight.register_hook(lambda gradient: gradient)
    hooks = dict(model.weight._backward_hooks)
    with unchanged(model):
        model.bias.requires_grad_(True)
        model.weight.register_hook(lambda gradient: 2 * gradient)
        model.weight.requires_grad_(False)
    assert (model.weight.requires_grad, model.bias.requires_grad) == (True, False)
    assert dict(model.weight._backward_hooks) == hooks
