"""The inner loop of matrix games: mixtures of rows against mixtures of columns."""

from __future__ import annotations

import numpy as np

from ....instances.common.kernel import inner


@inner
def play(payoff, rows, columns, row_weight, column_weight):
    """Set the weights of both mixtures; return what the row player wins, by the simplex method.

    With A the payoffs, all positive: max Σ u  s.t.  A u ≤ 1, u ≥ 0, whose duals are the other
    mixture; both are scaled to add up to 1. Where rounding spoils the outcome, or it takes too
    many steps, the weights are still mixtures.

    Parameters
    ----------
    payoff
        Of which the first `rows` rows and `columns` columns count.
    row_weight, column_weight
        To be filled in.
    """
    table = np.zeros((rows + 1, columns + 1))
    largest = 0.0
    for i in range(rows):
        for j in range(columns):
            largest = max(largest, payoff[i, j])
    for i in range(rows):
        table[i, columns] = 1.0
        for j in range(columns):
            table[i, j] = payoff[i, j] / largest
    for j in range(columns):
        table[rows, j] = -1.0
    basic = np.arange(columns, columns + rows)  # variables: columns first, then slacks of rows
    other = np.arange(columns)
    for _ in range(4 * (rows + columns)):
        c, steepest = -1, -1e-9
        for j in range(columns):
            if table[rows, j] < steepest:
                c, steepest = j, table[rows, j]
        if c < 0:
            break
        r, least = -1, np.inf
        for i in range(rows):
            if table[i, c] > 1e-9 and table[i, columns] / table[i, c] < least:
                r, least = i, table[i, columns] / table[i, c]
        if r < 0:
            break
        pivot = table[r, c]
        for j in range(columns + 1):
            table[r, j] /= pivot
        for i in range(rows + 1):
            factor = table[i, c]
            if i != r and factor != 0.0:
                for j in range(columns + 1):
                    if j != c:
                        table[i, j] -= factor * table[r, j]
                table[i, c] = -factor / pivot
        table[r, c] = 1.0 / pivot
        entering, leaving = other[c], basic[r]
        other[c], basic[r] = leaving, entering
    weigh(table, basic, other, row_weight, column_weight)
    return largest / table[rows, columns] if table[rows, columns] > 0 else 0.0


@inner
def weigh(table, basic, other, row_weight, column_weight):
    """Read both mixtures from the last table."""
    rows, columns = len(basic), len(other)
    row_weight[:] = 0.0
    column_weight[:] = 0.0
    for i in range(rows):
        if basic[i] < columns:
            column_weight[basic[i]] = max(table[i, columns], 0.0)
    for j in range(columns):
        if other[j] >= columns:
            row_weight[other[j] - columns] = max(table[rows, j], 0.0)
    normalise(row_weight)
    normalise(column_weight)


@inner
def normalise(weight):
    """Scale weights so that they add up to 1; the first gets all of it if they are all 0."""
    total = 0.0
    for i in range(len(weight)):
        total += weight[i]
    if not total > 0.0:
        weight[0] = 1.0
        total = 1.0
    for i in range(len(weight)):
        weight[i] /= total
