"""The partitioner: unit by unit, in a topological order, which group a unit joins.

An LSTM reads a unit's embedding and the features of the group that the unit before it joined; a
small network scores each group by its output and the group's features. So the number of groups is
free, and groups that are alike have the same probability. For contiguous splits a mask leaves the
group of the unit before, and the next.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ...instances.common.arrays import Bools, Floats, Ints
from .groups import GROUP_FEATURES, Groups


@dataclass(frozen=True, eq=False)
class Choices:
    """Decisions of B samples in T steps, each of at most C choices.

    Parameters
    ----------
    subject
        Shape (B, T): what each decision is about: a unit, or a group.
    features
        Shape (B, T, C, F).
    allowed
        Shape (B, T, C).
    chosen
        Shape (B, T).
    log_probability
        Shape (B, T): of what was chosen, under the policy that chose.
    """

    subject: Ints
    features: Floats
    allowed: Bools
    chosen: Ints
    log_probability: Floats

    def take(self, rows: Ints) -> Choices:
        """Return the decisions of some samples."""
        return Choices(
            self.subject[rows],
            self.features[rows],
            self.allowed[rows],
            self.chosen[rows],
            self.log_probability[rows],
        )


def partitioner(width: int) -> Any:
    """Return the layers: an LSTM over units, and the score of a group."""
    return torch.nn.ModuleDict(
        {
            "lstm": torch.nn.LSTM(width + GROUP_FEATURES, width, batch_first=True),
            "score": torch.nn.Sequential(
                torch.nn.Linear(2 * width + GROUP_FEATURES, width),
                torch.nn.ReLU(),
                torch.nn.Linear(width, 1),
            ),
        }
    )


def masked(scores: Any, allowed: Any) -> Any:
    """Return the logarithms of the probabilities of what is allowed; −inf elsewhere."""
    return torch.log_softmax(scores.masked_fill(~allowed, -torch.inf), dim=-1)


def draw(log_probabilities: Floats, rng: np.random.Generator) -> Ints:
    """Return a choice for each row, by its probability."""
    noise = rng.gumbel(size=log_probabilities.shape)
    drawn: Ints = np.argmax(log_probabilities + noise, axis=-1)
    return drawn


def _scores(layers: Any, read: Any, embedded: Any, features: Any) -> Any:
    """Score choices; read and embedded are (…, width), features (…, C, F)."""
    both = torch.cat((read, embedded), dim=-1).unsqueeze(-2)
    wide = both.expand(*features.shape[:-1], both.shape[-1])
    return layers["score"](torch.cat((wide, features), dim=-1)).squeeze(-1)


def partition(
    layers: Any,
    embedded: Any,
    groups: Groups,
    order: Ints,
    rng: np.random.Generator | Ints,
    check: Callable[[], None] = lambda: None,
) -> Choices:
    """Divide the units, taken in an order, and return the decisions.

    Parameters
    ----------
    embedded
        Shape (U, width).
    groups
        Empty ones; on return the partitions.
    rng
        What draws the groups; or, shape (B, U), the group that each unit is to join.
    check
        Called before each unit.
    """
    batch = len(groups.target)
    rows = np.arange(batch)
    before = torch.zeros(batch, GROUP_FEATURES)
    state: Any = None
    features, allowed, chosen, logs = [], [], [], []
    with torch.no_grad():
        for unit in order.tolist():
            check()
            seen, may = groups.choices(unit)
            own = embedded[unit].expand(batch, -1)
            if isinstance(rng, np.ndarray):
                taken, log = rng[:, unit], np.zeros(batch)
            else:
                step = torch.cat((own, before), dim=1).unsqueeze(1)
                read, state = layers["lstm"](step, state)
                scores = _scores(layers, read[:, 0], own, torch.from_numpy(seen))
                both = masked(scores, torch.from_numpy(may)).numpy().astype(np.float64)
                taken = draw(both, rng)
                log = both[rows, taken]
            groups.join(unit, taken)
            before = torch.from_numpy(seen[rows, taken])
            features.append(seen)
            allowed.append(may)
            chosen.append(taken)
            logs.append(log)
    return Choices(
        np.tile(order, (batch, 1)),
        np.stack(features, axis=1),
        np.stack(allowed, axis=1),
        np.stack(chosen, axis=1),
        np.stack(logs, axis=1),
    )


def partition_log_probabilities(layers: Any, embedded: Any, made: Choices) -> Any:
    """Return the logarithms of the probabilities of all choices, (B, T, C), with gradients."""
    features = torch.from_numpy(made.features)
    chosen = torch.from_numpy(made.chosen)
    own = embedded[torch.from_numpy(made.subject)]
    index = chosen[:, :, None, None].expand(-1, -1, 1, features.shape[-1])
    joined = features.gather(2, index).squeeze(2)
    before = torch.cat((torch.zeros_like(joined[:, :1]), joined[:, :-1]), dim=1)
    read, _ = layers["lstm"](torch.cat((own, before), dim=2))
    return masked(_scores(layers, read, own, features), torch.from_numpy(made.allowed))
