"""A sharding problem as arrays: each operator's choices, their costs, and properties of tensors.

    min  Σ_v cost_v(σ_v) + Σ_T Σ_{b needed of T} conversion_T(made_T, b)                      (1)

over a choice σ_v of each operator v: a signature along each axis of the mesh. made_T is the
property that T's maker gives it; b is needed of T if the choice of an operator that reads T has it.
An operator computes on its part alone, in

    time_v(σ) = fixed_v + max(compute_v · work(σ), memory_v · moved(σ)) + what is added up     (2)

with work(σ) = Π 1/p over axes along which σ splits, and moved(σ) the bytes on a device, of all. For
``distpar``, cost_v is instead

    β · Σ elements on a device of what v reads and makes + bytes of what is added up          (3)

A parameter needs its gradient in the property that it has itself.

With `overlap` gradients are converted in buckets, each of which pays the latencies once: a gradient
pays α times its part of the bucket's bytes. A step ends when the last bucket and all computing do:
with ready_k the last operator that makes a gradient of bucket k, and bucket by bucket,

    max( Σ_v cost_v + Σ_{T in no bucket} conversion_T,                                          (1')
         max_k Σ_{v ≤ ready_k} (cost_v + Σ_{T made by v, in no bucket} conversion_T)
               + Σ_{T in bucket k or later} conversion_T )

Each of these *ends* is a sum as (1). So is every mixture of them, of weights of sum 1, and no
sharding ends before the least of a mixture: that is how (1') is bounded and minimised.

With a `placement` (`instances/model/sharding.py`) an operator of group j is computed on
its devices alone: along the first axis all that it reads and makes lies there. With V operators of
all devices, C conversions that are not within a group, and V_{s,j}, C_{s,j} those of group j in
phase s, between two barriers at which all wait for each other, a step takes

    Σ_{v ∈ V} cost_v + Σ_C conversion                                                          (1'')
        + Σ_s max_j ( Σ_{v ∈ V_{s,j}} cost_v + Σ_{C_{s,j}} conversion )

Each phase is a maximum of ends, as (1') is; with weights of sum 1 for each phase the sum is again
one as (1). With `overlap` as well, each group has buckets of the gradients that it makes in the
last phase, which then has further ends, for each bucket of each group, as (1') has.

*Cost network.* (1) has terms over all readers of a tensor. With w_{T,b}, whether T is
converted to b, it is a sum over pairs:

    min  Σ_v cost_v(σ_v) + Σ_{T,b} ( w_{T,b} · conversion_T(made_T(σ), b)
                                     + Σ_{v reads T} (1 − w_{T,b}) · M_{T,b} · [σ_v needs b] )   (4)

M_{T,b} = max_a conversion_T(a, b): who needs b while T is not converted for all pays for a
conversion of its own, which is never cheaper. What a single operator needs has no w: its pair is
that of maker and reader. The minimum of (4) is that of (1).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache

import numpy as np

from ...instances import InputError, Operator, Role, Sharding, ShardingObjective
from ...instances.common.arrays import Bools, Floats, Ints
from ...instances.common.choices import Primitive
from ...instances.common.errors import quote
from ...instances.common.units import TIME_UNITS
from ...instances.model.sharding import (
    Groups,
    conversion_places,
    gradient_buckets,
    operator_groups,
    phases,
    program_of,
)
from ...instances.model.tensor_program import (
    COPIED,
    FIRST,
    Property,
    TensorProgram,
    local_shape,
    property_text,
)
from ..task import Task
from .conversions import Conversions, conversions, primitive_cost


@dataclass(frozen=True, eq=False)
class OperatorChoices:
    """The choices of one operator, C of them."""

    signature: Ints  # (C, axes): the number of its signature along each axis
    cost: Floats  # (C,): of computing
    # needs, makes: for each tensor that it reads, or makes, the number of its property; shape (C,)
    needs: tuple[Ints, ...]
    makes: tuple[Ints, ...]

    def only(self, kept: Ints) -> OperatorChoices:
        """Return the choices with these numbers."""
        return OperatorChoices(
            self.signature[kept],
            self.cost[kept],
            tuple(column[kept] for column in self.needs),
            tuple(column[kept] for column in self.makes),
        )


@dataclass(frozen=True, eq=False)
class Use:
    """A reader of a tensor: the number of the property it needs, by its choice."""

    operator: int
    needs: Ints


@dataclass(frozen=True, eq=False)
class Term:
    """The cost of a tensor's conversions by the choices of its maker and readers."""

    # maker, makes: the operator that makes it, and the number of its property by the operator's
    # choice
    maker: int
    makes: Ints
    uses: tuple[Use, ...]  # who reads it
    cost: Floats  # from the property made (rows) to the one needed (columns)

    def value(self, chosen: Ints) -> float:
        """Return the cost for the number of each operator's choice."""
        needed = {int(use.needs[chosen[use.operator]]) for use in self.uses}
        row = self.cost[self.makes[chosen[self.maker]]]
        return float(sum(row[b] for b in sorted(needed)))


