"""Random chains of stages without a workload, for every schedule of an iteration."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from brute_iteration import SCHEDULES

from stagecut import PipelineJob
from stagecut.formulations.job.orders import Chain, ScheduleOrder, order_of
from stagecut.instances.common.arrays import Floats
from stagecut.runtime.simulate.simulator import Simulation, simulate_stages
from stagecut.runtime.simulate.stages import chain


@dataclass(frozen=True, eq=False)
class Line:
    """A chain of P stages with times of its passes.

    Parameters
    ----------
    problem
        The schedule, its microbatches and chunks.
    devices
        D.
    forward, backward
        Shape (P,); `backward` None for inference.
    activation
        Shape (P,): bytes for each microbatch in flight.
    """

    problem: PipelineJob
    devices: int
    forward: Floats
    backward: Floats | None
    activation: Floats

    @property
    def order(self) -> ScheduleOrder:
        """The order of its actions, as the formulation has it."""
        return order_of(self.problem, len(self.forward), self.backward is not None)

    @property
    def chain(self) -> Chain:
        """The chain that the solvers execute."""
        return Chain(self.order, self.problem.weight_share)

    @property
    def durations(self) -> Floats:
        """Shape (P, 4)."""
        backward = np.zeros(len(self.forward)) if self.backward is None else self.backward
        return self.chain.durations(self.forward, backward, backward)

    def simulated(self) -> Simulation:
        """Return what the simulator makes of it."""
        stages = chain(
            self.forward.tolist(),
            None if self.backward is None else self.backward.tolist(),
            device=[s % self.devices for s in range(len(self.forward))],
            activation_bytes=self.activation.tolist(),
            weight_share=self.problem.weight_share,
        )
        return simulate_stages(stages, self.problem.schedule, self.problem.microbatches)


def random_line(seed: int) -> Line:
    """Return a random chain; schedules take turns, and the same seed gives the same chain."""
    rng = np.random.default_rng([seed, 11])
    schedule = SCHEDULES[seed % len(SCHEDULES)]
    devices = int(rng.integers(1, 6))
    microbatches, chunks = int(rng.integers(1, 12)), 1
    if schedule == "interleaved":
        chunks = int(rng.integers(2, 4))
        microbatches = devices * int(rng.integers(1, 4))
    problem = PipelineJob(
        microbatches,
        schedule,
        chunks=chunks,
        weight_share=float(rng.choice([0.0, 0.3, 0.5, 1.0])),
    )
    stages = devices * chunks
    times = (
        rng.integers(0, 4, (2, stages)) if rng.random() < 0.3 else rng.uniform(1, 20, (2, stages))
    )
    trains = chunks > 1 or bool(rng.random() < 0.85)
    return Line(
        problem, devices, times[0].astype(float), times[1].astype(float) if trains else None,
        rng.integers(0, 5, stages).astype(float),
    )  # fmt: skip
