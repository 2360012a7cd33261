"""The front door: a PyTorch model becomes a workload."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from torch import nn

from ..common.choices import Tied
from ..common.errors import InputError
from ..generate.architectures.lowering import suggested_cluster
from ..generate.roofline import machine
from ..model.cluster import ACCELERATOR, Cluster, DeviceKind
from .layers import by_layer, by_operator, fitting_depth
from .parts import Profile as Profile
from .parts import plain, put_together, take_apart
from .prices.prices import estimated_times, measured_times
from .to_workload import memory_bytes
from .tracing.traced import said_of
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
        ``copies``: nodes that read one parameter have a copy each. ``colour``: they share a device.
        `tied_as` turns the one into the other later.
    cache
        Folder for measurements; default: the user's cache folder.
    fresh
        Measure all kernels, also those that were measured within 30 days.

    Returns
    -------
    Profile
        The `workload`, and how it hangs together with the model.

    Raises
    ------
    InputError
        If the model cannot be traced (the reason, and the module at fault), or an option is none.

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
    model = plain(model, args, named)
    with unchanged(model, (args, named)):
        parts = take_apart(model, args, named, training)
        if target is None:
            times, notes = measured_times(parts, args, named, cache, fresh=fresh)
            cluster = Cluster(
                (DeviceKind("process", _DEVICES, times=ACCELERATOR, link=times.link),)
            )
        else:
            times, notes = estimated_times(parts.graph, target), []
            cluster = suggested_cluster(target, target.peer, memory_bytes(parts.graph))
    if depth == "auto":
        depth = fitting_depth(parts.graph)
    grouping = by_operator(parts.graph) if depth is None else by_layer(parts.graph, depth)
    if parts.traced.because:
        notes = [said_of(parts.traced), *notes]
    return put_together(
        parts, grouping, depth, times, cluster, tied=tied, name=name, notes=tuple(notes)
    )
