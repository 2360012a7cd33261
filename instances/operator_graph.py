"""Recordings of a pass, and operator graphs from them: operators, tensors between them, colours.

Recordings
----------
One pass over a traced model, step by step, without tensors. *Storages* are numbered memory blocks:
a tensor and its views share one, so that they tell which step reads what another has written, also
through views and in-place operations.

Folded steps
------------
A step that computes nothing (a view, a check, dropout in evaluation) belongs to the operator whose
output it looks at. A step that depends on no input and no parameter is a constant: every device
has its own, made once; only its bytes are kept, by the first operator that reads it. A step that
only updates a module's state (a counter) belongs to the next operator of that module. Backward
steps that compute nothing hand their gradients on.

Colours
-------
These operators share a device: those that change one tensor in place, with its readers before the
last change; users of state that changes; a backward operator and its forward operator; makers and
readers of tensors without a fixed size, as only tensors of one size pass between devices. Operators
that read one parameter are listed, as they may share a device or have copies
(`instances/model/workload.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class KernelCall:
    """Kernel call below autograd."""

    # operator (such as ``aten.mm.default``), types, shapes and plain arguments, on which its time
    # depends
    signature: str
    flops: float  # as torch's FlopCounterMode counts: matrix products, convolutions, attention
    moved_bytes: float  # bytes of the tensors that it reads and writes


@dataclass(frozen=True)
class Read:
    """A tensor that a step reads: its storage, and which part of it by offset and bytes."""

    storage: int
    offset: int
    size_bytes: float


@dataclass(frozen=True)
class ExecutedNode:
    """A node of the fx graph, executed."""

    name: str  # the fx node's
    modules: tuple[str, ...]  # paths of the modules whose call it is part of, outermost first
    reads: tuple[Read, ...]  # reads, writes: tensors given to it; storages it made or changed
    writes: tuple[int, ...]
    kernels: tuple[KernelCall, ...]  # kernels that it ran; none for views
    random: bool  # whether it draws random numbers
    saved: tuple[int, ...]  # storages that autograd keeps for the backward pass because of it


@dataclass(frozen=True)
class BackwardStep:
    """A node of autograd's graph, executed."""

    name: str  # such as ``AddmmBackward0``
    forward: int  # the step that made it
    kernels: tuple[KernelCall, ...]
    # receivers of its gradients: backward step, number of its input, and the gradient. Gradients
    # that arrive at one input are added up there, before the step begins.
    feeds: tuple[tuple[int, int, Read], ...]
    accumulates: tuple[int, ...]  # parameters (by storage) whose gradient it delivers
    # kernels that add these to the gradients of the microbatches before
    sums: tuple[KernelCall, ...]


@dataclass(frozen=True)
class Parameter:
    """A learned tensor: its name in the model, elements, bytes, and whether it is trained."""

    name: str
    elements: int
    size_bytes: float
    trained: bool


@dataclass(frozen=True)
class TensorValue:
    """A tensor that a node of the fx graph gives."""

    name: str  # the fx node's
    shape: tuple[int, ...]
    dtype: torch.dtype
    grad: bool  # whether a gradient comes back for it
    storage: int

    @property
    def size_bytes(self) -> int:
        """Bytes of its elements."""
        return prod(self.shape) * int(self.dtype.itemsize)


@dataclass(frozen=True)
class Recording:
    """Forward and backward steps in the order of execution, with the storages they use."""

    steps: tuple[ExecutedNode, ...]
    backward: tuple[BackwardStep, ...]
    sizes: tuple[float, ...]  # bytes of each storage
    # parameters, buffers, inputs: storages that exist before the pass; of inputs that of each
    # tensor, in order
    parameters: Mapping[int, Parameter]
    buffers: frozenset[int]
    inputs: tuple[int, ...]
    outputs: tuple[Read, ...]  # tensors that the model returns
    unused: tuple[Parameter, ...] = field(default=())
    # steps that make tensors without a fixed size, each with a reader of these
    together: tuple[tuple[int, int], ...] = ()
    # by name of the fx node; those that give no single tensor are left out
    values: Mapping[str, TensorValue] = field(default_factory=dict)


