"""Check of a sharding's bound, independent of the search that found it: potentials, elimination.

A use r is an operator that reads a tensor T, or a parameter that its gradient arrives at. Numbers
α_r(a) for each property a with which T is made, and β_r(b) for each b that it is needed with, with

    Σ_r max(0, α_r(a) + β_r(b)) ≤ conversion_T(a, b)                                            (1)

prove that no sharding costs less than Σ_v min_k φ_v(k), where

    φ_v(k) = cost_v(k) + Σ_{r: v makes} α_r(a_k) + Σ_{r: v reads} β_r(b_k)                      (2)

over choices k of operators v, as each conversion costs at least what the potentials add for it. A
sharding with choice k of v costs at least that plus the *reduced cost* φ_v(k) − min_k φ_v. Choices
for which this reaches the target are excluded, and (1) is needed for the others' properties alone.

*Sweeps* over the operators in order and back raise the bound (`sweep_kernel`), from potentials of
0, as a plan keeps none. The least cost of the allowed choices is found by variable elimination,
from the costs themselves.

*Memory* is left out at first, as a limit can only raise the least cost. With a price per byte it is
counted (`with_memory`), and the price of the limit is subtracted. The choices that are allowed at a
price can also be eliminated with cost and bytes as two numbers: that gives the least cost of those
that fit, as no choice of a sharding that fits and costs less than the target is excluded. A front
holds the undominated pairs of cost and bytes, shape (k, 2), the cheapest first. Pairs that cost the
target or more, or do not fit, are dropped: costs and bytes are never below 0.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

import numpy as np

from ....instances import Plan, Sharding, UncheckedError, VerificationError, Workload, program_of
from ....instances.common.arrays import Bools, Floats
from ....instances.common.errors import quote
from ....instances.formats.plan_json import ELIMINATED, FITTING, ShardingCertificate
from ..rules import RELATIVE_SLACK
from . import BoundCheck, check_target, too_much
from .sharding_program import (
    PricedProgram,
    mixed_ends,
    priced_program,
    with_memory,
)
from .sweep_kernel import sweep, without_potentials

#: Rounding allowance, as a share of the sum of magnitudes.
ROUNDING = 1e-11
#: Sweeps over the operators before the first attempt at elimination, and most sweeps.
FIRST, SWEEPS = 4, 1024
#: Least share of the distance to the target that twice the sweeps must gain to go on.
PROGRESS = 0.01
#: Columns of a front.
COST, BYTES = 0, 1
#: Most entries of all tables of elimination, in early attempts and in the last one.
MOST_AT_FIRST, MOST_ENTRIES = 4_000_000, 200_000_000
#: Most sums of pairs of cost and bytes in elimination by both.
MOST_PAIRS = 10_000_000


@dataclass(frozen=True, eq=False)
class Factor:
    """Cost that depends on the values of some variables."""

    scope: tuple[int, ...]  # different variables, by number
    table: Floats  # an axis for each


def _sweeps(program: PricedProgram, target: float) -> Iterator[tuple[float, list[Bools]]]:
    """Yield a lower bound on the cost of every sharding, and the choices that may cost less.

    They come after 4, 8, 16, … sweeps while the bound rises; rounding is subtracted.
    """
    ends, now = without_potentials(program)
    magnitude = sum(float(np.abs(one.cost).max()) for one in program.operators)
    magnitude += sum(float(tensor.cost.max()) * len(tensor.needed) for tensor in program.tensors)
    before = -math.inf
    for k in range(1, SWEEPS + 1):
        bound = math.fsum(now.least.tolist()) - ROUNDING * magnitude
        bound = sweep(ends, now, k % 2 == 1, bound, target)
        if bound >= target or (k >= FIRST and k & (k - 1) == 0):
            yield bound, np.split(now.allowed, ends.first[1:-1])
            if bound >= target or bound - before < PROGRESS * (target - bound):
                return
            before = bound


def value_counts(program: PricedProgram, allowed: Sequence[Bools]) -> list[int]:
    """Return the number of each variable's values: allowed choices, and 2 for a conversion."""
    conversions = sum(len(tensor.needed) for tensor in program.tensors)
    return [int(own.sum()) for own in allowed] + [2] * conversions


