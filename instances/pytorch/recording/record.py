"""One pass over a traced model with tensors that have shapes but no numbers, noting everything.

The backward pass is autograd's own: the traced forward graph is executed with autograd on, every
autograd node is credited to the step that made it, then the engine runs and hooks on its nodes say
which kernels belong to which. So the recording has what torch runs, not what a compiler would.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd.graph import Node, saved_tensors_hooks
from torch.utils._pytree import tree_leaves, tree_map

from ...common.errors import InputError
from ..tracing.leaves import loss_of, plain, size, tensors
from ..tracing.traced import Traced, quiet, reason_of, varying
from ..tracing.unchanged import unchanged
from ..tracing.without_numbers import has_no_numbers, mode_of, swapped, without_numbers
from .engine import run_backward
from .recording import ExecutedNode, Parameter, Recording
from .storages import Storages
from .watch import Watch


class _RecordedPass(fx.Interpreter):  # type: ignore[misc]  # torch is not typed for mypy here
    """The forward pass, step by step."""

    def __init__(
        self,
        module: fx.GraphModule,
        attributes: Mapping[str, Any],
        watch: Watch,
        storages: Storages,
    ) -> None:
        super().__init__(module)
        self.garbage_collect_values = False
        self.attributes = attributes
        self.watch = watch
        self.storages = storages
        self.steps: list[ExecutedNode] = []
        self.saved: list[int] = []
        self.made_by: dict[Node, int] = {}

    def get_attr(self, target: Any, args: Any, kwargs: Any) -> Any:  # noqa: ARG002
        return self.attributes[target]

    def run_node(self, n: fx.Node) -> Any:
        self.watch.take()
        self.saved = []
        value = super().run_node(n)
        if n.op not in ("call_function", "call_method", "call_module"):
            return value
        kernels, random, changed = self.watch.take()
        whole = self.fetch_args_kwargs_from_env(n)
        given = tensors(whole)
        called = [m for m in tree_leaves(whole) if isinstance(m, torch.nn.Module)]
        called += [self.module.get_submodule(n.target)] if n.op == "call_module" else []
        given += [t for m in called for t in (*m.parameters(), *m.buffers())]
        reads = tuple(dict.fromkeys(self.storages.read(t) for t in given))
        known = {r.storage for r in reads}
        made = {self.storages.number(t) for t in tensors(value)} - known
        writes = made | {self.storages.number(t) for t in changed}
        self._claim(tensors(value))
        self.steps.append(
            ExecutedNode(
                name=n.name,
                kind=_kind(n),
                modules=_modules(n),
                reads=reads,
                writes=tuple(sorted(writes)),
                kernels=kernels,
                random=random,
                saved=tuple(dict.fromkeys(self.saved)),
            )
        )
        return value

    def pack(self, tensor: torch.Tensor) -> torch.Tensor:
        self.saved.append(self.storages.number(tensor))
        return tensor

    def _claim(self, values: list[torch.Tensor]) -> None:
        """Credit autograd nodes that are new to the step that is about to be noted."""
        waiting = [v.grad_fn for v in map(plain, values) if v.grad_fn is not None]
        while waiting:
            node = waiting.pop()
            if node is not None and node not in self.made_by:
                self.made_by[node] = len(self.steps)
                waiting += [before for before, _ in node.next_functions]


def record(traced: Traced, training: bool) -> Recording:
    """Record one pass, with its backward pass if `training`.

    The loss is the model's output, if it returns a single number among others; else the sum of
    all its outputs stands for it.

    Raises
    ------
    InputError
        If its sizes depend on numbers, and there are none, on the device ``meta``.

    Notes
    -----
    Needs memory for the weights only, and linear time. Where sizes depend on numbers, the pass is
    run on real ones.
    """
    held = (*traced.module.parameters(), *traced.module.buffers(), *tensors(traced.inputs))
    try:
        with unchanged(traced.module, traced.inputs), quiet():
            recording = _record(traced, training, mode_of(held))
        if not (training and any(map(_sized_by_running, recording.steps))):
            return recording
    except Exception as error:  # any code of the model may run here, and fail in any way
        if has_no_numbers(held):
            raise InputError(
                "model: it is on the device meta, where nothing runs; but "
                f"{reason_of(error, traced.module)}"
            ) from None
    try:
        with unchanged(traced.module, traced.inputs), quiet():
            if has_no_numbers(held):
                return _record_on_zeros(traced, training)
            return _record(traced, training, None)
    except Exception as error:  # any code of the model may run here
        raise InputError(
            f"model: traced by {traced.how}, but it does not run: {reason_of(error, traced.module)}"
        ) from None


def _record_on_zeros(traced: Traced, training: bool) -> Recording:
    """Record a model without numbers on zeros: how much a kernel keeps does not depend on them."""

    def zeros(value: torch.Tensor) -> torch.Tensor:
        made = torch.zeros(value.shape, dtype=value.dtype).requires_grad_(value.requires_grad)
        return torch.nn.Parameter(made, made.requires_grad) if value.requires_grad else made

    with swapped(traced.module, zeros) as other:
        parameters = tuple((name, other(value)) for name, value in traced.parameters)
        inputs = tuple(tree_map(other, traced.inputs))
        return _record(replace(traced, parameters=parameters, inputs=inputs), training, None)


def _sized_by_running(step: ExecutedNode) -> bool:
    """Whether a step's kernels make tensors whose sizes only the library behind them knows."""
    return any(k.operator.startswith("aten.mkldnn_rnn_layer") for k in step.kernels)


