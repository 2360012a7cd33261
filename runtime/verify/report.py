"""Reports of the verifier: objective, broken rules, and a row per device, call or stage."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import TYPE_CHECKING, Any

from ...instances import Cluster, NodeId, Problem, is_iteration
from ...instances.common.arrays import Floats
from ...instances.model.summary import Summarised

if TYPE_CHECKING:
    import pandas as pd

#: Two nodes of a topology.
Pair = tuple[int, int]


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
        Time per microbatch for computing, and for moving data in and out.
    load
        Their sum, or their maximum where transfers overlap.
    forward, backward
        The parts of `load` that belong to each pass (their sum is `load` unless overlapped).
    memory_bytes, capacity_bytes
        Memory used, of available; `inf` for no limit.

    Examples
    --------
    >>> import stagecut
    >>> workload = stagecut.load("gpt2-xl")
    >>> cluster = stagecut.accelerators_and_cpus(2)
    >>> plan = stagecut.solve(workload, cluster, method="greedy").plan
    >>> report = stagecut.evaluate(workload, cluster, plan.problem, plan.solution)
    >>> device = report.devices[0]
    >>> device.name, device.load == device.compute + device.transfer
    ('accelerator 0', True)
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


def device_reports(
    cluster: Cluster,
    nodes: Sequence[Sequence[NodeId]],
    compute: Floats,
    transfer: Floats,
    passes: Floats,
    load: Floats,
    memory_bytes: Floats,
    names: Sequence[str] = (),
) -> tuple[DeviceReport, ...]:
    """Return the reports of a cluster's D devices, given arrays of shape (D,); `passes` (D, 2)."""
    kinds = [cluster.kinds[device.kind] for device in cluster.devices]
    return tuple(
        DeviceReport(
            name=names[d] if names else device.name,
            kind=kinds[d].name,
            nodes=tuple(nodes[d]),
            compute=float(compute[d]),
            transfer=float(transfer[d]),
            load=float(load[d]),
            forward=float(passes[d, 0]),
            backward=float(passes[d, 1]),
            memory_bytes=float(memory_bytes[d]),
            capacity_bytes=kinds[d].memory_bytes,
        )
        for d, device in enumerate(cluster.devices)
    )


@dataclass(frozen=True)
class StageReport:
    """One stage of a training plan; times per microbatch in the workload's unit, bytes per device.

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

    Examples
    --------
    >>> import stagecut
    >>> workload = stagecut.training_layers(stagecut.load("gpt2-xl-training"))
    >>> cluster = stagecut.accelerators_and_cpus(2)
    >>> problem = stagecut.PipelineJob(microbatches=4, bandwidth=1e8)
    >>> plan = stagecut.solve(workload, cluster, problem, method="equal-stages").plan
    >>> stage = stagecut.evaluate(workload, cluster, problem, plan.solution).stages[0]
    >>> stage.number, stage.time == stage.compute + stage.transfer + stage.synchronise
    (0, True)
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
    def name(self) -> str:
        """Name of the stage in tables and messages."""
        return f"stage {self.number}"

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

    Examples
    --------
    >>> import stagecut
    >>> workload = stagecut.load("gpt2-xl")
    >>> cluster, problem = stagecut.accelerators_and_cpus(1), stagecut.Latency()
    >>> solution = stagecut.instances.CallPlacement([0] * workload.n, [0] * workload.n)
    >>> (call,) = stagecut.evaluate(workload, cluster, problem, solution).calls
    >>> call.device_name, call.start, len(call.nodes) == workload.n
    ('accelerator', 0.0, True)
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

    Parameters
    ----------
    objective
        In the workload's time unit.
    devices
        For throughput and latency; else ().
    violations
        A line for each rule that is broken; () for a valid solution.
    stages
        For training, first to last; else ().
    calls
        For latency, by start, then finish, then device; else ().
    tie
        Decides between solutions of one objective: less is better.

    Examples
    --------
    >>> import stagecut
    >>> workload = stagecut.load("gpt2-xl")
    >>> cluster = stagecut.accelerators_and_cpus(2)
    >>> plan = stagecut.solve(workload, cluster, method="greedy").plan
    >>> report = stagecut.evaluate(workload, cluster, plan.problem, plan.solution)
    >>> report.objective == max(device.load for device in report.devices)
    True
    >>> report.to_pandas()[["name", "load"]].shape
    (2, 2)
    """

    objective: float
    devices: tuple[DeviceReport, ...]
    violations: tuple[str, ...]
    stages: tuple[StageReport, ...] = ()
    calls: tuple[CallReport, ...] = ()
    tie: float = 0.0

    def summary(self) -> dict[str, object]:
        """Return the objective and the number of broken rules, by name."""
        parts = {"devices": self.devices, "stages": self.stages, "calls": self.calls}
        counts = {name: len(parts[name]) for name in parts if parts[name]}
        broken = "; ".join(self.violations) or "none"
        return {"objective": self.objective, **counts, "violations": broken}

    def to_pandas(self) -> pd.DataFrame:
        """Return a row per call, stage, conversion or device, with its fields as columns."""
        import pandas as pd

        rows = self._rows()
        names = [item.name for item in fields(rows[0])] if rows else []
        if rows and isinstance(rows[0], StageReport):
            names.append("memory_bytes")
        return pd.DataFrame([[getattr(row, n) for n in names] for row in rows], columns=names)

    def _rows(self) -> tuple[Any, ...]:
        """Return the rows of the table."""
        return self.calls or self.stages or self.devices


