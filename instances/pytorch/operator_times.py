"""Times of a model's operators in milliseconds: measured on its device, or by the roofline.

Measured parts that do not add up to the measured whole are corrected: the missing time is spread
over the kernels, or over all parts. Every kernel is timed, and the whole model.
"""

from __future__ import annotations

import itertools
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np
import torch
from platformdirs import user_cache_path
from torch import fx, nn

from ..common.arrays import Floats
from ..common.errors import InputError
from ..formats.writing import write_whole
from ..generate.roofline import CPU_CORE
from ..model.cluster import Link
from ..to_workload import OperatorTimes, estimated_ms
from .record import Clock, KernelRecorder
from .recorded_model import RecordedModel
from .tracing.traced import Traced, loss_of, reason_of, tensors

#: Runs to warm up; least and most measured runs; seconds after which measuring ends.
WARM_UP, FEWEST_RUNS, MOST_RUNS, BUDGET_S = 2, 5, 200, 2.0

#: Seconds of a day; days after which a measurement is repeated.
DAY_S = 86400.0
MOST_DAYS = 30.0
#: Kernels that are launched ahead of a GPU, and cycles (10 ms) for which it waits: otherwise the
#: launches by the host are timed.
AHEAD, AHEAD_CYCLES = 64, 20_000_000


@dataclass(frozen=True)
class Timing:
    """Measured time of a kernel."""

    seconds: float  # median of the calls
    spread: float  # interquartile range of the calls, relative to the median
    when: float = 0.0  # of the measurement, in seconds since 1970


#: Number of a timing in the cache's file.
_Number = Annotated[float, msgspec.Meta(ge=0.0)]
_Row = tuple[_Number, _Number, _Number]


class Cache:
    """Cache of kernel timings: a file per device, library version and number of threads.

    Without a folder nothing is cached; `notes` report problems with the file.
    """

    def __init__(self, folder: Path | None, device: str) -> None:
        self.machine = machine_name(device)
        words = [self.machine, f"torch-{torch.__version__}", f"{torch.get_num_threads()}-threads"]
        file = "".join(c if c.isalnum() or c in "-." else "_" for c in "_".join(words))
        self.path = None if folder is None else folder / f"kernels_{file}.json"
        self.timings: dict[str, Timing] = {}
        self.notes: list[str] = []
        if self.path is not None and os.path.isfile(self.path):
            try:
                kept = msgspec.json.decode(self.path.read_bytes(), type=dict[str, _Row])
            except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
                self.notes.append(f"{self.path} was damaged, and is written anew")
                return
            since = time.time() - MOST_DAYS * DAY_S
            found = {sign: Timing(*values) for sign, values in kept.items()}
            self.timings = {sign: t for sign, t in found.items() if t.when >= since}

    def save(self) -> None:
        """Write the file completely, or not at all."""
        if self.path is None:
            return
        rows = {s: [t.seconds, t.spread, t.when] for s, t in sorted(self.timings.items())}
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(self.path, json.dumps(rows, indent=0))
        except (OSError, InputError) as error:  # the measurements are used nevertheless
            self.notes.append(f"what was measured is not kept for later: {error}")


def machine_name(device: str) -> str:
    """Return a device's name in files."""
    if torch.device(device).type == "cuda":
        return str(torch.cuda.get_device_name(device))
    return _processor() or platform.processor() or platform.machine()


def _processor() -> str:
    """Return the name of the CPU's model, empty if it is not known."""
    try:
        if sys.platform == "darwin":
            command = ["sysctl", "-n", "machdep.cpu.brand_string"]
            return subprocess.run(
                command, capture_output=True, text=True, check=True
            ).stdout.strip()
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except (OSError, subprocess.SubprocessError):
        return ""
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, "")


def measure_kernels(
    traced: Traced, training: bool, cache: Cache, wanted: set[str], *, fresh: bool = False
) -> Mapping[str, Timing]:
    """Return the timings of the `wanted` kernels by signature, measuring those not in the cache.

    With `fresh` all are measured.

    The traced model runs again and again on real numbers, and every kernel is timed where it
    runs: what it reads is as warm or cold in the caches as it will be. Gradients are added to those
    of the run before, as with microbatches. Calls of one signature within a run share their mean,
    so that the parts add up; median and spread are over the runs.
    """
    if wanted <= set(cache.timings) and not fresh:
        return cache.timings
    device = device_of(p for _, p in (*traced.parameters, *enumerate(tensors(traced.inputs))))
    clock, between = _clock(device)
    run = fx.Interpreter(traced.module)
    seconds: dict[str, list[float]] = {}
    for number in runs_to_time():
        watch = KernelRecorder(clock)
        with torch.set_grad_enabled(training), watch:
            output = loss_of(tensors(run.run(*traced.inputs, enable_io_processing=False)))
            if training and output:
                torch.autograd.backward(output, [torch.ones_like(t) for t in output])
        _wait(device)
        if number >= WARM_UP:
            calls: dict[str, list[float]] = {}
            for sign, start, end in watch.marks:
                calls.setdefault(sign, []).append(between(start, end))
            for sign, each in calls.items():
                seconds.setdefault(sign, []).append(statistics.fmean(each))
    _forget_gradients(p for _, p in traced.parameters)
    now = time.time()
    for sign, means in seconds.items():
        if fresh or sign not in cache.timings:
            cache.timings[sign] = replace(_summary(means), when=now)
    cache.save()
    return cache.timings


