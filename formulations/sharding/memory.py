"""The memory of a sharding: bytes that a device holds, and a price for them.

At a price of λ ≥ 0 a byte,

    min over shardings ( cost + λ · (bytes that are held − M) )                                  (9)

is no more than the least cost of a sharding that fits into M bytes. What parameters take with
gradients and optimizer state is a cost of single operators, what is kept of a tensor one that all
operators which keep it alike share, as a conversion is: backward operators keep what they read, as
they read it. A view that is kept as it is made holds what it looks at, as it reads that. Whether it
is kept so is a second choice of its operator:

    it is        it keeps what it looks at, as a backward operator would
    it is not    any operator that keeps it as it is made pays the most that could take        (10)

So the least over the second choices are the bytes of the definition: the choice that says what is
so counts them, and by (10) no other counts less.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from ...instances import Role
from ...instances.common.arrays import Floats, Ints
from ...instances.model.tensor_program import local_shape
from .costs import ShardingCosts, Term, Use

#: Uses by which each tensor is kept, by its number.
Kept = dict[int, list[Use]]


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
    """Return costs with a price for each byte, (9) without M.

    Operators of views that may be kept have each choice twice: not kept as made, and kept so.
    """
    operators, kept = costs.program.operators, _kept(costs)
    choices = []
    for v, known in enumerate(costs.choices):
        if operators[v].role is Role.PARAMETER:
            held = price * np.array(own_bytes(costs, v))
            choices.append(replace(known, cost=known.cost + held))
        elif _is_kept_view(costs, v, kept):
            choices.append(known.only(np.tile(np.arange(len(known.cost)), 2)))
        else:
            choices.append(known)
    held_by_all = tuple(_held(costs, t, uses, price) for t, uses in kept.items())
    return replace(costs, choices=tuple(choices), besides=held_by_all)


def without_costs(costs: ShardingCosts) -> ShardingCosts:
    """Return the costs of bytes alone, at a price of 1."""
    return replace(
        costs,
        choices=tuple(replace(c, cost=np.zeros(len(c.cost))) for c in costs.choices),
        conversions=tuple(replace(c, cost=np.zeros_like(c.cost)) for c in costs.conversions),
    )


def with_views(costs: ShardingCosts, chosen: Ints) -> Ints:
    """Return the choices of `priced` that count the bytes of a plan; `without_views` goes back."""
    operators, found = costs.program.operators, chosen.copy()
    kept = _kept(costs)
    for v in range(len(operators) - 1, -1, -1):
        if _is_kept_view(costs, v, kept):
            made = zip(operators[v].outputs, costs.choices[v].makes, strict=True)
            if any(
                use.needs[found[use.operator]] == makes[chosen[v]]
                for t, makes in made
                for use in kept.get(t, ())
            ):
                found[v] += len(costs.choices[v].cost)
    return found


def without_views(costs: ShardingCosts, chosen: Ints) -> Ints:
    """Return the choices of `costs` that those of `priced` have the signatures of."""
    first: Ints = chosen % np.array([len(choices.cost) for choices in costs.choices], np.int64)
    return first


def _kept(costs: ShardingCosts) -> Kept:
    """Return the uses that keep each tensor: of backward operators, and of views that are kept.

    A view that is not kept needs no property: the number after the last one.
    """
    operators, maker = costs.program.operators, costs.program.maker
    found: Kept = {}
    for t, uses in enumerate(costs.uses):
        late = [use for use in uses if operators[use.operator].backward]
        if late and not operators[maker[t]].backward:
            found[t] = late
    for v in range(len(operators) - 1, -1, -1):
        if _is_kept_view(costs, v, found):
            source, needs = operators[v].inputs[0], costs.choices[v].needs[0]
            nothing = np.full(len(needs), len(costs.conversions[source].states))
            found.setdefault(source, []).append(Use(v, np.concatenate([nothing, needs])))
    return found


def _is_kept_view(costs: ShardingCosts, v: int, kept: Kept) -> bool:
    """Return whether an operator is a view whose output some other operator keeps."""
    operator = costs.program.operators[v]
    return operator.view and not kept.keys().isdisjoint(operator.outputs)


def _held(costs: ShardingCosts, t: int, uses: list[Use], price: float) -> Term:
    """Return the term of the bytes kept of a tensor, at a price."""
    v, makes = costs.makes[t]
    operator, size = costs.program.operators[v], _sizes(costs, t)
    states = len(size)
    table = np.tile(np.append(size, 0.0), (states, 1))
    if operator.role is Role.PARAMETER:
        np.fill_diagonal(table, 0.0)
    if operator.view:
        table = np.tile(table, (2, 1))
        each = np.arange(states)
        table[each, each], table[states + each, each] = _looks_at(costs, t), 0.0
        makes = np.concatenate([makes, states + makes])
    return Term(v, makes, tuple(uses), price * table)


def _looks_at(costs: ShardingCosts, t: int) -> Floats:
    """Return of a view, by its property, the bytes at most that are held if it is kept so; (10)."""
    v, makes = costs.makes[t]
    source, needs = costs.program.operators[v].inputs[0], costs.choices[v].needs[0]
    most = _sizes(costs, source)
    if costs.program.operators[costs.program.maker[source]].view:
        most = np.maximum(most, _looks_at(costs, source))
    found = np.zeros(len(costs.conversions[t].states))
    np.maximum.at(found, makes, most[needs])
    return found


def _sizes(costs: ShardingCosts, t: int) -> Floats:
    """Return the bytes on a device of a tensor in each property."""
    return np.array([state_bytes(costs, t, b) for b in range(len(costs.conversions[t].states))])


def no_sharding_fits(costs: ShardingCosts) -> str:
    """Return the reason that no sharding may exist, for users."""
    room = costs.problem.memory_bytes or 0.0
    parameters, activations = least_bytes(costs)
    return (
        f"no sharding over {costs.problem.mesh.text} devices fits into {room:.0f} bytes: "
        f"parameters with gradients and optimizer state take at least {parameters:.0f} on each, "
        f"activations kept for the backward pass {activations:.0f}; give more memory or devices"
    )


def least_bytes(costs: ShardingCosts) -> tuple[float, float]:
    """Return a lower bound on the bytes per device of every sharding: parameters, activations.

    Of a tensor and what looks at it something is kept if a backward operator reads any of them.
    """
    operators, maker = costs.program.operators, costs.program.maker
    parameters = sum(
        min(own_bytes(costs, v)) for v, o in enumerate(operators) if o.role is Role.PARAMETER
    )
    root = list(range(len(maker)))
    for operator in operators:
        if operator.view:
            for t in operator.outputs:
                root[t] = root[operator.inputs[0]]
    size: dict[int, float] = {}
    for t, one in enumerate(root):
        least = min(state_bytes(costs, t, b) for b in range(len(costs.conversions[t].states)))
        size[one] = min(size.get(one, least), least)
    read = {
        root[t]
        for operator in operators
        if operator.backward
        for t in operator.inputs
        if not operators[maker[t]].backward and operators[maker[root[t]]].role is not Role.PARAMETER
    }
    return parameters, sum(size[t] for t in read)
