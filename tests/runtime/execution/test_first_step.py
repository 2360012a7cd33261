"""The check of a first step: right gradients pass, and wrong ones are told by their parameter."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from stagecut import InputError, StagecutError

torch = pytest.importorskip("torch", reason="the extra `runtime` is not installed")

from torch import nn  # noqa: E402

from stagecut.runtime.execution.checkpoint import Trained  # noqa: E402
from stagecut.runtime.execution.options import RunOptions  # noqa: E402
from stagecut.runtime.execution.steps import (  # noqa: E402
    FirstStep,
    by_one_process,
    check_first_step,
)

HERE = torch.device("cpu")


class Net(nn.Module):
    """Two layers, dropout between them, and the loss."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.drop, self.b = nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 4)

    def forward(self, x: torch.Tensor, *, y: torch.Tensor) -> torch.Tensor:
        return nn.functional.mse_loss(self.b(self.drop(self.a(x))), y)


def batch() -> list[Any]:
    return [((torch.randn(3, 4),), {"y": torch.randn(3, 4)}) for _ in range(2)]


def trained(model: nn.Module, given: list[Any]) -> tuple[float, Trained]:
    """Return the loss and the parameters with their gradients."""
    losses = [model(*args, **kwargs) for args, kwargs in given]
    loss = torch.stack(losses).mean()
    loss.backward()
    return loss.item(), Trained(dict(model.named_parameters()), {}, [])


def test_the_same_step_passes_and_nothing_else_changes() -> None:
    model, given = Net(), batch()
    torch.manual_seed(7)
    expected = by_one_process(model, given, HERE)
    assert all(parameter.grad is None for parameter in model.parameters())
    check_first_step(*trained(model, given), expected)  # it draws the same numbers for dropout


@pytest.mark.parametrize("fault", ["half", "lost", "noise"])
def test_a_wrong_gradient_is_told_by_its_parameter(fault: str) -> None:
    model, given = Net(), batch()
    torch.manual_seed(7)
    expected = by_one_process(model, given, HERE)
    loss, held = trained(model, given)
    gradient = model.b.weight.grad
    assert gradient is not None
    wrong = {"half": gradient / 2, "lost": None, "noise": gradient + 0.01 * gradient.norm()}
    model.b.weight.grad = wrong[fault]
    with pytest.raises(StagecutError, match=r"gradient of b\.weight is off by"):
        check_first_step(loss, held, expected)


def test_a_model_that_has_learned_everything_is_compared_too() -> None:
    model, given = Net(), [((torch.zeros(3, 4),), {"y": torch.zeros(3, 4)})]
    nn.init.zeros_(model.b.weight)
    nn.init.zeros_(model.b.bias)
    expected = by_one_process(model, given, HERE)
    loss, held = trained(model, given)
    assert loss == expected.loss == 0
    check_first_step(loss, held, expected)
    model.b.bias.grad = torch.ones(4)
    with pytest.raises(StagecutError, match=r"gradient of b\.bias is off by"):
        check_first_step(loss, held, expected)


def test_parts_are_compared_with_parts() -> None:
    model, given = Net(), batch()
    torch.manual_seed(7)
    expected = by_one_process(model, given, HERE)
    loss, whole = trained(model, given)
    rows = nn.Parameter(model.b.weight[2:].detach())
    rows.grad = model.b.weight.grad[2:]
    shards: Any = SimpleNamespace(part=lambda _, whole: whole[2:])
    part = Trained({"b.weight": rows}, {}, [], shards)
    check_first_step(loss, part, expected)
    rows.grad = whole.parameters["b.weight"].grad[:2]
    with pytest.raises(StagecutError, match=r"b\.weight"):
        check_first_step(loss, part, expected)


def test_sparse_gradients_are_compared() -> None:
    class Words(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(4, 2, sparse=True)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.embedding(x).square().mean()

    model, given = Words(), [((torch.tensor([1, 1, 2]),), {})]
    expected = by_one_process(model, given, HERE)
    loss, held = trained(model, given)
    check_first_step(loss, held, expected)
    model.embedding.weight.grad = model.embedding.weight.grad.to_dense() * 2
    with pytest.raises(StagecutError, match=r"gradient of embedding\.weight is off by"):
        check_first_step(loss, held, expected)


def test_another_loss_is_told() -> None:
    model, given = Net(), batch()
    expected = by_one_process(model, given, HERE)
    with pytest.raises(StagecutError, match="first step: the loss"):
        check_first_step(expected.loss * 1.2, Trained({}, {}, []), expected)


def test_what_has_no_such_check_is_refused() -> None:
    with pytest.raises(InputError, match="--check"):
        by_one_process(nn.Linear(4, 4), [((torch.randn(3, 4),), {})], HERE)
    for options in ({"schedule": "2bw"}, {"resume": True, "checkpoint": "kept"}):
        with pytest.raises(InputError, match="check: only of a run from its beginning"):
            RunOptions(check=True, **options)


def test_a_wrong_imaginary_part_of_a_gradient_is_told() -> None:
    weight = nn.Parameter(torch.ones(4, dtype=torch.cfloat))
    right = torch.full((4,), 1.0 + 2.0j)
    weight.grad = right.clone()
    held, expected = Trained({"w": weight}, {}, []), FirstStep(1.0, {"w": right})
    check_first_step(1.0, held, expected)
    weight.grad = right.conj().resolve_conj()
    with pytest.raises(StagecutError, match="gradient of w is off by"):
        check_first_step(1.0, held, expected)


def test_a_part_that_is_frozen_in_another_mode_stays_so() -> None:
    model, given = Net(), batch()
    model.drop.eval()
    expected = by_one_process(model, given, HERE)
    check_first_step(*trained(model, given), expected)


def test_products_in_16_bits_leave_gradients_of_32_bits_coarse() -> None:
    model, given = Net(), batch()
    model.drop.eval()
    with torch.autocast("cpu", torch.bfloat16):
        expected = by_one_process(model, given, HERE)
        loss, held = trained(model, given)
    gradient = model.b.weight.grad
    assert gradient is not None
    gradient *= 1.01
    check_first_step(loss, held, expected)
    gradient *= 1.1
    with pytest.raises(StagecutError, match=r"gradient of b\.weight is off by"):
        check_first_step(loss, held, expected)
