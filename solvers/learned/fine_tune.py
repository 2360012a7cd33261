"""Fine-tuning: from what a policy draws for one task, it learns to draw more like the best."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from .policy import Drawn, log_probabilities
from .ppo import Settings
from .subject import Subject

#: Of a batch, the placements that are imitated, and how fast.
ELITE, LEARNING_RATE = 8, 1e-3
#: Batches of one step each, and steps of those after: more steps pay where many batches are drawn,
#: and are behind one step where few are.
FIRST, STEPS = 10, 4


class FineTuning:
    """A policy that learns from batches of placements of one subject."""

    def __init__(self, policy: Any, of: Subject) -> None:
        self._policy, self._of, self._batches = policy, of, 0
        self._optimiser = torch.optim.Adam(policy.parameters(), lr=LEARNING_RATE)

    def learn_from(self, drawn: Drawn) -> None:
        """Make the decisions of the best placements likelier."""
        best = drawn.take(np.argsort(drawn.values, kind="stable")[:ELITE])
        self._batches += 1
        for _ in range(1 if self._batches <= FIRST else STEPS):
            taken, entropy = log_probabilities(self._policy, self._of, best)
            self._optimiser.zero_grad()
            (-taken.mean() - Settings.entropy * entropy.mean()).backward()
            torch.nn.utils.clip_grad_norm_(list(self._policy.parameters()), Settings.gradient_norm)
            self._optimiser.step()
