"""Stages of a training plan in our own JSON for plans."""

from __future__ import annotations

import numpy as np

from ..common.arrays import Ints
from ..common.errors import InputError, quote
from ..common.units import NodeId
from ..model.cluster import Cluster
from ..model.layers import Layers
from ..model.solution import Stage, StagePlacement, in_stages
from ..model.training_layers import layers_of
from ..model.workload import Workload
from .source import Record, plain_id


class ChosenRecord(Record):
    """A node of a stage: its id, and which of its configurations of the stage's degree it has."""

    node: int | str
    configuration: str
    number: int


class StageRecord(Record):
    """One stage of a training plan; `number` counts the node's configurations from 0."""

    kind: str
    replicas: int
    degree: int
    nodes: list[ChosenRecord]


class StagesRecord(Record):
    """Solution of a training problem."""

    stages: list[StageRecord]


def encode_stages(solution: StagePlacement, workload: Workload, cluster: Cluster) -> StagesRecord:
    """Return the record of a plan's stages."""
    layers = layers_of(workload)
    first = np.searchsorted(layers.node, np.arange(workload.n), sorter=_by_node(layers))
    position = np.empty(layers.size, np.int64)
    position[_by_node(layers)] = np.arange(layers.size)
    return StagesRecord(
        [
            StageRecord(
                kind=cluster.kinds[stage.kind].name,
                replicas=stage.replicas,
                degree=stage.degree,
                nodes=[
                    ChosenRecord(workload.ids[v], layers.label[c], int(position[c] - first[v]))
                    for v, c in zip(stage.nodes, stage.configuration, strict=True)
                ],
            )
            for stage in solution.stages
        ]
    )


def decode_stages(record: StagesRecord, workload: Workload, cluster: Cluster) -> StagePlacement:
    """Return the stages in a record; raises InputError where they do not fit the workload."""
    layers = layers_of(workload)
    order = _by_node(layers).tolist()
    mine: list[list[int]] = [[] for _ in workload.ids]
    for c in order:
        mine[int(layers.node[c])].append(c)
    kinds = [kind.name for kind in cluster.kinds]
    seen: set[NodeId] = set()
    stages = []
    for s, part in enumerate(record.stages):
        if part.kind not in kinds:
            raise InputError(f"solution: stage {s}: the cluster has no kind {quote(part.kind)}")
        for what, value in (("replicas", part.replicas), ("degree", part.degree)):
            if not 1 <= value <= cluster.size:
                raise InputError(
                    f"solution: stage {s}: {what} is {quote(value)}; it must be from 1 to "
                    f"{cluster.size}, the number of devices"
                )
        chosen = []
        for entry in part.nodes:
            v = workload.index.get(entry.node)
            if v is None:
                raise InputError(f"solution: stage {s}: unknown node {plain_id(entry.node)}")
            if entry.node in seen:
                raise InputError(f"solution: node {plain_id(entry.node)} is in two stages")
            seen.add(entry.node)
            if not 0 <= entry.number < len(mine[v]):
                raise InputError(
                    f"solution: node {plain_id(entry.node)} has no configuration "
                    f"number {quote(entry.number)}; it has {len(mine[v])}: give the workload that "
                    "the plan was made for"
                )
            chosen.append((v, mine[v][entry.number]))
        chosen.sort()
        nodes, configuration = tuple(v for v, _ in chosen), tuple(c for _, c in chosen)
        kind = kinds.index(part.kind)
        stages.append(Stage(nodes, configuration, part.replicas, part.degree, kind))
    for node in workload.ids:
        if node not in seen:
            raise InputError(f"solution: node {plain_id(node)} is missing; plan again")
    return in_stages(stages, cluster)


def _by_node(layers: Layers) -> Ints:
    return np.argsort(layers.node, kind="stable")
