"""What a device holds of tensors and parameters, and its price.

At a price of λ ≥ 0 a byte,

    min over shardings ( cost + λ · (bytes that are held − M) )                                  (9)

is no more than the least cost of a sharding that fits into M bytes. What parameters take with
gradients and optimizer state is a cost of single operators, what is kept of a tensor one that all
backward operators share that read it alike, as a conversion is. Of what looks at another tensor,
only one is counted by the memory that it keeps there, where the tensor itself is not read; all
others by their conversions. So (9) never counts more than is held.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from ...instances import Role
from ...instances.common.arrays import Floats, Ints
from ...instances.model.sharding.properties import local_shape
from .costs import ShardingCosts, Term, Use


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


def priced(costs: ShardingCosts, price: float) -> ShardingCosts:
    """Return costs with a price for each byte that is held; (9) without M."""
    operators = costs.program.operators
    choices = tuple(
        replace(c, cost=c.cost + price * np.array(own_bytes(costs, v)))
        if operators[v].role is Role.PARAMETER
        else c
        for v, c in enumerate(costs.choices)
    )
    held = tuple(replace(term, cost=price * term.cost) for term in held_bytes(costs))
    return replace(costs, choices=choices, besides=held)


def priced_bytes(costs: ShardingCosts, chosen: Ints) -> float:
    """Return the bytes that `priced` counts for choices: at most those that are held."""
    free = tuple(replace(c, cost=np.zeros(len(c.cost))) for c in costs.choices)
    none = tuple(replace(c, cost=np.zeros_like(c.cost)) for c in costs.conversions)
    return priced(replace(costs, choices=free, conversions=none), 1.0).objective(chosen)


def held_bytes(costs: ShardingCosts) -> tuple[Term, ...]:
    """Return the bytes kept of each tensor for the backward pass, as far as (9) counts them."""
    operators, maker = costs.program.operators, costs.program.maker
    kept: dict[int, tuple[Use, ...]] = {}
    for t, uses in enumerate(costs.uses):
        if not operators[maker[t]].backward:
            late = tuple(use for use in uses if operators[use.operator].backward)
            if late:
                kept[t] = late
    root = _roots(costs)
    counted: dict[int, int] = {}  # of each root the tensor whose memory there is counted
    for t in sorted(kept, key=lambda t: (root[t], t != root[t])):
        counted.setdefault(root[t], t)
    beyond = {s for t in counted.values() for s in _sources(costs, t)}
    terms = []
    for t, late in kept.items():
        if t in beyond:
            continue
        made, makes = costs.makes[t]
        states = len(costs.conversions[t].states)
        size = np.array([state_bytes(costs, t, b) for b in range(states)])
        table = np.broadcast_to(size, (states, states)).copy()
        own = _kept_there(costs, t) if counted[root[t]] == t else np.zeros(states)
        np.fill_diagonal(table, own)
        terms.append(Term(made, makes, late, table))
    return tuple(terms)


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
    size = np.array([state_bytes(costs, t, b) for b in range(states)])
    if not operator.view:
        return size
    source, needs = operator.inputs[0], costs.choices[v].needs[0]
    beside = np.array(
        [state_bytes(costs, source, b) for b in range(len(costs.conversions[source].states))]
    )
    least = np.minimum(beside, _kept_there(costs, source))
    found = np.full(states, np.inf)
    np.minimum.at(found, makes, least[needs])
    return np.where(np.isinf(found), 0.0, found)
