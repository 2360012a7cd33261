"""Sweeps over the operators of a sharding that raise potentials, and with them a bound."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ....instances.common.arrays import Bools, Floats, Ints
from ....instances.common.kernel import inner, kernel
from .sharding_program import PricedProgram


class UseEnds(NamedTuple):
    """Choices of V operators, and the two ends of each use of a tensor, in flat arrays.

    End 2 r of use r is at the operator that makes the tensor, end 2 r + 1 at the one that reads it.
    """

    first: Ints  # (V + 1,): where the choices of each operator begin
    begin: Ints  # (V + 1,): where those of each operator begin in `at`
    at: Ints  # the ends, operator by operator
    # of each end its operator, its number of properties, and where their potentials begin
    operator: Ints
    size: Ints
    side: Ints
    choice: Ints  # of each end where those of the operator's choices begin in `having`
    having: Ints  # the property that a choice has
    table: Ints  # of each use where the costs of its tensor's conversions begin


class PotentialState(NamedTuple):
    """Potentials, with the costs and the slack that they leave."""

    phi: Floats  # φ of each choice
    allowed: Bools  # the choices that are not excluded
    least: Floats  # (V,): the least φ of those
    potential: Floats  # α and β; −inf where no allowed choice has the property
    slack: Floats  # costs of conversions, less what all uses charge
    reduced: Floats  # of the choices of one operator
    change: Floats  # of the potentials of one end


def without_potentials(program: PricedProgram) -> tuple[UseEnds, PotentialState]:
    """Return the ends of uses of tensors whose conversions cost, and potentials of 0."""
    uses = [(t, use) for t in program.tensors if t.cost.any() for use in t.uses]
    having = [own for t, use in uses for own in (t.by_maker, use.by_reader)]
    size = np.array([t.cost.shape for t, _ in uses], np.int64).ravel()
    operator = np.array([(t.maker, use.reader) for t, use in uses], np.int64).ravel()
    side = np.cumsum([0, *size])
    tables = {t.number: t.cost.ravel() for t, _ in uses}
    place = dict(zip(tables, np.cumsum([0, *map(len, tables.values())]).tolist(), strict=False))
    first = np.cumsum([0, *(len(one.cost) for one in program.operators)])
    potential = np.full(side[-1], -np.inf)
    for begin, own in zip(side, having, strict=False):
        potential[begin + own] = 0.0
    phi = np.concatenate([one.cost for one in program.operators])
    order = np.argsort(operator, kind="stable")
    ends = UseEnds(
        first,
        np.searchsorted(operator[order], np.arange(len(first))),
        order,
        operator,
        size,
        side,
        np.cumsum([0, *map(len, having)]),
        np.concatenate([np.zeros(0, np.int64), *having]),
        np.array([place[t.number] for t, _ in uses], np.int64),
    )
    return ends, PotentialState(
        phi,
        np.ones(len(phi), np.bool_),
        np.minimum.reduceat(phi, first[:-1]),
        potential,
        np.concatenate([np.zeros(0), *tables.values()]),
        np.zeros(int(np.diff(first).max())),
        np.zeros(int(size.max(initial=0))),
    )


@inner
def _cell(ends, e, p, q):
    """Return the place of a conversion by its property at an end and that at the other one."""
    if e & 1:
        return ends.table[e >> 1] + q * ends.size[e] + p
    return ends.table[e >> 1] + p * ends.size[e + 1] + q


@inner
def _move(ends, now, e):
    """Add the changes to the potentials of an end."""
    own, other = ends.side[e], ends.side[e ^ 1]
    for p in range(ends.size[e]):
        before, change = now.potential[own + p], now.change[p]
        if before > -np.inf and change != 0.0:
            for q in range(ends.size[e ^ 1]):
                both = before + now.potential[other + q]
                now.slack[_cell(ends, e, p, q)] += max(0.0, both) - max(0.0, both + change)
            now.potential[own + p] = before + change
    first = ends.first[ends.operator[e]]
    for k in range(ends.first[ends.operator[e] + 1] - first):
        now.phi[first + k] += now.change[ends.having[ends.choice[e] + k]]


@inner
def _raise(ends, now, e):
    """Raise the potentials of an end by all of the conversions' slack."""
    own, other = ends.side[e], ends.side[e ^ 1]
    for p in range(ends.size[e]):
        alpha, room = now.potential[own + p], np.inf
        for q in range(ends.size[e ^ 1]):
            beta = now.potential[other + q]
            if beta > -np.inf:
                room = min(room, now.slack[_cell(ends, e, p, q)] + max(0.0, -alpha - beta))
        now.change[p] = room if alpha > -np.inf else 0.0
    _move(ends, now, e)


@inner
def _send(ends, now, e, share):
    """Lower the potentials of an end by a share of the reduced costs of its operator's choices.

    Properties that no allowed choice has get −inf.
    """
    for p in range(ends.size[e]):
        now.change[p] = np.inf
    v = ends.operator[e]
    for k in range(ends.first[v + 1] - ends.first[v]):
        p = ends.having[ends.choice[e] + k]
        now.change[p] = min(now.change[p], now.reduced[k])
    for p in range(ends.size[e]):
        now.change[p] = -share * now.change[p] if now.change[p] < np.inf else -np.inf
    _move(ends, now, e)


@kernel
def sweep(ends, now, forward, bound, target):
    """Go through the operators once, exclude choices by the bound, and return it, raised.

    Each operator raises the potentials of its uses, and then lowers those of uses later in the
    sweep by a share of its choices' reduced costs.
    """
    count = len(now.least)
    for step in range(count):
        v = step if forward else count - 1 - step
        first, later = ends.first[v], 0
        for i in range(ends.begin[v], ends.begin[v + 1]):
            _raise(ends, now, ends.at[i])
            later += (ends.operator[ends.at[i] ^ 1] > v) == forward
        least = np.inf
        for k in range(first, ends.first[v + 1]):
            if now.allowed[k]:
                least = min(least, now.phi[k])
        bound += least - now.least[v]
        now.least[v] = least
        if bound >= target:
            return bound
        for k in range(first, ends.first[v + 1]):
            now.allowed[k] = now.allowed[k] and bound + (now.phi[k] - least) < target
            now.reduced[k - first] = now.phi[k] - least if now.allowed[k] else np.inf
        share = 1.0 / max(1, later, ends.begin[v + 1] - ends.begin[v] - later)
        for i in range(ends.begin[v], ends.begin[v + 1]):
            e = ends.at[i]
            _send(ends, now, e, share if (ends.operator[e ^ 1] > v) == forward else 0.0)
    return bound