@dataclass(frozen=True)
class MappedStage:
    """One stage: times of a whole batch, in seconds."""

    # compute_s, transfer_s, allreduce_s, total_s: m·t, m·P, A, and what the mode counts of them
    compute_s: float
    transfer_s: float
    allreduce_s: float
    total_s: float
    allreduce_by: str  # ``ring``, ``tree`` or ``hierarchical``; empty with one replica


@dataclass(frozen=True, repr=False)
class MappingReport(Report):
    """A report of a mapping, with its stages and the busiest link.

    Parameters
    ----------
    mapped
        The stages, first to last.
    traffic
        Returns the link that carries most for its bandwidth and the seconds that takes; asked for
        when somebody wants to know, as it needs whole routes.

    Examples
    --------
    >>> import stagecut
    >>> workload = stagecut.load("gpt2-xl")
    >>> problem = stagecut.DeviceMapping(stagecut.topology("ring:4"), stages=2, replicas=2)
    >>> plan = stagecut.solve(workload, problem=problem, method="layouts").plan
    >>> report = stagecut.evaluate(workload, plan.cluster, problem, plan.solution)
    >>> len(report.mapped), report.mapped[0].transfer_s > 0
    (2, True)
    """

    mapped: tuple[MappedStage, ...] = ()
    traffic: Callable[[], tuple[Pair | None, float]] = lambda: (None, 0.0)

    def _rows(self) -> tuple[MappedStage, ...]:
        return self.mapped

    @cached_property
    def busiest(self) -> tuple[Pair | None, float]:
        """The busiest link and its seconds."""
        return self.traffic()

    @property
    def busiest_link(self) -> Pair | None:
        """Two nodes of the busiest link, in the direction of travel; None if nothing is sent."""
        return self.busiest[0]

    @property
    def busiest_link_s(self) -> float:
        """Seconds per batch of the busiest link's messages, each alone on it in turn."""
        return self.busiest[1]


@dataclass(frozen=True)
class Load:
    """The load of a device, or of each device of a job's stage, in the objective's time."""

    name: str  # of the device or stage
    nodes: tuple[NodeId, ...]  # ids of its nodes
    compute: float  # compute, transfer, synchronise: time of each, in the workload's unit
    transfer: float
    synchronise: float
    busy: float  # their sum, or their maximum where transfers overlap
    # memory_bytes, capacity_bytes: memory used, at its peak, of available; `inf` for no limit
    memory_bytes: float
    capacity_bytes: float


def loads_of(problem: Problem, report: Report) -> tuple[Load, ...]:
    """Return the loads of a plan, one per device or stage; for throughput, per microbatch.

    Else it is an iteration with all its microbatches, or a request. Devices are in the order of the
    cluster; none for a mapping.
    """
    if report.stages:
        return tuple(
            Load(
                s.name, s.nodes, s.compute, s.transfer, s.synchronise, s.time,
                s.memory_bytes, s.capacity_bytes,
            )
            for s in report.stages
        )  # fmt: skip
    each = problem.batch if is_iteration(problem) else 1
    return tuple(
        Load(
            d.name, d.nodes, each * d.compute, each * d.transfer, 0.0, each * d.load,
            d.memory_bytes, d.capacity_bytes,
        )
        for d in report.devices
    )  # fmt: skip
