"""A model taken apart into a graph of operators, and put together as a profile."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

import torch
from torch import nn

from ..common.choices import Tied
from ..common.errors import InputError
from ..common.units import NodeId
from ..model.cluster import Cluster
from ..model.tied_weights import with_ties
from ..model.workload import Workload
from .ancestry import check_complete
from .layers import Grouping
from .operators.graph import OperatorGraph
from .operators.operators import operator_graph
from .recording.record import record
from .recording.recording import Recording
from .to_workload import OperatorTimes, ties_of, to_workload
from .tracing.trace import trace
from .tracing.traced import Traced
from .tracing.without_numbers import off_meta, own


@dataclass(frozen=True)
class Profile:
    """A workload, and how it hangs together with the model.

    Parameters
    ----------
    workload
        To plan for.
    fx_nodes
        Names of the nodes of `traced.module` that each workload node stands for, by its id; those
        of backward nodes are autograd's.
    anywhere
        Names of the nodes of `traced.module` that are constants: every device makes its own.
    traced
        The traced model; tracing it again gives the same names.
    recording
        What its operators do.
    notes
        What the user should know, a line each.
    """

    workload: Workload
    fx_nodes: Mapping[NodeId, tuple[str, ...]] = field(repr=False)
    anywhere: tuple[str, ...] = field(repr=False)
    traced: Traced = field(repr=False)  # with all weights
    recording: Recording = field(repr=False)
    notes: tuple[str, ...]


@dataclass(frozen=True)
class ModelParts:
    """A model taken apart.

    Parameters
    ----------
    model
        What was traced.
    traced, recording, graph
        The same, step by step.
    training
        As in `profile`.
    """

    model: nn.Module
    traced: Traced
    recording: Recording
    graph: OperatorGraph
    training: bool


def plain(model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> nn.Module:
    """Return the module that `torch.compile` wraps, its lazy parameters made by running it once."""
    model = getattr(model, "_orig_mod", model)
    if any(map(nn.parameter.is_lazy, model.parameters())):
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            model(*args, **kwargs)
    return model


def take_apart(
    model: nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    training: bool,
    *,
    whole: bool = False,
) -> ModelParts:
    """Trace and record a model, which `plain` returned; it is left in the mode asked for.

    With `whole` it is a single part, which runs as it is.

    Raises
    ------
    InputError
        If it cannot be traced, or computes nothing.
    """
    if model.training != training:
        model.train(training)
    with off_meta(model, args, kwargs) as (given, named):
        traced = trace(model, given, named, training, whole=whole)
        recording = record(traced, training)
        graph = operator_graph(recording, training)
        if not graph.operators:
            raise InputError(f"{type(model).__name__}: it computes nothing; nothing to plan")
        check_complete(model, given, named, training, recording, graph)
    return ModelParts(model, _with_own(traced), recording, graph, training)


def _with_own(traced: Traced) -> Traced:
    """Return a trace that holds the model's own tensors again."""
    for module in traced.module.modules():
        for table in (module._parameters, module._buffers):
            table.update({name: own(value) for name, value in table.items()})
    return replace(
        traced,
        inputs=tuple(map(own, traced.inputs)),
        parameters=tuple((name, own(value)) for name, value in traced.parameters),
    )


def put_together(
    parts: ModelParts,
    grouping: Grouping,
    depth: int | None,
    times: OperatorTimes,
    cluster: Cluster,
    *,
    tied: Tied = Tied.COPIES,
    name: str = "",
    notes: tuple[str, ...] = (),
) -> Profile:
    """Return the profile of a model whose operators are grouped and priced.

    Parameters
    ----------
    depth
        What `grouping` was made by; None for operators.
    tied
        As in `profile`.
    name
        Of the workload; default: the model's class.
    """
    name = name or type(parts.model).__name__
    once = to_workload(
        parts.graph, grouping, times, name=name, cluster=cluster,
        provenance=_provenance(parts, depth),
    )  # fmt: skip
    workload = with_ties(once, ties_of(parts.graph, grouping, once, times.link), tied)
    return Profile(
        workload=workload,
        fx_nodes=_fx_nodes(parts.graph, grouping, workload.ids),
        anywhere=parts.graph.anywhere,
        traced=parts.traced,
        recording=parts.recording,
        notes=notes,
    )


def _provenance(parts: ModelParts, depth: int | None) -> dict[str, str]:
    model = type(parts.model)
    kept = {
        "generator": "stagecut.instances.pytorch",
        "model": f"{model.__module__}.{model.__qualname__}",
        "traced_by": parts.traced.how,
        "pass": "training" if parts.training else "inference",
        "granularity": "operators" if depth is None else f"modules, depth {depth}",
        "torch": torch.__version__,
    }
    if parts.traced.because:
        kept["uncut" if parts.traced.runs else "torch_export_failed"] = parts.traced.because
    if parts.recording.unused:
        kept["unused_parameters"] = str(sum(p.elements for p in parts.recording.unused))
    return kept


def _fx_nodes(
    graph: OperatorGraph, grouping: Grouping, ids: tuple[NodeId, ...]
) -> Mapping[NodeId, tuple[str, ...]]:
    parts: dict[NodeId, list[str]] = {node: [] for node in ids}
    for v, op in enumerate(graph.operators):
        parts[grouping.names[grouping.node[v]]] += op.parts
    return MappingProxyType({node: tuple(names) for node, names in parts.items()})
