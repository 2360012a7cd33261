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
class Report:
    """The objective by definition, and every rule that is broken, a line each."""

    objective: float
    devices: tuple[DeviceReport, ...]
    violations: tuple[str, ...]
