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
    """Load and memory of one device of a plan; times in the workload's unit.

    Parameters
    ----------
    name, kind
        Names of the device and of its kind in the cluster.
    nodes
        Ids of the nodes placed on it.
    compute, transfer
        Time per microbatch for computing, and for moving data in and out.
    load
        Sum of the two, or their maximum where transfers overlap.
    forward, backward
        The parts of `load` that belong to each pass (their sum is `load` unless overlapped).
    memory_bytes, capacity_bytes
        Memory used and available; `inf` for no limit.

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
    """Time and memory of one stage of a stream: per microbatch, and per device of the stage.

    Parameters
    ----------
    number
        Position in the pipeline, from 0.
    kind
        Name of its devices' kind.
    nodes, configurations
        Ids of its nodes, and the label of each one's configuration.
    recomputed
        Ids of the nodes whose activations are recomputed.
    replicas, degree
        Data-parallel and tensor-parallel degree.
    time
        Sum of the next three, in the workload's unit.
    compute, transfer, synchronise
        Time for computing, for cut edges, and for adding up the gradients of replicas.
    in_flight
        Microbatches whose activations a device holds at once.
    activation_bytes
        Activations of all microbatches in flight.
    weight_bytes, gradient_bytes
        Weights, and gradients of at most the same size.
    workspace_bytes
        Other memory that the workload states, such as activations during recomputation.
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
        """Parts of `memory_bytes`, by name."""
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
        """Bytes used on each device."""
        return sum(self.terms.values())

    @property
    def binding(self) -> str:
        """Name of the largest part of the memory."""
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
        Name in the cluster; for CPUs that of the pool's kind.
    number
        1, 2, … in the order in which the calls of the device run; 0 for a node on a CPU.
    nodes
        Ids of its nodes.
    start, finish
        Times since the request came in.
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
    """Objective of a solution by definition, its broken rules, and a row per device or stage.

    Parameters
    ----------
    objective
        Objective in the workload's time unit; `inf` for a solution that cannot be evaluated.
    devices
        Devices in the order of the cluster; () for streams and shardings.
    violations
        A line for each rule that is broken; () for a valid solution.
    stages
        Stages of a stream, first to last; else ().
    calls
        Calls of a latency plan by start, then finish, then device; else ().
    tie
        Tie-breaker between solutions of one objective: less is better.

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
        """Return objective, numbers of devices, stages and calls, and broken rules for display."""
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
    """Times of one stage of a mapping, in seconds per batch."""

    # compute_s, transfer_s, allreduce_s, total_s: m·t, m·P, A, and the sum that the mode counts
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
        Stages, first to last.
    traffic
        Function that returns `busiest`; called when it is first asked for, as it walks routes.

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
        """Busiest link, and the seconds per batch that it is busy."""
        return self.traffic()

    @property
    def busiest_link(self) -> Pair | None:
        """Ends of the busiest link, in the direction of travel; None if nothing is sent."""
        return self.busiest[0]

    @property
    def busiest_link_s(self) -> float:
        """Seconds per batch of the busiest link's messages, each alone on it in turn."""
        return self.busiest[1]


@dataclass(frozen=True)
class Load:
    """Load of a device, or of each device of a stage, for the span that the objective measures."""

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
    """Return the loads of a plan, one per device or, for streams, per stage; none for a sharding.

    They are those of an iteration with all its microbatches, a mapping's batch, a request, or else
    a microbatch. Devices are in the order of the cluster.
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
