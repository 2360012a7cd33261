"""Processes with a core each, as far as there are cores, for the benchmarks that run plans."""

from __future__ import annotations

import os
import pickle
import socket
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import torch.distributed as dist
from torch import multiprocessing


def on_ranks(world: int, work: Callable[..., Any], *arguments: Any) -> Any:
    """Run ``work(*arguments)`` on ranks pinned to a core each; return what rank 0 gives.

    More ranks than cores share these.
    """
    cores = sorted(os.sched_getaffinity(0))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with TemporaryDirectory() as folder:
        answer = Path(folder) / "answer"  # a pipe is read too late where the answer is larger
        multiprocessing.spawn(_rank, (world, port, cores, answer, work, arguments), nprocs=world)
        return pickle.loads(answer.read_bytes())


def _rank(
    rank: int,
    world: int,
    port: int,
    cores: list[int],
    given: Path,
    work: Callable[..., Any],
    arguments: tuple[Any, ...],
) -> None:
    os.sched_setaffinity(0, {cores[rank % len(cores)]})
    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(world))
    dist.init_process_group("gloo")
    try:
        answer = work(*arguments)
        if rank == 0:
            given.write_bytes(pickle.dumps(answer))
    finally:
        dist.destroy_process_group()


def median_s(step: Callable[[], None], steps: int) -> float:
    """Return the median time of a step that all ranks begin together, in seconds."""
    taken = []
    for _ in range(steps):
        dist.barrier()
        begun = time.perf_counter()
        step()
        dist.barrier()
        taken.append(time.perf_counter() - begun)
    return statistics.median(taken)
