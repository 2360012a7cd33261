"""Profiles of PyTorch models as workloads, and profiles that match a plan's nodes."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Literal

from torch import nn

from ..common.choices import Tied
from ..common.errors import InputError
from ..common.units import NodeId
from ..generate.roofline import machine
from ..model.cluster import ACCELERATOR, Cluster, DeviceKind
from ..to_workload import (
    Grouping,
    estimated_times,
    grouped,
    memory_bytes,
    suggested_cluster,
)
from .operator_times import measured_times
from .recorded_model import Profile as Profile
from .recorded_model import RecordedModel, profile_of, record_model, unwrapped_model
from .tracing.traced import export_failure
from .tracing.unchanged import unchanged

_DEVICES = 4


def profile(
    model: nn.Module,
    args: tuple[Any, ...] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    name: str = "",
    training: bool = False,
    estimate: str | None = None,
    depth: int | Literal["auto"] | None = None,
    tied: Tied | str = Tied.COPIES,
    cache: Path | None = None,
    fresh: bool = False,
) -> Profile:
    """Trace a model for example inputs and return it as a workload with times.

    Parameters
    ----------
    model, args, kwargs
        What runs: ``model(*args, **kwargs)``. It is switched to training or evaluation mode if it
        is in the other one; afterwards it is as it was: modules, hooks, modes, gradients, buffers,
        settings, and random generators.
    name
        Name of the workload; default: the model's class.
    training
        Whether to include backward pass, gradients, optimizer state and saved activations.
    estimate
        Name of an accelerator (see `roofline.machine`): times are its roofline's, nothing runs,
        and the model may be on the device ``meta``. Default: times are measured on the device
        that the model is on.
    depth
        None: nodes are operators. d: nodes are the modules d calls below the model; see
        `to_workload.by_layer`. ``auto``: the smallest depth with at least 8 forward nodes.
    tied
        ``copies``: nodes that read one parameter have a copy each. ``colour``: they share a device.
        `tied_as` can change this later.
    cache
        Folder for measurements; default: the user's cache folder.
    fresh
        Measure all kernels, also those that were measured within 30 days.

    Returns
    -------
    Profile
        The `workload`, with its relation to the model.

    Raises
    ------
    InputError
        If the model cannot be traced (with reason and module at fault), or an option is invalid.

    Examples
    --------
    >>> import torch
    >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    >>> profile(model, (torch.zeros(3, 4),), estimate="h100").workload.ids
    ('linear', 'relu', 'linear_1')
    """
    if isinstance(depth, int) and depth < 1:
        raise InputError(f"depth: {depth}; it must be at least 1")
    tied = Tied.of("tied", tied)
    target = None if estimate is None else machine(estimate)
    named = dict(kwargs or {})
    model = unwrapped_model(model, args, named)
    with unchanged(model, (args, named)):
        recorded = record_model(model, args, named, training)
        if target is None:
            times, notes = measured_times(recorded, args, named, cache, fresh=fresh)
            cluster = Cluster(
                (DeviceKind("process", _DEVICES, times=ACCELERATOR, link=times.link),)
            )
        else:
            times, notes = estimated_times(recorded.graph, target), []
            cluster = suggested_cluster(target, memory_bytes(recorded.graph))
    grouping = grouped(recorded.graph, depth)
    if recorded.traced.because:
        notes = [export_failure(recorded.traced), *notes]
    return profile_of(recorded, grouping, times, cluster, tied=tied, name=name, notes=tuple(notes))


def matching(
    model: nn.Module,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any] | None,
    ids: Collection[NodeId],
    training: bool,
    *,
    layers: bool = False,
) -> Profile:
    """Return the profile of a model at the granularity whose nodes have these ids.

    Nothing is measured; times are a roofline's. With `layers`, `ids` are those of the forward nodes
    alone, as in `training_layers`, and weights used twice are copies. InputError if the model
    cannot be traced, or its nodes have other names at every granularity.
    """
    named = dict(kwargs or {})
    model = unwrapped_model(model, args, named)
    with unchanged(model, (args, named)):
        recorded = record_model(model, args, named, training)
    graph = recorded.graph
    wanted = set(ids)
    deepest = max(len(op.modules) for op in graph.operators)
    for depth in (None, *range(1, deepest + 1)):
        grouping = grouped(graph, depth)
        named_nodes = {
            grouping.names[node]
            for node, op in zip(grouping.node, graph.operators, strict=True)
            if not (layers and op.backward)
        }
        if not named_nodes <= wanted:
            continue
        for tied in (Tied.COPIES, Tied.COLOUR):
            found = _estimated(recorded, grouping, tied)
            own = zip(found.workload.ids, found.workload.backward.tolist(), strict=True)
            if wanted == {node for node, backward in own if not (layers and backward)}:
                return found
    raise InputError(_unknown(recorded, ids))


def uncut(
    model: nn.Module,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any] | None,
    training: bool,
) -> Profile:
    """Return the profile of a model as a single part that runs as it is, or raise InputError."""
    named = dict(kwargs or {})
    model = unwrapped_model(model, args, named)
    with unchanged(model, (args, named)):
        recorded = record_model(model, args, named, training, whole=True)
    return _estimated(recorded, grouped(recorded.graph, None), Tied.COLOUR)


def _estimated(recorded: RecordedModel, grouping: Grouping, tied: Tied) -> Profile:
    """Return the profile with times of the default roofline."""
    target = machine()
    cluster = suggested_cluster(target, memory_bytes(recorded.graph))
    times = estimated_times(recorded.graph, target)
    return profile_of(recorded, grouping, times, cluster, tied=tied)


def _unknown(recorded: RecordedModel, ids: Collection[NodeId]) -> str:
    """Return an error text about nodes that the model lacks, naming one."""
    graph = recorded.graph
    names = {op.name for op in graph.operators} | {m for op in graph.operators for m in op.modules}
    unknown = [
        node for node in ids if str(node).split("#")[0].removesuffix(".backward") not in names
    ]
    what = f"no {unknown[0]!r}" if unknown else "other nodes"
    mode = "training" if recorded.training else "inference"
    return (
        f"{type(recorded.model).__name__}: traced for {mode} it has {what}; the plan was made for "
        "another model, or for other inputs: profile and plan again"
    )
