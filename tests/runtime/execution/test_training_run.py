"""Training plans at work: stages with replicas of different number, equal to one process."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="the extra `runtime` is not installed")

from dataclasses import replace  # noqa: E402
from typing import Any  # noqa: E402

from execution_models import MODELS  # noqa: E402
from ranks import on_ranks  # noqa: E402
from torch import nn  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402
from training_run_cases import (  # noqa: E402
    MICROBATCHES,
    alone,
    gradients,
    microbatches,
    plan_of,
    profiled,
    workload_of,
)

from stagecut import InputError  # noqa: E402
from stagecut.instances import StagePlacement  # noqa: E402
from stagecut.instances.pytorch.profile import profile  # noqa: E402
from stagecut.runtime.execution.own_loop.versions import Weights  # noqa: E402
from stagecut.runtime.execution.prepare import training_pieces  # noqa: E402
from stagecut.runtime.execution.stage import StageRunner  # noqa: E402
from stagecut.runtime.execution.stage_modules import stage_modules  # noqa: E402


@pytest.mark.parametrize(
    ("model", "replicas", "schedule", "recompute"),
    [
        ("gpt", (2, 1), "1f1b", True),
        pytest.param("gpt", (1, 3), "gpipe", False, marks=pytest.mark.slow),
        ("mlp", (1, 2, 1), "1f1b", True),
        pytest.param("unet", (2, 2), "zb-h1", False, marks=pytest.mark.slow),
        ("gpt", (1, 1), "zb-h1", "some"),
    ],
)
def test_gradients_are_those_of_one_process(
    model: str, replicas: tuple[int, ...], schedule: str, recompute: bool | str
) -> None:
    done = on_ranks(sum(replicas), gradients, model, replicas, schedule, recompute)
    losses, wanted = alone(model)
    found = {j: loss for own, _ in done for j, loss in own.items()}
    assert found == pytest.approx(losses, rel=1e-5)
    assert len(found) == MICROBATCHES
    assert {name for _, own in done for name in own} == wanted.keys()
    for _, own in done:
        for name, grad in own.items():
            error = (grad - wanted[name]).norm() / wanted[name].norm().clamp_min(1e-12)
            assert error <= 1e-5, name


def test_what_the_runtime_does_not_do_is_refused() -> None:
    done = profiled("mlp")
    workload = workload_of(done)
    plan = plan_of(workload, (2, 1), recompute=False)
    first, second = plan.solution.stages
    wide = replace(
        plan, solution=StagePlacement((replace(first, degree=2), second), plan.solution.device)
    )
    with pytest.raises(InputError, match="tensor degree is 2"):
        training_pieces(MODELS["mlp"]()[0], done, workload, wide)
    with pytest.raises(InputError, match="not in both"):
        training_pieces(MODELS["unet"]()[0], profiled("unet"), workload, plan)


def test_evaluation_reaches_layers_that_recompute() -> None:
    """Dropout within them is off, and running statistics are read."""
    torch.manual_seed(0)
    width = 16
    model = nn.Sequential(
        nn.Linear(width, width), nn.Dropout(0.5), nn.BatchNorm1d(width), nn.Dropout(0.5)
    )
    x = torch.randn(8, width)
    done = profile(model, (x,), training=True, estimate="h100", depth=1)
    workload = workload_of(done)
    plan = plan_of(workload, (1,), recompute="some")
    cut = training_pieces(model, done, workload, plan)
    assert not cut.recompute
    (stage,) = stage_modules(cut)
    torch.testing.assert_close(stage.eval()(x), model.eval()(x))
    assert not torch.equal(stage.train()(x), model(x))


def test_layers_that_recompute_keep_their_inputs_only() -> None:
    done = profiled("gpt")
    workload = workload_of(done)
    (inputs, *_) = microbatches("gpt")
    kept = {}
    for recompute in (False, "some", True):
        plan = plan_of(workload, (1,), recompute=recompute)
        cut = training_pieces(MODELS["gpt"]()[0], done, workload, plan)
        (piece,) = cut.pieces
        layers = [n for n in piece.module.graph.nodes if n.target is checkpoint]
        assert len(layers) == (workload.n // 2 if recompute == "some" else 0)
        assert cut.recompute == ({0} if recompute is True else set())
        saved: list[int] = []
        runner = StageRunner(piece, True, True, recompute=0 in cut.recompute)
        learned = {id(p) for p in piece.module.parameters()}

        def keep(x: torch.Tensor, saved: list[int] = saved, learned: set[int] = learned) -> Any:
            saved.append(0 if id(x) in learned else x.nbytes)
            return x

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
            runner.forward(0, inputs)
        kept[recompute] = sum(saved)
    assert kept[True] < kept["some"] < kept[False]


def test_layers_recompute_with_the_version_of_their_microbatch() -> None:
    (inputs, *_) = microbatches("gpt")
    found = []
    for recompute in (False, "some"):
        done = profiled.__wrapped__("gpt")  # whose weights change here
        workload = workload_of(done)
        plan = plan_of(workload, (1,), recompute=recompute)
        (piece,) = training_pieces(MODELS["gpt"]()[0], done, workload, plan).pieces
        weights = Weights(piece.module, 1)
        runner = StageRunner(replace(piece, module=weights), True, True)
        weights.begin(0, None)
        runner.forward(0, inputs)
        optimizer = torch.optim.SGD(piece.module.parameters(), lr=1.0)
        for parameter in piece.module.parameters():
            parameter.grad = torch.ones_like(parameter)
        weights.step(optimizer)  # before the backward pass
        weights.resume(0)
        runner.backward(0)
        weights.collect(0)
        found.append(weights.rounds[0])
    assert found[0].keys() == found[1].keys()
    for name, gradient in found[0].items():
        torch.testing.assert_close(found[1][name], gradient)


class _Products(TorchDispatchMode):
    """Number of matrix products of forward passes."""

    count = 0

    def __torch_dispatch__(self, call: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += call is torch.ops.aten.addmm.default
        return call(*args, **(kwargs or {}))


def test_layers_recompute_once_in_a_split_backward_pass() -> None:
    model = nn.Sequential(
        *(nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8)) for _ in range(4))
    )
    x = torch.randn(4, 8)
    done = profile(model, (x,), training=True, estimate="h100", depth=1)
    plan = plan_of(workload := workload_of(done), (1, 1), recompute="some")
    cut = training_pieces(model, done, workload, plan)
    first, last = (StageRunner(piece, s == 1, True) for s, piece in enumerate(cut.pieces))
    last.forward(0, first.forward(0, (x,)))
    with _Products() as products:
        last.backward_inputs(0)
        last.backward_weights(0)
    assert products.count == 1, "of one layer of two, up to the inputs of its last product"
