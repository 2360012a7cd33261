"""Rows of a job's program against what they stand for: ranks' bytes, schedules' longest paths."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
from brute_job import odd_job, point_of, profiled_job, small_job, with_stages

from stagecut.formulations.job.bounds import first_bounds
from stagecut.formulations.job.memory import memory_rows
from stagecut.formulations.job.paths import JobPaths
from stagecut.formulations.job.rates import Rates, rates
from stagecut.formulations.job.space import JobSpace, job_space
from stagecut.instances import InputError
from stagecut.instances.costs.calibration import calibration
from stagecut.instances.costs.layers import LayerPrices
from stagecut.instances.costs.layout import V_SCHEDULES, JobSchedule, Layout, Software
from stagecut.instances.costs.memory import rank_memory
from stagecut.runtime.estimate import PipelineShape, longest_path


def drawn(seed: int) -> tuple[random.Random, JobSpace, LayerPrices] | None:
    """Return the space of a random job, None if it is empty."""
    draw = random.Random(seed)
    model, cluster, job = draw.choice((small_job, odd_job, profiled_job))(draw)
    table = calibration(cluster.accelerator.family, job.settings.software)
    try:
        return draw, job_space(model, cluster, job), LayerPrices(model, cluster, table)
    except InputError:
        return None


def by_rows(space: JobSpace, table: Rates, point: int, layout: Layout) -> list[float]:
    """Return the bytes of each rank as the rows of a point add them up."""
    rows = memory_rows(space, table, point)
    types, first, found = np.array(space.model.types_of_layers), 0, rows.fixed.copy()
    inside = [0.0] * layout.pipeline
    by_layer = space.job.counts_layers(layout)
    for stage, count in enumerate(layout.stage_layers):
        own, rank = types[first : first + count], layout.stage_ranks[stage]
        first += count
        again = np.arange(count) < (layout.recomputed_layers(stage, count) if by_layer else 0)
        chunk = layout.rank_stages(rank).index(stage)
        for moment, a in enumerate(rows.flight[:, rank, chunk]):
            kept = a * (rows.kept[own] - rows.saved[own] * again)
            found[moment, rank] += (rows.state[own] + kept).sum()
        most = (rows.working[own] + rows.saved[own] * again * (rows.working[own] > 0)).max()
        inside[rank] = max(inside[rank], most)
    found += np.maximum(inside, rows.last)
    over = max(0.0, rows.loss - max(inside[rows.head], rows.last))
    found[:, rows.head] += over * (rows.flight[:, rows.head, -1] > 0)  # where it is computed
    return found.max(axis=0).tolist()


@pytest.mark.parametrize("seed", range(60))
def test_memory_rows_are_what_ranks_need(seed: int) -> None:
    """With Megatron's kernels and ZeRO below 3 to the byte; else no more than that."""
    found = drawn(seed)
    if found is None:
        return
    draw, space, prices = found
    table = rates(space, prices)
    for _ in range(8):
        point = draw.randrange(len(space))
        whole = space.layout(point)
        plans = [
            plan for plan in with_stages(space.model, space.job, whole) if point_of(plan) == whole
        ]
        layout = draw.choice(plans)
        needed = [rank_memory(space.model, layout, k).needed for k in range(layout.pipeline)]
        claimed = by_rows(space, table, point, layout)
        assert all(a <= b * (1 + 1e-9) for a, b in zip(claimed, needed, strict=True)), layout
        if layout.software is Software.MEGATRON and layout.zero < 3:
            assert claimed == pytest.approx(needed, rel=1e-9), layout


@pytest.mark.parametrize("schedule", list(JobSchedule))
@pytest.mark.parametrize("p", [2, 3, 4])
def test_paths_take_what_the_schedule_takes(schedule: JobSchedule, p: int) -> None:
    """The longest path is the runtime's, and its row says the same; no path is longer."""
    draw = np.random.default_rng(p)
    chunks = 2 if schedule in (JobSchedule.INTERLEAVED, *V_SCHEDULES) else 1
    for m in (2 * p, 4 * p):
        paths = JobPaths(schedule, p, chunks, m)
        for _ in range(4):
            forward, weights, inputs = draw.uniform(0.5, 2.0, (3, p * chunks))
            sent = float(draw.choice((0.0, 0.1, 1.0)))
            passes = np.stack((forward, weights + inputs, weights), axis=1)
            seconds = paths.longest(passes, sent)
            columns = [one[:, None] for one in passes.T]
            shape = PipelineShape(schedule.value, p, chunks, m)
            true = longest_path(shape, *columns, np.array([sent]))[0]
            counts, messages = paths.rows
            by_path = (counts * passes).sum(axis=(1, 2)) + messages * sent
            assert seconds == pytest.approx(true, rel=1e-12)
            assert by_path.max() == pytest.approx(true, rel=1e-12)


@pytest.mark.parametrize("seed", range(100, 130))
def test_less_memory_never_lowers_a_bound(seed: int) -> None:
    """What memory forces to be recomputed only adds to the work."""
    found = drawn(seed)
    if found is None:
        return
    _, space, prices = found
    table = rates(space, prices)
    known = first_bounds(space, table, prices)
    for share in (0.5, 0.2, 0.1, 0.05):
        tight = replace(space, job=replace(space.job, memory_bytes=share * 80e9))
        bounds = first_bounds(tight, table, prices)
        assert (bounds >= known * (1 - 1e-12)).all()
        known = bounds
