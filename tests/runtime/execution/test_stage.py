"""Pieces at work in one process: backward passes in two halves, frozen weights, recomputation."""

from __future__ import annotations

import copy
import weakref
from collections.abc import Sequence

import pytest

torch = pytest.importorskip("torch", reason="the extra `runtime` is not installed")

from execution_cases import scattered  # noqa: E402
from execution_models import MODELS  # noqa: E402
from torch import nn  # noqa: E402

from stagecut import StagecutError  # noqa: E402
from stagecut.instances.pytorch.profile import profile  # noqa: E402
from stagecut.runtime.execution.split import split  # noqa: E402
from stagecut.runtime.execution.stage import StageRunner, Tensors, mean_loss  # noqa: E402


def stages_of(
    model: nn.Module, inputs: Tensors, seed: int, microbatches: int, recompute: bool = False
) -> list[StageRunner]:
    done = profile(model, inputs, training=True, estimate="h100")
    pieces = split(done, scattered(done, 3, seed))
    last = len(pieces) - 1
    return [StageRunner(p, p.index == last, True, microbatches, recompute) for p in pieces]


def run(stages: Sequence[StageRunner], batch: Sequence[Tensors], halves: bool) -> None:
    """All forward passes, then all backward passes, then what is left of them."""
    for j, values in enumerate(batch):
        for stage in stages:
            values = stage.forward(j, values)
    for j in range(len(batch)):
        gradients: Tensors = ()
        for stage in reversed(stages):
            gradients = (stage.backward_inputs if halves else stage.backward)(j, gradients)
        assert gradients == ()  # nothing wants those of the model's inputs
    if halves:
        for stage in stages:
            for j in range(len(batch)):
                stage.backward_weights(j)


def check(model: nn.Module, alone: nn.Module) -> None:
    for (name, p), q in zip(model.named_parameters(), alone.parameters(), strict=True):
        if not q.requires_grad:
            assert p.grad is None
            continue
        assert p.grad is not None, name
        assert q.grad is not None
        assert (p.grad - q.grad).norm() <= 1e-5 * q.grad.norm().clamp_min(1e-12), name


@pytest.mark.parametrize(
    ("name", "halves", "recompute"),
    [
        pytest.param(name, halves, not halves, marks=[pytest.mark.slow] * ((k + halves) % 2))
        for k, name in enumerate(MODELS)
        for halves in (True, False)
    ],
)
def test_halves_and_recomputation(name: str, halves: bool, recompute: bool) -> None:
    model, inputs = MODELS[name]()
    model.train()
    frozen = next(model.parameters())
    frozen.requires_grad_(name == "gpt")  # its first weight is tied: keep it
    alone = copy.deepcopy(model)
    stages = stages_of(model, inputs, 1, 2, recompute)
    batch = [inputs, tuple(1.1 * x if x.is_floating_point() else x for x in inputs)]
    run(stages, batch, halves)
    for values in batch:
        found = alone(*values)
        (mean_loss(found if isinstance(found, tuple) else (found,)) / 2).backward()
    check(model, alone)
    assert not any(stage.in_flight for stage in stages)


class Shared(nn.Module):
    """One weight at several depths, beside the way from the input, and in products of weights."""

    def __init__(self) -> None:
        super().__init__()
        self.w, self.v = nn.Parameter(torch.eye(4) / 2), nn.Parameter(torch.ones(4, 4) / 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        product = self.w @ self.v
        y = torch.tanh(x @ self.w) @ product
        z = torch.tanh(y @ self.w + product.sum(0))
        return (z * (self.v @ self.w).exp()).square().sum()


def test_a_weight_in_many_places_gets_its_gradient_once() -> None:
    torch.manual_seed(0)
    model, x = Shared(), torch.randn(4, 4)
    first = nn.Linear(4, 4)

    class Whole(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.rest = first, model

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.rest(self.first(x))

    whole = Whole()
    alone = copy.deepcopy(whole)
    done = profile(whole, (x,), training=True, estimate="h100")
    device = [int(not str(node).startswith("linear")) for node in done.workload.ids]
    pieces = split(done, device)
    stages = [StageRunner(p, p.index == len(pieces) - 1, True) for p in pieces]
    assert len(stages) == 2
    run(stages, [(x,)], halves=True)
    alone(x).backward()
    check(whole, alone)


def test_outputs_are_not_kept_in_training() -> None:
    """Logits of all microbatches would take more memory than planned."""
    model, inputs = MODELS["gpt"]()
    *_, last = stages = stages_of(model, inputs, 0, 1)
    values = inputs
    for stage in stages:
        values = stage.forward(0, values)
    kept = [weakref.ref(x) for x in values]
    del values
    last.backward(0)
    assert not any(x() is not None for x in kept)


def test_an_inference_has_the_models_loss() -> None:
    with torch.no_grad():
        assert mean_loss((torch.ones(3, dtype=torch.long), torch.ones(3), torch.tensor(5.0))) == 5


def test_a_failure_names_piece_and_action() -> None:
    model, inputs = MODELS["mlp"]()
    stages = stages_of(model, inputs, 0, 1)
    with pytest.raises(StagecutError, match=r"piece 0: 0F3 failed: .*must have the same"):
        stages[0].forward(3, [x.double() if x.is_floating_point() else x for x in inputs])