@dataclass(frozen=True, eq=False)
class StepEnds:
    """Ends of a step: its time is the sum over phases of the latest end of each.

    (1') has one phase: the ends of the buckets' gradients, and last that of the computing. (1'')
    has what all devices do as a phase of its own, the first.
    """

    operators: Floats  # (ends, operators): whether an end counts what an operator takes
    # tensors, elsewhere: (ends, tensors): whether it counts a tensor's conversion to a property on
    # the group of devices that the tensor is made on, and to any other
    tensors: Floats
    elsewhere: Floats
    within: tuple[Bools, ...]  # of each tensor (properties,): whether one is on that group
    phases: Ints  # (phases,): the first end of each
    weights: Floats  # (ends,): of the first mixture

    def total(self, ends: Floats) -> float:
        """Return the time of a step by its ends."""
        return float(np.maximum.reduceat(ends, self.phases).sum())


#: Most choices of one operator: signatures to the power of the mesh's axes.
MOST_CHOICES = 20_000

#: Bytes of a statistic: the least size of what is added up, however many devices divide the rest.
NUMBER_BYTES = 4.0


@dataclass(frozen=True, eq=False)
class ShardingCosts:
    """A sharding problem as arrays."""

    program: TensorProgram  # program, problem: what it is of
    problem: Sharding
    choices: tuple[OperatorChoices, ...]  # of each operator
    conversions: tuple[Conversions, ...]  # of each tensor
    besides: tuple[Term, ...] = ()  # what tensors cost besides their conversions: prices of memory
    ends: StepEnds | None = None  # sums whose maximum is the objective; None for the one sum (1)
    mixture: tuple[float, ...] = ()  # weights of the ends whose mixture these costs are

    @cached_property
    def terms(self) -> tuple[Term, ...]:
        """The conversion terms of (1), one for each tensor that is read, and further ones."""
        converted = zip(self.makes, self.uses, self.conversions, strict=True)
        return (
            *(Term(*made, uses, one.cost) for made, uses, one in converted if uses),
            *self.besides,
        )

    @cached_property
    def terms_of(self) -> tuple[tuple[int, ...], ...]:
        """For each operator, the positions in `terms` of the tensors it makes or reads."""
        found: list[set[int]] = [set() for _ in self.choices]
        for k, term in enumerate(self.terms):
            for v in (term.maker, *(use.operator for use in term.uses)):
                found[v].add(k)
        return tuple(map(tuple, found))

    @cached_property
    def makes(self) -> tuple[tuple[int, Ints], ...]:
        """For each tensor its maker, and the number of its property by the maker's choice."""
        found: list[tuple[int, Ints]] = [(-1, np.zeros(0, np.int64))] * len(self.program.tensors)
        for v, operator in enumerate(self.program.operators):
            for slot, t in enumerate(operator.outputs):
                found[t] = (v, self.choices[v].makes[slot])
        return tuple(found)

    @cached_property
    def uses(self) -> tuple[tuple[Use, ...], ...]:
        """For each tensor its readers; a parameter reads its gradient."""
        found: list[list[Use]] = [[] for _ in self.program.tensors]
        for v, operator in enumerate(self.program.operators):
            for slot, t in enumerate(operator.inputs):
                found[t].append(Use(v, self.choices[v].needs[slot]))
            if operator.gradient is not None:
                found[operator.gradient].append(Use(v, self.choices[v].makes[0]))
        return tuple(map(tuple, found))

    def only(self, kept: Sequence[Ints]) -> ShardingCosts:
        """Return the costs with some choices of each operator."""
        besides = tuple(
            Term(
                term.maker,
                term.makes[kept[term.maker]],
                tuple(Use(use.operator, use.needs[kept[use.operator]]) for use in term.uses),
                term.cost,
            )
            for term in self.besides
        )
        choices = tuple(c.only(k) for c, k in zip(self.choices, kept, strict=True))
        return replace(self, choices=choices, besides=besides)

    def mixed(self, weights: Floats) -> ShardingCosts:
        """Return the costs of a mixture of the ends, a sum as (1)."""
        assert self.ends is not None
        operators, tensors = weights @ self.ends.operators, weights @ self.ends.tensors
        counted = map(np.where, self.ends.within, tensors, weights @ self.ends.elsewhere)
        return replace(
            self,
            choices=tuple(
                replace(c, cost=c.cost * w) for c, w in zip(self.choices, operators, strict=True)
            ),
            conversions=tuple(
                replace(c, cost=c.cost * w) for c, w in zip(self.conversions, counted, strict=True)
            ),
            ends=None,
            mixture=tuple(weights.tolist()),
        )

    def ends_of(self, chosen: Ints) -> Floats:
        """Return each of the ends for the number of each operator's choice."""
        assert self.ends is not None
        computing = np.array([float(c.cost[k]) for c, k in zip(self.choices, chosen, strict=True)])
        within, other = np.zeros((2, len(self.conversions)))
        for t, (made, uses) in enumerate(zip(self.makes, self.uses, strict=True)):
            if uses:
                cost, inside = self.conversions[t].cost, self.ends.within[t]
                within[t] = Term(*made, uses, cost * inside).value(chosen)
                other[t] = Term(*made, uses, cost * ~inside).value(chosen)
        ends: Floats = (
            self.ends.operators @ computing
            + self.ends.tensors @ within
            + self.ends.elsewhere @ other
        )
        return ends

    def objective(self, chosen: Ints) -> float:
        """Return (1), (1') or (1'') for the number of each operator's choice, shape (n,)."""
        if self.ends is not None:
            return self.ends.total(self.ends_of(chosen))
        total = math.fsum(float(c.cost[k]) for c, k in zip(self.choices, chosen, strict=True))
        return total + sum(term.value(chosen) for term in self.terms)

    def signature(self, chosen: Ints) -> Ints:
        """Return the signatures of choices; shape (n, axes)."""
        rows = [c.signature[k] for c, k in zip(self.choices, chosen, strict=True)]
        return np.array(rows, np.int64).reshape(len(rows), len(self.problem.mesh.shape))

    def chosen(self, signature: Ints) -> Ints | None:
        """Return the choices that have these signatures, None if one is not allowed."""
        found = []
        for choices, row in zip(self.choices, signature, strict=True):
            (same,) = np.nonzero((choices.signature == row).all(axis=1))
            if not len(same):
                return None
            found.append(int(same[0]))
        return np.array(found, np.int64)


