"""What a check of a plan says, device by device."""

from __future__ import annotations

from dataclasses import dataclass

from ..instances import NodeId


@dataclass(frozen=True)
class DeviceReport:
    """One device of a plan, all times in the workload's unit.

    Parameters
    ----------
    name, kind
        As in the cluster.
    nodes
        Ids of the nodes placed on it.
    compute, transfer
        Time per sample for computing, and for moving data in and out.
    load
        Their sum, or their maximum where transfers overlap.
    forward, backward
        The parts of `load` that belong to each pass (their sum is `load` unless overlapped).
    memory_bytes, capacity_bytes
        Memory used, of available; `inf` for no limit.
    """

    name: str
    kind: str
    nodes: tuple[NodeId, ...]
    compute: float
    transfer: float
    load: float
    forward: float
    backward: float
    memory_bytes: float
    capacity_bytes: float


@dataclass(frozen=True)
class CallReport:
    """One call of a latency plan, or one node on a CPU; times in the workload's unit.

    Parameters
    ----------
    device
        Number of the device in the cluster.
    device_name
        As in the cluster; for CPUs the name of the pool's kind.
    number
        1, 2, … in the order in which the calls of the device run; 0 for a node on a CPU.
    nodes
        Ids of its nodes.
    start, finish
        Since the request came in.
    transfer_in, compute, transfer_out
        The parts of `finish - start`, one after the other.
    """

    device: int
    device_name: str
    number: int
    nodes: tuple[NodeId, ...]
    start: float
    finish: float
    transfer_in: float
    compute: float
    transfer_out: float


@dataclass(frozen=True)
class Report:
    """The objective by definition, and every rule that is broken, a line each.

    `calls` is filled for latency only: by start, then finish, then device.
    """

    objective: float
    devices: tuple[DeviceReport, ...]
    violations: tuple[str, ...]
    calls: tuple[CallReport, ...] = ()