def runs_to_time() -> Iterator[int]:
    """Yield the numbers of a measurement's runs, of which the first `WARM_UP` are not measured."""
    began = time.perf_counter()
    for number in range(MOST_RUNS):
        if number >= WARM_UP + FEWEST_RUNS and time.perf_counter() - began >= BUDGET_S:
            return
        yield number


def device_of(candidates: Iterable[torch.Tensor]) -> torch.device:
    """Return the device of the first of these tensors, or the CPU."""
    return next((t.device for t in candidates), torch.device("cpu"))


def clock_name(device: torch.device) -> str:
    """Return the name of the clock for kernels."""
    if device.type == "cuda":
        return "events on the device"
    return "CPU time" if torch.get_num_threads() == 1 else "wall time"


def _clock(device: torch.device) -> tuple[Clock, Callable[[Any, Any], float]]:
    """Return a clock, and the seconds between two of its marks once the device is idle.

    With one thread it is CPU time, which other programs do not disturb.
    """
    if device.type == "cuda":
        marks = itertools.count()

        def mark() -> Any:
            if next(marks) % (2 * AHEAD) == 0:
                torch.cuda._sleep(AHEAD_CYCLES)
            event = torch.cuda.Event(enable_timing=True)
            event.record(torch.cuda.current_stream(device))
            return event

        return mark, lambda start, end: 1e-3 * start.elapsed_time(end)
    return host_clock(device), lambda start, end: end - start


def host_clock(device: torch.device) -> Callable[[], float]:
    """Return a clock in seconds: of CPU time with one thread, else of wall time."""
    one = device.type == "cpu" and torch.get_num_threads() == 1
    return time.thread_time if one else time.perf_counter


def measure_whole(
    model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], training: bool
) -> tuple[Timing, Timing]:
    """Return the times of the model itself, called as by its user: forward and backward."""
    device = device_of((*model.parameters(), *tensors((args, dict(kwargs)))))
    clock = host_clock(device)
    forward: list[float] = []
    backward: list[float] = []
    for _ in runs_to_time():
        with nullcontext() if training else torch.no_grad():
            _wait(device)
            start = clock()
            output = model(*args, **kwargs)
            _wait(device)
            forward.append(clock() - start)
        roots = loss_of(tensors(output)) if training else []
        ones = [torch.ones_like(t) for t in roots]
        del output
        _wait(device)
        start = clock()
        if roots:
            torch.autograd.backward(roots, ones)
        _wait(device)
        backward.append(clock() - start if roots else 0.0)
    _forget_gradients(model.parameters())
    return _summary(forward[WARM_UP:]), _summary(backward[WARM_UP:])


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


#: Largest plausible time of torch around one kernel: dispatch, autograd, Python.
OVERHEAD_MS = 0.02

#: Largest plausible factor: beyond it, or below its inverse, parts and whole were not comparable.
PLAUSIBLE = 1.5

#: Assumed links until they are measured: gloo between processes of one machine, and PCIe 4.
ASSUMED_LINKS = {"cpu": Link(50e-6, 2e9), "cuda": Link(10e-6, 25e9)}


