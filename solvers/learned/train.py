"""Training: updates by PPO on one environment after the other; the same seed gives the same curve.

Proximal policy optimisation, of decisions of any kind.

With R the value of a placement (less is better), R̄ the mean of those before, and r the ratio of
the probabilities of a decision under the policy now and under that which took it,

    A = (R̄ − R) / σ                                                                     (3)
    L = mean of min(r A, clip(r, 1 − ε, 1 + ε) A) + c · entropy                         (6)

over all decisions of a minibatch; σ is the standard deviation of A in the batch.

References
----------
The appendix of DRL-PP (equations 3, 4 and 6 and all numbers of `Settings`). Dividing by σ is ours,
and so is the ratio of decisions: that of a placement of a hundred decisions leaves the clip at the
first step.

Imitation: the policy learns to divide and to place graphs as plans do that are known to be good.

Fine-tuning: from what a policy draws for one task, it learns to draw more like the best.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from ...instances.common.arrays import Floats, Ints
from .environments import PlacementEnvironment
from .features import Observation
from .groups import GroupRules, grouped_order, random_order
from .policy import (
    SampledPlacements,
    as_drawn,
    draw_placements,
    log_probabilities,
)

#: Number of placements of a batch that are imitated, and the learning rate.
ELITE, LEARNING_RATE = 8, 1e-3

#: Batches of one step each, and steps of those after: more steps pay where many batches are drawn,
#: and are behind one step where few are.
FIRST, STEPS = 10, 4


class FineTuning:
    """A policy that learns from batches of placements of one environment."""

    def __init__(self, policy: Any, of: PlacementEnvironment) -> None:
        self._policy, self._of, self._batches = policy, of, 0
        self._optimiser = torch.optim.Adam(policy.parameters(), lr=LEARNING_RATE)

    def learn_from(self, drawn: SampledPlacements) -> None:
        """Make the decisions of the best placements likelier."""
        best = drawn.take(np.argsort(drawn.values, kind="stable")[:ELITE])
        self._batches += 1
        for _ in range(1 if self._batches <= FIRST else STEPS):
            taken, entropy = log_probabilities(self._policy, self._of, best)
            self._optimiser.zero_grad()
            (-taken.mean() - Settings.entropy * entropy.mean()).backward()
            torch.nn.utils.clip_grad_norm_(list(self._policy.parameters()), Settings.gradient_norm)
            self._optimiser.step()


#: Copies of an example in one update, each with another target.
COPIES = 4

#: The target is the plan's objective, and this part more at most.
TARGET_SLACK = 0.1


@dataclass(frozen=True, eq=False)
class Example:
    """An environment with a division of its units that is known to be good."""

    environment: PlacementEnvironment
    group: Ints  # (U,): group of each unit, in any numbers
    device: Ints  # (U,): device of each unit
    value: float  # its objective, relative to an even load


#: Log-probabilities and entropies of the decisions of some placements, (rows, T).
Evaluate = Callable[[Ints], tuple[Any, Any]]


@dataclass(frozen=True)
class Settings:
    """Settings of training; the defaults are the source's."""

    placements: int = 20  # placements, schedules: placements of an update, and of each partition
    schedules: int = 10
    minibatches: int = 4  # minibatches, epochs: of an update
    epochs: int = 3
    # clip, entropy, learning_rate, gradient_norm: ε, c, Adam's, and the largest norm of a gradient
    clip: float = 0.2
    entropy: float = 0.001
    learning_rate: float = 3e-4
    gradient_norm: float = 1.0


#: Number of newest values of an environment that its mean is taken over.
HISTORY = 200

#: Mean excess over an even load of the loads that a policy is told to aim at.
TARGET_SPREAD = 0.5


@dataclass(eq=False)
class TrainingRun:
    """A policy in training, with all that continuing needs."""

    policy: Any  # policy, optimiser: what is trained, and Adam with its moments
    optimiser: Any
    rng: np.random.Generator  # source of all random numbers
    steps: int = 0  # updates so far
    # the newest values by the environment's number
    history: dict[int, list[float]] = field(default_factory=dict)
    # plans to imitate: the environment's number, group and device of each unit, relative objective
    examples: list[tuple[int, list[int], list[int], float]] = field(default_factory=list)


@dataclass(frozen=True)
class UpdateRecord:
    """Record of an update: its number, its environment's, its placements, the mean entropy."""

    number: int
    environment: int
    drawn: SampledPlacements
    entropy: float


