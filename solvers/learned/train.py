"""Training: updates by PPO on one subject after the other; the same seed gives the same curve."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from ...instances.common.arrays import Floats
from .policy import Drawn, draw_placements, log_probabilities
from .ppo import Settings, advantages, update
from .subject import Subject

#: Values of a subject that its mean is taken over: the newest.
HISTORY = 200
#: Loads that a policy is told to aim at, relative to an even one: their least, and the spread.
LEAST_TARGET, TARGET_SPREAD = 1.0, 0.5


@dataclass(eq=False)
class Training:
    """A policy in training, with all that continuing needs.

    Parameters
    ----------
    policy, optimiser
        What is trained, and Adam with its moments.
    rng
        Of everything random.
    steps
        Updates so far.
    history
        The newest values by the subject's number.
    examples
        Plans to imitate: the subject's number, the group of each unit, the relative objective.
    """

    policy: Any
    optimiser: Any
    rng: np.random.Generator
    steps: int = 0
    history: dict[int, list[float]] = field(default_factory=dict)
    examples: list[tuple[int, list[int], float]] = field(default_factory=list)


@dataclass(frozen=True)
class Step:
    """What one update saw: its number, the subject's, the placements drawn, the mean entropy."""

    number: int
    subject: int
    drawn: Drawn
    entropy: float


def new_training(policy: Any, settings: Settings, seed: int) -> Training:
    """Return a training that begins."""
    optimiser = torch.optim.Adam(policy.parameters(), lr=settings.learning_rate)
    return Training(policy, optimiser, np.random.default_rng(seed))


def targets(of: Subject, count: int, rng: np.random.Generator) -> Floats:
    """Return objectives to aim at: most are near an even load, if groups run at the same time."""
    if of.one_after_another:
        most = max(len(of.scene.kind_of), LEAST_TARGET)
        spread: Floats = LEAST_TARGET * most ** rng.random(count)
        return spread
    drawn: Floats = LEAST_TARGET + rng.exponential(TARGET_SPREAD, count).clip(0, 4)
    return drawn


def train_step(training: Training, subjects: Sequence[Subject], settings: Settings) -> Step:
    """Draw placements of the next subject, update the policy, and say what was seen."""
    number = training.steps % len(subjects)
    of, rng = subjects[number], training.rng
    partitions = max(settings.placements // settings.schedules, 1)
    drawn = draw_placements(
        training.policy, of, targets(of, partitions, rng), rng, schedules=settings.schedules
    )
    values = np.log(np.maximum(drawn.values, 1e-9))
    before = training.history.setdefault(number, [])
    mean = float(np.mean(before[-HISTORY:])) if before else float(values.mean())
    entropy = update(
        lambda rows: log_probabilities(training.policy, of, drawn.take(rows)),
        list(training.policy.parameters()),
        training.optimiser,
        drawn.log_probability,
        advantages(values, mean),
        rng,
        settings,
    )
    training.history[number] = [*before, *values.tolist()][-HISTORY:]
    training.steps += 1
    return Step(training.steps, number, drawn, entropy)
