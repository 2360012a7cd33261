"""One pass over a traced model with tensors that have shapes but no numbers, noting everything.

The backward pass is autograd's own: the traced forward graph is executed with autograd on, every
autograd node is credited to the step that made it, then the engine runs and hooks on its nodes say
which kernels belong to which. So the recording has what torch runs, not what a compiler would.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd.graph import Node, saved_tensors_hooks
from torch.utils._pytree import tree_map

from ..errors import InputError
from .leaves import plain, size, tensors
from .recording import BackwardStep, Kernel, Parameter, Read, Recording, Step
from .trace import Traced, quiet, reason_of
from .unchanged import unchanged
from .watch import Watch


class _Storages:
    """Numbers for memory blocks; holds on to them, so that no number means two."""

    def __init__(self) -> None:
        self._numbers: dict[int, int] = {}
        self._kept: list[Any] = []
        self.sizes: list[float] = []

    def number(self, tensor: torch.Tensor) -> int:
        tensor = plain(tensor)
        dense = tensor.layout is torch.strided
        held: Any = tensor.untyped_storage() if dense else tensor
        key = held._cdata
        if key not in self._numbers:
            self._numbers[key] = len(self.sizes)
            self._kept.append(held)
            self.sizes.append(float(held.nbytes()) if dense else size(tensor))
        return self._numbers[key]

    def alias(self, tensor: torch.Tensor, other: torch.Tensor) -> None:
        """Let `other` count as the memory of `tensor`."""
        number = self.number(tensor)
        self._kept.append(other.untyped_storage())
        self._numbers[other.untyped_storage()._cdata] = number

    def read(self, tensor: torch.Tensor) -> Read:
        tensor = plain(tensor)
        offset = int(tensor.storage_offset()) if tensor.layout is torch.strided else 0
        return Read(self.number(tensor), offset, size(tensor))


class _Pass(fx.Interpreter):  # type: ignore[misc]  # torch is not typed for mypy here
    """The forward pass, step by step."""

    def __init__(
        self,
        module: fx.GraphModule,
        attributes: Mapping[str, Any],
        watch: Watch,
        storages: _Storages,
    ) -> None:
        super().__init__(module)
        self.garbage_collect_values = False
        self.attributes = attributes
        self.watch = watch
        self.storages = storages
        self.steps: list[Step] = []
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
        given = tensors(self.fetch_args_kwargs_from_env(n))
        if n.op == "call_module":
            called = self.module.get_submodule(n.target)
            given += [*called.parameters(), *called.buffers()]
        reads = tuple(dict.fromkeys(self.storages.read(t) for t in given))
        known = {r.storage for r in reads}
        made = {self.storages.number(t) for t in tensors(value)} - known
        writes = made | {self.storages.number(t) for t in changed}
        self._claim(tensors(value))
        self.steps.append(
            Step(
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
    try:
        with unchanged(traced.module, traced.inputs), quiet():
            recording = _record(traced, training, FakeTensorMode(allow_non_fake_inputs=True))
        if not (training and any(map(_sized_by_running, recording.steps))):
            return recording
    except Exception as error:  # any code of the model may run here, and fail in any way
        reason = reason_of(error, traced.module)
    else:
        reason = "the memory that a kernel keeps for its backward pass is known by running it"
    if any(t.is_meta for t in (*traced.module.parameters(), *tensors(traced.inputs))):
        raise InputError(f"model: it is on the device meta, where nothing runs; but {reason}")
    try:
        with unchanged(traced.module, traced.inputs), quiet():
            return _record(traced, training, None)
    except Exception as error:  # likewise
        raise InputError(
            f"model: traced by {traced.how}, but it does not run: {reason_of(error, traced.module)}"
        ) from None


def _sized_by_running(step: Step) -> bool:
    """Whether a step's kernels make tensors whose sizes only the library behind them knows."""
    return any(k.operator.startswith("aten.mkldnn_rnn_layer") for k in step.kernels)


