"""The operator graph: operators, the tensors that flow between them, and who shares a device."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..recording.recording import KernelCall, Read


@dataclass
class TracedOperator:
    """A node of the operator graph; bytes as in `Workload.extra`.

    Parameters
    ----------
    name
        The fx node's, for a backward operator followed by autograd's name.
    partner
        The forward operator of a backward operator, or −1.
    parts
        Names of the fx nodes that it stands for, in order of execution.
    """

    name: str
    kind: str
    modules: tuple[str, ...]
    kernels: tuple[KernelCall, ...]
    backward: bool = False
    partner: int = -1
    parts: list[str] = field(default_factory=list)
    parameters: float = 0.0
    weight_bytes: float = 0.0
    constant_bytes: float = 0.0
    gradient_bytes: float = 0.0
    optimizer_bytes: float = 0.0
    activation_bytes: float = 0.0


@dataclass(frozen=True)
class Flow:
    """A tensor that one operator makes and another reads.

    Parameters
    ----------
    source, target
        Operators; the target is −1 for the model's output.
    tensor
        What is read.
    slot
        Of gradients: the step and the input that they arrive at. Those that arrive at one are
        added up, by the sender if it has several.
    """

    source: int
    target: int
    tensor: Read
    slot: tuple[int, int] | None = None


@dataclass(frozen=True)
class SharedWeight:
    """A parameter that several operators read; it is held once.

    Parameters
    ----------
    name
        In the model.
    readers, deliverers
        Forward operators that read it, and backward operators that deliver its gradient, in order.
    weight_bytes, gradient_bytes, optimizer_bytes
        Of the parameter; 0 for what is not there.
    """

    name: str
    readers: tuple[int, ...]
    deliverers: tuple[int, ...]
    weight_bytes: float
    gradient_bytes: float
    optimizer_bytes: float


@dataclass(frozen=True)
class OperatorGraph:
    """Operators in the order of execution; all forward ones before the backward ones.

    Parameters
    ----------
    sizes
        Bytes of each storage.
    colours
        Operators that share a device, each at most in one class of at least two; for the weights
        that they share alone, none do.
    shared
        The weights that several operators read.
    anywhere
        Names of the fx nodes that are constants.
    """

    operators: tuple[TracedOperator, ...]
    flows: tuple[Flow, ...]
    sizes: tuple[float, ...]
    colours: tuple[tuple[int, ...], ...]
    shared: tuple[SharedWeight, ...]
    anywhere: tuple[str, ...]

    def edges(self) -> list[tuple[int, int]]:
        """Return who waits for whom: tensors, and backward operators for their partners."""
        pairs = {(f.source, f.target) for f in self.flows if f.target >= 0}
        pairs |= {(op.partner, v) for v, op in enumerate(self.operators) if op.partner >= 0}
        return sorted((u, v) for u, v in pairs if u != v)
