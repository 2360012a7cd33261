"""Times of a model's operators in milliseconds: measured on its device, or by the roofline.

Measured parts that do not add up to the measured whole are corrected: the missing time is spread
over the kernels, or over all parts.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..common.arrays import Floats
from ..common.errors import InputError
from ..generate.roofline import CPU_CORE, Machine
from ..model.network.links import Link
from .operator_graph import OperatorGraph, TracedOperator
from .parts import ModelParts
from .timing import (
    DAY_S,
    Cache,
    Timing,
    cache_folder,
    clock_name,
    device_of,
    measure_kernels,
    measure_whole,
)
from .to_workload import OperatorTimes
from .tracing.leaves import tensors
from .tracing.traced import reason_of

#: The most that torch plausibly needs around one kernel: dispatch, autograd, Python.
OVERHEAD_MS = 0.02

#: Factors beyond this, or below its inverse, say that parts and whole were not measured alike.
PLAUSIBLE = 1.5

#: Between processes of one machine over gloo, and over PCIe 4; ours, until they are measured.
ASSUMED_LINKS = {"cpu": Link(50e-6, 2e9), "cuda": Link(10e-6, 25e9)}


def estimated_times(graph: OperatorGraph, target: Machine) -> OperatorTimes:
    """Return times by the roofline of a machine; nothing runs."""
    nothing = np.zeros(len(graph.operators))
    return OperatorTimes(
        accelerator_ms=estimated_ms(graph.operators, target),
        cpu_ms=estimated_ms(graph.operators, CPU_CORE),
        measured=nothing,
        spread=nothing,
        link=target.peer,
        provenance={
            "cost_model": "roofline",
            "accelerator": f"{target.name}: {target.source}",
            "cpu": f"{CPU_CORE.name}: {CPU_CORE.source}",
            "link": "between accelerators",
        },
    )


def measured_times(
    parts: ModelParts,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    cache: Path | None,
    *,
    fresh: bool = False,
) -> tuple[OperatorTimes, list[str]]:
    """Measure kernels and whole, and correct the sum of the parts to the whole.

    A line for each pass says what was corrected. What the cache has is not measured again unless
    `fresh`. InputError if the model is on a device where nothing can be measured.
    """
    model, graph, training = parts.model, parts.graph, parts.training
    device = device_of((*model.parameters(), *tensors((args, kwargs))))
    if device.type == "meta":
        raise InputError("model: it is on the device meta, where nothing runs; estimate its times")
    if device.type not in ("cpu", "cuda"):
        raise InputError(f"model: it is on {device}; times are measured on cpu and cuda only")
    store = Cache(cache or cache_folder(), str(device))
    wanted = {k.signature for op in graph.operators for k in op.kernels}
    before = [] if fresh else [store.timings[k].when for k in wanted if k in store.timings]
    try:
        timings = measure_kernels(parts.traced, training, store, wanted, fresh=fresh)
        whole = measure_whole(model, args, kwargs, training)
    except RuntimeError as error:  # what nothing without numbers shows, as a changed saved tensor
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
    for what, mask, target in (
        ("forward", ~backward, whole.forward),
        ("backward", backward, whole.backward),
    ):
        if mask.any() and target.seconds > 0:
            ms[mask], factor, text = corrected(ms[mask], kernels[mask], 1e3 * target.seconds)
            provenance[f"{what}_check"] = text
            notes.append(f"{what}: {text}")
            if not 1 / PLAUSIBLE <= factor <= PLAUSIBLE:
                notes.append(f"warning: {what}: {_doubted(factor, len(before), device)}")
    host = device.type == "cpu"
    link = ASSUMED_LINKS["cpu" if host else "cuda"]
    cpu_ms = ms if host else fallback
    return OperatorTimes(ms, cpu_ms, measured, spread, link, provenance), notes


def _doubted(factor: float, before: int, device: torch.device) -> str:
    """Return a warning that parts and whole differ, with likely reason and remedy."""
    longer = factor > 1
    times = f"{factor:.1f} times" if longer else f"1/{1 / factor:.1f} of"
    if before:
        why = "kernels were measured before, when the machine was in another state; profile --fresh"
    elif device.type == "cpu" and torch.get_num_threads() > 1:
        why = (
            f"with {torch.get_num_threads()} threads the clock is wall time, which other programs "
            "disturb; measure on an idle machine, or with --threads 1"
        )
    elif longer:
        why = "it does more than kernels: Python, memory given back; a larger batch hides that"
    else:
        why = "the model has faster kernels than its trace, as nn.MultiheadAttention for inference"
    return f"the whole takes {times} its parts, and so plans may be off; likely {why}"


def _sum(kernels: Any, timings: Mapping[str, Timing]) -> Timing | None:
    """Return the time of kernels that run one after the other, or None if one is not known."""
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


def estimated_ms(operators: tuple[TracedOperator, ...], machine: Machine) -> Floats:
    """Return the time of each operator: the sum of its kernels' rooflines, launches included."""
    kernels = [(v, k) for v, op in enumerate(operators) for k in op.kernels]
    seconds = machine.seconds(
        np.array([k.flops for _, k in kernels]),
        np.array([k.moved_bytes for _, k in kernels]),
        np.ones(len(kernels)),
    )
    where = np.array([v for v, _ in kernels], np.int64)
    total = np.bincount(where, weights=1e3 * seconds, minlength=len(operators))
    return np.asarray(total, np.float64)