class OperatorGraphBuilder:
    """Operator graph under construction."""

    def __init__(self, recording: Recording, training: bool) -> None:
        from networkx.utils import UnionFind

        self.recording = recording
        self.training = training
        self.operators: list[TracedOperator] = []
        self.flows: list[Flow] = []
        self.shared: list[SharedWeight] = []
        self.anywhere: list[str] = []
        self.of_step: dict[int, int] = {}
        self.writer: dict[int, int] = {}
        self.readers: dict[int, list[int]] = {}
        changed = {
            s
            for i, step in enumerate(recording.steps)
            for s in step.writes
            if step.kernels and s in {r.storage for r in step.reads}
        }
        self.constant = set(recording.buffers) - changed
        self.state = set(recording.buffers) & changed
        #: Operators that share a device.
        self.colours: UnionFind[int] = UnionFind()

    def owner(self, storages: Iterable[int]) -> int:
        """Return the operator that made the first of these storages, else its first reader."""
        for storage in storages:
            if storage in self.writer:
                return self.writer[storage]
            if self.readers.get(storage):
                return self.readers[storage][0]
        return -1


@dataclass
class TracedOperator:
    """A node of the operator graph; bytes as in `Workload.extra`."""

    name: str  # the fx node's, for a backward operator followed by autograd's name
    modules: tuple[str, ...]
    kernels: tuple[KernelCall, ...]
    backward: bool = False
    partner: int = -1  # the forward operator of a backward operator, or −1
    # names of its fx nodes, in order of execution
    parts: list[str] = field(default_factory=list)
    parameters: float = 0.0
    weight_bytes: float = 0.0
    constant_bytes: float = 0.0
    gradient_bytes: float = 0.0
    optimizer_bytes: float = 0.0
    activation_bytes: float = 0.0


@dataclass(frozen=True)
class Flow:
    """A tensor that one operator makes and another reads."""

    source: int  # source, target: operators; the target is −1 for the model's output
    target: int
    tensor: Read  # part that is read
    # for gradients: backward step and number of its input. Gradients for one input are added up, by
    # the sender if it has several.
    slot: tuple[int, int] | None = None


@dataclass(frozen=True)
class SharedWeight:
    """A parameter that several operators read; it is held once."""

    name: str  # in the model
    # readers, deliverers: forward operators that read it, and backward operators that deliver its
    # gradient, in order
    readers: tuple[int, ...]
    deliverers: tuple[int, ...]
    # weight_bytes, gradient_bytes, optimizer_bytes: of the parameter; 0 if it is not trained
    weight_bytes: float
    gradient_bytes: float
    optimizer_bytes: float


@dataclass(frozen=True)
class OperatorGraph:
    """Operators in the order of execution; all forward ones before the backward ones."""

    operators: tuple[TracedOperator, ...]
    flows: tuple[Flow, ...]
    sizes: tuple[float, ...]  # bytes of each storage
    # operators that share a device, each in at most one class of at least two; sharing a weight
    # alone is no reason
    colours: tuple[tuple[int, ...], ...]
    shared: tuple[SharedWeight, ...]  # the weights that several operators read
    anywhere: tuple[str, ...]  # names of the fx nodes that are constants

    def edges(self) -> list[tuple[int, int]]:
        """Return the edges: tensors read, and forward partners of backward operators."""
        pairs = {(f.source, f.target) for f in self.flows if f.target >= 0}
        pairs |= {(op.partner, v) for v, op in enumerate(self.operators) if op.partner >= 0}
        return sorted((u, v) for u, v in pairs if u != v)


def operator_graph(recording: Recording, training: bool) -> OperatorGraph:
    """Return the operator graph of a recording, in time linear in what was recorded."""
    draft = OperatorGraphBuilder(recording, training)
    add_forward(draft)
    hold_memory(draft)
    add_backward(draft)
    for i, j in recording.together:
        draft.colours.union(*{draft.of_step[step] for step in (i, j) if step in draft.of_step})
    return OperatorGraph(
        operators=tuple(draft.operators),
        flows=tuple(draft.flows),
        sizes=recording.sizes,
        colours=tuple(sorted(tuple(sorted(c)) for c in draft.colours.to_sets() if len(c) > 1)),
        shared=tuple(draft.shared),
        anywhere=tuple(draft.anywhere),
    )


