"""Stages of a plan of any kind: their passes, devices, and the edges between passes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from itertools import pairwise

import numpy as np

from ...instances.common.arrays import Bools, Floats, Ints, frozen

FORWARD, BACKWARD = 0, 1

#: Types of the arrays of `StageGraph` that hold no times and no bytes.
_TYPES: dict[str, type] = {"present": np.bool_, "edges": np.int64, "rank": np.int64}


@dataclass(frozen=True, eq=False)
class StageGraph:
    """P stages on D devices, the simulator's form of any plan.

    *Task* 2s + p is pass p (0 forward, 1 backward) of stage s.

    Parameters
    ----------
    devices
        Names of the D devices.
    replicas
        Devices of each stage: microbatch j runs on the one at j modulo their number.
    compute
        Shape (P, 2): time of each pass; 0 where it is missing.
    present
        Shape (P, 2): whether the stage has the pass at all.
    receive, send
        Shape (P, 2): time in which the device brings a task's inputs in from host memory before
        it, and its outputs out after it.
    edges
        Shape (E, 2): a task, and one that begins after its end; each output enters a device once,
        with the first task there that needs it, and other tasks that need it come after that one.
    payload_bytes
        Shape (E,): bytes that move along the edge.
    rank
        Shape (2P,): a topological position of each task.
    weight_bytes, activation_bytes
        Shape (P,): of one replica; activations of one microbatch.
    resident_bytes
        Shape (P,): resident memory of one replica: its weights in one version, and others that
        the plan counts, such as gradients and optimizer state.
    nodes
        Nodes of each stage, forward and backward.
    capacity_bytes
        Shape (D,): memory of each device.
    weight_share
        Share of a backward pass that computes gradients of weights, where it is split.
    time_unit
        The workload's unit of time.
    all_reduce
        Shape (P,): time of the all-reduce of a stage's replicas, where the plan's problem
        defines it; None to price it by the network.
    batch
        Microbatches in a batch of the plan; None for all that are simulated.

    Examples
    --------
    >>> stages = chain([1.0, 2.0], [2.0, 4.0], weight_bytes=[10.0, 10.0])
    >>> stages.count, stages.devices
    (2, ('device 0', 'device 1'))
    """

    devices: tuple[str, ...]
    replicas: tuple[tuple[int, ...], ...]
    compute: Floats
    present: Bools
    receive: Floats
    send: Floats
    edges: Ints
    payload_bytes: Floats
    rank: Ints
    weight_bytes: Floats
    activation_bytes: Floats
    resident_bytes: Floats
    nodes: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]
    capacity_bytes: Floats
    weight_share: float = 0.5
    time_unit: str = "unspecified"
    all_reduce: Floats | None = None
    batch: int | None = None

    def __post_init__(self) -> None:
        for name in (field.name for field in fields(self)):
            array = getattr(self, name)
            if isinstance(array, np.ndarray):
                kept = frozen(array, _TYPES.get(name, np.float64))
                object.__setattr__(self, name, kept)

    @property
    def count(self) -> int:
        """Number of stages."""
        return len(self.replicas)

    @cached_property
    def duration(self) -> Floats:
        """Shape (P, 2): time that a task keeps its device busy without overlap."""
        return frozen(self.receive + self.compute + self.send, np.float64)

    @cached_property
    def load(self) -> Floats:
        """Shape (D,): work of each device per microbatch, without all-reduces."""
        load = np.zeros(len(self.devices))
        for s, devices in enumerate(self.replicas):
            load[list(devices)] += self.duration[s].sum() / len(devices)
        return frozen(load, np.float64)

    @cached_property
    def height(self) -> Ints:
        """Shape (P,): replicas on the longest forward path from a stage on, its own included."""
        after: list[list[int]] = [[] for _ in range(self.count)]
        for a, b in (self.edges // 2)[(self.edges % 2 == FORWARD).all(axis=1)].tolist():
            if a != b:
                after[a].append(b)
        height = np.zeros(self.count, dtype=np.int64)
        for task in np.argsort(self.rank, kind="stable")[::-1].tolist():
            stage, side = divmod(task, 2)
            if side == FORWARD:
                below = max((int(height[t]) for t in after[stage]), default=0)
                height[stage] = below + len(self.replicas[stage])
        return frozen(height, np.int64)

    @cached_property
    def in_flight(self) -> Ints:
        """Shape (P,): microbatches that 1F1B holds per replica, ⌈height / replicas⌉."""
        number = np.array([len(devices) for devices in self.replicas])
        return frozen(-(-self.height // number), np.int64)


def line_of(count: int, trains: bool) -> tuple[list[tuple[int, int]], Bools, Ints]:
    """Return the structure of a chain of stages: edges, passes, and positions of tasks.

    Edges are pairs of tasks: forward along the chain, backward against it, forward before backward.
    Every stage has both passes, (P, 2), if it `trains`. Positions are topological, (2P,).
    """
    waits = [(2 * a, 2 * b) for a, b in pairwise(range(count))]
    if trains:
        waits += [(2 * b + 1, 2 * a + 1) for a, b in pairwise(range(count))]
        waits += [(2 * s, 2 * s + 1) for s in range(count)]
    present = np.ones((count, 2), np.bool_)
    present[:, BACKWARD] = trains
    line = np.arange(count)
    rank = np.stack((line, 2 * count - 1 - line), axis=1).ravel()
    return waits, present, rank


def edges_of(moved: Mapping[tuple[int, int], float]) -> tuple[Ints, Floats]:
    """Return the edges between tasks, (E, 2), and the bytes along each, (E,)."""
    pairs = sorted(moved)
    edges = np.array(pairs, np.int64).reshape(-1, 2)
    return edges, np.array([moved[pair] for pair in pairs], np.float64)


def chain(
    forward: Sequence[float],
    backward: Sequence[float] | None = None,
    *,
    device: Sequence[int] | None = None,
    send: Sequence[float] | None = None,
    payload_bytes: Sequence[float] | None = None,
    weight_bytes: Sequence[float] | None = None,
    activation_bytes: Sequence[float] | None = None,
    replicas: Sequence[Sequence[int]] | None = None,
    weight_share: float = 0.5,
    batch: int | None = None,
) -> StageGraph:
    """Return a chain of stages without a workload, for studies of schedules.

    Parameters
    ----------
    forward, backward
        Time of each stage's passes; `backward` None for inference.
    device
        Device of each stage; default: stage s on device s.
    send
        Time that stage s pays to send to the next, and the next to receive.
    payload_bytes
        Bytes from stage s to the next, each way.
    weight_bytes, activation_bytes
        Of each stage: its weights, and the activations of one microbatch.
    replicas
        Devices of each stage, instead of `device`.
    weight_share
        Share of a backward pass that computes gradients of weights, where it is split.
    batch
        Microbatches in a batch, for schedules that depend on it.

    Returns
    -------
    StageGraph
        Stage s is followed by stage s + 1; times are in seconds.

    Examples
    --------
    >>> chain([1.0, 2.0], [2.0, 4.0]).load.tolist()
    [3.0, 6.0]
    """
    count = len(forward)
    where = replicas or [[d] for d in (device if device is not None else range(count))]
    compute = np.zeros((count, 2))
    compute[:, FORWARD] = forward
    if backward is not None:
        compute[:, BACKWARD] = backward
    waits, present, rank = line_of(count, backward is not None)
    moved = dict.fromkeys(waits, 0.0)
    out, into = np.zeros((count, 2)), np.zeros((count, 2))
    for s in range(count - 1):
        if set(where[s]) == set(where[s + 1]):
            continue
        cost = send[s] if send is not None else 0.0
        out[s, FORWARD] = into[s + 1, FORWARD] = cost
        size = payload_bytes[s] if payload_bytes is not None else 0.0
        moved[2 * s, 2 * s + 2] = size
        if backward is not None:
            out[s + 1, BACKWARD] = into[s, BACKWARD] = cost
            moved[2 * s + 3, 2 * s + 1] = size
    edges, sizes = edges_of(moved)
    total = 1 + max(max(devices) for devices in where)
    zeros = np.zeros(count)
    weights = zeros if weight_bytes is None else np.array(weight_bytes)
    return StageGraph(
        devices=tuple(f"device {d}" for d in range(total)),
        replicas=tuple(tuple(devices) for devices in where),
        compute=compute,
        present=present,
        receive=into,
        send=out,
        edges=edges,
        payload_bytes=sizes,
        rank=rank,
        weight_bytes=weights,
        activation_bytes=zeros if activation_bytes is None else np.array(activation_bytes),
        resident_bytes=weights,
        nodes=((((), ()),) * count),
        capacity_bytes=np.full(total, np.inf),
        weight_share=weight_share,
        time_unit="s",
        batch=batch,
    )
