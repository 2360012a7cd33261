"""Completion of workloads: costs that a problem needs and files leave open, by stated assumptions.

One format gives layers with configurations, another forward and backward nodes; one gives bytes,
another times of transfers; some name no unit of time. `complete` converts each to the form that a
problem needs, if its content has a meaning for it. Values come from the file, otherwise from
assumptions, each of which is noted in the workload.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from ..common.errors import InputError, quote
from ..common.units import LARGEST, SMALLEST, TIME_UNITS, UNSPECIFIED, show_percent
from .cluster import ACCELERATOR, Cluster
from .pipeline_job import PipelineJob, is_iteration, is_stream
from .problem import DeviceMapping, Problem
from .sharding import Sharding
from .training_layers import training_layers
from .workload import Workload

#: Key of `Workload.provenance` under which the assumptions stand.
ASSUMED = "assumed"
#: Fraction of a layer's time that its forward pass takes, if the file does not give it: a backward
#: pass computes two products for each one of the forward pass.
FORWARD_SHARE = 1 / 3


#: Values that are assumed by default: unit of time; bytes per second that a device sends and
#: receives; fraction of a forward node's memory that is weights, the rest being activations.
TIME_UNIT, BANDWIDTH, WEIGHT_SHARE = "ms", 25e9, 1.0


def complete(workload: Workload, problem: Problem, cluster: Cluster | None = None) -> Workload:
    """Return the workload in the form that a problem needs, completed by assumptions.

    Times without a unit are in ms, links without a bandwidth move 25 GB/s, and memory of forward
    nodes that names no weights is weights.

    Parameters
    ----------
    workload
        Any workload, such as one loaded from a file.
    problem
        The problem that it will be planned for; a pipeline without schedule is a stream for layers
        with configurations.
    cluster
        The cluster whose links price transfers; default: the workload's.

    Returns
    -------
    Workload
        The same object if nothing is missing; else with the assumptions made in
        `Workload.provenance`, under ``assumed``.

    Raises
    ------
    InputError
        If its content has no meaning for the problem, such as a stream of a graph without backward
        pass.

    Examples
    --------
    >>> import stagecut
    >>> graph = stagecut.load("unet-training")
    >>> layers = complete(graph, stagecut.PipelineJob(8, "stream"))
    >>> layers.n, complete(layers, stagecut.PipelineJob(8, "1f1b")).n == graph.n
    (24, True)
    """
    if isinstance(problem, Sharding):
        return workload
    if isinstance(problem, DeviceMapping):
        made = _with_bytes(_with_unit(workload))
        sums = problem.replicas > 1 and problem.mode != "p2p"
        return _with_weights(made) if sums else made
    if is_stream(problem) and workload.layers is None:
        workload = _as_layers(workload)
    elif is_iteration(problem) and workload.layers is not None:
        workload = passes_of(workload)
    if isinstance(problem, PipelineJob) and workload.layers is not None:
        return workload if problem.bandwidth else _with_bandwidth(workload)
    return _with_transfers(workload, cluster or workload.cluster)


def filled(
    workload: Workload,
    time_unit: str | None = None,
    bandwidth: float | None = None,
    weight_share: float | None = None,
) -> Workload:
    """Return the workload with unit, bandwidth and share of weights filled in where it has none.

    The unit is one of `TIME_UNITS`, the bandwidth in bytes per second, the share from 0 to 1. A
    bandwidth makes bytes of times of transfers, and the reverse. InputError if one is out of range.
    """
    if time_unit is not None:
        if time_unit not in TIME_UNITS:
            known = ", ".join(TIME_UNITS)
            raise InputError(f"time_unit: {quote(time_unit)} is not one of {known}")
        workload = _with_unit(workload, time_unit)
    if bandwidth is not None:
        if not SMALLEST <= bandwidth <= LARGEST:
            raise InputError(f"bandwidth: {quote(bandwidth)}; it must be above 0")
        workload = _with_transfers(_with_bytes(workload, bandwidth), None, bandwidth)
        if workload.layers is not None:
            workload = _with_bandwidth(workload, bandwidth)
    if weight_share is not None:
        if not 0 <= weight_share <= 1:
            raise InputError(f"weight_share: {quote(weight_share)}; it must be from 0 to 1")
        workload = _with_activations(_with_weights(workload, weight_share), weight_share)
    return workload


def assumed(workload: Workload) -> list[str]:
    """Return the assumptions made for a workload, a sentence each."""
    noted = workload.provenance.get(ASSUMED, "")
    return noted.split("; ") if noted else []


def _noted(workload: Workload, note: str, **fields: Any) -> Workload:
    """Return the workload with other fields, and a note why."""
    notes = "; ".join([*assumed(workload), note])
    return replace(workload, **fields, provenance={**workload.provenance, ASSUMED: notes})


def _with_unit(workload: Workload, time_unit: str = TIME_UNIT) -> Workload:
    """Return the workload with a unit of time."""
    if workload.time_unit != UNSPECIFIED:
        return workload
    note = f"times are in {time_unit}: the file names no unit"
    return _noted(workload, note, time_unit=time_unit)


def _bandwidth(workload: Workload, bandwidth: float) -> tuple[Workload, float]:
    """Return the workload and bytes per time unit over a link: the file's, else as assumed."""
    if workload.layers is not None and workload.layers.bandwidth is not None:
        return workload, workload.layers.bandwidth
    workload = _with_unit(workload)
    note = f"links move {bandwidth / 1e9:g} GB/s: the file names no bandwidth"
    return _noted(workload, note), bandwidth * TIME_UNITS[workload.time_unit]