def add_forward(draft: OperatorGraphBuilder) -> None:
    """Add the operators of forward steps, and flows from the last writer of each tensor."""
    waiting: list[int] = []  # steps that only touch state, until an operator of their module
    for i, step in enumerate(draft.recording.steps):
        touched = {r.storage for r in step.reads} | set(step.writes)
        if not step.kernels:
            if touched and touched <= draft.constant:
                draft.constant |= set(step.writes)
            continue
        fixed = {r.storage for r in step.reads} <= draft.constant
        if fixed and not step.random:
            draft.constant |= set(step.writes)
            draft.anywhere.append(step.name)
            continue
        if touched <= draft.state | draft.constant:
            waiting.append(i)
            continue
        v = _operator(draft, i)
        for other in [w for w in waiting if draft.recording.steps[w].modules == step.modules]:
            waiting.remove(other)
            _fuse(draft, other, v)
    for i in waiting:
        _operator(draft, i)
    _views(draft)
    for tensor in draft.recording.outputs:
        if tensor.storage in draft.writer:
            draft.flows.append(Flow(draft.writer[tensor.storage], -1, tensor))


def _operator(draft: OperatorGraphBuilder, i: int) -> int:
    step = draft.recording.steps[i]
    v = len(draft.operators)
    draft.operators.append(TracedOperator(step.name, step.modules, step.kernels, parts=[step.name]))
    _connect(draft, i, v)
    return v


def _fuse(draft: OperatorGraphBuilder, i: int, v: int) -> None:
    """Fuse traced step `i` into operator `v`."""
    step, op = draft.recording.steps[i], draft.operators[v]
    op.kernels = (*step.kernels, *op.kernels)
    op.parts.insert(0, step.name)
    _connect(draft, i, v)


def _connect(draft: OperatorGraphBuilder, i: int, v: int) -> None:
    step = draft.recording.steps[i]
    draft.of_step[i] = v
    read = {r.storage for r in step.reads}
    for tensor in step.reads:
        source = draft.writer.get(tensor.storage)
        if source is not None and source != v:
            draft.flows.append(Flow(source, v, tensor))
    for storage in read:
        draft.readers.setdefault(storage, []).append(v)
    for storage in step.writes:
        if storage in read:  # changed in place: with all who have seen it so far
            before = [draft.writer[storage]] if storage in draft.writer else []
            draft.colours.union(v, *before, *draft.readers[storage])
        draft.writer[storage] = v
        draft.constant.discard(storage)
    for storage in read & draft.state:
        draft.colours.union(*draft.readers[storage])


def _views(draft: OperatorGraphBuilder) -> None:
    """Assign views and other steps without kernels to the operator of their input."""
    for i, step in enumerate(draft.recording.steps):
        if step.kernels or i in draft.of_step:
            continue
        v = draft.owner(r.storage for r in step.reads)
        if v >= 0:
            draft.of_step[i] = v
            draft.operators[v].parts.append(step.name)
        else:
            draft.anywhere.append(step.name)


def add_backward(draft: OperatorGraphBuilder) -> None:
    """Add the backward operators, without those that compute nothing."""
    steps = draft.recording.backward
    number: dict[int, int] = {}
    names: dict[str, int] = {}
    for i, step in enumerate(steps):
        if not step.kernels:
            continue
        partner = _partner(draft, step.forward)
        made_by = draft.recording.steps[step.forward]
        name = f"{made_by.name}.{step.name}"
        names[name] = names.get(name, 0) + 1
        name += f".{names[name]}" if names[name] > 1 else ""
        number[i] = len(draft.operators)
        modules = draft.operators[partner].modules if partner >= 0 else made_by.modules
        draft.operators.append(TracedOperator(name, modules, step.kernels, True, partner, [name]))
        if partner >= 0:
            draft.colours.union(partner, number[i])
    for i in range(len(steps)):
        if i in number:
            for target, slot, tensor in steps[i].feeds:
                for j, at in _reached(draft, target, slot, number):
                    draft.flows.append(Flow(number[i], number[j], tensor, (j, at)))
    deliverers: dict[int, list[int]] = {}
    for i, storage in _gradients(draft, number):
        deliverers.setdefault(storage, []).append(number.get(i, -1))
    hold_parameters(draft, deliverers)


def _partner(draft: OperatorGraphBuilder, step: int) -> int:
    if step in draft.of_step:
        return draft.of_step[step]
    return draft.owner(r.storage for r in draft.recording.steps[step].reads)