def new_training(policy: Any, settings: Settings, seed: int) -> TrainingRun:
    """Return a training that begins."""
    optimiser = torch.optim.Adam(policy.parameters(), lr=settings.learning_rate)
    return TrainingRun(policy, optimiser, np.random.default_rng(seed))


def targets(of: PlacementEnvironment, count: int, rng: np.random.Generator) -> Floats:
    """Return objectives to aim at: most are near an even load, if groups run at the same time."""
    if of.one_after_another:
        spread: Floats = float(len(of.observation.kind_of)) ** rng.random(count)
        return spread
    drawn: Floats = 1.0 + rng.exponential(TARGET_SPREAD, count).clip(0, 4)
    return drawn


def train_step(
    training: TrainingRun, environments: Sequence[PlacementEnvironment], settings: Settings
) -> UpdateRecord:
    """Draw placements of the next environment, update the policy, and say what was seen."""
    number = training.steps % len(environments)
    of, rng = environments[number], training.rng
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
    return UpdateRecord(training.steps, number, drawn, entropy)


def advantages(values: Floats, mean_before: float) -> Floats:
    """Return the advantages of placements, divided by their standard deviation, (B,)."""
    better = mean_before - values
    spread = float(better.std())
    return better / spread if spread > 1e-9 else better * 0.0


def clipped_objective(new: Any, old: Any, advantage: Any, clip: float) -> Any:
    """Return equation 6 without entropy: a mean over decisions, (B, T); advantages are (B,)."""
    ratio = torch.exp(new - old)
    wide = advantage[:, None]
    return torch.minimum(ratio * wide, ratio.clamp(1 - clip, 1 + clip) * wide).mean()


def update(
    evaluate: Evaluate,
    parameters: list[Any],
    optimiser: Any,
    old: Floats,
    advantage: Floats,
    rng: np.random.Generator,
    settings: Settings,
) -> float:
    """Update a policy by the placements of one batch; return the mean entropy.

    `evaluate` is of the placements in some rows, under the policy now; `old`, shape (B, T), are
    log-probabilities under the policy that drew them.
    """
    before, gain = torch.from_numpy(old).float(), torch.from_numpy(advantage).float()
    mean = 0.0
    for _ in range(settings.epochs):
        for rows in np.array_split(rng.permutation(len(advantage)), settings.minibatches):
            new, entropy = evaluate(rows)
            objective = clipped_objective(new, before[rows], gain[rows], settings.clip)
            optimiser.zero_grad()
            (-objective - settings.entropy * entropy.mean()).backward()
            torch.nn.utils.clip_grad_norm_(parameters, settings.gradient_norm)
            optimiser.step()
            mean = float(entropy.detach().mean())
    return mean


def imitate_step(training: TrainingRun, examples: Sequence[Example], norm: float) -> float:
    """Update the policy by one example; return the mean loss of a decision."""
    rng = training.rng
    example = examples[int(rng.integers(len(examples)))]
    training.steps += 1
    of = example.environment
    order, group = _as_decisions(
        of.observation, example.group, rng, contiguous=of.rules[0].contiguous
    )
    number = int(group.max()) + 1
    able = [rules for rules in of.rules if rules.groups >= number]
    if not able:
        return float("nan")
    rules: GroupRules = able[int(rng.integers(len(able)))]
    target = example.value * (1 + TARGET_SLACK * rng.random(COPIES))
    device = np.full(rules.groups, -1)
    device[group] = example.device
    policy = training.policy
    drawn = as_drawn(policy, of, target, rng, rules=rules, order=order, group=group, device=device)
    taken, _ = log_probabilities(policy, of, drawn)
    loss = -taken.mean()
    if not bool(torch.isfinite(loss)):  # the plan breaks a rule that a mask keeps
        return float("nan")
    training.optimiser.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(list(policy.parameters()), norm)
    training.optimiser.step()
    return float(loss.detach())


def _as_decisions(
    of: Observation, group: Ints, rng: np.random.Generator, *, contiguous: bool
) -> tuple[Ints, Ints]:
    """Return an order of the units, and the groups numbered as the units come."""
    order = random_order(of, rng)
    if contiguous:
        order = grouped_order(of, order, group)
    number: dict[int, int] = {}
    for unit in order.tolist():
        number.setdefault(int(group[unit]), len(number))
    return order, np.array([number[p] for p in group.tolist()], np.int64)
