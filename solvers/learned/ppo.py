"""Proximal policy optimisation, of decisions of any kind.

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
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ...instances.common.arrays import Floats, Ints

#: Log-probabilities and entropies of the decisions of some placements, (rows, T).
Evaluate = Callable[[Ints], tuple[Any, Any]]


@dataclass(frozen=True)
class Settings:
    """How to train; the defaults are the source's.

    Parameters
    ----------
    placements, schedules
        Placements of an update, and of each partition.
    minibatches, epochs
        Of an update.
    clip, entropy, learning_rate, gradient_norm
        ε, c, Adam's, and the largest norm of a gradient.
    """

    placements: int = 20
    schedules: int = 10
    minibatches: int = 4
    epochs: int = 3
    clip: float = 0.2
    entropy: float = 0.001
    learning_rate: float = 3e-4
    gradient_norm: float = 1.0


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

    Parameters
    ----------
    evaluate
        Of the placements in some rows, under the policy now.
    old
        Shape (B, T): log-probabilities under the policy that drew them.
    advantage
        Shape (B,).
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
