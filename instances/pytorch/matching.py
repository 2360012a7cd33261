"""The profile of a model at the granularity that a plan speaks of."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from torch import nn

from ..common.choices import Tied
from ..common.errors import InputError
from ..common.units import NodeId
from ..generate.architectures.lowering import suggested_cluster
from ..generate.roofline import MACHINES
from .layers import Grouping, by_layer, by_operator
from .parts import ModelParts, Profile, plain, put_together, take_apart
from .prices.prices import estimated_times
from .to_workload import memory_bytes
from .tracing.unchanged import unchanged


def matching(
    model: nn.Module,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any] | None,
    ids: Collection[NodeId],
    training: bool,
    *,
    layers: bool = False,
) -> Profile:
    """Return the profile of a model at the granularity at which its nodes are called `ids`.

    Nothing is measured; times are a roofline's.

    Parameters
    ----------
    layers
        Whether `ids` are those of the forward nodes alone, as in `training_layers`; then weights
        used twice are copies.

    Raises
    ------
    InputError
        If the model cannot be traced, or its nodes have other names at every granularity.
    """
    named = dict(kwargs or {})
    model = plain(model, args, named)
    with unchanged(model, (args, named)):
        parts = take_apart(model, args, named, training)
    graph = parts.graph
    wanted = set(ids)
    deepest = max(len(op.modules) for op in graph.operators)
    for depth in (None, *range(1, deepest + 1)):
        grouping = by_operator(graph) if depth is None else by_layer(graph, depth)
        named_nodes = {
            grouping.names[node]
            for node, op in zip(grouping.node, graph.operators, strict=True)
            if not (layers and op.backward)
        }
        if not named_nodes <= wanted:
            continue
        for tied in (Tied.COPIES, Tied.COLOUR):
            found = _estimated(parts, grouping, depth, tied)
            own = zip(found.workload.ids, found.workload.backward.tolist(), strict=True)
            if wanted == {node for node, backward in own if not (layers and backward)}:
                return found
    raise InputError(_unknown(parts, ids))


def uncut(
    model: nn.Module,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any] | None,
    training: bool,
) -> Profile:
    """Return the profile of a model that is kept whole: one part, which runs as it is.

    Raises
    ------
    InputError
        If that cannot be.
    """
    named = dict(kwargs or {})
    model = plain(model, args, named)
    with unchanged(model, (args, named)):
        parts = take_apart(model, args, named, training, whole=True)
    return _estimated(parts, by_operator(parts.graph), None, Tied.COLOUR)


def _estimated(parts: ModelParts, grouping: Grouping, depth: int | None, tied: Tied) -> Profile:
    """Return the profile with a roofline's times."""
    target = next(iter(MACHINES.values()))
    cluster = suggested_cluster(target, target.peer, memory_bytes(parts.graph))
    times = estimated_times(parts.graph, target)
    return put_together(parts, grouping, depth, times, cluster, tied=tied)


def _unknown(parts: ModelParts, ids: Collection[NodeId]) -> str:
    """Say that the model has no such nodes, and name one."""
    graph = parts.graph
    names = {op.name for op in graph.operators} | {m for op in graph.operators for m in op.modules}
    unknown = [
        node for node in ids if str(node).split("#")[0].removesuffix(".backward") not in names
    ]
    what = f"no {unknown[0]!r}" if unknown else "other nodes"
    mode = "training" if parts.training else "inference"
    return (
        f"{type(parts.model).__name__}: traced for {mode} it has {what}; the plan was made for "
        "another model, or for other inputs: profile and plan again"
    )
