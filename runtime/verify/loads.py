"""Loads of the devices of a plan, in the time that its objective counts."""

from __future__ import annotations

from dataclasses import dataclass

from ...instances import NodeId, Problem, is_iteration
from .report import Report


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
                f"stage {s.number}", s.nodes, s.compute, s.transfer, s.synchronise, s.time,
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
