"""Conversion of workloads with backward passes to workloads of layers, for training plans."""

from __future__ import annotations

import numpy as np

from ..common.arrays import Floats, Ints
from ..common.errors import InputError
from ..common.units import TIME_UNITS
from .cluster import ACCELERATOR
from .layers import Layers
from .workload import Workload

#: Columns of `Workload.extra` that are fractions, which are not added up.
_SHARES = ("measured", "spread")


def layers_of(workload: Workload) -> Layers:
    """Return the configurations of a workload's layers; InputError if it has none."""
    if workload.layers is None:
        raise InputError(
            f"{workload.name}: it has no layer configurations, which training plans need; "
            "load a Piper or PipeDream file, or profile a model with --train --layers"
        )
    return workload.layers


def training_layers(workload: Workload) -> Workload:
    """Return a workload of layers: each forward node with its backward nodes merged.

    A layer has two configurations of tensor degree 1. ``vanilla`` takes its forward and backward
    time and keeps its activations for each microbatch in flight. ``recompute`` takes the forward
    time again and keeps the inputs of the layer; its activations are counted once, for the
    microbatch that is recomputed, with those of all layers of the stage (a framework that
    recomputes layer by layer needs those of the largest layer alone). Both have weights, gradients
    and optimizer state. An edge carries all of its source's output, as in PipeDream's profiles; the
    bandwidth is that of the suggested cluster's first link, and the number of microbatches is open.

    A backward node belongs to the forward node of its colour; without one, to the layer that it
    waits for, with all nodes of its colour.

    Parameters
    ----------
    workload
        With a backward pass, bytes of outputs, and ``activation_bytes`` and ``weight_bytes`` in
        `Workload.extra`, as `instances.pytorch.profile` and the shipped workloads have them.

    Returns
    -------
    Workload
        A node per forward node, under its id.

    Raises
    ------
    InputError
        If some of that is missing, or forward nodes must share a device.

    Notes
    -----
    O(n log n + m) in nodes and edges.

    References
    ----------
    Narayanan et al., "PipeDream: Generalized Pipeline Parallelism for DNN Training", SOSP 2019, has
    profiles of this form. Tarnawski et al., "Piper: Multidimensional Planner for DNN
    Parallelization", NeurIPS 2021, section 3, has the configurations.

    Examples
    --------
    >>> import stagecut
    >>> workload = stagecut.load("gpt2-xl-training")
    >>> training_layers(workload).n < workload.n
    True
    """
    _check(workload)
    nodes = np.flatnonzero(~workload.backward)
    count = len(nodes)
    layer_of = _layer_of(workload, nodes)

    def total(values: Floats) -> Floats:
        return np.bincount(layer_of, weights=values, minlength=count).astype(np.float64)

    whole = workload.times[ACCELERATOR]
    forward = whole[nodes]
    backward = total(np.where(workload.backward, whole, 0.0))
    extra = {key: total(x) for key, x in workload.extra.items() if key not in _SHARES}
    activations = extra["activation_bytes"]
    memory = total(workload.memory_bytes)
    resident = np.maximum(memory - activations, 0.0)
    ahead = ~workload.backward[workload.edges].any(axis=1)
    edges = layer_of[workload.edges[ahead]].reshape(-1, 2)
    assert workload.output_bytes is not None
    output = workload.output_bytes[nodes]
    carried = output[edges[:, 0]]
    entering = np.bincount(edges[:, 1], weights=carried, minlength=count).astype(np.float64)
    return Workload(
        name=workload.name,
        ids=tuple(workload.ids[v] for v in nodes.tolist()),
        edges=edges,
        times={kind: total(values) for kind, values in workload.times.items()},
        memory_bytes=memory,
        transfer=None if workload.transfer is None else workload.transfer[nodes],
        output_bytes=output,
        names=tuple(workload.names[v] for v in nodes.tolist()),
        time_unit=workload.time_unit,
        extra={**extra, "forward_time": forward, "backward_time": backward},
        layers=Layers(
            node=np.repeat(np.arange(count), 2),
            degree=np.ones(2 * count, np.int64),
            label=("vanilla", "recompute") * count,
            recomputes=np.tile([False, True], count),
            time=_in_turn(forward + backward, 2 * forward + backward),
            weight_bytes=np.repeat(extra["weight_bytes"], 2),
            bytes_per_microbatch=_in_turn(activations, entering),
            fixed_bytes=_in_turn(resident, resident + activations),
            edge_bytes=carried,
            sync_bytes=({},) * (2 * count),
            bandwidth=_bandwidth(workload),
        ),
        cluster=workload.cluster,
        provenance=workload.provenance,
    )


def _check(workload: Workload) -> None:
    where = workload.name
    if workload.layers is not None:
        raise InputError(f"{where}: its nodes are layers already")
    if not workload.backward.any():
        raise InputError(f"{where}: it has no backward pass; profile the model with --train")
    if workload.backward.all():
        raise InputError(f"{where}: all of its nodes are of the backward pass; mark fewer so")
    for key in ("activation_bytes", "weight_bytes"):
        if key not in workload.extra:
            raise InputError(f"{where}: it does not say {key}, which layers need")
    if workload.output_bytes is None:
        raise InputError(f"{where}: it does not say output_bytes, which layers need")
    if ACCELERATOR not in workload.times:
        raise InputError(f"{where}: it has no time on an accelerator, which layers need")
    for members in workload.colour_classes:
        forward = [workload.ids[v] for v in members if not workload.backward[v]]
        if len(forward) > 1:
            raise InputError(
                f"{where}: {forward[0]} and {forward[1]} must share a device, which training plans "
                "cannot say; profile with --tied copies if they share a weight, else with another "
                "--depth"
            )


def _layer_of(workload: Workload, nodes: Ints) -> Ints:
    """Return the layer of each node, shape (n,)."""
    layer_of = np.full(workload.n, -1, np.int64)
    layer_of[nodes] = np.arange(len(nodes))
    for members in workload.colour_classes:
        layer_of[list(members)] = layer_of[list(members)].max(initial=-1)
    last = next(v for v in reversed(workload.order) if not workload.backward[v])
    for v in workload.order:
        if layer_of[v] < 0:
            before, colour = workload.predecessors[v], workload.colours[v]
            alike = list(workload.colour_classes[colour]) if colour >= 0 else v
            layer_of[alike] = layer_of[before[-1] if before else last]
    return layer_of


def _in_turn(vanilla: Floats, recompute: Floats) -> Floats:
    return np.stack([vanilla, recompute], axis=1).ravel()


def _bandwidth(workload: Workload) -> float | None:
    """Return bytes per time unit over the first link that the suggested cluster names."""
    kinds = () if workload.cluster is None else workload.cluster.kinds
    for kind in kinds:
        if kind.link is not None and np.isfinite(kind.link.bytes_per_s):
            return kind.link.bytes_per_s * TIME_UNITS.get(workload.time_unit, 1.0)
    return None