def cost_factors(program: PricedProgram, allowed: Sequence[Bools]) -> list[Factor]:
    """Return the cost of a program's allowed choices as a sum of factors of at most two variables.

    A conversion that several operators may need is a variable of its own, 1 if it is done; an
    operator that needs it although it is not done pays the largest price.
    """
    found = [
        Factor((v,), one.cost[own])
        for v, (one, own) in enumerate(zip(program.operators, allowed, strict=True))
    ]
    done = len(program.operators)
    for tensor in program.tensors:
        made = tensor.by_maker[allowed[tensor.maker]]
        for b in range(len(tensor.needed)):
            price = tensor.cost[made, b]
            wants: dict[int, Bools] = {}
            for use in tensor.uses:
                here = use.by_reader[allowed[use.reader]] == b
                if here.any():
                    wants[use.reader] = wants.get(use.reader, False) | here
            if wants and price.any():
                found += _conversion(tensor.maker, price, wants, done + b)
        done += len(tensor.needed)
    return found


def check_sharding_bound(
    workload: Workload, plan: Plan, problem: Sharding, evidence: ShardingCertificate | None
) -> BoundCheck:
    """Check that a sharding's bound holds; see `check.check_bound`.

    A bound without evidence is compared with what sweeps and elimination prove.
    """
    given = evidence or ShardingCertificate(ELIMINATED, plan.bound)
    check_target(plan, given.target)
    proved = proved_by(workload, problem, given)
    if not proved >= given.target:
        if evidence:
            raise VerificationError(f"certificate: {proved!r} is proved, and not {given.target!r}")
        raise UncheckedError(
            f"bound: not checked: it comes from {quote(plan.certificate.get('origin'))}, without a "
            f"certificate that can be checked; rely on {proved!r}, which is proved of any sharding"
        )
    return BoundCheck(given.target, proved, given.target)


def proved_by(workload: Workload, problem: Sharding, data: ShardingCertificate) -> float:
    """Return the lower bound on the cost that a certificate proves, its target at most.

    VerificationError if it does not fit the program; UncheckedError if too many choices are left.
    """
    program = program_of(workload)
    each = priced_program(program, problem, workload.time_unit)
    plain = mixed_ends(program, problem, each, data.mixture)
    if any(not len(one.cost) for one in plain.operators):
        return data.target  # an operator that cannot be computed: there is no sharding
    if data.price == 0 and data.origin != FITTING:
        return _least_cost(plain, data.target)
    if problem.memory_bytes is None:
        raise VerificationError(f"certificate: a byte has the price {data.price}, and no limit")
    room = problem.memory_bytes * (1 + RELATIVE_SLACK)
    worth = data.price * room
    target = (data.target + worth) * (1 + ROUNDING)
    with_bytes = with_memory(program, problem, plain, data.price)
    if data.origin == FITTING:
        *_, (bound, allowed) = _sweeps(with_bytes, target)
        if bound >= target:
            return data.target
        costs = with_memory(program, problem, plain, 0.0)
        held_bytes = with_memory(program, problem, _without_costs(plain), 1.0)
        return _least_cost_that_fits(allowed, costs, held_bytes, data.target, room)
    proved = _least_cost(with_bytes, target)
    return data.target if proved >= target else proved * (1 - ROUNDING) - worth


def _without_costs(program: PricedProgram) -> PricedProgram:
    """Return a program whose operators and conversions cost nothing."""
    return PricedProgram(
        [replace(one, cost=np.zeros_like(one.cost)) for one in program.operators],
        [replace(tensor, cost=np.zeros_like(tensor.cost)) for tensor in program.tensors],
    )


def _least_cost_that_fits(
    allowed: Sequence[Bools],
    costs: PricedProgram,
    held_bytes: PricedProgram,
    target: float,
    room: float,
) -> float:
    """Return the least cost of allowed choices that hold at most `room` bytes, at most `target`.

    The same program is priced by cost alone and by bytes alone.
    """
    factors = [(factor, COST) for factor in cost_factors(costs, allowed)]
    factors += [(factor, BYTES) for factor in cost_factors(held_bytes, allowed)]
    least = least_that_fits(
        value_counts(costs, allowed), factors, target * (1 + 2 * ROUNDING), room
    )
    return min(target, least * (1 - ROUNDING))


def _least_cost(program: PricedProgram, target: float) -> float:
    """Return a lower bound on the cost of every choice of a program, at most `target`."""

    def least_of(allowed: Sequence[Bools], most: int) -> float | None:
        least: float | None
        least = least_sum(value_counts(program, allowed), cost_factors(program, allowed), most)
        return None if least is None else min(target, least * (1 - ROUNDING))  # no cost is below 0

    for bound, allowed in _sweeps(program, target):
        least = target if bound >= target else least_of(allowed, MOST_AT_FIRST)
        if least is not None:
            return least
    least = least_of(allowed, MOST_ENTRIES)
    if least is None:
        raise too_much("too many choices are left to try all")
    return least


