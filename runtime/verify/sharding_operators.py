"""One operator of a sharding, from the definition: how it may compute, and what that costs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from ...instances import Operator, Sharding, TensorProgram
from ...instances.common.units import TIME_UNITS
from .sharding_steps import Lying, local_bytes, one_step, part_of

#: Bytes of a statistic.
_NUMBER_BYTES = 4.0


def lying_of(operator: Operator, row: Sequence[int]) -> tuple[list[Lying], list[Lying]]:
    """Return how an operator reads and makes its tensors, by a signature along each axis."""
    sides = [operator.signatures[k].text.split("->") for k in row]
    before = [[one for one in side[0].split(",") if one] for side in sides]
    after = [side[1].split(",") for side in sides]
    return (
        [tuple(column) for column in zip(*before, strict=True)],
        [tuple(column) for column in zip(*after, strict=True)],
    )


def broken_rules(
    program: TensorProgram,
    problem: Sharding,
    operator: Operator,
    row: Sequence[int],
    read: Sequence[Lying],
    made: Sequence[Lying],
) -> Iterator[str]:
    """Say what does not divide, arrives otherwise, or differs from what is fixed."""
    mesh = problem.mesh.shape
    for k in set(row):
        parts = math.prod(p for j, p in zip(row, mesh, strict=True) if j == k)
        extent = operator.signatures[k].extent
        if extent > 1 and extent % parts:
            yield (
                f"operator {operator.name}: {operator.signatures[k].text} divides an extent of "
                f"{extent}, not over {parts} devices"
            )
    for t, how in zip((*operator.inputs, *operator.outputs), (*read, *made), strict=True):
        if part_of(program.tensors[t], how, mesh) is None:
            yield (
                f"operator {operator.name}: {program.tensors[t].name} of shape "
                f"{program.tensors[t].shape} cannot lie as {'x'.join(how)}"
            )
    if operator.role == "input":
        arrives = _arrival(program, operator, mesh)
        if made[0] != arrives:
            yield f"input {operator.name} arrives as {'x'.join(arrives)}"
    fixed = dict(problem.fixed).get(operator.name)
    if fixed is not None:
        inputs = ",".join("x".join(how) for how in read)
        outputs = ",".join("x".join(how) for how in made)
        if fixed not in (f"{inputs}->{outputs}", inputs or outputs):
            yield f"operator {operator.name} is fixed to {fixed}"


def _arrival(program: TensorProgram, operator: Operator, mesh: Sequence[int]) -> Lying:
    """Return how an input arrives: split by axis 0 wherever that divides what is left of it."""
    can = any(signature.text == "->S0" for signature in operator.signatures)
    shape = program.tensors[operator.outputs[0]].shape
    left, how = shape[0] if can else 1, []
    for p in mesh:
        splits = can and left % p == 0
        how.append("S0" if splits else "B")
        left = left // p if splits else left
    return tuple(how)


def own_cost(
    program: TensorProgram,
    problem: Sharding,
    operator: Operator,
    row: Sequence[int],
    how: Sequence[Lying],
    time_unit: str,
) -> tuple[float, float]:
    """Return what an operator costs without conversions, and its time.

    Parameters
    ----------
    how
        How all that it reads and makes lies.
    """
    sent, seconds = added(problem, operator, row)
    time = _time(program, problem, operator, row, how) + seconds / TIME_UNITS[time_unit]
    if problem.objective == "time":
        return time, time
    elements = 0
    if operator.role == "operator":
        elements = _elements(program, problem, (*operator.inputs, *operator.outputs), how)
    return problem.beta * elements + sent, time


def _elements(
    program: TensorProgram, problem: Sharding, tensors: Sequence[int], how: Sequence[Lying]
) -> int:
    parts = [
        part_of(program.tensors[t], one, problem.mesh.shape)
        for t, one in zip(tensors, how, strict=True)
    ]
    return sum(math.prod(part or ()) for part in parts)


def _time(
    program: TensorProgram,
    problem: Sharding,
    operator: Operator,
    row: Sequence[int],
    how: Sequence[Lying],
) -> float:
    mesh = problem.mesh.shape
    share = math.prod(
        p for k, p in zip(row, mesh, strict=True) if operator.signatures[k].extent > 1
    )
    tensors = [program.tensors[t] for t in (*operator.inputs, *operator.outputs)]
    whole = sum(tensor.size_bytes for tensor in tensors)
    held = sum(local_bytes(t, one, mesh) for t, one in zip(tensors, how, strict=True))
    moved = held / whole if whole else 1.0
    return operator.fixed + max(operator.compute / share, operator.memory * moved)


def added(problem: Sharding, operator: Operator, row: Sequence[int]) -> tuple[float, float]:
    """Return bytes and seconds of the all-reduces inside an operator."""
    bytes_sent, seconds, mesh = 0.0, 0.0, problem.mesh
    for d, k in enumerate(row):
        size = operator.signatures[k].reduced_bytes
        if size:
            others = [
                mesh.shape[e]
                for e, j in enumerate(row)
                if e != d and j != k and operator.signatures[j].extent > 1
            ]
            least = min(size, _NUMBER_BYTES)  # a number is not divided
            among = max(size / math.prod(others), least)
            step = one_step("P", "B", d, among, problem, ())
            bytes_sent, seconds = bytes_sent + step.bytes, seconds + step.seconds
    return bytes_sent, seconds
