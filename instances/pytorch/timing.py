"""Measuring: every kernel of a model where it runs, and the model as a whole."""

from __future__ import annotations

import json
import platform
import statistics
import time
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import fx, nn

from ..published import default_folder
from ..writing import write_whole
from .leaves import tensors
from .record import loss_of
from .trace import Traced
from .watch import Watch

#: Runs that do not count; at least and at most so many that do; seconds after which it ends.
WARM_UP, LEAST, MOST, BUDGET_S = 2, 5, 200, 2.0


@dataclass(frozen=True)
class Timing:
    """Median of the calls in seconds, and their interquartile range relative to it."""

    seconds: float
    spread: float


@dataclass(frozen=True)
class Whole:
    """Seconds that the whole model takes, forward and backward."""

    forward: Timing
    backward: Timing


class Cache:
    """Timings of kernels, kept in a file per device and library version.

    Parameters
    ----------
    folder
        None to keep nothing.
    device
        ``cpu``, ``cuda``, ….
    """

    def __init__(self, folder: Path | None, device: str) -> None:
        self.machine = machine_name(device)
        words = [self.machine, f"torch-{torch.__version__}", f"{torch.get_num_threads()}-threads"]
        file = "".join(c if c.isalnum() or c in "-." else "_" for c in "_".join(words))
        self.path = None if folder is None else folder / f"kernels_{file}.json"
        self.timings: dict[str, Timing] = {}
        if self.path is not None and self.path.is_file():
            kept = json.loads(self.path.read_text(encoding="utf-8"))
            self.timings = {sign: Timing(*pair) for sign, pair in kept.items()}

    def save(self) -> None:
        """Write the file whole, or not at all."""
        if self.path is not None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            pairs = {sign: [t.seconds, t.spread] for sign, t in sorted(self.timings.items())}
            write_whole(self.path, json.dumps(pairs, indent=0))


def cache_folder() -> Path:
    """Return where measurements are kept by default."""
    return default_folder().parent / "kernels"


def machine_name(device: str) -> str:
    """Return what a device is called in files."""
    if torch.device(device).type == "cuda":
        return str(torch.cuda.get_device_name(device))
    return platform.processor() or platform.machine()


def measure_kernels(
    traced: Traced, training: bool, cache: Cache, wanted: set[str]
) -> Mapping[str, Timing]:
    """Return the timings of the `wanted` kernels by signature, measuring those not in the cache.

    The traced model runs again and again on real numbers, and every kernel is timed where it
    runs: what it reads is as warm or cold in the caches as it will be. Kernels of one signature
    share their samples.
    """
    if wanted <= set(cache.timings):
        return cache.timings
    device = next((p.device for _, p in traced.parameters), torch.device("cpu"))

    def clock() -> float:
        _wait(device)
        return time.perf_counter()

    run = fx.Interpreter(traced.module)
    watch = Watch(clock)
    began, runs = time.perf_counter(), 0
    while runs < WARM_UP + LEAST or (runs < MOST and time.perf_counter() - began < BUDGET_S):
        if runs == WARM_UP:
            watch.seconds.clear()
        with torch.set_grad_enabled(training), watch:
            output = loss_of(tensors(run.run(*traced.inputs, enable_io_processing=False)))
            if training:
                torch.autograd.backward(output, [torch.ones_like(t) for t in output])
        _forget_gradients(p for _, p in traced.parameters)
        runs += 1
    for sign, seconds in watch.seconds.items():
        cache.timings.setdefault(sign, _summary(seconds))
    cache.save()
    return cache.timings


def measure_whole(
    model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], training: bool
) -> Whole:
    """Return how long the model itself takes, as its user would call it."""
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    forward: list[float] = []
    backward: list[float] = []
    began = time.perf_counter()
    while len(forward) < WARM_UP + LEAST or (
        len(forward) < MOST and time.perf_counter() - began < BUDGET_S
    ):
        with nullcontext() if training else torch.no_grad():
            _wait(device)
            start = time.perf_counter()
            output = model(*args, **kwargs)
            _wait(device)
            middle = time.perf_counter()
        if training:
            roots = loss_of(tensors(output))
            torch.autograd.backward(roots, [torch.ones_like(t) for t in roots])
            _wait(device)
            _forget_gradients(model.parameters())
        forward.append(middle - start)
        backward.append(time.perf_counter() - middle if training else 0.0)
    return Whole(_summary(forward[WARM_UP:]), _summary(backward[WARM_UP:]))


def _forget_gradients(parameters: Any) -> None:
    for parameter in parameters:
        parameter.grad = None


def _summary(seconds: list[float]) -> Timing:
    median = statistics.median(seconds)
    if len(seconds) < 2:
        return Timing(median, 0.0)
    low, _, high = statistics.quantiles(seconds, n=4)
    return Timing(median, (high - low) / median if median > 0 else 0.0)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