def _with_bytes(workload: Workload, bandwidth: float = BANDWIDTH) -> Workload:
    """Return the workload with the bytes of outputs."""
    if workload.output_bytes is not None or workload.transfer is None:
        return workload
    workload, per_unit = _bandwidth(workload, bandwidth)
    assert workload.transfer is not None
    return replace(workload, output_bytes=workload.transfer * per_unit)


def _with_transfers(
    workload: Workload, cluster: Cluster | None, bandwidth: float = BANDWIDTH
) -> Workload:
    """Return the workload with transfer times, unless the cluster's links price all transfers."""
    kinds = () if cluster is None else cluster.kinds
    linked = [kind.link is not None for kind in kinds if not kind.host and kind.count]
    if any(linked) or (cluster is not None and cluster.links):  # which take seconds and bytes
        workload = _with_bytes(_with_unit(workload), bandwidth)
    if workload.transfer is not None or (linked and all(linked)):
        return workload
    workload, per_unit = _bandwidth(workload, bandwidth)
    assert workload.output_bytes is not None  # a workload has one of the two
    return replace(workload, transfer=workload.output_bytes / per_unit)


def _with_bandwidth(workload: Workload, bandwidth: float = BANDWIDTH) -> Workload:
    """Return a workload of layers with a bandwidth."""
    workload, per_unit = _bandwidth(workload, bandwidth)
    assert workload.layers is not None
    return replace(workload, layers=replace(workload.layers, bandwidth=per_unit))


def _with_weights(workload: Workload, share: float = WEIGHT_SHARE) -> Workload:
    """Return the workload with the bytes of weights of forward nodes."""
    known = {"weight_bytes", "gradient_bytes"} & set(workload.extra)
    if known or workload.layers is not None:
        return workload
    weights = np.where(workload.backward, 0.0, workload.memory_bytes * share)
    note = f"weights are {show_percent(share, 0)} of the memory of nodes: the file names none"
    return _noted(workload, note, extra={**workload.extra, "weight_bytes": weights})


def _with_activations(workload: Workload, weight_share: float = WEIGHT_SHARE) -> Workload:
    """Return the workload with the bytes of activations of forward nodes."""
    if "activation_bytes" in workload.extra or workload.layers is not None:
        return workload
    share = 1 - weight_share
    sizes = np.where(workload.backward, 0.0, workload.memory_bytes * share)
    note = f"activations are {show_percent(share, 0)} of the memory of nodes: the file names none"
    return _noted(workload, note, extra={**workload.extra, "activation_bytes": sizes})


def _as_layers(workload: Workload) -> Workload:
    """Return forward and backward nodes as layers with configurations."""
    if workload.backward.any():
        workload = _with_activations(_with_weights(_with_bytes(workload)))
    return training_layers(workload)


def passes_of(workload: Workload) -> Workload:
    """Return a workload of layers as forward and backward nodes, as `training_layers` undoes it.

    A layer has the time and memory of its first configuration of the least tensor degree, without
    recomputation if there is one; its forward and its backward node have one colour. A backward
    node passes on the gradients of what entered the layer, as large as the largest of it.
    """
    layers, n = workload.layers, workload.n
    assert layers is not None
    falling = np.lexsort((np.arange(layers.size), layers.degree, layers.recomputes))[::-1]
    first = np.zeros(n, np.int64)
    first[layers.node[falling]] = falling
    whole = layers.time[first]
    known = workload.extra.get("forward_time")
    if known is None:
        part = show_percent(FORWARD_SHARE, 0)
        note = f"a forward pass takes {part} of a layer's time: the file has one time"
        workload = _noted(workload, note)
    forward = whole * FORWARD_SHARE if known is None else np.minimum(known, whole)
    activations, nothing = layers.bytes_per_microbatch[first], np.zeros(n)
    leaving, entering = np.zeros(n), np.zeros(n)
    u, v = workload.edges.T
    np.maximum.at(leaving, u, layers.edge_bytes)
    np.maximum.at(entering, v, layers.edge_bytes)
    ending = ".backward"
    while {f"{one}{ending}" for one in workload.ids} & {str(one) for one in workload.ids}:
        ending += "'"
    turns = np.stack([np.arange(n), np.arange(n) + n], axis=1)
    output = np.concatenate([leaving, entering])
    return replace(
        workload,
        ids=(*workload.ids, *(f"{one}{ending}" for one in workload.ids)),
        names=(*workload.names, *(f"{name}{ending}" for name in workload.names)),
        edges=np.concatenate([workload.edges, np.stack([v + n, u + n], axis=1), turns]),
        times={ACCELERATOR: np.concatenate([forward, whole - forward])},
        memory_bytes=np.concatenate([layers.fixed_bytes[first] + activations, nothing]),
        transfer=None if layers.bandwidth is None else output / layers.bandwidth,
        output_bytes=output,
        backward=np.arange(2 * n) >= n,
        colours=np.tile(np.arange(n), 2),
        colour_labels=(),
        extra={
            "weight_bytes": np.concatenate([layers.weight_bytes[first], nothing]),
            "activation_bytes": np.concatenate([activations, nothing]),
        },
        layers=None,
        ties=(),
    )