def _conversion(maker: int, price: Floats, wants: dict[int, Bools], done: int) -> list[Factor]:
    """Return the factors of one conversion over the choices of its maker and of all readers."""
    if any(needs.all() for needs in wants.values()):
        return [Factor((maker,), price)]
    if len(wants) == 1:
        ((v, needs),) = wants.items()
        if v == maker:
            return [Factor((v,), np.where(needs, price, 0.0))]
        return [Factor((maker, v), price[:, None] * needs[None, :])]
    dearest = float(price.max())
    paid = Factor((maker, done), np.stack([np.zeros(len(price)), price], axis=1))
    lacking = [
        Factor((v, done), np.stack([dearest * needs, np.zeros(len(needs))], axis=1))
        for v, needs in wants.items()
    ]
    return [paid, *lacking]


def least_sum(
    counts: Sequence[int],
    factors: Iterable[Factor],
    most: int,
    add: np.ufunc = np.add,
    least: np.ufunc = np.minimum,
) -> Any:
    """Return the least sum of all factors; None if the tables by elimination exceed `most` entries.

    `counts` are the numbers of the variables' values. `add` adds two entries of tables, and `least`
    takes the smaller one.
    """
    of: dict[int, list[Factor]] = {v: [] for v, count in enumerate(counts) if count > 1}
    sums: list[Any] = []
    entries = 0

    def put(scope: tuple[int, ...], table: Any) -> None:
        factor = Factor(scope, table.reshape([counts[v] for v in scope] or 1))
        for v in scope:
            of[v].append(factor)
        if not scope:
            sums.append(factor.table)

    def size(v: int) -> int:
        return math.prod(counts[u] for u in {v}.union(*(factor.scope for factor in of[v])))

    for factor in factors:
        put(tuple(v for v in factor.scope if v in of), factor.table)
    sizes = {v: size(v) for v in of if of[v]}
    while sizes:
        v = min(sizes, key=lambda u: (sizes[u], u))
        entries += sizes.pop(v)
        if entries > most:
            return None
        mine = of.pop(v)
        scope = tuple(sorted({u for factor in mine for u in factor.scope} - {v}))
        joint = reduce(add, (_spread(factor, (*scope, v)) for factor in mine))
        for u in scope:
            of[u] = [factor for factor in of[u] if v not in factor.scope]
        put(scope, least.reduce(joint, axis=-1, keepdims=True))
        sizes |= {u: size(u) for u in scope}
    return reduce(add, sums)[0]


def _spread(factor: Factor, axes: tuple[int, ...]) -> Floats:
    """Return a factor's table over these axes, of extent 1 where it does not depend on one."""
    order = sorted(range(len(factor.scope)), key=lambda k: axes.index(factor.scope[k]))
    table = factor.table.transpose(order)
    extents = iter(table.shape)
    return table.reshape([next(extents) if u in factor.scope else 1 for u in axes])


def least_that_fits(
    counts: Sequence[int], factors: Iterable[tuple[Factor, int]], target: float, room: float
) -> float:
    """Return the least cost of assignments that hold at most `room` bytes, at most `target`.

    Each factor comes with its column, `COST` or `BYTES`. Entries of tables are fronts.
    UncheckedError if more than `MOST_PAIRS` pairs of two fronts would be added.
    """
    made = 0

    def front(pairs: Floats) -> Floats:
        pairs = pairs[(pairs[:, COST] < target) & (pairs[:, BYTES] <= room)]
        pairs = pairs[np.lexsort((pairs[:, BYTES], pairs[:, COST]))]
        before = np.minimum.accumulate(np.append(np.inf, pairs[:, BYTES]))[:-1]
        return np.asarray(pairs[pairs[:, BYTES] < before], np.float64)

    def add(one: Floats, other: Floats) -> Floats:
        nonlocal made
        made += max(1, len(one) * len(other))
        if made > MOST_PAIRS:
            raise too_much("the certificate leaves too many choices to try all")
        return front((one[:, None] + other[None]).reshape(-1, 2))

    def least(one: Floats, other: Floats) -> Floats:
        return front(np.concatenate([one, other]))

    fronts = []
    for factor, side in factors:
        table = np.empty(factor.table.shape, object)
        for cell, value in np.ndenumerate(factor.table):
            table[cell] = front(value * np.eye(2)[[side]])
        fronts.append(Factor(factor.scope, table))
    found = least_sum(counts, fronts, MOST_PAIRS, np.frompyfunc(add, 2, 1),
                      np.frompyfunc(least, 2, 1))  # fmt: skip
    if found is None:
        raise too_much("the certificate leaves too many choices to try all")
    return float(found[0, COST]) if len(found) else target
