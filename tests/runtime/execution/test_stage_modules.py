"""Stages of planned models under torch's own schedules compute what the model computes alone."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="the extra `runtime` is not installed")

from plan_workers import own_training_loop, planned_with_torch, refused  # noqa: E402
from ranks import on_ranks  # noqa: E402
from torch import nn  # noqa: E402

import stagecut  # noqa: E402


@pytest.mark.parametrize(
    ("model", "schedule"), [("gpt", "1f1b"), ("mlp", "gpipe"), ("mlp", "interleaved")]
)
def test_two_processes(model: str, schedule: str) -> None:
    on_ranks(2, planned_with_torch, model, schedule)


def test_all_ranks_learn_that_there_is_no_plan() -> None:
    on_ranks(2, refused)


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
def test_a_training_loop_of_ones_own_trains_as_one_process(schedule: str) -> None:
    on_ranks(2, own_training_loop, schedule)


def test_evaluation_turns_dropout_off_and_takes_running_statistics() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(16, 16),
        nn.BatchNorm1d(16),
        nn.Dropout(0.5),
        nn.BatchNorm1d(16, track_running_stats=False),
    )
    x = torch.randn(8, 16)
    workload = stagecut.profile(model, (x,), training=True, estimate="h100").workload
    cluster = stagecut.accelerators_and_cpus(1, 0)
    plan = stagecut.solve(workload, cluster, stagecut.Throughput("contiguous")).plan
    (stage,) = stagecut.stage_modules(stagecut.split_model(plan, model, (x,), workload=workload))
    stage(x)
    assert int(model[1].num_batches_tracked) == 1
    stage.eval()
    found = stage(x)
    torch.testing.assert_close(found, model.eval()(x))
    assert int(model[1].num_batches_tracked) == 1
    assert not torch.equal(stage.train()(x), found)
    assert int(model[1].num_batches_tracked) == 2
