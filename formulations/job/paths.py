"""Paths through a schedule: lower bounds on its makespan, whatever the durations of passes.

A schedule is an order of actions on every pipeline rank, independent of their durations. So each
path π through it, a sequence of actions that wait for each other, bounds the seconds of every plan
with this schedule, p ranks, v chunks and M microbatches:

    T ≥ Σ_s ( n_πsF F_s + n_πsB B_s + n_πsW W_s ) + n_π · (seconds of a message)                 (4)

where F_s, B_s, W_s are the seconds of stage s's passes for one microbatch (B includes W), and n_π
counts them on the path. The longest path is the schedule's time. If a schedule splits backward
passes, I is B less W: n_πsB counts B and I, and n_πsW is the number of W less that of I.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from ...instances import PipelineJob
from ...instances.common.arrays import Floats, Ints
from ...instances.costs.layout import V_SCHEDULES, JobSchedule, Layout
from ...instances.model.schedule import v_rows
from .orders import BACKWARD, FORWARD, INPUT, WEIGHT, Chain, ScheduleOrder, order_of

#: Factor on the passes of one rank (for the first paths) or of one stage (for paths near a plan).
LONGER = 1.5


@dataclass(frozen=True, eq=False)
class JobPaths:
    """Paths found so far through one schedule, with p ranks, v chunks each, and M microbatches."""

    #: The schedule, with p, v and M.
    schedule: JobSchedule
    pipeline: int
    chunks: int
    microbatches: int
    #: Paths so far: counts of passes F, B and W, shape (stages, 3), and of messages.
    found: dict[bytes, tuple[Floats, float]] = field(default_factory=dict)

    @property
    def stages(self) -> int:
        """Model stages, p v."""
        return self.pipeline * self.chunks

    @cached_property
    def chain(self) -> Chain:
        """The chain of stages under the schedule, which finds longest paths."""
        if self.schedule in V_SCHEDULES:
            rows = v_rows(self.schedule, self.pipeline, self.microbatches)
            return Chain(ScheduleOrder(self.stages, self.microbatches, self.rank_of, rows), 0.0)
        several = self.chunks if self.chunks > 1 else None
        problem = PipelineJob(self.microbatches, schedule=self.schedule.value, chunks=several)
        return Chain(order_of(problem, self.stages, True), 0.0)

    @cached_property
    def rank_of(self) -> Ints:
        """The pipeline rank of each stage."""
        shape = Layout(pipeline=self.pipeline, chunks=self.chunks, schedule=self.schedule)
        return np.array(shape.stage_ranks)

    def longest(self, passes: Floats, sent: float) -> float:
        """Return the seconds of the schedule, and keep its longest path.

        `passes`, shape (stages, 3), are F, B and W; a message takes `sent` seconds.
        """
        if self.pipeline == 1:
            once = np.zeros((self.stages, 3))
            once[:, :2] = self.microbatches
            self._keep(once, 0.0)
            return float(self.microbatches * passes[:, :2].sum())
        forward, backward, weights = passes.T
        duration = np.stack((forward, backward, backward - weights, weights), axis=1)
        seconds, own, messages = self.chain.longest_path(duration, sent)
        path = np.stack(
            (own[:, FORWARD], own[:, BACKWARD] + own[:, INPUT], own[:, WEIGHT] - own[:, INPUT]),
            axis=1,
        )
        self._keep(path, messages)
        return seconds

    def begin(self, passes: Floats, sent: float) -> None:
        """Find the first paths: the longest one, and those with each rank in turn slowed down."""
        if self.found:
            return
        self.longest(passes, sent)
        if self.pipeline == 1:
            return
        self._slowed(passes, sent, self.rank_of)

    def around(self, passes: Floats, sent: float) -> None:
        """Find a plan's longest path, and with several chunks those with each stage slowed down.

        Programs with many equal chunks then end in half as many rounds
        (docs/decisions/uneven-chunks.md).
        """
        self.longest(passes, sent)
        if self.chunks > 1:
            self._slowed(passes, sent, np.arange(self.stages))

    def _slowed(self, passes: Floats, sent: float, part_of: Ints) -> None:
        """Find the longest paths with the stages of each part in turn slowed down.

        `part_of`, shape (stages,), numbers the parts: ranks, or stages.
        """
        for part in range(part_of.max() + 1):
            self.longest(np.where((part_of == part)[:, None], LONGER, 1.0) * passes, sent)

    def _keep(self, path: Floats, messages: float) -> None:
        self.found.setdefault(path.tobytes(), (path, messages))

    @property
    def rows(self) -> tuple[Floats, Floats]:
        """All paths so far, shape (paths, stages, 3), and their messages, shape (paths,)."""
        paths, messages = zip(*self.found.values(), strict=True)
        return np.array(paths), np.array(messages)