def _record(traced: Traced, training: bool, fake: FakeTensorMode | None) -> Recording:
    """Record on tensors without numbers, or on real ones if `fake` is None."""
    storages = Storages()
    attributes, parameters, buffers = _attributes(traced, fake, storages)
    given = [tree_map(lambda x: _as_fake(x, fake), x) for x in traced.inputs]
    places = tuple(storages.number(x) for x in given if isinstance(x, torch.Tensor))
    watch = Watch()
    run = _RecordedPass(traced.module, attributes, watch, storages)
    with ExitStack() as stack:
        stack.enter_context(torch.set_grad_enabled(training))
        if fake is not None:
            stack.enter_context(fake)
        stack.enter_context(watch)
        if training:
            stack.enter_context(saved_tensors_hooks(run.pack, lambda x: x))
        output = tensors(run.run(*given, enable_io_processing=False))
        backward = run_backward(run.made_by, loss_of(output), watch, storages) if training else ()
    number = {step.name: i for i, step in enumerate(run.steps)}
    used = {s for step in run.steps for s in (r.storage for r in step.reads)}
    return Recording(
        steps=tuple(run.steps),
        backward=backward,
        sizes=tuple(storages.sizes),
        parameters={s: p for s, p in parameters.items() if s in used},
        buffers=buffers,
        inputs=frozenset(places),
        given=places,
        outputs=tuple(storages.read(t) for t in output),
        unused=tuple(p for s, p in parameters.items() if s not in used),
        together=tuple(
            (number[a], number[b]) for a, b in varying(traced.module) if {a, b} <= set(number)
        ),
    )


def _attributes(
    traced: Traced, fake: FakeTensorMode | None, storages: Storages
) -> tuple[dict[str, Any], dict[int, Parameter], frozenset[int]]:
    """Return what `get_attr` finds, without numbers, and which storages these are."""
    converted: dict[int, torch.Tensor] = {}
    attributes: dict[str, Any] = {}
    parameters: dict[int, Parameter] = {}
    buffers = set()

    def convert(tensor: torch.Tensor) -> torch.Tensor:
        if id(tensor) not in converted:
            converted[id(tensor)] = _as_fake(tensor, fake)
            storages.alias(converted[id(tensor)], tensor)
        return converted[id(tensor)]

    for n in traced.module.graph.nodes:
        if n.op != "get_attr" or n.target in attributes:
            continue
        value = traced.attribute(n.target)
        if not isinstance(value, torch.Tensor):
            attributes[n.target] = value
            continue
        attributes[n.target] = convert(value)
    for name, parameter in traced.parameters:
        storage = storages.number(convert(parameter))
        parameters.setdefault(
            storage, Parameter(name, parameter.numel(), size(parameter), parameter.requires_grad)
        )
    called = [m for m in attributes.values() if isinstance(m, torch.nn.Module)]
    called += [
        traced.module.get_submodule(n.target)
        for n in traced.module.graph.find_nodes(op="call_module")
    ]
    inside = [buffer for module in called for buffer in module.buffers()]
    for value in (*attributes.values(), *map(convert, inside)):
        if isinstance(value, torch.Tensor) and storages.number(value) not in parameters:
            buffers.add(storages.number(value))
    return attributes, parameters, frozenset(buffers)


def _as_fake(value: Any, fake: FakeTensorMode | None) -> Any:
    if fake is None or not isinstance(value, torch.Tensor):
        return value
    return without_numbers(value, fake)


def _kind(n: fx.Node) -> str:
    target = n.target
    if isinstance(target, str):
        return target
    packet = getattr(target, "overloadpacket", None)
    return str(getattr(packet or target, "__name__", target))


def _modules(n: fx.Node) -> tuple[str, ...]:
    """Paths of the modules around a node, the root (an empty path) first."""
    stack = n.meta.get("nn_module_stack") or {}
    return tuple(str(entry[0]).removeprefix("L['self'].") for entry in stack.values())
