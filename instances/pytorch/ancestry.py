"""What a model's outputs depend on when it runs by itself: its operator graph must say the same.

Tracing may lose a part of a model (what is within an operator that it does not look into); then
weights, work, and edges through that part are missing, and a plan would be for another model. So
the model runs once more, on tensors without numbers if it can, and every kernel hands on which
parameters and inputs it depends on.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from ..common.errors import InputError
from .operators.graph import OperatorGraph
from .recording.recording import Recording
from .recording.storages import Storages
from .recording.watch import is_free, written
from .tracing.leaves import tensors
from .tracing.traced import as_exported, flat_inputs, parameters_of, quiet, reason_of
from .tracing.unchanged import unchanged
from .tracing.without_numbers import has_no_numbers, mode_of, swapped, without_numbers


@dataclass(frozen=True)
class _Ancestry:
    """Names of the parameters and inputs that each output depends on, and that kernels read."""

    outputs: tuple[frozenset[str], ...]
    read: frozenset[str]


class _Run(TorchDispatchMode):  # type: ignore[misc]  # torch is not typed for mypy here
    """Hands on, from kernel to kernel, what each memory block depends on: a bit per source."""

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
        """Run an operator; what it makes or changes depends on all that it reads."""
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


def check_complete(
    model: nn.Module,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    training: bool,
    recording: Recording,
    graph: OperatorGraph,
) -> None:
    """Hold an operator graph against a run of the model itself.

    Raises
    ------
    InputError
        If the run reads a parameter that no operator holds, or an output depends on a parameter or
        an input that it does not depend on in the graph.
    """
    own, traced = _of_run(model, args, kwargs, training), _of_graph(recording, graph)
    where = f"{type(model).__name__}: its trace is not the model"
    lost = sorted(own.read - traced.read)
    if lost:
        raise InputError(f"{where}: no operator of it has {_listed(lost)}, which the model reads")
    if len(own.outputs) != len(traced.outputs):
        raise InputError(
            f"{where}: it returns {len(traced.outputs)} tensors, and the model {len(own.outputs)}"
        )
    for k, (wanted, found) in enumerate(zip(own.outputs, traced.outputs, strict=True)):
        lost = sorted(wanted - found)
        if lost:
            raise InputError(
                f"{where}: its output {k} does not depend on {_listed(lost)}, and the model's does"
            )


def _listed(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _of_run(
    model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], training: bool
) -> _Ancestry:
    """Run a model on tensors without numbers; on its own if its code asks for numbers."""
    held = (*model.parameters(), *model.buffers(), *tensors((args, kwargs)))
    with suppress(Exception):  # any code of the model may run here, and fail in any way
        return _watched(model, args, kwargs, training, mode_of(held))
    try:
        if has_no_numbers(held):
            with as_exported():
                return _watched(model, args, kwargs, training, mode_of(held))
        return _watched(model, args, kwargs, training, None)
    except Exception as error:  # any code of the model may run here
        raise InputError(f"model: it fails on its inputs: {reason_of(error, model)}") from None


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
            other = stack.enter_context(swapped(model, lambda t: without_numbers(t, mode)))
            args, kwargs = tree_map(other, (args, dict(kwargs)))
            stack.enter_context(mode)
        inputs = [x for x in flat_inputs(args, kwargs) if isinstance(x, torch.Tensor)]
        parameters = parameters_of(model)
        run = _Run([*(value for _, value in parameters), *inputs])
        stack.enter_context(torch.set_grad_enabled(training))
        stack.enter_context(run)
        outputs = [run.storages.number(t) for t in tensors(model(*args, **kwargs))]
    names = [*(name for name, _ in parameters), *(f"input {k}" for k in range(len(inputs)))]

    def named(bits: int) -> frozenset[str]:
        return frozenset(name for k, name in enumerate(names) if bits >> k & 1)

    return _Ancestry(tuple(named(run.bits.get(s, 0)) for s in outputs), named(run.read))


def _of_graph(recording: Recording, graph: OperatorGraph) -> _Ancestry:
    """Return what an operator graph says: of operators and the edges between them alone."""
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
    for k, storage in enumerate(recording.given):
        names.setdefault(storage, []).append(f"input {k}")
    return names
