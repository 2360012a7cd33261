"""Choices of a tensor program on a mesh, priced by definition, with memory at a price per byte.

At a price of λ ≥ 0 a byte no sharding that fits into M bytes costs less than

    min over all shardings ( cost + λ · bytes held ) − λ · M

and counting fewer bytes than are held keeps that true. Each byte is counted once: of a parameter,
with its gradient and the optimizer's state, the device's part; of any other tensor the part that is
kept for the backward pass, for each property with which it is kept. Backward operators keep their
inputs. If a view is kept with the property with which it is made, it takes no memory itself, but
keeps its base. So the operator of a view has each of its choices twice. In the first it keeps
nothing, and an operator that keeps its output pays for all of the largest base; in the second it
keeps its base, and its output is free. The true one of the two costs what is held, so that the
least of both is not more.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import numpy as np

from ....instances import Operator, Sharding, Tensor, TensorProgram, VerificationError
from ....instances.common.arrays import Floats, Ints
from ....instances.common.units import TIME_UNITS
from ....instances.model.sharding import gradient_buckets, operator_groups
from ...simulate.sharded import Properties
from ..sharding import (
    broken_rules,
    latency_shares,
    local_bytes,
    on_group,
    own_cost,
    paths,
    properties_of,
    work_places,
)

#: Largest sum of the weights of a phase's ends: 1, and rounding.
MOST_WEIGHT = 1 + 1e-12


@dataclass(frozen=True)
class _Keeper:
    """Operator that keeps a tensor for the backward pass, with the property in each choice."""

    operator: int
    ways: list[Properties | None]


@dataclass(frozen=True, eq=False)
class PricedChoices:
    """Choices of one operator: signatures that the rules allow, with their costs."""

    cost: Floats  # of each, without conversions
    # read, made: properties of the operator's inputs and outputs in each choice
    read: list[list[Properties]]
    made: list[list[Properties]]


@dataclass(frozen=True, eq=False)
class TensorUse:
    """Use of a tensor by an operator that reads it."""

    reader: int  # the operator; of a gradient, its parameter
    by_reader: Ints  # by its choice, the position of the property that it needs


@dataclass(frozen=True, eq=False)
class ConvertedTensor:
    """Tensor that is read, with the costs of converting it between properties."""

    number: int  # number, maker: in the program
    maker: int
    needed: Sequence[Properties | None]  # properties that a reader can need
    by_maker: Ints  # by its maker's choice, the position of the property that it is made with
    cost: Floats  # of converting it, from each property that it is made with to each of `needed`
    uses: list[TensorUse]


class PricedProgram(NamedTuple):
    """Tensor program on a mesh, with all choices priced."""

    operators: list[PricedChoices]
    tensors: list[ConvertedTensor]  # only those that are read


def priced_program(program: TensorProgram, problem: Sharding, time_unit: str) -> PricedProgram:
    """Return the choices of each operator, and each tensor that is read, priced."""
    known: dict[object, PricedChoices] = {}
    fixed = dict(problem.fixed)
    ways = []
    groups = operator_groups(program, problem.placement)
    for operator, group in zip(program.operators, groups, strict=True):
        around = [program.tensors[t] for t in (*operator.inputs, *operator.outputs)]
        key = (
            operator.role, operator.signatures, operator.fixed, operator.compute, operator.memory,
            tuple((t.shape, t.size_bytes) for t in around), fixed.get(operator.name), group,
        )  # fmt: skip
        if key not in known:
            known[key] = _priced_choices(program, problem, operator, time_unit, group)
        ways.append(known[key])
    readers: list[list[tuple[int, list[Properties]]]] = [[] for _ in program.tensors]
    for v, operator in enumerate(program.operators):
        for slot, t in enumerate(operator.inputs):
            readers[t].append((v, [row[slot] for row in ways[v].read]))
        if operator.gradient is not None:
            readers[operator.gradient].append((v, [row[0] for row in ways[v].made]))
    unit = TIME_UNITS[time_unit] if problem.objective == "time" else 1.0
    paid: dict[object, dict[Properties, float]] = {}
    shares = latency_shares(program, problem)
    tensors = []
    for t, by in enumerate(readers):
        if by:
            v = program.maker[t]
            slot = program.operators[v].outputs.index(t)
            made = [row[slot] for row in ways[v].made]
            far = partial(_conversion_costs, program.tensors[t], problem, paid, shares.get(t, 1.0))
            tensors.append(_tensor(program, t, made, by, far, unit))
    return PricedProgram(ways, tensors)


def _priced_choices(
    program: TensorProgram, problem: Sharding, operator: Operator, time_unit: str, group: int | None
) -> PricedChoices:
    """Return the choices of an operator that break no rule, with their costs."""
    cost, read, made = [], [], []
    numbers = range(len(operator.signatures))
    for row in itertools.product(numbers, repeat=len(problem.mesh.shape)):
        reads, makes = properties_of(operator, row, group)
        if not any(broken_rules(program, problem, operator, row, (reads, makes), group)):
            cost.append(own_cost(program, problem, operator, row, (*reads, *makes), time_unit)[0])
            read.append(reads)
            made.append(makes)
    return PricedChoices(np.array(cost), read, made)


def _tensor(
    program: TensorProgram,
    t: int,
    made: Sequence[Properties],
    readers: Sequence[tuple[int, list[Properties]]],
    far_from: Callable[[Properties], dict[Properties, float]],
    unit: float,
) -> ConvertedTensor:
    """Return a tensor that is read, with the costs of its conversions by shortest paths."""
    rows = {how: k for k, how in enumerate(dict.fromkeys(made))}
    wanted = dict.fromkeys(how for _, needs in readers for how in needs)
    columns = {how: k for k, how in enumerate(wanted)}
    cost = np.zeros((len(rows), len(columns)))
    for before, row in rows.items():
        far = far_from(before)
        for after, column in columns.items():
            cost[row, column] = far[after] / unit
    return ConvertedTensor(
        number=t,
        maker=program.maker[t],
        needed=list(columns),
        by_maker=np.array([rows[how] for how in made], np.int64),
        cost=cost,
        uses=[
            TensorUse(v, np.array([columns[how] for how in needs], np.int64))
            for v, needs in readers
        ],
    )


def _conversion_costs(
    tensor: Tensor,
    problem: Sharding,
    paid: dict[object, dict[Properties, float]],
    share: float,
    before: Properties,
) -> dict[Properties, float]:
    """Return the costs of converting a tensor from one property to each other one."""
    key = (tensor.shape, tensor.size_bytes, share, before)
    if key not in paid:
        paid[key] = {how: cost for cost, how, _ in paths(tensor, before, problem, share)}
    return paid[key]


def mixed_ends(
    program: TensorProgram, problem: Sharding, priced: PricedProgram, mixture: Sequence[float]
) -> PricedProgram:
    """Return a program whose cost is a mixture of the ends of a step, and so at most its end.

    An end is that of a group's compute in a phase, or that of its gradients' conversions from a
    bucket on, begun when the last gradient of the bucket is made, after all compute until then.
    With a placement the first weight is for the work of all devices; the next ones are, by phase
    and group with work, for compute and the group's buckets. Without one the buckets come first.
    VerificationError if the mixture has other weights than the ends.
    """
    groups, phase, places = work_places(program, problem)
    buckets = gradient_buckets(program, problem)
    ready = [max(program.maker[t] for t in bucket) for bucket in buckets]
    bucket_of = {t: k for k, bucket in enumerate(buckets) for t in bucket}
    ends: list[tuple[int, int | None, int]] = []  # phase, group, bucket; −1 for computing
    if problem.placement:
        ends.append((-1, None, -1))
        works = {(s, j) for s, j in zip(phase, groups, strict=True) if s is not None}
        for s, j in sorted(works):
            own = [k for k, v in enumerate(ready) if (phase[v], groups[v]) == (s, j)]
            ends += [(s, j, k) for k in (-1, *own)]
    elif buckets:
        ends = [(0, 0, k) for k in (*range(len(buckets)), -1)]
    if not mixture:
        computing = [s for s, _, k in ends if k < 0]
        mixture = [1.0 / computing.count(s) if k < 0 else 0.0 for s, _, k in ends]
    sums: dict[int, float] = {}
    for (s, *_), weight in zip(ends, mixture, strict=False):
        sums[s] = sums.get(s, 0.0) + weight
    if len(mixture) != len(ends) or max([0.0, *sums.values()]) > MOST_WEIGHT:
        raise VerificationError(
            f"certificate: mixture: {len(mixture)} weights; {len(ends)} are needed, of sum 1 at "
            "most in each phase"
        )
    if not ends:
        return priced
    weights = list(zip(ends, mixture, strict=True))

    def counted(v: int) -> float:
        """Return the total weight of the ends that come after the work at an operator."""
        if phase[v] is None:
            return mixture[0]
        return math.fsum(
            weight
            for (s, j, k), weight in weights
            if (s, j) == (phase[v], groups[v]) and (k < 0 or v <= ready[k])
        )

    tensors = []
    for one in priced.tensors:
        group, t = groups[one.maker], one.number
        cost = one.cost * mixture[0]
        if group is not None:
            whole = not problem.placement
            here = [whole or (how is not None and how[0] == on_group(group)) for how in one.needed]
            weight = counted(places[t])
            if t in bucket_of:
                weight = math.fsum(
                    w for (_, j, k), w in weights if j == group and 0 <= k <= bucket_of[t]
                )
            cost[:, here] = one.cost[:, here] * weight
        tensors.append(replace(one, cost=cost))
    return PricedProgram(
        [replace(one, cost=one.cost * counted(v)) for v, one in enumerate(priced.operators)],
        tensors,
    )


def with_memory(
    program: TensorProgram, problem: Sharding, plain: PricedProgram, price: float
) -> PricedProgram:
    """Return a program whose costs include the memory that it holds, at a price per byte.

    Kept tensors come after the others, as tensors of their own with negative numbers.
    """
    ways = plain.operators
    keepers, twice = _keepers(program, ways)
    mesh = problem.mesh.shape
    priced = []
    for v, (operator, one) in enumerate(zip(program.operators, ways, strict=True)):
        cost, copies = one.cost, 2 if v in twice else 1
        if operator.role == "parameter":
            held = 1.0 if operator.gradient is None else 2.0 + problem.state
            parameter = program.tensors[operator.outputs[0]]
            each = [local_bytes(parameter, row[0], mesh) for row in one.made]
            cost = cost + price * held * np.array(each)
        priced.append(PricedChoices(np.tile(cost, copies), one.read * copies, one.made * copies))
    converted = [
        replace(
            tensor,
            by_maker=np.tile(tensor.by_maker, 2 if tensor.maker in twice else 1),
            uses=[
                TensorUse(use.reader, np.tile(use.by_reader, 2 if use.reader in twice else 1))
                for use in tensor.uses
            ],
        )
        for tensor in plain.tensors
    ]
    kept = [_kept(program, problem, ways, t, by, price) for t, by in keepers.items()]
    return PricedProgram(priced, [*converted, *kept])


def _keepers(
    program: TensorProgram, ways: Sequence[PricedChoices]
) -> tuple[dict[int, list[_Keeper]], set[int]]:
    """Return the operators that keep each tensor, and the views that are kept."""
    found: dict[int, list[_Keeper]] = {}
    twice = set()
    for v in range(len(program.operators) - 1, -1, -1):
        operator = program.operators[v]
        if operator.backward:
            for slot, t in enumerate(operator.inputs):
                if not program.operators[program.maker[t]].backward:
                    how: list[Properties | None] = [row[slot] for row in ways[v].read]
                    found.setdefault(t, []).append(_Keeper(v, how))
        elif operator.view and any(t in found for t in operator.outputs):
            twice.add(v)
            first: list[Properties | None] = [None] * len(ways[v].cost)
            keeper = _Keeper(v, [*first, *(row[0] for row in ways[v].read)])
            found.setdefault(operator.inputs[0], []).append(keeper)
    return found, twice


def _kept(
    program: TensorProgram,
    problem: Sharding,
    ways: Sequence[PricedChoices],
    t: int,
    keepers: list[_Keeper],
    price: float,
) -> ConvertedTensor:
    """Return a kept tensor as one of its own, whose conversions cost the bytes that are kept."""
    v = program.maker[t]
    operator, mesh = program.operators[v], problem.mesh.shape
    slot = operator.outputs.index(t)
    made = [(row[slot], False) for row in ways[v].made]
    if operator.view:
        made += [(how, True) for how, _ in made]
    rows = list(dict.fromkeys(made))
    columns = list(dict.fromkeys(how for keeper in keepers for how in keeper.ways))
    cost = np.zeros((len(rows), len(columns)))
    for a, (how, looks) in enumerate(rows):
        for b, wanted in enumerate(columns):
            if wanted is None or (wanted == how and (looks or operator.role == "parameter")):
                continue
            if wanted == how and operator.view:
                cost[a, b] = price * _largest_viewed(program, t)
            else:
                cost[a, b] = price * local_bytes(program.tensors[t], wanted, mesh)
    return ConvertedTensor(
        number=-1 - t,
        maker=v,
        needed=columns,
        by_maker=np.array([rows.index(row) for row in made], np.int64),
        cost=cost,
        uses=[
            TensorUse(
                keeper.operator,
                np.array([columns.index(how) for how in keeper.ways], np.int64),
            )
            for keeper in keepers
        ],
    )


def _largest_viewed(program: TensorProgram, t: int) -> float:
    """Return the size in bytes of the largest base of a view."""
    found, operator = 0.0, program.operators[program.maker[t]]
    while operator.view:
        source = operator.inputs[0]
        found = max(found, float(program.tensors[source].size_bytes))
        operator = program.operators[program.maker[source]]
    return found
