"""Operator graphs of models, checked against a run, and their profiles.

Tracing may lose a part of a model, within an operator that is opaque to it; then weights, work and
edges of that part are missing, and a plan would be for another model. So the model runs once more,
if possible on tensors without data, and every kernel propagates the parameters and inputs on which
its outputs depend: the operator graph must have the same dependences.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from ..common.choices import Tied
from ..common.errors import InputError
from ..common.units import FROM_PYTORCH, NodeId
from ..model.cluster import Cluster
from ..model.tied_weights import with_ties
from ..model.workload import Workload
from ..operator_graph import OperatorGraph, Recording, operator_graph
from ..to_workload import Grouping, OperatorTimes, ties_of, to_workload
from .record import Storages, is_free, record, written
from .tracing.trace import distinct, trace
from .tracing.traced import (
    Traced,
    as_exported,
    as_fake,
    flat_inputs,
    has_no_data,
    listed,
    mode_of,
    off_meta,
    on_inputs,
    own,
    quiet,
    swapped_tensors,
    tensors,
)
from .tracing.unchanged import unchanged


@dataclass(frozen=True)
class _Ancestry:
    """Names of the parameters and inputs that each output depends on, and that kernels read."""

    outputs: tuple[frozenset[str], ...]
    read: frozenset[str]


class _Run(TorchDispatchMode):  # type: ignore[misc]  # torch is not typed for mypy here
    """Dispatch mode that propagates each memory block's sources, a bit per source."""

    supports_higher_order_operators = True

    def __init__(self, sources: Iterable[torch.Tensor]) -> None:
        super().__init__()
        self.storages = Storages()
        self.bits: dict[int, int] = {}
        self.read = 0
        for k, source in enumerate(sources):
            storage = self.storages.number(source)
            self.bits[storage] = self.bits.get(storage, 0) | 1 << k
        self.own = dict(self.bits)

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Run an operator and give its outputs the union of its inputs' sources."""
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        plain = isinstance(func, torch._ops.OpOverload)
        if plain and is_free(func):
            return out
        bits = 0
        for tensor in tensors((args, kwargs)):
            storage = self.storages.number(tensor)
            bits |= self.bits.get(storage, 0)
            self.read |= self.own.get(storage, 0)
        for tensor in (*tensors(out), *(written(func, args, kwargs) if plain else ())):
            storage = self.storages.number(tensor)
            self.bits[storage] = self.bits.get(storage, 0) | bits
        return out


@dataclass(frozen=True)
class Profile:
    """A workload with its relation to the model: nodes, constants, recording."""

    workload: Workload  # to plan for
    # names of the nodes of `traced.module` in each workload node, by its id; those of backward
    # nodes are autograd's
    fx_nodes: Mapping[NodeId, tuple[str, ...]] = field(repr=False)
    # names of the nodes of `traced.module` that are constants: every device makes its own
    anywhere: tuple[str, ...] = field(repr=False)
    # the traced model with all weights; tracing it again gives the same names
    traced: Traced = field(repr=False)
    recording: Recording = field(repr=False)  # its kernels, reads and writes
    notes: tuple[str, ...]  # notes for the user, a line each


@dataclass(frozen=True)
class RecordedModel:
    """A model with its trace, recording and operator graph."""

    model: nn.Module  # the model that was traced
    traced: Traced
    recording: Recording
    graph: OperatorGraph
    training: bool  # as in `profile`


