"""A price for each byte that a sharding holds: ways of operators and tensors that cost it, too.

At a price of λ ≥ 0 a byte no sharding that fits into M bytes costs less than

    min over all shardings ( cost + λ · bytes held ) − λ · M

and not less than that with fewer bytes than are held. Each byte is counted once: a parameter with
its gradient and the optimizer's state, as it lies; and of a tensor what is kept of it, in each way
in which it is. Backward operators keep what they read. A view keeps what it looks at, as it reads
that, if somebody keeps it as it is made: it then takes no bytes itself. So the operator of a view
has each of its ways twice. In the first it keeps nothing, and whoever keeps it as it is made pays
for the whole of what it can look at; in the second it keeps what it looks at, and is free. The true
one of the two is among them, and costs what is held: the least of both is not more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ....instances import Sharding, TensorProgram
from ..sharding_steps import Lying, local_bytes
from .sharding_ways import Tensors, Use, Ways


@dataclass(frozen=True)
class _Keeper:
    """An operator that keeps a tensor: how, by each of its ways; None if it does not."""

    operator: int
    slot: int
    ways: list[Lying | None]


def with_memory(
    program: TensorProgram,
    problem: Sharding,
    ways: Sequence[Ways],
    tensors: Sequence[Tensors],
    price: float,
) -> tuple[list[Ways], list[Tensors]]:
    """Return ways and tensors that cost what they hold, too, at a price for each byte.

    What is kept of tensors comes after the others, as tensors of their own with negative numbers.
    """
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
        priced.append(Ways(np.tile(cost, copies), one.read * copies, one.made * copies))
    converted = [
        replace(
            tensor,
            by_maker=np.tile(tensor.by_maker, 2 if tensor.maker in twice else 1),
            uses=[
                Use(use.reader, use.slot, np.tile(use.by_reader, 2 if use.reader in twice else 1))
                for use in tensor.uses
            ],
        )
        for tensor in tensors
    ]
    kept = [_kept(program, problem, ways, t, by, price) for t, by in keepers.items()]
    return priced, [*converted, *kept]


def _keepers(
    program: TensorProgram, ways: Sequence[Ways]
) -> tuple[dict[int, list[_Keeper]], set[int]]:
    """Return who may keep each tensor, and the views that are kept, whose ways are there twice."""
    found: dict[int, list[_Keeper]] = {}
    twice = set()
    for v in range(len(program.operators) - 1, -1, -1):
        operator = program.operators[v]
        if operator.backward:
            for slot, t in enumerate(operator.inputs):
                if not program.operators[program.maker[t]].backward:
                    how: list[Lying | None] = [row[slot] for row in ways[v].read]
                    found.setdefault(t, []).append(_Keeper(v, slot, how))
        elif operator.view and any(t in found for t in operator.outputs):
            twice.add(v)
            first: list[Lying | None] = [None] * len(ways[v].cost)
            keeper = _Keeper(v, 0, [*first, *(row[0] for row in ways[v].read)])
            found.setdefault(operator.inputs[0], []).append(keeper)
    return found, twice


def _kept(
    program: TensorProgram,
    problem: Sharding,
    ways: Sequence[Ways],
    t: int,
    keepers: list[_Keeper],
    price: float,
) -> Tensors:
    """Return what is kept of a tensor, as a tensor of its own."""
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
                cost[a, b] = price * _most(program, t)
            else:
                cost[a, b] = price * local_bytes(program.tensors[t], wanted, mesh)
    return Tensors(
        number=-1 - t,
        maker=v,
        made=[f"{'x'.join(how)}{' kept' * looks}" for how, looks in rows],
        needed=["" if how is None else "x".join(how) for how in columns],
        by_maker=np.array([rows.index(row) for row in made], np.int64),
        cost=cost,
        uses=[
            Use(
                keeper.operator,
                keeper.slot,
                np.array([columns.index(how) for how in keeper.ways], np.int64),
            )
            for keeper in keepers
        ],
    )


def _most(program: TensorProgram, t: int) -> float:
    """Return the bytes of the largest tensor that a view looks at, whole."""
    found, operator = 0.0, program.operators[program.maker[t]]
    while operator.view:
        source = operator.inputs[0]
        found = max(found, float(program.tensors[source].size_bytes))
        operator = program.operators[program.maker[source]]
    return found