@lru_cache(maxsize=4)
def sharding_costs(task: Task[Sharding]) -> ShardingCosts:
    """Return the arrays of a task; computed once for each.

    InputError if what is fixed does not exist or is not possible on the mesh.
    """
    program, problem = program_of(task.workload), task.problem
    unit_s = TIME_UNITS[task.workload.time_unit]
    buckets = gradient_buckets(program, problem)
    shares = bucket_shares(program, buckets)
    groups = operator_groups(program, problem.placement)
    converted = tuple(
        conversions(
            t.shape, t.size_bytes, problem.mesh, ShardingObjective(problem.objective), unit_s,
            shares.get(k, 1.0), problem.mesh.shape[0] if problem.placement else 0,
        )
        for k, t in enumerate(program.tensors)
    )  # fmt: skip
    fixed = dict(problem.fixed)
    for node in fixed:
        if node not in task.workload.index:
            raise InputError(f"fix: the program has no operator {node}; correct its name")
    kept: dict[object, OperatorChoices] = {}
    made = []
    for operator, group in zip(program.operators, groups, strict=True):
        sides = [[program.tensors[t] for t in side] for side in (operator.inputs, operator.outputs)]
        shapes = tuple(tuple((t.shape, t.size_bytes) for t in side) for side in sides)
        times = (operator.fixed, operator.compute, operator.memory)
        alike = (operator.role, operator.signatures, times, shapes, group)
        if alike not in kept:
            kept[alike] = _choices(operator, program, problem, converted, unit_s, group)
        choices = kept[alike]
        if operator.name in fixed:
            choices = fixed_choices(operator, choices, fixed[operator.name], converted)
        made.append(choices)
    ends = step_ends(program, buckets, converted) if buckets else None
    if problem.placement:
        ends = phase_ends(program, groups, converted, buckets)
    return ShardingCosts(program, problem, tuple(made), converted, ends=ends)


