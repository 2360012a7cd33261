"""Two shardings become one that fits: parts of the dearer one in the one that holds too much."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from ...formulations.sharding.choices import Term
from ...formulations.sharding.costs import ShardingCosts
from ...formulations.sharding.memory import priced, with_views, without_costs, without_views
from ...instances.common.arrays import Ints


def blend(costs: ShardingCosts, large: Ints, small: Ints, room: float) -> Ints | None:
    """Return choices that hold at most `room` bytes, None if `small` holds more.

    Where the two differ they fall into parts that share no tensor, so that each can be taken from
    either. Those of `small` are taken by what a byte less costs, until the rest fits; then those
    that need not be are given back, the dearest first.

    Parameters
    ----------
    large, small
        Choices of each operator; `large` holds more, and costs less.
    """
    bytes_of, costs_of = priced(without_costs(costs), 1.0), priced(costs, 0.0)
    large, small = with_views(costs, large), with_views(costs, small)
    parts = []
    for operators in _parts(bytes_of.terms, large, small):
        after = large.copy()
        after[operators] = small[operators]
        dearer = _changed(costs_of, operators, large, after)
        saved = -_changed(bytes_of, operators, large, after)
        parts.append((operators, dearer, saved))
    held = bytes_of.objective(large)
    taken = []
    for operators, dearer, saved in sorted(parts, key=_price):
        if held > room or dearer <= 0:
            held -= saved
            taken.append((operators, dearer, saved))
    if held > room:
        return None
    mixed = large.copy()
    for operators, dearer, saved in sorted(taken, key=lambda part: -part[1]):
        if dearer > 0 and held + saved <= room:
            held += saved
        else:
            mixed[operators] = small[operators]
    return without_views(costs, mixed)


def _price(part: tuple[Ints, float, float]) -> float:
    """Return what a byte less costs with a part, in order after all that save some."""
    _, dearer, saved = part
    return dearer / saved if saved > 0 else float("inf")


def _parts(terms: Iterable[Term], one: Ints, other: Ints) -> list[Ints]:
    """Return the operators of which two shardings differ, those that share a tensor together."""
    head = list(range(len(one)))

    def find(v: int) -> int:
        while head[v] != v:
            head[v] = head[head[v]]
            v = head[v]
        return v

    differs = one != other
    for term in terms:
        around = [v for v in (term.maker, *(use.operator for use in term.uses)) if differs[v]]
        for v in around[1:]:
            head[find(v)] = find(around[0])
    found: dict[int, list[int]] = {}
    for v in np.flatnonzero(differs).tolist():
        found.setdefault(find(v), []).append(v)
    return [np.array(members) for members in found.values()]


def _changed(costs: ShardingCosts, operators: Ints, before: Ints, after: Ints) -> float:
    """Return by how much the costs grow if operators choose otherwise."""
    inside = set(operators.tolist())
    grown = 0.0
    for v in inside:
        cost = costs.choices[v].cost
        grown += float(cost[after[v]] - cost[before[v]])
    for k in {k for v in inside for k in costs.terms_of[v]}:
        grown += costs.terms[k].value(after) - costs.terms[k].value(before)
    return grown
