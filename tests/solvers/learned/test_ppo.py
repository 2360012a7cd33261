"""PPO by itself: equations by hand, a bandit, and the numbers of the source."""

from __future__ import annotations

import math

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from stagecut.solvers.learned.train import Settings, advantages, clipped_objective, update  # noqa: E402


def test_the_numbers_of_the_source() -> None:
    settings = Settings()
    assert (settings.placements, settings.schedules) == (20, 10)
    assert (settings.minibatches, settings.epochs) == (4, 3)
    assert (settings.clip, settings.entropy) == (0.2, 0.001)
    assert (settings.learning_rate, settings.gradient_norm) == (3e-4, 1.0)


def test_less_is_better_and_the_scale_does_not_matter() -> None:
    values = np.array([1.0, 2.0, 3.0])
    assert advantages(values, 2.0) == pytest.approx([1.5**0.5, 0.0, -(1.5**0.5)])
    assert advantages(1e6 * values, 2e6) == pytest.approx(advantages(values, 2.0))
    assert not advantages(np.ones(3), 5.0).any()


def test_the_first_ratio_is_one_and_its_gradient_that_of_the_policy() -> None:
    scores = torch.tensor([[0.3, -0.2]], requires_grad=True)
    gain = torch.tensor([1.7])
    clipped_objective(scores, scores.detach(), gain, 0.2).backward()
    assert scores.grad is not None
    assert scores.grad[0].tolist() == pytest.approx([0.85, 0.85])  # A / 2 decisions


@pytest.mark.parametrize(("ratio", "gain", "slope"), [(1.3, 1.0, 0), (0.7, -1.0, 0), (1.3, -1, 1)])
def test_outside_the_clip_there_is_no_gradient(ratio: float, gain: float, slope: int) -> None:
    new = torch.tensor([[math.log(ratio)]], requires_grad=True)
    clipped_objective(new, torch.zeros(1, 1), torch.tensor([gain]), 0.2).backward()
    assert new.grad is not None
    assert new.grad.item() == pytest.approx(slope * gain * ratio)


@pytest.mark.parametrize("seed", range(1))
def test_a_bandit_is_learned(seed: int) -> None:
    """Five arms, of which the third costs least; 2 000 draws, at a faster rate of learning."""
    rng, costs = np.random.default_rng(seed), np.array([2.0, 1.5, 1.0, 1.6, 3.0])
    scores = torch.zeros(5, requires_grad=True)
    settings = Settings(learning_rate=0.05)
    optimiser = torch.optim.Adam([scores], lr=settings.learning_rate)
    seen: list[float] = []
    calls = 0
    for _ in range(100):
        probabilities = torch.softmax(scores, 0).detach().double().numpy()
        arms = rng.choice(5, settings.placements, p=probabilities / probabilities.sum())
        values = costs[arms] + 0.1 * rng.standard_normal(len(arms))
        mean = float(np.mean(seen)) if seen else float(values.mean())

        def evaluate(rows: np.ndarray, arms: np.ndarray = arms) -> tuple[object, object]:
            nonlocal calls
            calls += 1
            logs = torch.log_softmax(scores, 0)
            entropy = -(logs.exp() * logs).sum().expand(len(rows), 1)
            return logs[torch.from_numpy(arms[rows])][:, None], entropy

        old = np.log(probabilities[arms])[:, None]
        update(evaluate, [scores], optimiser, old, advantages(values, mean), rng, settings)
        seen = [*seen, *values.tolist()][-200:]
    assert calls == 100 * settings.minibatches * settings.epochs
    assert torch.softmax(scores, 0)[2].item() > 0.9
