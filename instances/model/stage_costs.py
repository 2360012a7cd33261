"""Costs of pipeline stages, the input of a mapping: seconds and bytes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..common.arrays import Floats, Ints, checked, frozen
from ..common.errors import InputError
from ..common.units import TIME_UNITS
from .cluster import Cluster
from .problem import DeviceMapping
from .topology import Topology
from .workload import Workload


@dataclass(frozen=True, eq=False)
class StageCosts:
    """Costs of S stages, per microbatch except for the parameters.

    Parameters
    ----------
    compute_s
        Shape (S,): seconds of one microbatch on one device.
    forward_bytes
        Shape (S−1,): bytes that cross the boundary from stage s to s+1.
    backward_bytes
        Shape (S−1,): bytes that cross it from stage s+1 to s.
    parameter_bytes
        Shape (S,): bytes that the replicas of a stage all-reduce once per batch.

    Examples
    --------
    >>> import stagecut
    >>> costs = stagecut.instances.StageCosts([1e-3, 2e-3], [4e6], [4e6], [1e9, 1e9])
    >>> costs.size
    2
    """

    compute_s: Floats
    forward_bytes: Floats
    backward_bytes: Floats
    parameter_bytes: Floats

    def __post_init__(self) -> None:
        for key in ("compute_s", "forward_bytes", "backward_bytes", "parameter_bytes"):
            values = checked(getattr(self, key), np.float64, f"stages: {key}")
            object.__setattr__(self, key, values)
            length = self.size - 1 if key.startswith(("forward", "backward")) else self.size
            if values.shape != (length,):
                raise InputError(f"stages: {key} has {values.size} values; it must have {length}")
            if not (np.isfinite(values) & (values >= 0)).all():
                raise InputError(f"stages: {key} holds a value that is no number ≥ 0")

    @property
    def size(self) -> int:
        """Number of stages, S."""
        return len(self.compute_s)


def stage_costs(workload: Workload, stage: Ints, stages: int) -> StageCosts:
    """Return compute seconds, message bytes and parameter bytes of a workload's stages.

    A tensor crosses every boundary between the stage that makes it and the last (for gradients: the
    first) stage that needs it: stages talk to their neighbours, who pass things on. It crosses
    once, however many nodes behind need it. `stage`, shape (n,), numbers the stage of each node
    from 0. InputError if the workload does not say its unit of time, or the sizes of outputs.

    Examples
    --------
    >>> import stagecut
    >>> workload = stagecut.load("gpt2-xl")
    >>> costs = stage_costs(workload, np.arange(workload.n) * 4 // workload.n, 4)
    >>> costs.compute_s.shape, costs.forward_bytes.shape
    ((4,), (3,))
    """
    time = accelerator_seconds(workload)
    if workload.output_bytes is None:
        raise InputError(f"{workload.name}: output_bytes is missing; links need sizes, not times")
    lowest, highest = stage.copy(), stage.copy()
    u, v = workload.edges.T
    np.minimum.at(lowest, u, stage[v])
    np.maximum.at(highest, u, stage[v])
    return StageCosts(
        compute_s=np.bincount(stage, weights=time, minlength=stages).astype(np.float64),
        forward_bytes=_crossing(stage, highest, workload.output_bytes, stages),
        backward_bytes=_crossing(lowest, stage, workload.output_bytes, stages),
        parameter_bytes=np.bincount(
            stage, weights=parameter_bytes(workload), minlength=stages
        ).astype(np.float64),
    )


def accelerator_seconds(workload: Workload) -> Floats:
    """Return the seconds of each node, shape (n,): on a CPU where no accelerator supports it.

    InputError if the workload does not say its unit of time, or a node can run nowhere.
    """
    if workload.time_unit not in TIME_UNITS:
        raise InputError(f"{workload.name}: its unit of time is not known; set time_unit to map it")
    if "accelerator" not in workload.times:
        raise InputError(f"{workload.name}: it has no times on an accelerator; add them")
    time = workload.times["accelerator"]
    time = np.where(np.isfinite(time), time, workload.times.get("cpu", time))
    for v in np.flatnonzero(~np.isfinite(time))[:1].tolist():
        raise InputError(f"{workload.name}: node {workload.ids[v]} can run on no device")
    return time * TIME_UNITS[workload.time_unit]


def device_slowdowns(cluster: Cluster) -> Floats:
    """Return the slowdown of each device relative to an accelerator, shape (D,)."""
    return frozen([cluster.kinds[device.kind].slowdown for device in cluster.devices], np.float64)


def cluster_differs(cluster: Cluster, topology: Topology) -> str:
    """Return the contradiction between a cluster and a topology of the same devices; "" if none.

    Speeds are the cluster's where the topology gives none.
    """
    if cluster.size != topology.size:
        return f"the cluster has {cluster.size} devices, {topology.name} has {topology.size}"
    slow, stated = device_slowdowns(cluster), topology.slowdown
    for d in np.flatnonzero((slow != stated) & (stated != 1).any())[:1].tolist():
        return (
            f"{topology.devices[d]} has slowdown {slow[d]:g} in the cluster, and "
            f"{stated[d]:g} in {topology.name}"
        )
    return ""


def parameter_bytes(workload: Workload) -> Floats:
    """Return bytes to all-reduce per node, shape (n,): gradients, or the weights' size.

    Of layers with configurations (Piper's and PipeDream's files) the weights are those of the least
    tensor degree, all of its devices together.
    """
    for key in ("gradient_bytes", "weight_bytes"):
        values = workload.extra.get(key)
        if values is not None and np.nansum(values) > 0:
            return np.nan_to_num(values)
    found = np.zeros(workload.n)
    if workload.layers is not None:
        layers = workload.layers
        falling = np.argsort(-layers.degree, kind="stable")
        found[layers.node[falling]] = (layers.weight_bytes * layers.degree)[falling]
    return found


def check_weights(workload: Workload, problem: DeviceMapping) -> None:
    """Refuse a mapping with all-reduces of a workload whose bytes of weights are not known.

    InputError if the problem counts the all-reduce of several replicas, and no node has
    ``gradient_bytes``, ``weight_bytes`` or configurations.
    """
    counts = problem.mode != "p2p" and problem.replicas > 1
    known = workload.layers is not None or {"gradient_bytes", "weight_bytes"} & set(workload.extra)
    if counts and not known:
        raise InputError(
            f"{workload.name}: no node says its weight_bytes, which replicas all-reduce; add them "
            "to the nodes' extra, or leave the all-reduce out with mode p2p"
        )


def _crossing(first: Ints, last: Ints, size: Floats, stages: int) -> Floats:
    """Return the bytes that cross each boundary, shape (S−1,), given both ends of each tensor.

    Each boundary sums its own tensors: differences of sums would leave rounding, below 0 too.
    """
    length = last - first
    offset = np.arange(length.sum()) - np.repeat(length.cumsum() - length, length)
    boundary = np.repeat(first, length) + offset
    return np.bincount(boundary, np.repeat(size, length), stages - 1).astype(np.float64)