def _record(traced: Traced, training: bool, fake: FakeTensorMode | None) -> Recording:
    """Record on tensors without numbers, or on real ones if `fake` is None."""
    storages = _Storages()
    attributes, parameters, buffers = _attributes(traced, fake, storages)
    given = [tree_map(lambda x: _as_fake(x, fake), x) for x in traced.inputs]
    inputs = frozenset(storages.number(t) for t in tensors(given))
    watch = Watch()
    run = _Pass(traced.module, attributes, watch, storages)
    with ExitStack() as stack:
        stack.enter_context(torch.set_grad_enabled(training))
        if fake is not None:
            stack.enter_context(fake)
        stack.enter_context(watch)
        if training:
            stack.enter_context(saved_tensors_hooks(run.pack, lambda x: x))
        output = tensors(run.run(*given, enable_io_processing=False))
        backward = _backward(run, output, storages) if training else ()
    used = {s for step in run.steps for s in (r.storage for r in step.reads)}
    return Recording(
        steps=tuple(run.steps),
        backward=backward,
        sizes=tuple(storages.sizes),
        parameters={s: p for s, p in parameters.items() if s in used},
        buffers=buffers,
        inputs=inputs,
        outputs=tuple(storages.read(t) for t in output),
        unused=tuple(p for s, p in parameters.items() if s not in used),
    )


def loss_of(outputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return the outputs to start the backward pass from."""
    derivable = [t for t in outputs if t.requires_grad]
    single = [t for t in derivable if t.numel() == 1]
    return single[:1] or derivable


class _Engine:
    """Notes what autograd's engine does, by hooks on its nodes."""

    def __init__(self, watch: Watch, storages: _Storages) -> None:
        self.watch = watch
        self.storages = storages
        self.order: list[Node] = []
        self.kernels: dict[Node, list[Kernel]] = {}
        self.sent: dict[Node, list[Read | None]] = {}
        self._arrived: set[tuple[Node, int]] = set()
        self._sums: list[Node] = []

    def listen(self, node: Node) -> None:
        """Hear when `node` begins and ends."""
        self.kernels[node] = []
        node.register_prehook(lambda _received: self.begins(node))
        node.register_hook(lambda sent, _received: self.ends(node, sent))

    def begins(self, node: Node) -> None:
        """Credit what ran since the last node ended: each sum of gradients to who gets it."""
        between = self.watch.take()[0]
        for target, kernel in zip(self._sums, between, strict=False):
            self.kernels[target].append(kernel)
        if self.order:
            self.kernels[self.order[-1]] += between[len(self._sums) :]
        self._sums = []
        self.order.append(node)

    def ends(self, node: Node, sent: Sequence[torch.Tensor | None]) -> None:
        """Credit what ran to `node`, and expect a sum where a gradient is not the first."""
        self.kernels[node] += self.watch.take()[0]
        self.sent[node] = [None if g is None else self.storages.read(g) for g in sent]
        for (target, slot), gradient in zip(node.next_functions, sent, strict=False):
            if target is None or gradient is None:
                continue
            if (target, slot) in self._arrived:
                self._sums.append(node if _is_leaf(target) else target)
            self._arrived.add((target, slot))


def _backward(
    run: _Pass, output: list[torch.Tensor], storages: _Storages
) -> tuple[BackwardStep, ...]:
    """Let autograd's engine run, and note what each of its nodes does."""
    engine = _Engine(run.watch, storages)
    for node in run.made_by:
        engine.listen(node)
    run.watch.take()
    roots = loss_of(output)
    torch.autograd.backward(roots, [torch.ones_like(t) for t in roots])
    order = [node for node in engine.order if not _is_leaf(node)]
    number = {node: i for i, node in enumerate(order)}
    steps = []
    for node in order:
        feeds, accumulates = [], []
        for (target, slot), gradient in zip(node.next_functions, engine.sent[node], strict=False):
            if target is None or gradient is None:
                continue
            if _is_leaf(target):
                accumulates.append(storages.number(target.variable))
            elif target in number:
                feeds.append((number[target], slot, gradient))
        steps.append(
            BackwardStep(
                name=node.name(),
                forward=run.made_by[node],
                kernels=tuple(engine.kernels[node]),
                feeds=tuple(feeds),
                accumulates=tuple(accumulates),
            )
        )
    return tuple(steps)


def _is_leaf(node: Any) -> bool:
    """Whether an autograd node only adds a gradient to a parameter's."""
    return hasattr(node, "variable")


def _attributes(
    traced: Traced, fake: FakeTensorMode | None, storages: _Storages
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
    called = [n.target for n in traced.module.graph.nodes if n.op == "call_module"]
    inside = [b for path in called for b in traced.module.get_submodule(path).buffers()]
    for value in (*attributes.values(), *map(convert, inside)):
        if isinstance(value, torch.Tensor) and storages.number(value) not in parameters:
            buffers.add(storages.number(value))
    return attributes, parameters, frozenset(buffers)


def _as_fake(value: Any, fake: FakeTensorMode | None) -> Any:
    if fake is None or not isinstance(value, torch.Tensor):
        return value
    return fake.from_tensor(value)


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
