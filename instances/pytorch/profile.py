"""The front door: a PyTorch model becomes a workload."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

import numpy as np
import torch
from torch import nn

from ..architectures.lowering import suggested_cluster
from ..cluster import ACCELERATOR, Cluster, DeviceKind
from ..errors import InputError
from ..links import Link
from ..roofline import CPU_CORE, MACHINES, Machine, machine
from ..units import NodeId
from ..workload import Workload
from .correct import corrected
from .estimate import estimated_ms
from .graph import Graph
from .layers import Grouping, by_layer, by_operator, fitting_depth
from .leaves import tensors
from .operators import operator_graph
from .record import record
from .recording import Recording
from .timing import (
    Cache,
    Timing,
    cache_folder,
    clock_name,
    device_of,
    measure_kernels,
    measure_whole,
)
from .to_workload import Times, memory_bytes, to_workload
from .trace import Traced, trace
from .unchanged import unchanged

#: Between processes of one machine over gloo, and over PCIe 4; ours, until they are measured.
_ASSUMED_LINKS = {"cpu": Link(50e-6, 2e9), "cuda": Link(10e-6, 25e9)}
_DEVICES = 4

Tied = Literal["colour", "copies"]


@dataclass(frozen=True)
class Profile:
    """A workload, and how it hangs together with the model.

    Parameters
    ----------
    workload
        To plan for.
    fx_nodes
        Names of the nodes of `traced.module` that each workload node stands for, by its id; those
        of backward nodes are autograd's.
    anywhere
        Names of the nodes of `traced.module` that are constants: every device makes its own.
    traced
        The traced model; tracing it again gives the same names.
    recording
        What its operators do.
    notes
        What the user should know, a line each.
    """

    workload: Workload
    fx_nodes: Mapping[NodeId, tuple[str, ...]]
    anywhere: tuple[str, ...]
    traced: Traced
    recording: Recording
    notes: tuple[str, ...]


def profile(
    model: nn.Module,
    args: tuple[Any, ...] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    name: str = "",
    training: bool = False,
    estimate: str | None = None,
    depth: int | Literal["auto"] | None = None,
    tied: Tied = "colour",
    cache: Path | None = None,
) -> Profile:
    """Trace a model for example inputs and return it as a workload with times.

    Parameters
    ----------
    model, args, kwargs
        What runs: ``model(*args, **kwargs)``. It is switched to training or evaluation mode if it
        is in the other one; afterwards modes, buffers, gradients and random generators are as
        they were.
    name
        Of the workload; default: the model's class.
    training
        With backward pass, gradients, optimizer state, saved activations.
    estimate
        Name of an accelerator (see `roofline.MACHINES`): times are its roofline's, nothing runs,
        and the model may be on the device ``meta``. Default: times are measured on the device
        that the model is on.
    depth
        None: nodes are operators. d: nodes are the modules d calls below the model; see
        `layers.by_layer`. ``auto``: the smallest depth with at least 8 forward nodes.
    tied
        ``colour``: operators that read one parameter share a device. ``copies``: each has a copy.
    cache
        Folder for measurements; default: the user's cache folder.

    Raises
    ------
    InputError
        If the model cannot be traced (the reason, and the module at fault), or an option is none.

    Examples
    --------
    >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    >>> profile(model, (torch.zeros(3, 4),), estimate="h100").workload.ids
    ('linear', 'relu', 'linear_1')
    """
    if isinstance(depth, int) and depth < 1:
        raise InputError(f"depth: {depth}; it must be at least 1")
    if tied not in ("colour", "copies"):
        raise InputError(f"tied: {tied!r} is not one of colour, copies")
    target = None if estimate is None else machine(estimate)
    named = dict(kwargs or {})
    model = getattr(model, "_orig_mod", model)  # `torch.compile` wraps it so
    _make_lazy_parameters(model, args, named)
    with unchanged(model, (args, named)):
        traced, recording, graph = _graph(model, args, named, training, tied)
        if target is None:
            times, notes = _measured(model, args, named, traced, graph, training, cache)
            cluster = Cluster(
                (DeviceKind("process", _DEVICES, times=ACCELERATOR, link=times.link),)
            )
        else:
            times, notes = _estimated(graph, target), []
            cluster = suggested_cluster(target, target.peer, memory_bytes(graph))
    if depth == "auto":
        depth = fitting_depth(graph)
    grouping = by_operator(graph) if depth is None else by_layer(graph, depth)
    if traced.because:
        notes = [f"torch.export failed: {traced.because}; used {traced.how}", *notes]
    provenance = _provenance(model, traced, recording, training, depth, tied)
    workload = to_workload(
        graph, grouping, times, name=_name(model, name), cluster=cluster, provenance=provenance
    )
    return Profile(
        workload=workload,
        fx_nodes=_fx_nodes(graph, grouping),
        anywhere=graph.anywhere,
        traced=traced,
        recording=recording,
        notes=tuple(notes),
    )


def matching(
    model: nn.Module,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any] | None,
    ids: Collection[NodeId],
    training: bool,
    *,
    layers: bool = False,
) -> Profile:
    """Return the profile of a model at the granularity at which its nodes are called `ids`.

    Nothing is measured; times are a roofline's.

    Parameters
    ----------
    layers
        Whether `ids` are those of the forward nodes alone, as in `training_layers`; then weights
        used twice are copies.

    Raises
    ------
    InputError
        If the model cannot be traced, or its nodes have other names at every granularity.
    """
    tied: Tied = "copies" if layers else "colour"
    named = dict(kwargs or {})
    model = getattr(model, "_orig_mod", model)
    _make_lazy_parameters(model, args, named)
    with unchanged(model, (args, named)):
        traced, recording, graph = _graph(model, args, named, training, tied)
    target = next(iter(MACHINES.values()))
    wanted = set(ids)
    deepest = max(len(op.modules) for op in graph.operators)
    for depth in (None, *range(1, deepest + 1)):
        grouping = by_operator(graph) if depth is None else by_layer(graph, depth)
        named_nodes = {
            grouping.names[node]
            for node, op in zip(grouping.node, graph.operators, strict=True)
            if not (layers and op.backward)
        }
        if wanted == named_nodes:
            workload = to_workload(
                graph,
                grouping,
                _estimated(graph, target),
                name=_name(model, ""),
                cluster=suggested_cluster(target, target.peer, memory_bytes(graph)),
                provenance=_provenance(model, traced, recording, training, depth, tied),
            )
            fx_nodes = _fx_nodes(graph, grouping)
            return Profile(workload, fx_nodes, graph.anywhere, traced, recording, ())
    names = {op.name for op in graph.operators} | {m for op in graph.operators for m in op.modules}
    unknown = [
        node for node in ids if str(node).split("#")[0].removesuffix(".backward") not in names
    ]
    what = f"no {unknown[0]!r}" if unknown else "other nodes"
    raise InputError(
        f"{_name(model, '')}: traced for {'training' if training else 'inference'} it has {what}; "
        "the plan was made for another model, or for other inputs: profile and plan again"
    )


def _graph(
    model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], training: bool, tied: Tied
) -> tuple[Traced, Recording, Graph]:
    if model.training != training:
        model.train(training)
    traced = trace(model, args, kwargs, training)
    recording = record(traced, training)
    graph = operator_graph(recording, training, copies=tied == "copies")
    if not graph.operators:
        raise InputError(f"{_name(model, '')}: it computes nothing; nothing to plan")
    return traced, recording, graph


def _make_lazy_parameters(
    model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> None:
    """Run a model once if its parameters get their shapes that way."""
    if any(map(nn.parameter.is_lazy, model.parameters())):
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            model(*args, **kwargs)


def _name(model: nn.Module, name: str) -> str:
    return name or type(model).__name__


def _provenance(
    model: nn.Module,
    traced: Traced,
    recording: Recording,
    training: bool,
    depth: int | None,
    tied: Tied,
) -> dict[str, str]:
    kept = {
        "generator": "stagecut.instances.pytorch",
        "model": f"{type(model).__module__}.{type(model).__qualname__}",
        "traced_by": traced.how,
        "pass": "training" if training else "inference",
        "granularity": "operators" if depth is None else f"modules, depth {depth}",
        "shared_weights": tied,
        "torch": torch.__version__,
    }
    if traced.because:
        kept["torch_export_failed"] = traced.because
    if recording.unused:
        kept["unused_parameters"] = str(sum(p.elements for p in recording.unused))
    return kept


def _estimated(graph: Graph, target: Machine) -> Times:
    nothing = np.zeros(len(graph.operators))
    return Times(
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


def _measured(
    model: nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    traced: Traced,
    graph: Graph,
    training: bool,
    cache: Path | None,
) -> tuple[Times, list[str]]:
    """Measure kernels and whole, and correct the sum of the parts to the whole."""
    device = device_of((*model.parameters(), *tensors((args, kwargs))))
    if device.type == "meta":
        raise InputError("model: it is on the device meta, where nothing runs; estimate its times")
    if device.type not in ("cpu", "cuda"):
        raise InputError(f"model: it is on {device}; times are measured on cpu and cuda only")
    store = Cache(cache or cache_folder(), str(device))
    wanted = {k.signature for op in graph.operators for k in op.kernels}
    timings = measure_kernels(traced, training, store, wanted)
    fallback = estimated_ms(graph.operators, CPU_CORE)
    parts = [_sum(op.kernels, timings) for op in graph.operators]
    ms = np.array([fallback[v] if t is None else 1e3 * t.seconds for v, t in enumerate(parts)])
    measured = np.array([0.0 if t is None else 1.0 for t in parts])
    spread = np.array([0.0 if t is None else t.spread for t in parts])
    whole = measure_whole(model, args, kwargs, training)
    backward = np.array([op.backward for op in graph.operators])
    kernels = np.array([float(len(op.kernels)) for op in graph.operators])
    provenance = {"cost_model": "measured", "device": f"{device.type}: {store.machine}"}
    provenance["clock"] = clock_name(device)
    provenance["threads"] = str(torch.get_num_threads())
    provenance["link"] = "assumed"
    notes = []
    for what, mask, target in (
        ("forward", ~backward, whole.forward),
        ("backward", backward, whole.backward),
    ):
        if mask.any() and target.seconds > 0:
            ms[mask], text = corrected(ms[mask], kernels[mask], 1e3 * target.seconds)
            provenance[f"{what}_check"] = text
            notes.append(f"{what}: {text}")
    host = device.type == "cpu"
    link = _ASSUMED_LINKS["cpu" if host else "cuda"]
    cpu_ms = ms if host else fallback
    return Times(ms, cpu_ms, measured, spread, link, provenance), notes


def _sum(kernels: Any, timings: Mapping[str, Timing]) -> Timing | None:
    """Return the time of kernels that run one after the other, or None if one is not known."""
    known = [timings.get(k.signature) for k in kernels]
    found = [t for t in known if t is not None]
    if len(found) < len(known):
        return None
    total = sum(t.seconds for t in found)
    return Timing(total, sum(t.seconds * t.spread for t in found) / total if total else 0.0)


def _fx_nodes(graph: Graph, grouping: Grouping) -> Mapping[NodeId, tuple[str, ...]]:
    parts: dict[NodeId, list[str]] = {name: [] for name in grouping.names}
    for v, op in enumerate(graph.operators):
        parts[grouping.names[grouping.node[v]]] += op.parts
    return MappingProxyType({node: tuple(names) for node, names in parts.items()})