def bucket_shares(program: TensorProgram, buckets: Sequence[Sequence[int]]) -> dict[int, float]:
    """Return the part of its bucket's bytes that each gradient in a bucket has."""
    found: dict[int, float] = {}
    for bucket in buckets:
        sizes = [program.tensors[t].size_bytes for t in bucket]
        found |= {t: size / max(sum(sizes), 1) for t, size in zip(bucket, sizes, strict=True)}
    return found


def step_ends(
    program: TensorProgram, buckets: Sequence[Sequence[int]], converted: Sequence[Conversions]
) -> StepEnds:
    """Return the ends of (1')."""
    ready = np.array([max(program.maker[t] for t in bucket) for bucket in buckets])
    operators = np.ones((len(buckets) + 1, len(program.operators)))
    operators[:-1] = np.arange(len(program.operators)) <= ready[:, None]
    tensors = operators[:, list(program.maker)]
    for k, bucket in enumerate(buckets):
        tensors[:, list(bucket)] = (np.arange(len(buckets) + 1) <= k)[:, None]
    everywhere = tuple(np.ones(len(one.states), np.bool_) for one in converted)
    one, last = np.zeros(1, np.int64), np.eye(len(operators))[-1]
    return StepEnds(operators, tensors, tensors, everywhere, one, last)


def phase_ends(
    program: TensorProgram,
    groups: Groups,
    converted: Sequence[Conversions],
    buckets: Sequence[Sequence[int]],
) -> StepEnds:
    """Return the ends of (1''): what all devices do; of each phase what each group does, buckets.

    An end is named by its phase, its group and its bucket, −1 for computing.
    """
    of = np.array([-1 if s is None else s for s in phases(program, groups)])
    group = np.array([-1 if j is None or s < 0 else j for j, s in zip(groups, of, strict=True)])
    home = np.array([-1 if j is None else j for j in groups])[list(program.maker)]
    place = np.array(conversion_places(program, groups))
    bucket_of = np.full(len(program.tensors), -1)
    for k, bucket in enumerate(buckets):
        bucket_of[list(bucket)] = k
    ready = [max(program.maker[t] for t in bucket) for bucket in buckets]
    names = {(int(s), int(j), -1) for s, j in zip(of, group, strict=True) if s >= 0}
    names |= {(int(of[v]), int(group[v]), k) for k, v in enumerate(ready)}
    operators, tensors, weights = [group < 0], [np.zeros(len(place), np.bool_)], [1.0]
    for s, j, k in sorted(names):
        until = ready[k] if k >= 0 else len(of)
        operators.append((of == s) & (group == j) & (np.arange(len(of)) <= until))
        late = (bucket_of >= k) & (k >= 0) & (bucket_of >= 0)
        now = (bucket_of < 0) & (of[place] == s) & (place <= until)
        tensors.append((home == j) & (now | late))
        weights.append((k < 0) / sum((s, i, -1) in names for i in set(group.tolist())))
    elsewhere = np.zeros((len(weights), len(place)))
    elsewhere[0] = 1.0
    within = tuple(
        np.array([j >= 0 and state[0] == FIRST - j for state in one.states], np.bool_)
        for one, j in zip(converted, home.tolist(), strict=True)
    )
    first = np.unique([-1, *(s for s, _, _ in sorted(names))], return_index=True)[1]
    return StepEnds(
        np.array(operators, np.float64), np.array(tensors, np.float64), elsewhere, within, first,
        np.array(weights),
    )  # fmt: skip


