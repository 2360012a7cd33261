"""Recording of one pass over a traced model, step by step, without tensors.

*Storages* are numbered memory blocks: a tensor and its views share one, so that who reads what was
written by whom follows from them, through views and in-place operations.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class KernelCall:
    """Kernel call below autograd."""

    operator: str  # such as ``aten.mm.default``
    signature: str  # operator, types, shapes and plain arguments: what its time depends on
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
    kind: str  # the operator's short name, such as ``linear``
    modules: tuple[str, ...]  # paths of the modules whose call it is part of, outermost first
    reads: tuple[Read, ...]  # reads, writes: tensors given to it; storages it made or changed
    writes: tuple[int, ...]
    kernels: tuple[KernelCall, ...]  # what it computed; empty for views
    random: bool  # whether it draws random numbers
    saved: tuple[int, ...]  # storages that autograd keeps for the backward pass because of it


@dataclass(frozen=True)
class BackwardStep:
    """A node of autograd's graph, executed."""

    name: str  # such as ``AddmmBackward0``
    forward: int  # the step that made it
    kernels: tuple[KernelCall, ...]
    # where its gradients go: backward step, number of its input, and the gradient. What arrives at
    # one input is added up there, before the step begins.
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
class Recording:
    """Forward and backward steps in the order of execution, with the storages they speak of."""

    steps: tuple[ExecutedNode, ...]
    backward: tuple[BackwardStep, ...]
    sizes: tuple[float, ...]  # bytes of each storage
    # parameters, buffers, inputs: storages that exist before the pass
    parameters: Mapping[int, Parameter]
    buffers: frozenset[int]
    inputs: frozenset[int]
    outputs: tuple[Read, ...]  # tensors that the model returns
    unused: tuple[Parameter, ...] = field(default=())
    given: tuple[int, ...] = ()  # the storage of each tensor that is an input, in order
    # steps, and who takes from them what has no fixed size
    together: tuple[tuple[int, int], ...] = ()

    @property
    def flops(self) -> float:
        """FLOPs of forward and backward pass."""
        kernels = [k for step in self.steps for k in step.kernels]
        kernels += [k for back in self.backward for k in back.kernels]
        return sum(k.flops for k in kernels)

    @property
    def saved_bytes(self) -> float:
        """Bytes of activations saved for the backward pass: each storage once, no weights."""
        kept = {s for step in self.steps for s in step.saved}
        return sum(self.sizes[s] for s in kept - set(self.parameters) - self.buffers)
