"""Sharding problems and their solutions in plan files: each operator's signatures as texts."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...common.choices import Optimizer, ShardingObjective
from ...common.errors import InputError, quote
from ...common.units import NodeId
from ...model.cluster import Cluster
from ...model.network.links import Link
from ...model.sharding.problem import DeviceMesh, Sharding, program_of
from ...model.solution import TensorSharding
from ...model.workload import Workload
from ..source import Record, plain_id


class MeshLinkRecord(Record):
    """Link between neighbours along an axis of a mesh."""

    latency_s: float
    bytes_per_s: float


class MeshRecord(Record):
    """Devices along each axis of a mesh, and the link of each axis."""

    shape: list[int]
    links: list[MeshLinkRecord]


class ShardingRecord(Record):
    """A sharding problem."""

    mesh: MeshRecord
    objective: ShardingObjective
    beta: float
    memory_bytes: float | None
    optimizer: Optimizer
    fixed: list[tuple[int | str, str]]

    def problem(self) -> Sharding:
        """Return the problem; raises InputError without the file's name."""
        links = tuple(Link(link.latency_s, link.bytes_per_s) for link in self.mesh.links)
        return Sharding(
            mesh=DeviceMesh(tuple(self.mesh.shape), links),
            objective=self.objective,
            beta=self.beta,
            memory_bytes=self.memory_bytes,
            optimizer=self.optimizer,
            fixed=tuple(self.fixed),
        )


class ShardedRecord(Record):
    """An operator, and its signature along each axis of the mesh."""

    node: int | str
    signatures: list[str]


class ShardedOperatorsRecord(Record):
    """Solution of a sharding problem."""

    operators: list[ShardedRecord]


def encode_sharding(
    solution: TensorSharding, workload: Workload, _: Cluster
) -> ShardedOperatorsRecord:
    """Return the solution as a record."""
    operators = program_of(workload).operators
    return ShardedOperatorsRecord(
        [
            ShardedRecord(operator.name, [operator.signatures[k].text for k in row])
            for operator, row in zip(operators, solution.signature.tolist(), strict=True)
        ]
    )


def decode_sharding(
    record: ShardedOperatorsRecord, workload: Workload, _: Cluster
) -> TensorSharding:
    """Return the solution of a record; raises InputError without the file's name."""
    operators = program_of(workload).operators
    rows: dict[NodeId, list[int]] = {}
    axes = len(record.operators[0].signatures) if record.operators else 0
    for part in record.operators:
        v = workload.index.get(part.node)
        where = f"solution: operator {plain_id(part.node)}"
        if v is None:
            raise InputError(f"{where}: the program has none of this name; plan again")
        if part.node in rows:
            raise InputError(f"{where}: it is listed twice")
        known = [signature.text for signature in operators[v].signatures]
        if len(part.signatures) != axes:
            raise InputError(f"{where}: give a signature for each axis of the mesh")
        for text in part.signatures:
            if text not in known:
                raise InputError(f"{where}: no signature {quote(text)}; it has {', '.join(known)}")
        rows[part.node] = [known.index(text) for text in part.signatures]
    for node in workload.ids:
        if node not in rows:
            raise InputError(f"solution: operator {plain_id(node)} is missing; plan again")
    return TensorSharding(np.array([rows[node] for node in workload.ids], np.int64))


def sharding_options(problem: Sharding) -> dict[str, Any]:
    """Return a problem's fields as JSON values."""
    links = [{"latency_s": k.latency_s, "bytes_per_s": k.bytes_per_s} for k in problem.mesh.links]
    return {
        "mesh": {"shape": list(problem.mesh.shape), "links": links},
        "objective": problem.objective,
        "beta": problem.beta,
        "memory_bytes": problem.memory_bytes,
        "optimizer": problem.optimizer,
        "fixed": [list(pair) for pair in problem.fixed],
    }
