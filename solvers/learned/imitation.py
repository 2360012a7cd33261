"""Imitation: the partitioner learns to divide graphs as plans do that are known to be good."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from ...instances.common.arrays import Ints
from .encoder import encode
from .features import Scene
from .groups import Groups, Rules
from .orders import random_order, together
from .partitioner import partition, partition_log_probabilities
from .subject import Subject
from .train import Training

#: Copies of an example in one update, each with another target.
COPIES = 4
#: The target is the plan's objective, and this part more at most.
TARGET_SLACK = 0.1


@dataclass(frozen=True, eq=False)
class Example:
    """A subject with a division of its units that is known to be good.

    Parameters
    ----------
    group
        Shape (U,): group of each unit, in any numbers.
    value
        Its objective, relative to an even load.
    """

    subject: Subject
    group: Ints
    value: float


def imitate_step(training: Training, examples: Sequence[Example], norm: float) -> float:
    """Update the partitioner by one example; return the mean loss of a decision."""
    rng = training.rng
    example = examples[int(rng.integers(len(examples)))]
    training.steps += 1
    of = example.subject
    order, group = _as_decisions(of.scene, example.group, rng, contiguous=of.rules[0].contiguous)
    number = int(group.max()) + 1
    able = [rules for rules in of.rules if rules.groups >= number]
    if not able:
        return float("nan")
    rules: Rules = able[int(rng.integers(len(able)))]
    target = example.value * (1 + TARGET_SLACK * rng.random(COPIES))
    groups = Groups(of.scene, rules, target)
    policy = training.policy
    embedded = encode(policy["encoder"], of.scene)
    made = partition(policy["partitioner"], embedded, groups, order, np.tile(group, (COPIES, 1)))
    every = partition_log_probabilities(policy["partitioner"], embedded, made)
    taken = every.gather(2, torch.from_numpy(made.chosen)[:, :, None])
    loss = -taken.mean()
    if not bool(torch.isfinite(loss)):  # the plan breaks a rule that a mask keeps
        return float("nan")
    training.optimiser.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(list(policy.parameters()), norm)
    training.optimiser.step()
    return float(loss.detach())


def _as_decisions(
    of: Scene, group: Ints, rng: np.random.Generator, *, contiguous: bool
) -> tuple[Ints, Ints]:
    """Return an order of the units, and the groups numbered as the units come."""
    order = random_order(of, rng)
    if contiguous:
        order = together(of, order, group)
    number: dict[int, int] = {}
    for unit in order.tolist():
        number.setdefault(int(group[unit]), len(number))
    return order, np.array([number[p] for p in group.tolist()], np.int64)
