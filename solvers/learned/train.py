"""Training of a policy by proximal policy optimisation (PPO), by imitation, and by fine-tuning.

*PPO* updates the policy on one environment after the other. With R the value of a placement (less
is better), R̄ the mean of those before, and r the ratio of the probabilities of a decision under
the present policy and under the one that made it,

    A = (R̄ − R) / σ                                                                     (3)
    L = mean of min(r A, clip(r, 1 − ε, 1 + ε) A) + c · entropy                         (6)

over all decisions of a minibatch; σ is the standard deviation of A in the batch.

*Imitation* makes the decisions of good plans more likely, *fine-tuning* those of the best samples
for one task. The same seed gives the same curve.

References
----------
The appendix of DRL-PP (equations 3, 4 and 6 and all numbers of `Settings`). We added the division
by σ, and take ratios of decisions: the ratio of a placement of a hundred decisions is beyond the
clip after one step.

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

#: Number of placements of a batch that fine-tuning imitates, and its learning rate.
ELITE, LEARNING_RATE = 8, 1e-3

#: Batches of fine-tuning with one step each, and steps for each later batch. More steps are better
#: if many batches are drawn, and worse if few are.
FIRST, STEPS = 10, 4


class FineTuning:
    """A policy that learns from batches of placements of one environment."""

    def __init__(self, policy: Any, of: PlacementEnvironment) -> None:
        self._policy, self._of, self._batches = policy, of, 0
        self._optimiser = torch.optim.Adam(policy.parameters(), lr=LEARNING_RATE)

    def learn_from(self, drawn: SampledPlacements) -> None:
        """Make the decisions of the best placements more likely."""
        best = drawn.take(np.argsort(drawn.values, kind="stable")[:ELITE])
        self._batches += 1
        for _ in range(1 if self._batches <= FIRST else STEPS):
            taken, entropy = log_probabilities(self._policy, self._of, best)
            self._optimiser.zero_grad()
            (-taken.mean() - Settings.entropy * entropy.mean()).backward()
            torch.nn.utils.clip_grad_norm_(list(self._policy.parameters()), Settings.gradient_norm)
            self._optimiser.step()


#: Copies of an example in one update of imitation, each with its own target.
COPIES = 4

#: Largest target of an imitated example, relative to its objective, less 1.
TARGET_SLACK = 0.1


@dataclass(frozen=True, eq=False)
class Example:
    """A good plan in an environment, to be imitated."""

    environment: PlacementEnvironment
    group: Ints  # (U,): group of each unit, in any numbers
    device: Ints  # (U,): device of each unit
    value: float  # its objective, relative to an even load


#: Log-probabilities and entropies, (rows, T), of the decisions of placements, given their rows.
Evaluate = Callable[[Ints], tuple[Any, Any]]


@dataclass(frozen=True)
class Settings:
    """Settings of PPO; the defaults are those of DRL-PP."""

    placements: int = 20  # placements, schedules: placements of an update, and of each partition
    schedules: int = 10
    minibatches: int = 4  # minibatches, epochs: of an update
    epochs: int = 3
    # clip, entropy, learning_rate, gradient_norm: ε, c, Adam's, and the largest norm of a gradient
    clip: float = 0.2
    entropy: float = 0.001
    learning_rate: float = 3e-4
    gradient_norm: float = 1.0


#: Number of an environment's newest values over which R̄ is taken.
HISTORY = 200

#: Mean excess of target objectives over an even load.
TARGET_SPREAD = 0.5


@dataclass(eq=False)
class TrainingRun:
    """A policy in training, with everything needed to resume it."""

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
    """Record of an update: numbers of update and environment, placements, and mean entropy."""

    number: int
    environment: int
    drawn: SampledPlacements
    entropy: float


def new_training(policy: Any, settings: Settings, seed: int) -> TrainingRun:
    """Return a training at step 0."""
    optimiser = torch.optim.Adam(policy.parameters(), lr=settings.learning_rate)
    return TrainingRun(policy, optimiser, np.random.default_rng(seed))


def targets(of: PlacementEnvironment, count: int, rng: np.random.Generator) -> Floats:
    """Return random target objectives, (count,); near an even load if groups run in parallel."""
    if of.one_after_another:
        spread: Floats = float(len(of.observation.kind_of)) ** rng.random(count)
        return spread
    drawn: Floats = 1.0 + rng.exponential(TARGET_SPREAD, count).clip(0, 4)
    return drawn


def train_step(
    training: TrainingRun, environments: Sequence[PlacementEnvironment], settings: Settings
) -> UpdateRecord:
    """Draw placements of the next environment, update the policy, and return the record."""
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

    `evaluate` computes log-probabilities and entropies under the present policy; `old`, (B, T), are
    log-probabilities under the policy that drew the placements.
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
    """Update the policy by one example; return the mean loss of a decision, NaN without update."""
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
    if not bool(torch.isfinite(loss)):  # the plan breaks a rule, and a mask excludes a decision
        return float("nan")
    training.optimiser.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(list(policy.parameters()), norm)
    training.optimiser.step()
    return float(loss.detach())


def _as_decisions(
    of: Observation, group: Ints, rng: np.random.Generator, *, contiguous: bool
) -> tuple[Ints, Ints]:
    """Return a random order of the units, and their groups numbered by first unit in it."""
    order = random_order(of, rng)
    if contiguous:
        order = grouped_order(of, order, group)
    number: dict[int, int] = {}
    for unit in order.tolist():
        number.setdefault(int(group[unit]), len(number))
    return order, np.array([number[p] for p in group.tolist()], np.int64)
