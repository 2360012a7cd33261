"""Our own loop: replicas, asynchronous training, equal to one process."""

from __future__ import annotations

from collections.abc import Callable

import pytest

torch = pytest.importorskip("torch", reason="the extra `runtime` is not installed")

from loop_workers import gradients, layers, microbatch, momentum, schedule_of, train  # noqa: E402
from ranks import on_ranks  # noqa: E402
from torch import nn  # noqa: E402
from torch.func import functional_call  # noqa: E402
from torch.nn import functional as F  # noqa: E402

from stagecut import InputError  # noqa: E402
from stagecut.runtime.schedules import Kind, Schedule  # noqa: E402


def alone(ranks: list[list[int]], m: int) -> tuple[dict[int, float], dict[str, torch.Tensor]]:
    """Losses and gradients of the second batch in one process."""
    model = layers(2 * len(ranks))
    losses = [F.mse_loss(model(x), y) for x, y in (microbatch(m + j) for j in range(m))]
    (sum(losses) / m).backward()
    named = {name: parameter.grad for name, parameter in model.named_parameters()}
    return {j: loss.item() for j, loss in enumerate(losses)}, named


CASES = [
    ([[0, 1], [2]], 3, "1f1b"),
    ([[0], [1, 2]], 3, "gpipe"),
    ([[0, 1], [2, 3]], 4, "1f1b"),
    ([[0, 1, 2], [3], [0, 1]], 4, "1f1b"),
    ([[0], [1], [0]], 2, "zb-h1"),
    ([[0, 1]], 2, "gpipe"),
]


@pytest.mark.parametrize(("ranks", "world", "name"), CASES)
def test_gradients_are_those_of_one_process(ranks: list[list[int]], world: int, name: str) -> None:
    schedule = schedule_of(name, ranks, world, 6)
    done = on_ranks(world, gradients, schedule, ranks, frozenset({0}))
    losses, wanted = alone(ranks, 6)
    found = {j: loss for own, _ in done for j, loss in own.items()}
    assert found == pytest.approx(losses, rel=1e-5)
    seen = set()
    for _, grads in done:
        seen |= grads.keys()
        for key, grad in grads.items():
            torch.testing.assert_close(grad, wanted[key], rtol=1e-5, atol=1e-7)
    assert seen == wanted.keys()
