"""A policy: encoder, partitioner and scheduler; drawing placements, and their log-probabilities."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ...instances.common.arrays import Floats, Ints
from .encoder import encode, encoder
from .group_costs import group_costs
from .groups import Groups, Rules
from .orders import random_order
from .partitioner import Choices, partition, partition_log_probabilities, partitioner
from .scheduler import schedule, schedule_log_probabilities, scheduler
from .subject import Subject

#: Width of all layers of a new policy.
WIDTH = 32
#: Part of the batches that leave out hosts, where there are hosts.
ACCELERATORS_ALONE = 0.75


@dataclass(frozen=True, eq=False)
class Drawn:
    """B placements of one subject, drawn at once: all take the units in one order.

    Parameters
    ----------
    group, device
        Shapes (B, U) and (B, G): groups of units, and devices of groups.
    values
        Shape (B,): objectives, relative to an even load.
    partition, schedule
        The decisions.
    part_of
        Shape (B, G, U): as in `GroupCosts`.
    """

    group: Ints
    device: Ints
    values: Floats
    partition: Choices
    schedule: Choices
    part_of: Floats

    @property
    def log_probability(self) -> Floats:
        """Shape (B, T + G): of each decision, first those of the partition."""
        both = (self.partition.log_probability, self.schedule.log_probability)
        return np.concatenate(both, axis=1)

    def take(self, rows: Ints) -> Drawn:
        """Return some of the placements."""
        return Drawn(
            self.group[rows],
            self.device[rows],
            self.values[rows],
            self.partition.take(rows),
            self.schedule.take(rows),
            self.part_of[rows],
        )


@contextmanager
def one_thread() -> Iterator[None]:
    """Let torch work in one thread: its operations here are too small to be shared."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def new_policy(seed: int, width: int = WIDTH) -> Any:
    """Return a policy with random weights, the same for the same seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return torch.nn.ModuleDict(
            {
                "encoder": encoder(width),
                "partitioner": partitioner(width),
                "scheduler": scheduler(width),
            }
        )


def draw_placements(
    policy: Any,
    of: Subject,
    target: Floats,
    rng: np.random.Generator,
    *,
    rules: Rules | None = None,
    order: Ints | None = None,
    schedules: int = 1,
    check: Callable[[], None] = lambda: None,
) -> Drawn:
    """Draw placements from a policy.

    Parameters
    ----------
    target
        Shape (B,): the load, relative to an even one, that each partition is told to aim at.
    rules
        One of the subject's; default: drawn.
    order
        Of the units, a topological one; default: drawn, with branches kept together.
    schedules
        Placements of each partition.
    check
        Called before each unit: what it raises ends the drawing.

    Returns
    -------
    Drawn
        B · `schedules` placements.
    """
    if rules is None:
        fewest = len(of.rules) == 1 or rng.random() < ACCELERATORS_ALONE
        rules = of.rules[0 if fewest else int(rng.integers(1, len(of.rules)))]
    if order is None:
        order = random_order(of.scene, rng)
    groups = Groups(of.scene, rules, target)
    with torch.no_grad():
        embedded = encode(policy["encoder"], of.scene)
    made = partition(policy["partitioner"], embedded, groups, order, rng, check)
    rows = np.repeat(np.arange(len(target)), schedules)
    group, made, target = groups.group[rows], made.take(rows), target[rows]
    costs = group_costs(of.scene, group, rules.groups)
    device, placed = schedule(
        policy["scheduler"], embedded, of.scene, costs, target, rng, most=of.most
    )
    return Drawn(group, device, of.values(group, device), made, placed, costs.part_of)


def log_probabilities(policy: Any, of: Subject, drawn: Drawn) -> tuple[Any, Any]:
    """Return the log-probability of each decision under a policy, and the entropy, (B, T + G)."""
    embedded = encode(policy["encoder"], of.scene)
    made = (
        (
            partition_log_probabilities(policy["partitioner"], embedded, drawn.partition),
            drawn.partition,
        ),
        (
            schedule_log_probabilities(
                policy["scheduler"], embedded, drawn.part_of, drawn.schedule
            ),
            drawn.schedule,
        ),
    )
    taken = [
        all_.gather(2, torch.from_numpy(choices.chosen)[:, :, None]).squeeze(2)
        for all_, choices in made
    ]
    entropy = [-(all_.exp() * all_.clamp(min=-1e9)).sum(dim=2) for all_, _ in made]
    return torch.cat(taken, dim=1), torch.cat(entropy, dim=1)
