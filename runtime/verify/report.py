"""What a check of a plan says, device by device."""

from __future__ import annotations

from dataclasses import dataclass

from ...instances import NodeId
from ...instances.model.summary import Summarised


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
class StageReport:
    """One stage of a training plan; times per sample in the workload's unit, bytes per device.

    Parameters
    ----------
    number
        Position in the pipeline, from 0.
    kind
        Of its devices.
    nodes, configurations
        Ids of its nodes, and what each is configured to.
    recomputed
        Ids of the nodes that compute activations again.
    replicas, degree
        Data-parallel and tensor-parallel degree.
    time
        Sum of the next three.
    compute, transfer, synchronise
        Time for computing, for cut edges, and for the gradients of replicas.
    in_flight
        Microbatches whose activations a device holds at once.
    activation_bytes
        Of all microbatches in flight.
    weight_bytes, gradient_bytes
        Weights, and as much again for their gradients.
    workspace_bytes
        What the workload gives besides, such as activations during recomputation.
    version_bytes
        Further versions of the weights that the schedule keeps.
    optimizer_bytes
        State of the optimizer.
    capacity_bytes
        Memory of one device, `inf` for no limit.
    """

    number: int
    kind: str
    nodes: tuple[NodeId, ...]
    configurations: tuple[str, ...]
    recomputed: tuple[NodeId, ...]
    replicas: int
    degree: int
    time: float
    compute: float
    transfer: float
    synchronise: float
    in_flight: int
    activation_bytes: float
    weight_bytes: float
    gradient_bytes: float
    workspace_bytes: float
    version_bytes: float
    optimizer_bytes: float
    capacity_bytes: float

    @property
    def terms(self) -> dict[str, float]:
        """Bytes of each part of `memory_bytes`, by name."""
        return {
            "activations": self.activation_bytes,
            "weights": self.weight_bytes,
            "gradients": self.gradient_bytes,
            "workspace": self.workspace_bytes,
            "weight versions": self.version_bytes,
            "optimizer state": self.optimizer_bytes,
        }

    @property
    def memory_bytes(self) -> float:
        """Memory taken on each device."""
        return sum(self.terms.values())

    @property
    def binding(self) -> str:
        """The largest term of the memory."""
        terms = self.terms
        return max(terms, key=lambda name: terms[name])


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


@dataclass(frozen=True, repr=False)
class Report(Summarised):
    """The objective by definition, and every rule that is broken, a line each.

    `stages` is filled for training only, first to last; `devices` is empty there.
    `calls` is filled for latency only: by start, then finish, then device.
    `tie` decides between plans of one objective, less is better.
    """

    objective: float
    devices: tuple[DeviceReport, ...]
    violations: tuple[str, ...]
    stages: tuple[StageReport, ...] = ()
    calls: tuple[CallReport, ...] = ()
    tie: float = 0.0

    def summary(self) -> dict[str, object]:
        """Return the objective and what is broken, as it shows itself."""
        parts = {"devices": self.devices, "stages": self.stages, "calls": self.calls}
        counts = {name: len(parts[name]) for name in parts if parts[name]}
        broken = "; ".join(self.violations) or "none"
        return {"objective": self.objective, **counts, "violations": broken}
