"""Plans run on several processes compute what the model computes alone: losses and gradients."""

from __future__ import annotations

import socket
from itertools import product

import pytest

torch = pytest.importorskip("torch", reason="the extra `runtime` is not installed")

from execution_cases import Case, placed, run_cases  # noqa: E402
from execution_models import MODELS  # noqa: E402
from ranks import start_server  # noqa: E402
from torch import multiprocessing  # noqa: E402

SCHEDULES = ("gpipe", "1f1b", "interleaved", "zb-h1", "zb-h2")
PLACEMENTS = ("contiguous", "scattered")


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def run(world: int, *cases: Case) -> None:
    """Run cases on `world` processes, forked off one that has imported all they need."""
    start_server()
    multiprocessing.start_processes(
        run_cases, (world, free_port(), cases), nprocs=world, start_method="forkserver"
    )


def test_two_processes() -> None:
    """Every schedule and model, and everything that can be asked of a pipeline, once or twice."""
    run(
        2,
        Case("mlp", "contiguous", "gpipe"),
        Case("gpt", "contiguous", "1f1b", depth=1, tied="copies"),
        Case("resnet", "scattered", "1f1b"),
        Case("unet", "scattered", "interleaved"),
        Case("mixture", "scattered", "zb-h2"),
        Case("mlp", "contiguous", "zb-h1", recompute=True),
        Case("mlp", "contiguous", "1f1b", training=False),
        Case("gpt", "chunks", "given", depth=1, tied="copies"),
        Case("parted", "scattered", "zb-h1"),
    )


@pytest.mark.slow
def test_more_of_two_processes() -> None:
    run(
        2,
        Case("gpt", "contiguous", "1f1b", recompute=True, tied="copies"),
        Case("unet", "contiguous", "zb-h1"),
        Case("gpt", "scattered", "zb-h1"),
        Case("mlp", "chunks", "interleaved"),
        Case("unet", "contiguous", "1f1b"),
        Case("gpt", "chunks", "interleaved", depth=1, tied="copies"),
        Case("parted", "contiguous", "1f1b", tied="copies"),
        Case("parted", "contiguous", "1f1b", recompute=True),
        Case("parted", "contiguous", "1f1b", training=False),
    )


@pytest.mark.slow
def test_three_processes() -> None:
    run(3, Case("gpt", "scattered", "gpipe"), Case("resnet", "contiguous", "zb-h1"))


def test_four_processes() -> None:
    run(
        4,
        Case("mlp", "scattered", "interleaved"),
        Case("gpt", "contiguous", "1f1b", replicas=2, tied="copies"),
    )


@pytest.mark.slow
@pytest.mark.parametrize("world", [2, 3, 4])
@pytest.mark.parametrize("model", MODELS)
def test_everything(world: int, model: str) -> None:
    cases = [
        Case(model, placement, schedule, microbatches, depth=depth, tied="copies")
        for placement, schedule, depth in product(PLACEMENTS, SCHEDULES, (None, 1))
        for microbatches in (1, 2 * world)
    ]
    run(world, *(case for case in cases if placed(case, world) is not None))
