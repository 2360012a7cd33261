"""Bounds on the cost of a sharding: the cheapest choices, and certificates by potentials.

`runtime.verify.bounds.sharding` states what potentials prove, and checks it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from ...instances import Sharding
from ...instances.common.arrays import Floats
from ...instances.model.tensor_program import property_text
from ..task import Task
from .costs import ShardingCosts, sharding_costs

#: What rounding all potentials down to whole units may take off the bound, relatively.
LOSS = 1e-7

#: What a bound is below the target of its certificate's check, relatively: for rounding.
MARGIN = 1e-9


class Proof(NamedTuple):
    """Potentials of all uses, in the order of `relaxation.Potentials`."""

    alpha: Floats
    beta: Floats


def evidence(costs: ShardingCosts, target: float, proof: Proof | None = None) -> dict[str, object]:
    """Return the certificate of `target`; without potentials elimination alone proves it."""
    names: dict[str, int] = {}
    uses: list[list[object]] = []
    unit = 1.0
    if proof is not None and len(proof.alpha):
        unit = max(LOSS * abs(target) / (len(proof.alpha) + len(proof.beta)), 1e-300)
        alpha, beta = (np.floor(side / unit) for side in proof)
        uses = list(_uses(costs, alpha, beta, names))
    mixture = {"mixture": list(costs.mixture)} if costs.mixture else {}
    found = {"target": target, "unit": unit, "properties": list(names), "uses": uses}
    return found | mixture


def _uses(
    costs: ShardingCosts, alpha: Floats, beta: Floats, names: dict[str, int]
) -> list[list[object]]:
    """Return the nonzero potentials of each use, in the order of `flatten`."""
    found: list[list[object]] = []
    a, b, slots = 0, 0, _slots(costs)
    for t, users in enumerate(costs.uses):
        if not users:
            continue
        states = np.unique(costs.makes[t][1])
        for use, slot in zip(users, slots[t], strict=True):
            needed = np.unique(use.needs)
            if not costs.conversions[t].cost[np.ix_(states, needed)].any():
                continue
            sides: list[list[int]] = []
            for numbers, values in (
                (states, alpha[a : a + len(states)]),
                (needed, beta[b : b + len(needed)]),
            ):
                some = np.flatnonzero(values)
                texts = [property_text(costs.conversions[t].states[k]) for k in numbers[some]]
                sides.append([names.setdefault(text, len(names)) for text in texts])
                sides.append([int(value) for value in values[some].tolist()])
            a, b = a + len(states), b + len(needed)
            if sides[0] or sides[2]:
                found.append([t, use.operator, slot, *sides])
    assert (a, b) == (len(alpha), len(beta))
    return found


def _slots(costs: ShardingCosts) -> list[list[int]]:
    """Return of each tensor which input of its reader a use is; 0 for a gradient's parameter."""
    found: list[list[int]] = [[] for _ in costs.program.tensors]
    for operator in costs.program.operators:
        for slot, read in enumerate(operator.inputs):
            found[read].append(slot)
        if operator.gradient is not None:
            found[operator.gradient].append(0)
    return found


def sharding_cheap_bounds(task: Task[Sharding]) -> Iterator[tuple[float, str]]:
    """Yield Σ over operators of the cost of their cheapest choice, conversions left out.

    Where groups of devices work beside each other, a phase counts as the mean over its groups.
    """
    costs = sharding_costs(task)
    mixed = costs if costs.ends is None else costs.mixed(costs.ends.weights)
    least = sum(float(one.cost.min(initial=float("inf"))) for one in mixed.choices)
    yield least * (1 - MARGIN), "cheapest signatures"
