"""Recording of one pass over a traced model, step by step, without tensors.

*Storages* are numbered memory blocks: a tensor and its views share one, so that who reads what was
written by whom follows from them, through views and in-place operations.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class KernelCall:
    """Kernel call below autograd.

    Parameters
    ----------
    operator
        Such as ``aten.mm.default``.
    signature
        Operator, types, shapes and plain arguments: what its time depends on.
    flops
        As torch's FlopCounterMode counts: matrix products, convolutions, attention.
    moved_bytes
        Bytes of the tensors that it reads and writes.
    """

    operator: str
    signature: str
    flops: float
    moved_bytes: float


@dataclass(frozen=True)
class Read:
    """A tensor that a step reads: its storage, and which part of it by offset and bytes."""

    storage: int
    offset: int
    size_bytes: float


@dataclass(frozen=True)
class ExecutedNode:
    """A node of the fx graph, executed.

    Parameters
    ----------
    name
        The fx node's.
    kind
        The operator's short name, such as ``linear``.
    modules
        Paths of the modules whose call it is part of, outermost first.
    reads, writes
        Tensors given to it; storages it made or changed.
    kernels
        What it computed; empty for views.
    random
        Whether it draws random numbers.
    saved
        Storages that autograd keeps for the backward pass because of it.
    """

    name: str
    kind: str
    modules: tuple[str, ...]
    reads: tuple[Read, ...]
    writes: tuple[int, ...]
    kernels: tuple[KernelCall, ...]
    random: bool
    saved: tuple[int, ...]


@dataclass(frozen=True)
class BackwardStep:
    """A node of autograd's graph, executed.

    Parameters
    ----------
    name
        Such as ``AddmmBackward0``.
    forward
        The step that made it.
    feeds
        Where its gradients go: backward step, number of its input, and the gradient. What arrives
        at one input is added up there, before the step begins.
    accumulates
        Parameters (by storage) whose gradient it delivers.
    sums
        Kernels that add these to the gradients of the microbatches before.
    """

    name: str
    forward: int
    kernels: tuple[KernelCall, ...]
    feeds: tuple[tuple[int, int, Read], ...]
    accumulates: tuple[int, ...]
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
    """Forward and backward steps in the order of execution, with the storages they speak of.

    Parameters
    ----------
    sizes
        Bytes of each storage.
    parameters, buffers, inputs
        Storages that exist before the pass.
    given
        The storage of each tensor that is an input, in order.
    outputs
        Tensors that the model returns.
    together
        Steps, and who takes from them what has no fixed size.
    """

    steps: tuple[ExecutedNode, ...]
    backward: tuple[BackwardStep, ...]
    sizes: tuple[float, ...]
    parameters: Mapping[int, Parameter]
    buffers: frozenset[int]
    inputs: frozenset[int]
    outputs: tuple[Read, ...]
    unused: tuple[Parameter, ...] = field(default=())
    given: tuple[int, ...] = ()
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
