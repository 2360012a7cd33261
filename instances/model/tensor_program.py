"""Tensor programs: operators, their tensors, and their signatures.

A *property* is the distribution of a tensor over the devices along each axis of a mesh.

Along one axis a tensor is split, S(i), into equal parts of its axis i; a copy on each device, B; or
partial, P: each device has a tensor of the whole shape, and their sum is the tensor. Along several
axes it has a property for each: S0xB on a mesh of 2x4 is split in two, each half copied four times.
Several axes that split one axis of a tensor split it one after the other, the first axis first.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from ..common.choices import Role
from ..common.errors import InputError, all_differ, quote
from ..common.units import LARGEST, NodeId
from .summary import Tabled

#: A property along one axis: i for S(i), or one of these.
COPIED, PARTIAL = -1, -2

#: Property I of a tensor that only the first device along the axis has: within conversions, and of
#: placed operators. FIRST − j is the same on device j.
FIRST = -3

#: A property along every axis of a mesh.
Property = tuple[int, ...]

#: Axes that a tensor can have, at most; torch allows no more.
MOST_AXES = 64
_SPLIT = re.compile(r"S([0-9]{1,2})")

#: Bytes of one element, by torch's name of the type.
ITEM_BYTES = {
    "float64": 8, "float32": 4, "float16": 2, "bfloat16": 2, "int64": 8, "int32": 4, "int16": 2,
    "int8": 1, "uint8": 1, "bool": 1, "complex64": 8, "complex128": 16,
}  # fmt: skip

#: Elements that a tensor can have, at most.
MOST_ELEMENTS = 1 << 53


@dataclass(frozen=True)
class Tensor:
    """A tensor of a program, with its shape on a single device.

    Parameters
    ----------
    name
        Unique in its program.
    shape
        Extent of each axis.
    dtype
        Such as ``float32``.

    Raises
    ------
    InputError
        If an extent is no whole number of at least 0, or the type is unknown.

    Examples
    --------
    >>> Tensor("weight", (4, 8), "bfloat16").size_bytes
    64
    """

    name: str
    shape: tuple[int, ...]
    dtype: str = "float32"

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", tuple(self.shape))
        for extent in self.shape:
            if not isinstance(extent, int) or isinstance(extent, bool) or extent < 0:
                raise InputError(
                    f"tensor {self.name}: extent {quote(extent)}; it must be a whole number ≥ 0"
                )
        if math.prod(self.shape) > MOST_ELEMENTS:
            raise InputError(f"tensor {self.name}: more than {MOST_ELEMENTS} elements")
        if self.dtype not in ITEM_BYTES:
            raise InputError(
                f"tensor {self.name}: dtype {quote(self.dtype)} is not one of "
                f"{', '.join(ITEM_BYTES)}"
            )

    @property
    def elements(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def size_bytes(self) -> int:
        """Bytes of the whole tensor."""
        return self.elements * ITEM_BYTES[self.dtype]


@dataclass(frozen=True)
class Signature:
    """A way to compute an operator on the devices along one axis of a mesh, each on its own part.

    Parameters
    ----------
    inputs, outputs
        Property of each tensor read and made, in the operator's order; see `properties`.
    extent
        Largest number of equal parts of the work, which the number of devices must divide; 1 if
        every device does all the work.
    reduced_bytes
        Bytes that the devices reduce among themselves meanwhile, such as statistics.

    Examples
    --------
    >>> Signature.of("S0,B->S0", extent=64).text
    'S0,B->S0'
    """

    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    extent: int = 1
    reduced_bytes: float = 0.0

    @classmethod
    def of(cls, text: str, extent: int = 1, reduced_bytes: float = 0.0) -> Signature:
        """Return the signature that a text such as ``S0,B->S0`` names.

        Raises
        ------
        InputError
            If the text is no such list.
        """
        left, arrow, right = text.partition("->")
        if not arrow:
            raise InputError(f"signature {quote(text)}: write inputs->outputs, such as S0,B->S0")
        read, made = (tuple(parse_axis(p) for p in side.split(",") if p) for side in (left, right))
        return cls(read, made, extent, reduced_bytes)

    @property
    def text(self) -> str:
        """Text of inputs and outputs, such as ``S0,B->S0``."""
        read, made = (",".join(map(axis_text, side)) for side in (self.inputs, self.outputs))
        return f"{read}->{made}"


@dataclass(frozen=True)
class Operator:
    """An operator, or a source of tensors: a parameter or an input of the program.

    Its time on one device is fixed + max(compute, memory). If it is split, compute shrinks with the
    work, memory with the bytes of its tensors on a device, and fixed does not.

    Parameters
    ----------
    name
        Unique in its program: the id of its node in the workload.
    inputs, outputs
        Numbers of the tensors that it reads and makes.
    signatures
        The ways to compute it along one axis of a mesh. The copied one, all B, is among them.
    role
        ``operator``, ``parameter`` or ``input``. An input arrives split by its axis 0 over as many
        axes of the mesh as divide it.
    kind
        Name of its function, such as ``aten.mm``.
    fixed, compute, memory
        Parts of its time, in the workload's unit.
    flops
        Floating-point operations of the whole operator.
    backward
        Whether it belongs to the backward pass.
    view
        Whether its outputs share the memory of its first input.
    gradient
        For a parameter: the number of its gradient's tensor, which must arrive in the parameter's
        property; None without training.
    ruled
        Whether its signatures come from a splitting rule; without one it is computed on every
        device.

    Raises
    ------
    InputError
        If a signature has the wrong number of properties, or the copied one is missing.

    Examples
    --------
    >>> ways = (Signature.of("S0->S0", extent=8), Signature.of("B->B"))
    >>> Operator("relu", inputs=(0,), outputs=(1,), signatures=ways).role
    'operator'
    """

    name: NodeId
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    signatures: tuple[Signature, ...]
    role: Role = Role.OPERATOR
    kind: str = ""
    fixed: float = 0.0
    compute: float = 0.0
    memory: float = 0.0
    flops: float = 0.0
    backward: bool = False
    view: bool = False
    gradient: int | None = None
    ruled: bool = True

    def __post_init__(self) -> None:
        for key in ("inputs", "outputs", "signatures"):
            object.__setattr__(self, key, tuple(getattr(self, key)))
        object.__setattr__(self, "role", Role.of("role", self.role))
        for key in ("fixed", "compute", "memory", "flops"):
            if not 0 <= getattr(self, key) <= LARGEST:
                raise InputError(f"operator {self.name}: {key} must be from 0 to {LARGEST:g}")
        texts = [signature.text for signature in self.signatures]
        for text in texts:
            if texts.count(text) > 1:
                raise InputError(f"operator {self.name}: signature {text} is given twice")
        if not any(set(s.inputs + s.outputs) <= {COPIED} for s in self.signatures):
            raise InputError(f"operator {self.name}: no signature of B alone; add it")

    @property
    def time(self) -> float:
        """Time of the whole operator on one device."""
        return self.fixed + max(self.compute, self.memory)


@dataclass(frozen=True, eq=False)
class TensorProgram(Tabled):
    """Computation of one batch: operators in topological order, and their tensors.

    Parameters
    ----------
    tensors
        All tensors that operators read and make.
    operators
        Sources, forward and backward operators; each reads what earlier ones make.

    Raises
    ------
    InputError
        If a tensor is made twice or never, is read before it is made, or a signature does not fit
        its operator's tensors.

    Examples
    --------
    >>> tensors = (Tensor("x", (8, 4)), Tensor("y", (8, 4)))
    >>> x = Operator("x", (), (0,), (Signature.of("->S0", 8), Signature.of("->B")), role="input")
    >>> ways = (Signature.of("S0->S0", 8), Signature.of("B->B"))
    >>> TensorProgram(tensors, (x, Operator("relu", (0,), (1,), ways))).maker
    (0, 1)
    """

    tensors: tuple[Tensor, ...]
    operators: tuple[Operator, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "tensors", tuple(self.tensors))
        object.__setattr__(self, "operators", tuple(self.operators))
        _check(self)

    @cached_property
    def maker(self) -> tuple[int, ...]:
        """Number of the operator that makes each tensor."""
        made = [-1] * len(self.tensors)
        for v, operator in enumerate(self.operators):
            for t in operator.outputs:
                made[t] = v
        return tuple(made)

    @property
    def unruled(self) -> tuple[Operator, ...]:
        """Operators without a splitting rule."""
        return tuple(operator for operator in self.operators if not operator.ruled)

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of all that a plan depends on."""
        return hashlib.sha256(repr((self.tensors, self.operators)).encode()).hexdigest()

    def summary(self) -> dict[str, object]:
        """Return the numbers of operators and tensors."""
        return {
            "operators": len(self.operators),
            "tensors": len(self.tensors),
            "without a rule": len(self.unruled),
        }


