"""Orders of passes in a V are those that torch runs, and keep what the closed forms say."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from stagecut.formulations.job.orders import ScheduleOrder
from stagecut.instances import InputError
from stagecut.instances.costs.layout import Layout
from stagecut.instances.model.schedule import (
    interleaved_in_flight,
    interleaved_rows,
    v_in_flight,
    v_rows,
)
from stagecut.runtime.schedules import make_schedule, validate
from stagecut.runtime.simulate import chain, simulate_stages

CLASSES = {"zb-v": "ScheduleZBVZeroBubble", "dualpipe-v": "ScheduleDualPipeV"}
KINDS = {"FORWARD": 0, "FULL_BACKWARD": 1, "BACKWARD_INPUT": 2, "BACKWARD_WEIGHT": 3}
CASES = [
    (name, p, m)
    for name in CLASSES
    for p in range(2, 7)
    for m in (1, p, 2 * p - 1, 2 * p, 2 * p + 1, 5 * p)
    if name == "zb-v" or m >= 2 * p
]


def torch_rows(name: str, p: int, m: int) -> list[list[tuple[int, int, int]]]:
    """Return what torch's schedule has each rank do; of passes side by side F first."""
    schedules = pytest.importorskip("torch.distributed.pipelining.schedules")
    kind = getattr(schedules, CLASSES[name])
    shape = SimpleNamespace(pp_group_size=p, num_stages=2 * p, _n_microbatches=m)
    rows = []
    for rank in range(p):
        found = [one for one in kind._calculate_single_rank_operations(shape, rank) if one]
        passes = [part for one in found for part in one.sub_actions or (one,)]
        rows.append(
            [(a.stage_index, KINDS[a.computation_type.name], a.microbatch_index) for a in passes]
        )
    return rows


@pytest.mark.parametrize(("name", "p", "m"), CASES)
def test_the_order_is_the_one_that_torch_runs(name: str, p: int, m: int) -> None:
    for ours, theirs in zip(v_rows(name, p, m), torch_rows(name, p, m), strict=True):
        assert list(map(tuple, ours.tolist())) == theirs


@pytest.mark.parametrize(("name", "p", "m"), CASES)
def test_microbatches_in_flight_are_those_of_the_order(name: str, p: int, m: int) -> None:
    device = np.array(Layout(pipeline=p, chunks=2, schedule=name).stage_ranks)
    order = ScheduleOrder(2 * p, m, device, v_rows(name, p, m))
    for rank, vectors in enumerate(order.in_flight):
        assert sorted(map(tuple, vectors.tolist())) == sorted(v_in_flight(name, p, rank, m))


@pytest.mark.parametrize(("p", "chunks", "m"), [(2, 2, 2), (2, 3, 8), (4, 3, 8), (3, 5, 15)])
def test_unlike_chunks_of_an_interleaved_rank_are_fullest_at_one_of_its_moments(
    p: int, chunks: int, m: int
) -> None:
    """Later chunks that keep more are fullest behind the warm-up, earlier ones long after it."""
    rows = interleaved_rows(p, chunks, m)
    order = ScheduleOrder(p * chunks, m, np.arange(p * chunks) % p, rows)
    draw = np.random.default_rng(0)
    for rank, vectors in enumerate(order.in_flight):
        moments = np.array(interleaved_in_flight(p, chunks, rank, m))
        assert {*map(tuple, moments.tolist())} <= {*map(tuple, vectors.tolist())}
        kept = draw.random((chunks, 100))
        assert np.allclose((moments @ kept).max(axis=0), (vectors @ kept).max(axis=0))


@pytest.mark.parametrize("name", CLASSES)
def test_the_simulator_runs_it(name: str) -> None:
    """Where F, I and W of all stages take equally long no rank pauses once it has begun."""
    p, m = 4, 12
    layout = Layout(pipeline=p, chunks=2, schedule=name, global_batch=m)
    stages = chain([1.0] * 2 * p, [2.0] * 2 * p, device=layout.stage_ranks)
    validate(make_schedule(name, stages, m), stages)
    assert simulate_stages(stages, name, m).makespan == 2 * 3.0 * m + p - 1


def test_other_stages_than_in_a_v_are_refused() -> None:
    stages = chain([1.0] * 4, [2.0] * 4, device=[0, 1, 0, 1])
    with pytest.raises(InputError, match="down D devices and up again"):
        make_schedule("zb-v", stages, 4)
    layout = Layout(pipeline=2, chunks=2, schedule="zb-v")
    stages = chain([1.0] * 4, [2.0] * 4, device=layout.stage_ranks)
    with pytest.raises(InputError, match="at least 4 microbatches"):
        make_schedule("dualpipe-v", stages, 3)