def _choices(
    operator: Operator,
    program: TensorProgram,
    problem: Sharding,
    converted: tuple[Conversions, ...],
    unit_s: float,
    group: int | None,
) -> OperatorChoices:
    """Return the choices of an operator, placed on a group or on all devices, all priced."""
    mesh = problem.mesh.shape
    around = (*operator.inputs, *operator.outputs)
    rows, costs, properties = [], [], []
    for row in _rows(operator, program, mesh):
        chosen = [operator.signatures[k] for k in row]
        sides = [s.inputs + s.outputs for s in chosen]
        if group is not None:
            if set(sides[0]) != {COPIED}:
                continue
            sides[0] = (FIRST - group,) * len(around)
        whole = [tuple(side[slot] for side in sides) for slot in range(len(around))]
        if all(w in converted[t].number for t, w in zip(around, whole, strict=True)):
            rows.append(row)
            properties.append([converted[t].number[w] for t, w in zip(around, whole, strict=True)])
            costs.append(_cost(operator, program, problem, row, whole, unit_s))
    table = np.array(properties, np.int64).reshape(len(rows), len(around))
    read = len(operator.inputs)
    return OperatorChoices(
        signature=np.array(rows, np.int64).reshape(len(rows), len(mesh)),
        cost=np.array(costs, np.float64),
        needs=tuple(table[:, slot] for slot in range(read)),
        makes=tuple(table[:, slot] for slot in range(read, len(around))),
    )


def _rows(
    operator: Operator, program: TensorProgram, mesh: tuple[int, ...]
) -> Iterator[tuple[int, ...]]:
    """Yield the signatures along each axis that divide what they split."""
    signatures = operator.signatures
    if operator.role is Role.INPUT:
        yield arrival(operator, program, mesh)
        return
    count = len(signatures) ** len(mesh)
    if count > MOST_CHOICES:
        raise InputError(
            f"operator {operator.name}: {count} ways to split it on this mesh; at most "
            f"{MOST_CHOICES} are planned with: take a mesh of fewer axes"
        )
    for row in itertools.product(range(len(signatures)), repeat=len(mesh)):
        parts = [1] * len(signatures)
        for k, devices in zip(row, mesh, strict=True):
            if signatures[k].extent > 1:
                parts[k] *= devices
        if all(s.extent % count == 0 for s, count in zip(signatures, parts, strict=True)):
            yield row


def arrival(operator: Operator, program: TensorProgram, mesh: tuple[int, ...]) -> tuple[int, ...]:
    """Return the signatures of an input: split by axis 0 along every axis that still divides it."""
    texts = [signature.text for signature in operator.signatures]
    copied, split = texts.index("->B"), "->S0"
    left = program.tensors[operator.outputs[0]].shape[0] if split in texts else 1
    row = []
    for devices in mesh:
        fits = split in texts and left % devices == 0
        left //= devices if fits else 1
        row.append(texts.index(split) if fits else copied)
    return tuple(row)


def _cost(
    operator: Operator,
    program: TensorProgram,
    problem: Sharding,
    row: tuple[int, ...],
    whole: list[Property],
    unit_s: float,
) -> float:
    """Return the cost of one choice, (2) or (3)."""
    mesh = problem.mesh
    chosen = [operator.signatures[k] for k in row]
    tensors = [program.tensors[t] for t in (*operator.inputs, *operator.outputs)]
    shapes = [local_shape(t.shape, w, mesh.shape) for t, w in zip(tensors, whole, strict=True)]
    work = 1.0
    for signature, devices in zip(chosen, mesh.shape, strict=True):
        work /= devices if signature.extent > 1 else 1
    added = 0.0
    for d, signature in enumerate(chosen):
        if signature.reduced_bytes:
            among = signature.reduced_bytes
            for e, other in enumerate(chosen):
                if e != d and other is not signature and other.extent > 1:
                    among /= mesh.shape[e]
            among = max(among, min(signature.reduced_bytes, NUMBER_BYTES))
            objective = ShardingObjective(problem.objective)
            added += primitive_cost(Primitive.ALL_REDUCE, among, d, mesh, objective)
    if problem.objective == "distpar":
        counted = operator.role is Role.OPERATOR
        return problem.beta * sum(map(math.prod, shapes)) * counted + added
    total = sum(t.size_bytes for t in tensors)
    held = sum(
        math.prod(shape) * (t.size_bytes / t.elements if t.elements else 0.0)
        for t, shape in zip(tensors, shapes, strict=True)
    )
    moved = held / total if total else 1.0
    time = operator.fixed + max(operator.compute * work, operator.memory * moved)
    return time + added / unit_s


