"""The orders of the formulation are those that the simulator makes, and hold what it holds."""

from __future__ import annotations

import numpy as np
import pytest
from brute_iteration import SCHEDULES
from chains import random_line

from stagecut import PipelineJob
from stagecut.formulations.job.orders import order_of


@pytest.mark.parametrize("part", range(5))
def test_every_device_works_in_the_order_of_the_simulator(part: int) -> None:
    for seed in range(part, 150, 5):
        line = random_line(seed)
        order, schedule = line.order, line.simulated().schedule
        assert order.device.tolist() == [s % line.devices for s in range(order.stages)]
        for own, simulated in zip(order.tables, schedule.actions, strict=True):
            assert own.tolist() == simulated.tolist(), f"seed {seed}: {line.problem}"


@pytest.mark.parametrize("part", range(5))
def test_activations_in_flight_are_those_of_the_simulator(part: int) -> None:
    """The peak of any activations, and, device by device, of each stage alone."""
    for seed in range(part, 150, 5):
        line = random_line(seed)
        order, memory = line.order, line.simulated().memory
        for d, vectors in enumerate(order.in_flight):
            own = np.flatnonzero(order.device == d)
            where = f"seed {seed}: {line.problem}"
            assert vectors.max(axis=0).tolist() == [memory[d].in_flight[s] for s in own], where
            assert (vectors @ line.activation[own]).max() == memory[d].peak_activations, where


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_no_vector_in_flight_is_within_another(schedule: str) -> None:
    problem = PipelineJob(8, schedule)  # type: ignore[arg-type]
    for vectors in order_of(problem, 4, True).in_flight:
        below = (vectors[:, None] <= vectors[None]).all(axis=2)
        assert below.sum() == len(vectors)


def test_the_rounds_of_the_text() -> None:
    """1F1B: a stage has done h − 1 forward passes before its first backward pass."""
    for s, table in enumerate(order_of(PipelineJob(6), 4, True).tables):
        assert (table[:, 1] == 1).argmax() == 4 - s
    (vectors,) = {
        tuple(v.ravel().tolist()) for v in order_of(PipelineJob(6), 4, True).in_flight[:1]
    }
    assert vectors == (4,)
