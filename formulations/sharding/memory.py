"""What a device holds of tensors and parameters, and its price.

At a price of λ ≥ 0 a byte,

    min over shardings ( cost + λ · (bytes that are held − M) )                                  (9)

is no more than the least cost of a sharding that fits into M bytes. What parameters take with
gradients and optimizer state is a cost of single operators, what is kept of a tensor one that all
backward operators share that read it alike, as a conversion is. What looks at another tensor and is
kept there depends on three operators, which no such cost can tell, unless it is a parameter that
nothing else reads: then two of them are made one. Else it is counted in two ways:

    at most     what looks at a tensor keeps it as it reads it: too much if backward operators read
                only conversions of what looks at it
    at least    where the tensor itself is not read, one that looks at it keeps what it can; all
                others count only by their own conversions

The first gives plans, the second bounds.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from ...instances import Role
from ...instances.common.arrays import Floats
from ...instances.model.sharding.properties import local_shape
from .choices import Term, Use
from .costs import ShardingCosts


def state_bytes(costs: ShardingCosts, t: int, b: int) -> float:
    """Return size_{T,b}: the bytes on a device of tensor t in its property number b."""
    tensor = costs.program.tensors[t]
    part = local_shape(tensor.shape, costs.conversions[t].states[b], costs.problem.mesh.shape)
    return math.prod(part) * tensor.size_bytes / max(tensor.elements, 1)


def own_bytes(costs: ShardingCosts, v: int) -> list[float]:
    """Return own_{v,k} of each choice of a parameter v."""
    operator = costs.program.operators[v]
    copies = 1.0 if operator.gradient is None else 2.0 + costs.problem.state
    t = operator.outputs[0]
    return [copies * state_bytes(costs, t, int(b)) for b in costs.choices[v].makes[0]]


def priced(costs: ShardingCosts, price: float, *, most: bool) -> ShardingCosts:
    """Return costs with a price for each byte, (9) without M: counted at most, or at least.

    The choices may be others, of the same signatures.
    """
    operators = costs.program.operators
    choices = tuple(
        replace(c, cost=c.cost + price * np.array(own_bytes(costs, v)))
        if operators[v].role is Role.PARAMETER
        else c
        for v, c in enumerate(costs.choices)
    )
    if most:
        known, kept = costs, tuple(_at_most(costs))
    else:
        known, kept = _at_least(costs)
        choices = tuple(
            before if len(before.cost) == len(after.cost) else after
            for before, after in zip(choices, known.choices, strict=True)
        )
    held = tuple(replace(term, cost=price * term.cost) for term in kept)
    return replace(known, choices=choices, besides=held)


def _late_uses(costs: ShardingCosts) -> dict[int, list[Use]]:
    """Return what backward operators read of tensors that they do not make."""
    operators, maker = costs.program.operators, costs.program.maker
    found = {
        t: [use for use in uses if operators[use.operator].backward]
        for t, uses in enumerate(costs.uses)
        if not operators[maker[t]].backward
    }
    return {t: late for t, late in found.items() if late}


def _at_most(costs: ShardingCosts) -> Iterator[Term]:
    operators, kept = costs.program.operators, _late_uses(costs)
    for v in range(len(operators) - 1, -1, -1):
        if operators[v].view and not kept.keys().isdisjoint(operators[v].outputs):
            source = operators[v].inputs[0]
            kept.setdefault(source, []).append(Use(v, costs.choices[v].needs[0]))
    for t, uses in kept.items():
        maker = operators[costs.program.maker[t]]
        itself = not maker.view and maker.role is not Role.PARAMETER
        size = _sizes(costs, t)
        yield _held(costs, t, uses, size if itself else np.zeros(len(size)))


def _at_least(costs: ShardingCosts) -> tuple[ShardingCosts, tuple[Term, ...]]:
    kept, root = _late_uses(costs), _roots(costs)
    counted: dict[int, int] = {}  # of each root the tensor whose memory there is counted
    for t in sorted(kept, key=lambda t: (root[t], t != root[t])):
        counted.setdefault(root[t], t)
    beyond = {s for t in counted.values() for s in _sources(costs, t)}
    terms = []
    for t, uses in kept.items():
        if t in beyond:
            continue
        if _looks_alone(costs, t):
            costs, term = _joined(costs, t, uses)
            terms.append(term)
            continue
        itself = counted[root[t]] == t
        there = _kept_there(costs, t) if itself else np.zeros(len(costs.conversions[t].states))
        terms.append(_held(costs, t, uses, there))
    return costs, tuple(terms)


def _looks_alone(costs: ShardingCosts, t: int) -> bool:
    """Whether a tensor looks at a parameter that nothing else reads."""
    operator = costs.program.operators[costs.program.maker[t]]
    if not operator.view or len(operator.inputs) > 1 or len(operator.outputs) > 1:
        return False
    source = operator.inputs[0]
    maker = costs.program.operators[costs.program.maker[source]]
    return maker.role is Role.PARAMETER and len(costs.uses[source]) == 1


def _joined(costs: ShardingCosts, t: int, uses: Sequence[Use]) -> tuple[ShardingCosts, Term]:
    """Let the operator that looks at a parameter choose how that lies, too; return what t takes.

    Each of its choices is given with each property of the parameter; that the parameter has
    another costs more than anything.
    """
    v = costs.program.maker[t]
    source = costs.program.operators[v].inputs[0]
    conversion, choices = costs.conversions[source], costs.choices[v]
    lies = np.unique(costs.makes[source][1])
    states, count = len(conversion.states), len(choices.cost)
    lying, choice = np.repeat(lies, count), np.tile(np.arange(count), len(lies))
    needs, makes = choices.needs[0][choice], choices.makes[0][choice]
    apart = np.arange(states)[:, None] != np.repeat(np.arange(states), states)[None, :]
    after = replace(
        conversion,
        cost=np.where(apart, _never(costs), np.tile(conversion.cost, (1, states))),
    )
    wider = replace(choices.only(choice), needs=(lying * states + needs,))
    beside, size = _sizes(costs, source), _sizes(costs, t)
    table = np.broadcast_to(size, (len(choice), len(size))).copy()
    table[np.arange(len(choice)), makes] = np.where(needs == lying, 0.0, beside[needs])
    changed = {v: wider}, {source: after}
    joined = replace(
        costs,
        choices=tuple(changed[0].get(u, c) for u, c in enumerate(costs.choices)),
        conversions=tuple(changed[1].get(s, c) for s, c in enumerate(costs.conversions)),
    )
    return joined, Term(v, np.arange(len(choice)), tuple(uses), table)


def _never(costs: ShardingCosts) -> float:
    """Return more than any plan costs."""
    dearest = sum(float(c.cost.max()) for c in costs.choices)
    return 10 * dearest + sum(float(c.cost.max(initial=0.0)) for c in costs.conversions)


def _held(costs: ShardingCosts, t: int, uses: Sequence[Use], unconverted: Floats) -> Term:
    """Return the bytes kept of a tensor, given those where it is kept as it is made."""
    size = _sizes(costs, t)
    table = np.broadcast_to(size, (len(size), len(size))).copy()
    np.fill_diagonal(table, unconverted)
    return Term(*costs.makes[t], tuple(uses), table)


def _sizes(costs: ShardingCosts, t: int) -> Floats:
    """Return the bytes on a device of a tensor in each property."""
    return np.array([state_bytes(costs, t, b) for b in range(len(costs.conversions[t].states))])


def _roots(costs: ShardingCosts) -> list[int]:
    """Return for each tensor the one whose memory it lies in."""
    root = list(range(len(costs.program.tensors)))
    for operator in costs.program.operators:
        if operator.view:
            for t in operator.outputs:
                root[t] = root[operator.inputs[0]]
    return root


def _sources(costs: ShardingCosts, t: int) -> list[int]:
    """Return what a tensor looks at, what that looks at, and so on."""
    found = []
    operator = costs.program.operators[costs.program.maker[t]]
    while operator.view:
        found.append(operator.inputs[0])
        operator = costs.program.operators[costs.program.maker[operator.inputs[0]]]
    return found


def _kept_there(costs: ShardingCosts, t: int) -> Floats:
    """Return, by each property that a tensor is made in, what is held at least if it is kept so."""
    v, makes = costs.makes[t]
    operator, states = costs.program.operators[v], len(costs.conversions[t].states)
    if operator.role is Role.PARAMETER:
        return np.zeros(states)
    if not operator.view:
        return _sizes(costs, t)
    source, needs = operator.inputs[0], costs.choices[v].needs[0]
    least = np.minimum(_sizes(costs, source), _kept_there(costs, source))
    found = np.full(states, np.inf)
    np.minimum.at(found, makes, least[needs])
    return np.where(np.isinf(found), 0.0, found)
