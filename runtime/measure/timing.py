"""Timing of messages between the ranks of a process group, and of matrix products on a device."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Sequence
from functools import partial
from statistics import median

import numpy as np
import psutil
import torch
import torch.distributed as dist

from ...instances import InputError
from ...instances.common.arrays import Floats
from .group import idle_at, of_all_ranks
from .measurement import Measurement, MessageTimes, RankMachine, RankPair

#: Bytes of messages: 64 B to 16 MiB, four times as many each.
SIZES = tuple(64 * 4**k for k in range(10))
WARM_UP, FEWEST_RUNS, MOST_RUNS = 3, 5, 1000


def measure(
    sizes: Sequence[int] = SIZES,
    seconds: float = 10.0,
    device: torch.device | str = "cpu",
    on_pair: Callable[[int, int, int], None] | None = None,
) -> Measurement:
    """Return times of messages between all pairs of ranks, and of all-reduces; all ranks call it.

    Messages go there and back; half of that time is a message's. Pairs are measured one after the
    other, so that they do not disturb each other: contention of several messages is not measured.
    Sizes take turns in a random order, so that neither other load nor the aftermath of a large
    message affects one of them alone.

    Parameters
    ----------
    sizes
        Bytes of the messages, at least two sizes.
    seconds
        Time to spend, about, on all pairs together, equally on all sizes; at least 5 messages of
        each are sent.
    device
        Device of this rank's tensors.
    on_pair
        Function that is called before a pair is measured: with first rank, second rank, pairs left.

    Returns
    -------
    Measurement
        Times, the same on every rank; `to_cluster` makes a cluster of them.

    Raises
    ------
    InputError
        If there is no process group, or only one rank.

    References
    ----------
    Latency and bandwidth are fitted to the postal model: Bar-Noy, Kipnis, "Designing Broadcasting
    Algorithms in the Postal Model for Message-Passing Systems", SPAA 1992.

    Examples
    --------
    >>> import stagecut  # in a program that torchrun starts
    >>> stagecut.measure()
    Traceback (most recent call last):
    stagecut.instances.common.errors.InputError: measure: no process group; start it under torchrun
    """
    if not dist.is_initialized():
        raise InputError("measure: no process group; start it under torchrun")
    world, rank = dist.get_world_size(), dist.get_rank()
    if world < 2:
        raise InputError(
            "measure: 1 rank; links are between at least 2: torchrun --nproc-per-node 2 …"
        )
    device = torch.device(device)
    buffers = [torch.zeros(max(1, int(size)), dtype=torch.uint8, device=device) for size in sizes]
    pairs = [(a, b) for a in range(world) for b in range(a + 1, world)]
    budget = seconds / (len(pairs) + 1)
    own: list[tuple[int, int, list[Floats]]] = []
    for number, (a, b) in enumerate(pairs):
        dist.barrier()
        if on_pair is not None:
            on_pair(a, b, len(pairs) - number)
        if rank == a:
            own.append((a, b, _ping(buffers, b, budget)))
        elif rank == b:
            _pong(buffers, a)
    dist.barrier()
    reduced = _all_reduce(buffers, budget)
    size_bytes = np.array([buffer.numel() for buffer in buffers], np.float64)
    found = of_all_ranks((_this_machine(device), own, reduced))
    timed = {(a, b): rounds for _, rows, _ in found for a, b, rounds in rows}
    return Measurement(
        backend=dist.get_backend(),
        ranks=tuple(machine for machine, _, _ in found),
        pairs=tuple(
            RankPair(a, b, MessageTimes(size_bytes, tuple(both / 2 for both in timed[a, b])))
            for a, b in pairs
        ),
        # the rank that came last did not wait for others: its time is the all-reduce's
        all_reduce=MessageTimes(
            size_bytes,
            tuple(np.min(times, axis=0) for times in zip(*(r for _, _, r in found), strict=True)),
        ),
    )


def _ping(buffers: list[torch.Tensor], peer: int, budget: float) -> list[Floats]:
    """Return, for each size, the seconds to `peer` and back of every message."""

    def once(buffer: torch.Tensor) -> float:
        begin = time.perf_counter()
        dist.send(buffer, peer)
        dist.recv(buffer, peer)
        return idle_at(buffer.device) - begin

    counts = counts_within(turns(buffers, [WARM_UP] * len(buffers), once), budget)
    dist.send(torch.tensor(counts, device=buffers[0].device), peer)
    return turns(buffers, counts, once)


def _pong(buffers: list[torch.Tensor], peer: int) -> None:
    def once(buffer: torch.Tensor) -> float:
        dist.recv(buffer, peer)
        dist.send(buffer, peer)
        return 0.0

    turns(buffers, [WARM_UP] * len(buffers), once)
    counts = torch.zeros(len(buffers), dtype=torch.int64, device=buffers[0].device)
    dist.recv(counts, peer)
    turns(buffers, counts.tolist(), once)


def _all_reduce(buffers: list[torch.Tensor], budget: float) -> list[Floats]:
    """Return, for each size, the seconds of this rank in every all-reduce."""

    def once(buffer: torch.Tensor) -> float:
        dist.barrier()
        begin = time.perf_counter()
        dist.all_reduce(buffer)
        return idle_at(buffer.device) - begin

    return timed_together(buffers, once, budget)


def timed_together(
    buffers: list[torch.Tensor], once: Callable[[torch.Tensor], float], budget: float
) -> list[Floats]:
    """Return the seconds of every call of `once` with each buffer, as often on all ranks."""
    warm = turns(buffers, [WARM_UP] * len(buffers), once)
    counts = torch.tensor(counts_within(warm, budget), device=buffers[0].device)
    dist.broadcast(counts, 0)
    return turns(buffers, counts.tolist(), once)


def turns(
    buffers: list[torch.Tensor], counts: list[int], once: Callable[[torch.Tensor], float]
) -> list[Floats]:
    """Call `once` with each buffer `counts` times, spread evenly; return the times of each buffer.

    Every rank has the same order.
    """
    order, most = np.random.default_rng(0), max(counts)
    times: list[list[float]] = [[] for _ in buffers]
    for turn in range(most):
        for k in order.permutation(len(buffers)).tolist():
            if (turn + 1) * counts[k] // most > turn * counts[k] // most:
                times[k].append(once(buffers[k]))
    return [np.array(row) for row in times]


def counts_within(warm: list[Floats], budget: float) -> list[int]:
    """Return the number of messages of each size that fill equal shares of `budget` seconds."""
    share = budget / len(warm)
    return [min(MOST_RUNS, max(FEWEST_RUNS, int(share / np.median(times)))) for times in warm]


def _this_machine(device: torch.device) -> RankMachine:
    host = socket.gethostname()
    if device.type == "cuda":
        card = torch.cuda.get_device_properties(device)
        return RankMachine(host, str(device), card.name, float(card.total_memory))
    here = int(os.environ.get("LOCAL_WORLD_SIZE", dist.get_world_size()))
    return RankMachine(host, str(device), "process", psutil.virtual_memory().total // here)


#: Precisions, by the type of the operands; products of 32-bit floats run as they are set to.
TYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}

#: Rows of square operands, smallest first: a size is skipped once its product takes too long.
ROWS = (512, 1024, 2048, 4096, 8192, 16384)

#: Number of products of a size, of which the median counts.
REPEATS = 5


def measure_products(device: torch.device, seconds: float) -> dict[str, float]:
    """Return the highest operations per second of matrix products, by precision.

    It takes about so many seconds.
    """
    found = {}
    for name, kind in TYPES.items():
        if kind is torch.float16 and device.type == "cpu":
            continue  # CPUs emulate it
        found[name] = _fastest(device, kind, seconds / len(TYPES))
    return found


def _fastest(device: torch.device, kind: torch.dtype, seconds: float) -> float:
    best, left = 0.0, seconds
    for size in ROWS:
        a = torch.randn(size, size, device=device).to(kind)
        b = torch.randn(size, size, device=device).to(kind)
        once = _timed(partial(torch.matmul, a, b), device, REPEATS)
        best = max(best, 2 * size**3 / once)
        left -= once * REPEATS
        if 8 * once * REPEATS > left:
            break
    return best


def _timed(work: Callable[[], object], device: torch.device, repeats: int) -> float:
    """Return the median time of a call in seconds, after a warm-up."""
    taken = []
    for _ in range(1 + repeats):
        begun = time.perf_counter()
        work()
        taken.append(idle_at(device) - begun)
    return median(taken[1:])
