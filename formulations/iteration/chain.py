"""A chain executed in the order of its schedule: its makespan, and the path that decides it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from ...instances.common.arrays import Floats, Ints
from . import chain_kernel
from .orders import ScheduleOrder


class ChainActions(NamedTuple):
    """N actions, each after those that it waits for, as arrays for the kernel.

    Parameters
    ----------
    which
        Shape (N, 2): stage and kind.
    before
        Shape (N, 2): numbers of the action before on the same device, and of the one whose data an
        action waits for; −1 for none.
    """

    which: Ints
    before: Ints


@dataclass(frozen=True, eq=False)
class Chain:
    """An order, as arrays for the kernel.

    Parameters
    ----------
    order
        Of P stages.
    share
        Part of a backward pass's compute that W takes.
    """

    order: ScheduleOrder
    share: float

    @cached_property
    def actions(self) -> ChainActions:
        """The order, as the kernel has it."""
        first = np.cumsum([0, *map(len, self.order.tables)]).astype(np.int64)
        table = np.ascontiguousarray(np.concatenate(self.order.tables))
        order, before = np.empty(len(table), np.int64), np.empty((len(table), 2), np.int64)
        chain_kernel.in_turn(first, table, self.order.microbatches, order, before)
        return ChainActions(table[order, :2].copy(), before)

    def durations(self, forward: Floats, backward: Floats, compute: Floats) -> Floats:
        """Return how long each action takes, shape (P, 4)."""
        weight = self.share * compute
        return np.stack((forward, backward, backward - weight, weight), axis=1)

    def makespan(self, duration: Floats) -> float:
        """Return the makespan for durations of shape (P, 4)."""
        return self._execute(duration, np.zeros((0, 4)))

    def longest_path(self, duration: Floats) -> tuple[float, Floats]:
        """Return the makespan, and how many actions of each kind are on a longest path, (P, 4)."""
        counts = np.zeros((self.order.stages, 4))
        return self._execute(duration, counts), counts

    def _execute(self, duration: Floats, counts: Floats) -> float:
        end = np.empty(len(self.actions.which))
        return float(chain_kernel.execute(self.actions, duration, end, counts))