def _reached(
    draft: OperatorGraphBuilder, start: int, slot: int, number: dict[int, int]
) -> list[tuple[int, int]]:
    """Return steps and inputs that a gradient reaches, also through steps without kernels."""
    found, waiting = [], [(start, slot)]
    seen = set(waiting)
    while waiting:
        i, at = waiting.pop()
        if i in number:
            found.append((i, at))
            continue
        for target, slot, _ in draft.recording.backward[i].feeds:
            if (target, slot) not in seen:
                seen.add((target, slot))
                waiting.append((target, slot))
    return sorted(found)


def _gradients(draft: OperatorGraphBuilder, number: dict[int, int]) -> list[tuple[int, int]]:
    """Return pairs of backward step, −1 for none, and the parameter whose gradient it delivers.

    Kernels that add it to the gradient of earlier microbatches are given to that operator.
    """
    pairs: list[tuple[int, int]] = []
    source: dict[int, int] = {}  # the last operator before each step without kernels
    for i, step in enumerate(draft.recording.backward):
        giver = i if i in number else source.get(i, -1)
        for target, _, _ in step.feeds:
            source[target] = giver
        pairs += [(giver, storage) for storage in step.accumulates]
        if giver >= 0:
            draft.operators[number[giver]].kernels += step.sums
    return pairs


def hold_parameters(draft: OperatorGraphBuilder, deliverers: Mapping[int, Sequence[int]]) -> None:
    """Assign each parameter to its first reader, its gradient and state to a backward operator.

    `deliverers` of a gradient, by storage, are backward operators, −1 for none.
    """
    for storage, parameter in draft.recording.parameters.items():
        readers = list(dict.fromkeys(draft.readers.get(storage, [])))
        given = deliverers.get(storage, [])
        late = [v for v in given if v >= 0]
        gradient = parameter.size_bytes if given else 0.0
        state = optimizer_bytes(parameter.elements, parameter.size_bytes) if given else 0.0
        for v in readers[:1]:
            draft.operators[v].weight_bytes += parameter.size_bytes
            draft.operators[v].parameters += parameter.elements
        if given:
            behind = (
                [v for v in late if draft.colours[v] == draft.colours[readers[0]]]
                if readers
                else []
            )
            holder = draft.operators[(behind or late or [draft.owner([storage])])[0]]
            holder.gradient_bytes += gradient
            holder.optimizer_bytes += state
        if len(readers) > 1:
            draft.shared.append(
                SharedWeight(
                    parameter.name, tuple(readers), tuple(late), parameter.size_bytes, gradient,
                    state,
                )
            )  # fmt: skip


def optimizer_bytes(elements: float, size_bytes: float) -> float:
    """Return the bytes of Adam's state: two 32-bit moments, and a 32-bit copy of shorter weights.

    Rajbhandari et al., "ZeRO", SC 2020, section 3.1.
    """
    return elements * (12.0 if size_bytes < 4 * elements else 8.0)


def hold_memory(draft: OperatorGraphBuilder) -> None:
    """Assign the bytes of each constant and each saved tensor to one operator."""
    recording, kept = draft.recording, {s for step in draft.recording.steps for s in step.saved}
    inner = {
        s: draft.of_step[i]
        for i, step in enumerate(recording.steps)
        for s in step.saved
        if i in draft.of_step
    }
    for storage, size in enumerate(recording.sizes):
        made = draft.writer.get(storage, -1)
        owner = draft.owner([storage])
        if owner < 0:  # made within a step, for the backward pass only
            owner = inner.get(storage, -1)
        if storage in recording.parameters or owner < 0:
            continue
        holder = draft.operators[owner]
        if storage in kept and storage not in recording.buffers:
            holder.activation_bytes += size
        elif storage in recording.buffers or (made < 0 and storage not in recording.inputs):
            holder.constant_bytes += size
    if not draft.training:
        _kept_outputs(draft)


def _kept_outputs(draft: OperatorGraphBuilder) -> None:
    """Add, for inference, the bytes of tensors that leave their module or the model."""
    kept = {
        f.tensor.storage
        for f in draft.flows
        if f.target < 0 or draft.operators[f.source].modules != draft.operators[f.target].modules
    }
    for storage in kept - draft.recording.buffers:
        draft.operators[draft.writer[storage]].activation_bytes += draft.recording.sizes[storage]