def is_divided(costs: ShardingCosts, axis: int) -> bool:
    """Return whether any operator has a choice that divides its work along an axis."""
    operators = zip(costs.program.operators, costs.choices, strict=True)
    return costs.problem.mesh.shape[axis] == 1 or any(
        operator.signatures[k].extent > 1
        for operator, choices in operators
        for k in set(choices.signature[:, axis].tolist())
    )


def fixed_choices(
    operator: Operator, choices: OperatorChoices, text: str, converted: tuple[Conversions, ...]
) -> OperatorChoices:
    """Return the choices of an operator that a text such as ``S0,B`` leaves."""

    def side(tensors: Sequence[int], columns: Sequence[Ints], k: int) -> str:
        states = (
            converted[t].states[column[k]] for t, column in zip(tensors, columns, strict=True)
        )
        return ",".join(map(property_text, states))

    numbers = range(len(choices.cost))
    inputs = [side(operator.inputs, choices.needs, k) for k in numbers]
    outputs = [side(operator.outputs, choices.makes, k) for k in numbers]
    short = inputs if operator.inputs else outputs
    kept = [k for k in numbers if text in (f"{inputs[k]}->{outputs[k]}", short[k])]
    if not kept:
        known = ", ".join(dict.fromkeys(short))
        raise InputError(
            f"fix: {operator.name} cannot have {quote(text)} on this mesh; it can have {known}"
        )
    return choices.only(np.array(kept))


@dataclass(eq=False)
class CostNetwork:
    """Variables with costs of their values and of pairs of values."""

    # of each variable: of each of its values, for operators of their choices, for others of 0 and 1
    cost: list[Floats]
    # for u < v: the cost of each value of u (rows) with each of v (columns)
    pairs: dict[tuple[int, int], Floats]
    operators: int  # the first so many variables are operators
    neighbours: list[set[int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.neighbours = [set() for _ in self.cost]
        for u, v in self.pairs:
            self.neighbours[u].add(v)
            self.neighbours[v].add(u)


def cost_network(costs: ShardingCosts) -> CostNetwork:
    """Return the network of (4)."""
    own = [choices.cost.copy() for choices in costs.choices]
    pairs: dict[tuple[int, int], Floats] = {}

    def add(u: int, v: int, table: Floats) -> None:
        if u > v:
            u, v, table = v, u, table.T
        pairs[u, v] = pairs[u, v] + table if (u, v) in pairs else table

    for term in costs.terms:
        maker = term.maker
        needs: dict[int, dict[int, Bools]] = {}  # by property, by operator: which choices need it
        for use in term.uses:
            for b in np.unique(use.needs).tolist():
                by = needs.setdefault(b, {})
                wants = use.needs == b
                by[use.operator] = by[use.operator] | wants if use.operator in by else wants
        for b, by in needs.items():
            price = term.cost[term.makes, b]
            dearest = float(price.max())
            if dearest == 0:
                continue
            if len(by) == 1:
                ((v, wants),) = by.items()
                add(maker, v, price[:, None] * wants[None, :])
                continue
            w = len(own)
            own.append(np.zeros(2))
            add(w, maker, np.stack([np.zeros(len(price)), price]))
            for v, wants in by.items():
                add(w, v, np.stack([dearest * wants, np.zeros(len(wants))]))
    return CostNetwork(own, pairs, len(costs.choices))