def _check(program: TensorProgram) -> None:
    names = [tensor.name for tensor in program.tensors]
    all_differ(names, "tensor")
    all_differ((operator.name for operator in program.operators), "operator")
    made: set[int] = set()
    for operator in program.operators:
        where = f"operator {operator.name}"
        late = () if operator.gradient is None else (operator.gradient,)
        for t in (*operator.inputs, *operator.outputs, *late):
            if not 0 <= t < len(program.tensors):
                raise InputError(f"{where}: it names a tensor that is not listed")
        for t in operator.inputs:
            if t not in made:
                raise InputError(
                    f"{where}: it reads {names[t]}, which no operator before it makes; list "
                    "operators in an order in which they can run"
                )
        for t in operator.outputs:
            if t in made:
                raise InputError(f"{where}: {names[t]} is made already; name each tensor once")
            made.add(t)
        _check_role(operator, where)
        for signature in operator.signatures:
            _check_signature(program.tensors, operator, signature, where)
    for t in sorted(set(range(len(names))) - made):
        raise InputError(f"tensor {names[t]}: no operator makes it; remove it")
    for operator in program.operators:
        if operator.gradient is not None:
            shapes = [program.tensors[t].shape for t in (operator.outputs[0], operator.gradient)]
            if shapes[0] != shapes[1]:
                raise InputError(
                    f"operator {operator.name}: its gradient is of another shape, {shapes[1]}"
                )