def unwrapped_model(
    model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> nn.Module:
    """Return a model without `torch.compile`, its lazy parameters initialised by a run.

    InputError if it fails on its inputs.
    """
    model = getattr(model, "_orig_mod", model)
    if any(map(nn.parameter.is_lazy, model.parameters())):
        modes = [(module, module.training) for module in model.modules()]
        model.eval()  # a run for training would change the statistics of norms
        try:
            with torch.no_grad(), torch.random.fork_rng(devices=[]), quiet():
                model(*args, **kwargs)
        except Exception as error:  # any code of the model may run here
            raise on_inputs(error, model) from None
        finally:
            for module, training in modes:
                module.training = training
    return model


def record_model(
    model: nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    training: bool,
    *,
    whole: bool = False,
) -> RecordedModel:
    """Trace and record a model, which must be unwrapped, and leave it in the requested mode.

    With `whole` it is a single part, which runs as it is. InputError if it cannot be traced, or
    computes nothing.
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
    return RecordedModel(model, _with_own(traced), recording, graph, training)


def _with_own(traced: Traced) -> Traced:
    """Return a trace with the model's own tensors restored."""
    for module in traced.module.modules():
        for table in (module._parameters, module._buffers):
            table.update({name: own(value) for name, value in table.items()})
    return replace(
        traced,
        inputs=tuple(map(own, traced.inputs)),
        parameters=tuple((name, own(value)) for name, value in traced.parameters),
    )


def profile_of(
    recorded: RecordedModel,
    grouping: Grouping,
    times: OperatorTimes,
    cluster: Cluster,
    *,
    tied: Tied = Tied.COPIES,
    name: str = "",
    notes: tuple[str, ...] = (),
) -> Profile:
    """Return the profile of a model from its grouped and priced operators."""
    name = name or type(recorded.model).__name__
    once = to_workload(
        recorded.graph, grouping, times, name=name, cluster=cluster,
        provenance=_provenance(recorded, grouping),
    )  # fmt: skip
    workload = with_ties(once, ties_of(recorded.graph, grouping, once, times.link), tied)
    return Profile(
        workload=workload,
        fx_nodes=_fx_nodes(recorded.graph, grouping, workload.ids),
        anywhere=recorded.graph.anywhere,
        traced=recorded.traced,
        recording=recorded.recording,
        notes=notes,
    )


def _provenance(recorded: RecordedModel, grouping: Grouping) -> dict[str, str]:
    model = type(recorded.model)
    kept = {
        "generator": FROM_PYTORCH,
        "model": f"{model.__module__}.{model.__qualname__}",
        "traced_by": recorded.traced.how,
        "pass": "training" if recorded.training else "inference",
        "granularity": grouping.granularity,
        "torch": torch.__version__,
    }
    if recorded.traced.because:
        kept["uncut" if recorded.traced.runs else "torch_export_failed"] = recorded.traced.because
    if recorded.recording.unused:
        kept["unused_parameters"] = str(sum(p.elements for p in recorded.recording.unused))
    return kept


def _fx_nodes(
    graph: OperatorGraph, grouping: Grouping, ids: tuple[NodeId, ...]
) -> Mapping[NodeId, tuple[str, ...]]:
    parts: dict[NodeId, list[str]] = {node: [] for node in ids}
    for v, op in enumerate(graph.operators):
        parts[grouping.names[grouping.node[v]]] += op.parts
    return MappingProxyType({node: tuple(names) for node, names in parts.items()})


def check_complete(
    model: nn.Module,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    training: bool,
    recording: Recording,
    graph: OperatorGraph,
) -> None:
    """Check an operator graph against a run of the model itself.

    InputError if the run reads a parameter that no operator holds, or an output depends on a
    parameter or an input that it does not depend on in the graph.
    """
    args, kwargs = distinct(args, kwargs)  # as they were traced
    own, traced = _of_run(model, args, kwargs, training), _of_graph(recording, graph)
    where = f"{type(model).__name__}: its trace is not the model"
    lost = sorted(own.read - traced.read)
    if lost:
        raise InputError(f"{where}: no operator of it has {listed(lost)}, which the model reads")
    if len(own.outputs) != len(traced.outputs):
        raise InputError(
            f"{where}: it returns {len(traced.outputs)} tensors, and the model {len(own.outputs)}"
        )
    for k, (wanted, found) in enumerate(zip(own.outputs, traced.outputs, strict=True)):
        lost = sorted(wanted - found)
        if lost:
            raise InputError(
                f"{where}: its output {k} does not depend on {listed(lost)}, and the model's does"
            )


def _of_run(
    model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], training: bool
) -> _Ancestry:
    """Return the sources of each output by a run, on fake tensors unless the code needs values."""
    held = (*model.parameters(), *model.buffers(), *tensors((args, kwargs)))
    with suppress(Exception):  # any code of the model may run here, and fail in any way
        return _watched(model, args, kwargs, training, mode_of(held))
    try:
        if has_no_data(held):
            with as_exported():
                return _watched(model, args, kwargs, training, mode_of(held))
        return _watched(model, args, kwargs, training, None)
    except Exception as error:  # any code of the model may run here
        raise on_inputs(error, model) from None


def _watched(
    model: nn.Module,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    training: bool,
    fake: FakeTensorMode | None,
) -> _Ancestry:
    with ExitStack() as stack:
        stack.enter_context(unchanged(model, (args, kwargs)))
        stack.enter_context(quiet())
        if fake is not None:
            mode = fake
            other = stack.enter_context(swapped_tensors(model, lambda t: as_fake(t, mode)))
            args, kwargs = tree_map(other, (args, dict(kwargs)))
            stack.enter_context(mode)
        inputs = [x for x in flat_inputs(args, kwargs) if isinstance(x, torch.Tensor)]
        parameters = list(model.named_parameters())
        run = _Run([*(value for _, value in parameters), *inputs])
        stack.enter_context(torch.set_grad_enabled(training))
        stack.enter_context(_attention_as_traced())
        stack.enter_context(run)
        outputs = [run.storages.number(t) for t in tensors(model(*args, **kwargs))]
    names = [*(name for name, _ in parameters), *(f"input {k}" for k in range(len(inputs)))]

    def named(bits: int) -> frozenset[str]:
        return frozenset(name for k, name in enumerate(names) if bits >> k & 1)

    return _Ancestry(tuple(named(run.bits.get(s, 0)) for s in outputs), named(run.read))


@contextmanager
def _attention_as_traced() -> Iterator[None]:
    """Disable the fused kernel of `nn.MultiheadAttention` for inference, as in tracing."""
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)


def _of_graph(recording: Recording, graph: OperatorGraph) -> _Ancestry:
    """Return the sources of each output by the operator graph."""
    names = _sources(recording)
    read = {step.name: {r.storage for r in step.reads} & set(names) for step in recording.steps}
    before: list[list[int]] = [[] for _ in graph.operators]
    for u, v in graph.edges():
        before[v].append(u)
    found: list[set[int]] = []
    for v, op in enumerate(graph.operators):
        own = {s for part in op.parts for s in read.get(part, ())}
        found.append(own.union(*(found[u] for u in before[v] if u < v)))
    last = {flow.tensor.storage: flow.source for flow in graph.flows if flow.target < 0}

    def named(storages: Iterable[int]) -> frozenset[str]:
        return frozenset(name for s in storages for name in names.get(s, ()))

    outputs = [
        named(found[last[t.storage]] if t.storage in last else (t.storage,))
        for t in recording.outputs
    ]
    return _Ancestry(tuple(outputs), named(set().union(*found)))


def _sources(recording: Recording) -> dict[int, list[str]]:
    """Return the names of the parameters and inputs of each storage."""
    names = {storage: [parameter.name] for storage, parameter in recording.parameters.items()}
    for k, storage in enumerate(recording.inputs):
        names.setdefault(storage, []).append(f"input {k}")
    return names
