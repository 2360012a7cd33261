"""Mapping problems and their solutions in plan files: the topology, and the stages' devices."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np

from ..common.choices import Collective, MappingMode, MappingObjective
from ..common.errors import InputError, quote
from ..common.units import NodeId
from ..model.cluster import Cluster
from ..model.solution import ReplicaPlacement
from ..model.workload import Workload
from .source import Record, plain_id


class MappingRecord(Record):
    """A mapping problem; the topology as in its own file."""

    topology: dict[str, Any]
    stages: int
    replicas: int
    mode: MappingMode
    microbatches: int
    gradients: bool
    collective: Collective
    objective: MappingObjective
    overlap: bool

    def options(self) -> dict[str, Any]:
        """Return the fields by name."""
        return msgspec.structs.asdict(self)


class MappedStageRecord(Record):
    """A stage: its nodes by id, its devices in ring order, and whom each sends to.

    `sends_to` are positions in the next stage's devices; empty for the last stage.
    """

    nodes: list[int | str]
    devices: list[int]
    sends_to: list[int]


class MappedRecord(Record):
    """Solution of a mapping problem."""

    stages: list[MappedStageRecord]


def encode_mapped(mapped: ReplicaPlacement, workload: Workload, _: Cluster) -> MappedRecord:
    """Return the solution as a record."""
    stages = len(mapped.slots)
    held: list[list[NodeId]] = [[] for _ in range(stages)]
    for node, s in zip(workload.ids, mapped.stage.tolist(), strict=True):
        held[s].append(node)
    sends = [*mapped.sends_to.tolist(), []]
    return MappedRecord(
        [MappedStageRecord(held[s], mapped.slots[s].tolist(), sends[s]) for s in range(stages)]
    )


def decode_mapped(record: MappedRecord, workload: Workload, cluster: Cluster) -> ReplicaPlacement:
    """Return the solution of a record; raises InputError without the file's name."""
    stage = np.full(workload.n, -1)
    if not record.stages:
        raise InputError("solution: stages is empty; plan again")
    replicas = len(record.stages[0].devices)
    last = len(record.stages) - 1
    for s, part in enumerate(record.stages):
        sends = replicas if s < last else 0
        if not replicas or len(part.devices) != replicas or len(part.sends_to) != sends:
            raise InputError(f"solution: stage {s}: it must have {replicas} devices and receivers")
        for d in part.devices:
            if not 0 <= d < cluster.size:
                raise InputError(
                    f"solution: device {quote(d)} is not one of 0 to {cluster.size - 1}"
                )
        for receiver in part.sends_to:
            if not 0 <= receiver < replicas:
                raise InputError(
                    f"solution: stage {s}: sends_to {quote(receiver)} is not one of 0 to "
                    f"{replicas - 1}"
                )
        for node in part.nodes:
            v = workload.index.get(node)
            if v is None:
                raise InputError(f"solution: unknown node {plain_id(node)} in stage {s}")
            if stage[v] >= 0:
                raise InputError(f"solution: node {plain_id(node)} is in two stages")
            stage[v] = s
    for v in np.flatnonzero(stage < 0)[:1].tolist():
        raise InputError(f"solution: node {plain_id(workload.ids[v])} is missing; plan again")
    sends_to = [part.sends_to for part in record.stages[:-1]]
    return ReplicaPlacement(
        stage,
        np.array([part.devices for part in record.stages]),
        np.array(sends_to, np.int64).reshape(last, replicas),
    )
