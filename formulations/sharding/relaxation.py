"""The dual relaxation of sharding: potentials of uses, and the bound that they prove.

A use r is an operator that reads a tensor T made by another: the maker makes T as a, the reader
needs it as b. Potentials α_r(a) and β_r(b) of every use, any numbers that leave

    Σ_r max(0, α_r(a) + β_r(b)) ≤ conversion_T(a, b)   for all T, a, b, r the uses of T      (6)

give a bound on (1) of `costs.py`, as a conversion pays for all uses that share it:

    Σ_v min_k φ_v(k),  φ_v(k) = cost_v(k) + Σ_{r: v makes} α_r(a_k) + Σ_{r: v reads} β_r(b_k)   (7)

This is the dual of the strong program's relaxation (`milp.py`): the best potentials give the same
bound. What is dearer than the bound at one operator is so for the whole: a plan with choice k of v
costs at least

    Σ_u min φ_u + φ_v(k) − min φ_v                                                               (8)

so that choices for which (8) is above the cost of a known plan are in no better one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np

from ...instances import Sharding
from ...instances.common.arrays import Bools, Floats, Ints
from ..task import Task
from .costs import ShardingCosts, sharding_costs

#: Potential of a property that no choice left has.
GONE = -1e300
#: Relative margin of a bound below the target of its certificate's check, for rounding.
MARGIN = 1e-9


class ShardingRows(NamedTuple):
    """A sharding problem in flat arrays; uses whose conversions are all free are left out."""

    # first, cost: of each operator the place of its first choice, with the end; the cost of each
    # choice
    first: Ints
    cost: Floats
    # entry, columns, conversion: of each tensor the place of its table, and its columns; costs from
    # each property that it is made in (rows) to each that is needed (columns)
    entry: Ints
    columns: Ints
    conversion: Floats
    # maker, reader, tensor, shared: of each use; whether its tensor has others (0 or 1)
    maker: Ints
    reader: Ints
    tensor: Ints
    shared: Ints
    # made, need: of each use, where the classes of its maker's, and its reader's, choices begin in
    # `group`
    made: Ints
    need: Ints
    # rows, alpha_at, beta_at, width: of each use: properties that its tensor is made in, where its
    # potentials begin, and properties that it needs
    rows: Ints
    alpha_at: Ints
    beta_at: Ints
    width: Ints
    column: Ints  # of each potential β: the column of its tensor's table
    group: Ints  # class of each choice: by the property made, or needed
    # end_first, end_use, end_reads: of each operator where its uses begin, with the end; each, and
    # whether it reads (0 or 1)
    end_first: Ints
    end_use: Ints
    end_reads: Ints


class Potentials(NamedTuple):
    """Potentials that fulfil (6), and the bound that they prove."""

    # alpha, beta: of each use, by the property that its tensor is made in, and by the one needed
    alpha: Floats
    beta: Floats
    used: Floats  # the left side of (6), as `ShardingRows.conversion`
    least: Floats  # of each choice: no plan with it costs less, (8)


def flatten(costs: ShardingCosts) -> ShardingRows:
    """Return a problem in flat arrays."""
    tables: list[Floats] = []
    column: list[Ints] = []
    group: list[Ints] = []
    uses: list[tuple[int, ...]] = []
    for term in costs.terms:
        states, row = np.unique(term.makes, return_inverse=True)
        needed = np.unique(np.concatenate([use.needs for use in term.uses]))
        table = term.cost[np.ix_(states, needed)]
        if not table.any():
            continue
        made = len(group)
        group.append(row)
        for use in term.uses:
            mine, classes = np.unique(use.needs, return_inverse=True)
            own = np.searchsorted(needed, mine)
            if table[:, own].any():
                ends = term.maker, use.operator, len(tables)
                uses.append((*ends, made, len(group), len(states), len(mine)))
                group.append(classes)
                column.append(own)
        tables.append(table)
    maker, reader, tensor, made_in, need_in, rows, width = map(
        np.ascontiguousarray, np.array(uses, np.int64).reshape(-1, 7).T
    )
    group_at, first = _begins(map(len, group)), _begins(len(one.cost) for one in costs.choices)
    operator = np.concatenate([maker, reader])
    order = np.argsort(operator, kind="stable")
    return ShardingRows(
        first=first,
        cost=np.concatenate([choices.cost for choices in costs.choices]),
        entry=_begins(table.size for table in tables)[:-1],
        columns=np.array([table.shape[1] for table in tables], np.int64),
        conversion=np.concatenate([np.zeros(0), *(table.ravel() for table in tables)]),
        maker=maker,
        reader=reader,
        tensor=tensor,
        shared=(np.bincount(tensor, minlength=1) > 1)[tensor].astype(np.int64),
        made=group_at[made_in],
        need=group_at[need_in],
        rows=rows,
        alpha_at=_begins(rows)[:-1],
        beta_at=_begins(width)[:-1],
        width=width,
        column=np.concatenate([np.zeros(0, np.int64), *column]),
        group=np.concatenate([np.zeros(0, np.int64), *group]),
        end_first=np.searchsorted(operator[order], np.arange(len(first))),
        end_use=order % max(len(uses), 1),
        end_reads=(order >= len(uses)).astype(np.int64),
    )


def _begins(sizes: Iterable[int]) -> Ints:
    """Return the offsets of consecutive parts of these sizes, with the end of the last."""
    return np.cumsum([0, *sizes])


def no_potentials(flat: ShardingRows) -> Potentials:
    """Return potentials of 0, which prove nothing yet."""
    return Potentials(
        np.zeros(int(flat.rows.sum())),
        np.zeros(len(flat.column)),
        np.zeros(len(flat.conversion)),
        np.full(len(flat.cost), -np.inf),
    )


def proved_bound(flat: ShardingRows, at: Potentials) -> float:
    """Return (7), less what rounding has let (6) be broken by; `used` is computed anew."""
    phi = flat.cost.copy()
    at.used[:] = 0.0
    for r in range(len(flat.maker)):
        alpha, beta = _of_use(flat, at, r)
        for v, group, potentials in (
            (flat.maker[r], flat.made[r], alpha),
            (flat.reader[r], flat.need[r], beta),
        ):
            own = slice(flat.first[v], flat.first[v + 1])
            phi[own] += potentials[flat.group[group : group + own.stop - own.start]]
        t = flat.tensor[r]
        columns = flat.columns[t]
        table = at.used[flat.entry[t] : flat.entry[t] + len(alpha) * columns]
        column = flat.column[flat.beta_at[r] : flat.beta_at[r] + len(beta)]
        table.reshape(-1, columns)[:, column] += np.maximum(0.0, alpha[:, None] + beta[None, :])
    total = float(np.minimum.reduceat(phi, flat.first[:-1]).sum())
    return total - float(np.maximum(0.0, at.used - flat.conversion).sum())


def _of_use(flat: ShardingRows, at: Potentials, r: int) -> tuple[Floats, Floats]:
    """Return the potentials of a use, as views."""
    a, b = flat.alpha_at[r], flat.beta_at[r]
    return at.alpha[a : a + flat.rows[r]], at.beta[b : b + flat.width[r]]


def leave_out(flat: ShardingRows, at: Potentials, kept: Bools) -> None:
    """Exclude all but some choices, in place: their costs and potentials become infinite."""
    flat.cost[~kept] = np.inf
    for r in range(len(flat.maker)):
        alpha, beta = _of_use(flat, at, r)
        for v, group, potentials in (
            (flat.maker[r], flat.made[r], alpha),
            (flat.reader[r], flat.need[r], beta),
        ):
            own = kept[flat.first[v] : flat.first[v + 1]]
            classes = flat.group[group : group + len(own)]
            has = np.zeros(len(potentials), np.bool_)
            has[classes[own]] = True
            potentials[~has] = GONE


def evidence(costs: ShardingCosts, target: float) -> dict[str, object]:
    """Return the certificate of `target`."""
    return {"target": target} | ({"mixture": list(costs.mixture)} if costs.mixture else {})


def sharding_cheap_bounds(task: Task[Sharding]) -> Iterator[tuple[float, str]]:
    """Yield Σ over operators of the cost of their cheapest choice, conversions left out.

    Where groups of devices work beside each other, a phase counts as the mean over its groups.
    """
    costs = sharding_costs(task)
    mixed = costs if costs.ends is None else costs.mixed(costs.ends.weights)
    least = sum(float(one.cost.min(initial=float("inf"))) for one in mixed.choices)
    yield least * (1 - MARGIN), "cheapest signatures"
