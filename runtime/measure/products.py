"""The rate that large matrix products reach on a device, by precision."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from statistics import median

import torch

#: Precisions, by the type of the operands; products of 32-bit floats run as they are set to.
TYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}

#: Rows of square operands, smallest first: a size is skipped once its product takes too long.
SIZES = (512, 1024, 2048, 4096, 8192, 16384)

#: Products of a size at least, of which the median counts.
REPEATS = 5


def measure_products(device: torch.device, seconds: float) -> dict[str, float]:
    """Return operations per second of the fastest size, by precision, in about so many seconds."""
    found = {}
    for name, kind in TYPES.items():
        if kind is torch.float16 and device.type == "cpu":
            continue  # emulated
        found[name] = _fastest(device, kind, seconds / len(TYPES))
    return found


def _fastest(device: torch.device, kind: torch.dtype, seconds: float) -> float:
    best, left = 0.0, seconds
    for size in SIZES:
        a = torch.randn(size, size, device=device).to(kind)
        b = torch.randn(size, size, device=device).to(kind)
        once = _timed(partial(torch.matmul, a, b), device, REPEATS)
        best = max(best, 2 * size**3 / once)
        left -= once * REPEATS
        if 8 * once * REPEATS > left:
            break
    return best


def _timed(work: Callable[[], object], device: torch.device, repeats: int) -> float:
    """Return the median seconds of one call, after one that does not count."""
    taken = []
    for _ in range(1 + repeats):
        begun = time.perf_counter()
        work()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        taken.append(time.perf_counter() - begun)
    return median(taken[1:])