def _check_role(operator: Operator, where: str) -> None:
    if operator.role is Role.OPERATOR:
        if operator.gradient is not None:
            raise InputError(f"{where}: only parameters have a gradient; leave it out")
        return
    if operator.inputs or len(operator.outputs) != 1:
        raise InputError(f"{where}: an {operator.role} reads nothing and makes one tensor")


def _check_signature(
    tensors: Sequence[Tensor], operator: Operator, signature: Signature, where: str
) -> None:
    sides = ((operator.inputs, signature.inputs), (operator.outputs, signature.outputs))
    if any(len(held) != len(properties) for held, properties in sides):
        raise InputError(
            f"{where}: signature {signature.text} is not for {len(operator.inputs)} inputs and "
            f"{len(operator.outputs)} outputs"
        )
    if not (signature.extent >= 1 and 0 <= signature.reduced_bytes <= LARGEST):
        raise InputError(f"{where}: signature {signature.text}: extent must be at least 1")
    for held, properties in sides:
        for t, one in zip(held, properties, strict=True):
            if one >= len(tensors[t].shape):
                raise InputError(
                    f"{where}: signature {signature.text}: {tensors[t].name} has no axis {one}"
                )
            if one >= 0 and signature.extent == 1:
                raise InputError(
                    f"{where}: signature {signature.text} splits; give the extent that it divides"
                )
    if operator.role is not Role.OPERATOR and PARTIAL in signature.outputs:
        raise InputError(f"{where}: an {operator.role} cannot be partial")


def axis_text(one: int) -> str:
    """Return a property along one axis as text: ``S0``, ``B``, ``P``, ``I`` (the first), ``I1``."""
    if one < FIRST:
        return f"I{FIRST - one}"
    return f"S{one}" if one >= 0 else {COPIED: "B", PARTIAL: "P", FIRST: "I"}[one]


def parse_axis(text: str) -> int:
    """Return the property along one axis that a text names; InputError if it names none."""
    if text == "B":
        return COPIED
    if text == "P":
        return PARTIAL
    found = _SPLIT.fullmatch(text)
    if found is None or int(found[1]) >= MOST_AXES:
        raise InputError(f"property {quote(text)}: it must be B, P, or S0, S1, …")
    return int(found[1])


def property_text(whole: Sequence[int]) -> str:
    """Return a property along every axis as text, such as ``S0xB``."""
    return "x".join(map(axis_text, whole))


def local_shape(shape: Sequence[int], whole: Property, mesh: Sequence[int]) -> tuple[int, ...]:
    """Return the shape of the part that one device has of a whole tensor.

    What its property splits along an axis of the mesh must divide.
    """
    local = list(shape)
    for one, devices in zip(whole, mesh, strict=True):
        if one >= 0:
            local[one] //= devices
    return tuple(local)


def divides(shape: Sequence[int], whole: Property, mesh: Sequence[int]) -> bool:
    """Whether a property splits every axis of this shape evenly."""
    parts: dict[int, int] = {}
    for one, devices in zip(whole, mesh, strict=True):
        if one >= len(shape):
            return False
        if one >= 0:
            parts[one] = parts.get(one, 1) * devices
    return all(shape[axis] % count == 0 for axis, count in parts.items())
