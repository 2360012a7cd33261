"""All ways in which the operators of a program can be computed on a mesh, priced by definition."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ....instances import Operator, Sharding, Tensor, TensorProgram
from ....instances.common.arrays import Floats, Ints
from ....instances.common.units import TIME_UNITS
from ..sharding_operators import broken_rules, lying_of, own_cost
from ..sharding_steps import Lying, paths


@dataclass(frozen=True, eq=False)
class Ways:
    """The ways to compute one operator.

    Parameters
    ----------
    cost
        Of each, without conversions.
    read, made
        Of each, how the operator reads and makes its tensors.
    """

    cost: Floats
    read: list[list[Lying]]
    made: list[list[Lying]]


@dataclass(frozen=True, eq=False)
class Use:
    """An operator that reads a tensor.

    Parameters
    ----------
    reader, slot
        The operator, and which of its inputs; of a parameter that its gradient arrives at, 0.
    by_reader
        Of each of its ways the position of how it needs the tensor.
    """

    reader: int
    slot: int
    by_reader: Ints


@dataclass(frozen=True, eq=False)
class Tensors:
    """A tensor that is read.

    Parameters
    ----------
    number, maker
        In the program.
    made, needed
        How it can be made, and how it can be needed, as texts.
    by_maker
        Of each of its maker's ways the position of how it is made.
    cost
        Of converting it from each of `made` to each of `needed`.
    uses
        Who reads it.
    """

    number: int
    maker: int
    made: list[str]
    needed: list[str]
    by_maker: Ints
    cost: Floats
    uses: list[Use]


def priced_ways(
    program: TensorProgram, problem: Sharding, time_unit: str
) -> tuple[list[Ways], list[Tensors]]:
    """Return the ways of each operator, and each tensor that somebody reads."""
    known: dict[object, Ways] = {}
    fixed = dict(problem.fixed)
    ways = []
    for operator in program.operators:
        around = [program.tensors[t] for t in (*operator.inputs, *operator.outputs)]
        key = (
            operator.role, operator.signatures, operator.fixed, operator.compute, operator.memory,
            tuple((t.shape, t.size_bytes) for t in around), fixed.get(operator.name),
        )  # fmt: skip
        if key not in known:
            known[key] = _ways(program, problem, operator, time_unit)
        ways.append(known[key])
    readers: list[list[tuple[int, int, list[Lying]]]] = [[] for _ in program.tensors]
    for v, operator in enumerate(program.operators):
        for slot, t in enumerate(operator.inputs):
            readers[t].append((v, slot, [row[slot] for row in ways[v].read]))
        if operator.gradient is not None:
            readers[operator.gradient].append((v, 0, [row[0] for row in ways[v].made]))
    unit = TIME_UNITS[time_unit] if problem.objective == "time" else 1.0
    paid: dict[object, dict[Lying, float]] = {}
    tensors = []
    for t, by in enumerate(readers):
        if by:
            v = program.maker[t]
            slot = program.operators[v].outputs.index(t)
            made = [row[slot] for row in ways[v].made]
            tensors.append(_tensor(program, problem, t, made, by, paid, unit))
    return ways, tensors


def _ways(program: TensorProgram, problem: Sharding, operator: Operator, time_unit: str) -> Ways:
    cost, read, made = [], [], []
    numbers = range(len(operator.signatures))
    for row in itertools.product(numbers, repeat=len(problem.mesh.shape)):
        reads, makes = lying_of(operator, row)
        if not any(broken_rules(program, problem, operator, row, reads, makes)):
            cost.append(own_cost(program, problem, operator, row, (*reads, *makes), time_unit)[0])
            read.append(reads)
            made.append(makes)
    return Ways(np.array(cost), read, made)


def _tensor(
    program: TensorProgram,
    problem: Sharding,
    t: int,
    made: Sequence[Lying],
    readers: Sequence[tuple[int, int, list[Lying]]],
    paid: dict[object, dict[Lying, float]],
    unit: float,
) -> Tensors:
    rows = {how: k for k, how in enumerate(dict.fromkeys(made))}
    wanted = dict.fromkeys(how for _, _, needs in readers for how in needs)
    columns = {how: k for k, how in enumerate(wanted)}
    cost = np.zeros((len(rows), len(columns)))
    for before, row in rows.items():
        far = _far(program.tensors[t], before, problem, paid)
        for after, column in columns.items():
            cost[row, column] = far[after] / unit
    return Tensors(
        number=t,
        maker=program.maker[t],
        made=["x".join(how) for how in rows],
        needed=["x".join(how) for how in columns],
        by_maker=np.array([rows[how] for how in made], np.int64),
        cost=cost,
        uses=[
            Use(v, slot, np.array([columns[how] for how in needs], np.int64))
            for v, slot, needs in readers
        ],
    )


def _far(
    tensor: Tensor, before: Lying, problem: Sharding, paid: dict[object, dict[Lying, float]]
) -> dict[Lying, float]:
    """Return what it costs to get from one way of lying to any other."""
    key = (tensor.shape, tensor.size_bytes, before)
    if key not in paid:
        paid[key] = {how: cost for cost, how, _ in paths(tensor, before, problem)}
    return paid[key]
