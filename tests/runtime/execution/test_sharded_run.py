"""Shardings at work: losses, gradients, statistics and bytes on 2, 4 and 2 × 2 processes."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="the extra `runtime` is not installed")

from ranks import on_ranks
from sharded_models import MODELS
from sharded_workers import run_random


@pytest.mark.parametrize("shape", [(2,), (4,), (2, 2)], ids=str)
@pytest.mark.parametrize("name", sorted(MODELS))
def test_random_signatures_compute_what_one_process_does(name: str, shape: tuple[int, ...]) -> None:
    world = 1
    for devices in shape:
        world *= devices
    converted = on_ranks(world, run_random, shape, name, range(2))
    assert converted[0] > 20