def measured_times(
    recorded: RecordedModel,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    cache: Path | None,
    *,
    fresh: bool = False,
) -> tuple[OperatorTimes, list[str]]:
    """Measure kernels and whole, and correct the sum of the parts to the whole.

    A note for each pass states the correction. Cached kernels are not measured again unless
    `fresh`. InputError if the model is on a device where nothing can be measured.
    """
    model, graph, training = recorded.model, recorded.graph, recorded.training
    device = device_of((*model.parameters(), *tensors((args, kwargs))))
    if device.type == "meta":
        raise InputError("model: it is on the device meta, where nothing runs; estimate its times")
    if device.type not in ("cpu", "cuda"):
        raise InputError(f"model: it is on {device}; times are measured on cpu and cuda only")
    store = Cache(cache or user_cache_path("stagecut") / "kernels", str(device))
    wanted = {k.signature for op in graph.operators for k in op.kernels}
    before = [] if fresh else [store.timings[k].when for k in wanted if k in store.timings]
    try:
        timings = measure_kernels(recorded.traced, training, store, wanted, fresh=fresh)
        forward, behind = measure_whole(model, args, kwargs, training)
    except RuntimeError as error:  # such as a changed saved tensor, which fake tensors do not show
        raise InputError(f"model: it fails when it runs: {reason_of(error, model)}") from None
    fallback = estimated_ms(graph.operators, CPU_CORE)
    found = [_sum(op.kernels, timings) for op in graph.operators]
    ms = np.array([fallback[v] if t is None else 1e3 * t.seconds for v, t in enumerate(found)])
    measured = np.array([0.0 if t is None else 1.0 for t in found])
    spread = np.array([0.0 if t is None else t.spread for t in found])
    backward = np.array([op.backward for op in graph.operators])
    kernels = np.array([float(len(op.kernels)) for op in graph.operators])
    provenance = {"cost_model": "measured", "device": f"{device.type}: {store.machine}"}
    provenance["clock"] = clock_name(device)
    provenance["threads"] = str(torch.get_num_threads())
    provenance["link"] = "assumed"
    notes = store.notes
    if before:
        days = (time.time() - min(before)) / DAY_S
        ago = f"up to {days:.0f} days ago" if days > 1 else "within a day"
        notes.append(
            f"{len(before)} of {len(wanted)} kernels were measured before, {ago} ({store.path}); "
            "--fresh measures all of them"
        )
    for what, mask, target in (("forward", ~backward, forward), ("backward", backward, behind)):
        if mask.any() and target.seconds > 0:
            ms[mask], factor, text = corrected(ms[mask], kernels[mask], 1e3 * target.seconds)
            provenance[f"{what}_check"] = text
            notes.append(f"{what}: {text}")
            if not 1 / PLAUSIBLE <= factor <= PLAUSIBLE:
                notes.append(f"warning: {what}: {_doubted(factor, len(before), device)}")
    host = device.type == "cpu"
    link = ASSUMED_LINKS["cpu" if host else "cuda"]
    cpu_ms = ms if host else fallback
    return OperatorTimes(ms, cpu_ms, link, provenance, measured, spread), notes


def _doubted(factor: float, before: int, device: torch.device) -> str:
    """Return a warning that parts and whole differ, with likely reason and remedy."""
    if before:
        why = "kernels were measured before, when the machine was in another state; profile --fresh"
    elif device.type == "cpu" and torch.get_num_threads() > 1:
        why = (
            f"with {torch.get_num_threads()} threads the clock is wall time, which other programs "
            "disturb; measure on an idle machine, or with --threads 1"
        )
    elif factor > 1:
        why = "it does more than kernels: Python, memory given back; a larger batch hides that"
    else:
        why = "the model has faster kernels than its trace, as nn.MultiheadAttention for inference"
    return (
        f"the whole takes {factor:.2g} times as long as its parts together, so plans may be off; "
        f"likely {why}"
    )


def _sum(kernels: Any, timings: Mapping[str, Timing]) -> Timing | None:
    """Return the total time of kernels, or None if one is not known."""
    known = [timings.get(k.signature) for k in kernels]
    found = [t for t in known if t is not None]
    if len(found) < len(known):
        return None
    total = sum(t.seconds for t in found)
    return Timing(total, sum(t.seconds * t.spread for t in found) / total if total else 0.0)


def corrected(ms: Floats, kernels: Floats, whole_ms: float) -> tuple[Floats, float, str]:
    """Return times scaled to sum to the whole, the factor, and a note on the correction.

    A whole that takes longer than its parts is explained first by a constant overhead for each
    kernel, up to 20 µs, as small models show; the rest by a common factor.
    """
    total = float(ms.sum())
    text = f"parts {total:.4g} ms, whole {whole_ms:.4g} ms"
    if not total:
        return ms, 1.0, text
    overhead = min(max(0.0, (whole_ms - total) / float(kernels.sum())), OVERHEAD_MS)
    ms = ms + overhead * kernels
    factor = whole_ms / float(ms.sum())
    text += f": corrected by {1e3 * overhead:.3g} µs per kernel" if overhead else ": corrected"
    if abs(factor - 1) > 1e-9:
        text += (
            f" by a factor of {factor:.4g}" if not overhead else f" and a factor of {factor:.4g}"
        )
    return ms * factor, factor, text
