"""Stages of planned models under torch's own schedules compute what the model computes alone."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="the extra `runtime` is not installed")

from plan_workers import planned_with_torch, refused  # noqa: E402
from ranks import on_ranks  # noqa: E402


@pytest.mark.parametrize(
    ("model", "schedule"), [("gpt", "1f1b"), ("mlp", "gpipe"), ("mlp", "interleaved")]
)
def test_two_processes(model: str, schedule: str) -> None:
    on_ranks(2, planned_with_torch, model, schedule)


def test_all_ranks_learn_that_there_is_no_plan() -> None:
    on_ranks(2, refused)
