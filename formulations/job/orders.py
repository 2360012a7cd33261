"""Schedules of a chain of stages: each device's order of actions, and its microbatches in flight.

`Chain` executes a chain in this order, and finds the makespan and a longest path.

Stage s (0-based) of P has height h_s = P − s: the stages from it to the end. Action τ of microbatch
j is in *round* j + k_τ of its device, which works round by round:

    schedule   F     B or I                    W
    1f1b       0     h_s − 1
    gpipe      0     M
    zb-h1      0     h_s − 1                   P − 1
    zb-h2      0     2 (h_s − 1)               2 (P − 1)

and within a round F before B or I before W. Interleaved: D devices hold v chunks each; device p
works through sequences of chunks, D microbatches of a chunk at a time, and starts its backward
passes after 2 (D − p − 1) + (v − 1) D forward passes.

References
----------
Narayanan et al., SC 2021, section 2.2 (1F1B, interleaved); Qi et al., ICLR 2024, section 2 (ZB-H1,
ZB-H2); Huang et al., NeurIPS 2019 (GPipe).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from ...instances import PipelineJob
from ...instances.common.arrays import Floats, Ints
from ...instances.model.schedule import check_size, interleaved_rows
from . import chain_kernel


class ChainActions(NamedTuple):
    """N actions of a chain in topological order, as arrays for the kernel."""

    #: Shape (N, 2): stage and kind.
    which: Ints
    #: Shape (N, 2): places of the previous action on the same device, and of the action whose data
    #: is needed; −1 for none.
    before: Ints
    #: Shape (N,): 1 if that data comes from another device, else 0.
    remote: Floats


@dataclass(frozen=True, eq=False)
class Chain:
    """A chain of P stages under a schedule, which can be executed for any durations."""

    #: The order of its actions.
    order: ScheduleOrder
    #: Fraction of a backward pass's compute that W takes.
    share: float

    @cached_property
    def actions(self) -> ChainActions:
        """The actions as arrays for the kernel, in topological order."""
        first = np.cumsum([0, *map(len, self.order.tables)]).astype(np.int64)
        table = np.ascontiguousarray(np.concatenate(self.order.tables))
        order, before = np.empty(len(table), np.int64), np.empty((len(table), 2), np.int64)
        chain_kernel.in_turn(first, table, self.order.microbatches, order, before)
        which = table[order, :2].copy()
        device = self.order.device[which[:, 0]]
        moved = (before[:, 1] >= 0) & (device[before[:, 1]] != device)
        return ChainActions(which, before, moved.astype(np.float64))

    def durations(self, forward: Floats, backward: Floats, compute: Floats) -> Floats:
        """Return the duration of each action, shape (P, 4), from times of stages, shapes (P,)."""
        weight = self.share * compute
        return np.stack((forward, backward, backward - weight, weight), axis=1)

    def makespan(self, duration: Floats) -> float:
        """Return the makespan for durations of shape (P, 4)."""
        return self._execute(duration, 0.0, np.zeros((0, 4)))

    def longest_path(self, duration: Floats, sent: float = 0.0) -> tuple[float, Floats, float]:
        """Return the makespan if a message takes `sent`, and the counts on a longest path.

        Returns
        -------
        float, array of shape (P, 4), float
            The makespan, the numbers of actions by stage and kind, and the number of messages.
        """
        counts = np.zeros((self.order.stages + 1, 4))
        return self._execute(duration, sent, counts), counts[:-1], float(counts[-1, 0])

    def _execute(self, duration: Floats, sent: float, counts: Floats) -> float:
        end = np.empty(len(self.actions.which))
        return float(chain_kernel.execute(self.actions, sent, duration, end, counts))


#: Kinds of actions, which also number the columns of durations and counts.
FORWARD, BACKWARD, INPUT, WEIGHT = 0, 1, 2, 3


@dataclass(frozen=True, eq=False)
class ScheduleOrder:
    """The order of a chain of P stages on D devices, for M microbatches."""

    #: Numbers of stages P and microbatches M.
    stages: int
    microbatches: int
    #: Shape (P,): position of the device of each stage, 0 … D − 1.
    device: Ints
    #: For each device, shape (actions, 3): stage, kind (`FORWARD`, `BACKWARD`, `INPUT` or `WEIGHT`)
    #: and microbatch.
    tables: tuple[Ints, ...]

    @property
    def splits(self) -> bool:
        """Whether backward passes are split into I and W."""
        return any(bool((table[:, 1] == WEIGHT).any()) for table in self.tables)

    @cached_property
    def in_flight(self) -> tuple[Ints, ...]:
        """For each device, the microbatches in flight at possible peaks, shape (V, stages).

        These are the V vectors that no other vector dominates: the peak of the activations is the
        largest Σ_c vector_c · A_c, over the stages c of the device.
        """
        return tuple(self._held(d, table) for d, table in enumerate(self.tables))

    @cached_property
    def apart(self) -> int:
        """Least distance, in stages, between two stages of one device; P if none has two."""
        places = [np.flatnonzero(self.device == d) for d in range(len(self.tables))]
        return min([self.stages, *(int(step) for own in places for step in np.diff(own))])

    def _held(self, d: int, table: Ints) -> Ints:
        own = np.flatnonzero(self.device == d)
        begins = table[:, 1] == FORWARD
        ends = (table[:, 1] == BACKWARD) | (table[:, 1] == WEIGHT)
        change = (table[:, :1] == own) * (begins.astype(np.int64) - ends)[:, None]
        if begins.all():
            held = np.eye(len(own), dtype=np.int64)  # without backward pass, one at a time
        else:
            held = np.cumsum(change, axis=0)[begins]
        listed = np.unique(held, axis=0)
        below = (listed[:, None] <= listed[None]).all(axis=2).sum(axis=1)
        kept: Ints = listed[below == 1]  # dominated only by itself
        return kept


def order_of(problem: PipelineJob, stages: int, trains: bool) -> ScheduleOrder:
    """Return the order of a chain of `stages` stages; `InputError` if it has too many actions.

    `trains`: there is a backward pass.
    """
    chunks, m = problem.chunks_per_device, problem.batch
    check_size(stages, m)
    if problem.order:
        rows = tuple(np.array(row, np.int64).reshape(-1, 3) for row in problem.order.rows)
        return ScheduleOrder(stages, m, np.array(problem.devices_of(stages)), rows)
    if chunks > 1:
        size = stages // chunks
        return ScheduleOrder(stages, m, np.arange(stages) % size, interleaved_rows(size, chunks, m))
    tables = []
    for s in range(stages):
        rounds = {FORWARD: 0}
        if trains:
            rounds |= _backward_rounds(problem, stages, s)
        which = np.tile(np.arange(m), len(rounds))
        kind = np.repeat(list(rounds), m)
        order = np.lexsort((kind, which + np.repeat(list(rounds.values()), m)))
        tables.append(np.stack((np.full(len(which), s), kind, which), axis=1)[order])
    return ScheduleOrder(stages, m, np.arange(stages), tuple(tables))


def _backward_rounds(problem: PipelineJob, stages: int, s: int) -> dict[int, int]:
    behind = stages - s - 1
    if problem.schedule in ("zb-h1", "zb-h2"):
        factor = 1 if problem.schedule == "zb-h1" else 2
        return {INPUT: factor * behind, WEIGHT: factor * (stages - 1)}
    return {BACKWARD: problem.batch if problem.schedule == "gpipe" else behind}
