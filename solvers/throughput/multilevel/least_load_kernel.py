"""The inner loop of the least load of a share of the work: see `least_load`."""

from __future__ import annotations

from typing import NamedTuple

from ....instances.common.arrays import Floats, Ints
from ....instances.common.kernel import inner, kernel


class Labels(NamedTuple):
    """Labels of the states of two layers in turn, by classes of transfers.

    Parameters
    ----------
    many
        Shape (2, S, C): how many a state has of a class.
    interval
        Shape (2, S, C, J, 3): least and most work, increasing, and least transfers, of each.
    """

    many: Ints
    interval: Floats


@kernel
def extend(first, last, layers, step, cost, work, bounds, table, seen):
    """Extend labels over the units at places `first` … `last` − 1.

    Parameters
    ----------
    layers, step, cost
        Of a frontier, as of `build`.
    bounds
        Most load, most transfers, and how near intervals are that become one.
    seen
        A state's intervals of fewer transfers: room for them.
    """
    limit, most, near = bounds
    count, interval = table
    classes = count.shape[2]
    scale = (classes - 1) / most
    for i in range(first, last):
        now, after = i % 2, (i + 1) % 2
        begin = layers[i + 1]
        later = layers[i + 2] - begin
        for y in range(later):
            for b in range(classes):
                count[after, y, b] = 0
        for x in range(begin - layers[i]):
            for b in range(classes):
                for j in range(count[now, x, b]):
                    for choice in range(2):
                        y = step[layers[i] + x, choice] - begin
                        if y < 0:
                            continue
                        paid = interval[now, x, b, j, 2] + cost[layers[i] + x, choice]
                        least = interval[now, x, b, j, 0] + work[i] * choice
                        if paid > most or least + paid > limit:
                            continue
                        greatest = interval[now, x, b, j, 1] + work[i] * choice
                        _insert(
                            count,
                            interval,
                            after,
                            y,
                            int(paid * scale),
                            least,
                            greatest,
                            paid,
                            near,
                        )
        for y in range(later):
            _leave_out(count, interval, after, y, seen)


@inner
def _leave_out(count, interval, after, y, seen):
    """Leave out labels of a state whose work is all in intervals of fewer transfers."""
    known, covered = seen
    known[0, 0, 0] = 0
    for b in range(count.shape[2]):
        kept = 0
        for j in range(count[after, y, b]):
            least, greatest = interval[after, y, b, j, 0], interval[after, y, b, j, 1]
            inside = False
            for k in range(known[0, 0, 0]):
                inside |= covered[0, 0, 0, k, 0] <= least and greatest <= covered[0, 0, 0, k, 1]
            if inside:
                continue
            for part in range(3):
                interval[after, y, b, kept, part] = interval[after, y, b, j, part]
            kept += 1
            if known[0, 0, 0] < covered.shape[3] - 1:
                _insert(known, covered, 0, 0, 0, least, greatest, 0.0, 0.0)
        count[after, y, b] = kept


@inner
def _insert(count, interval, now, y, b, least, greatest, paid, near):
    """Add an interval to those of a class; those nearer than `near` become one.

    Where there is no room for another, it becomes one with its neighbour.
    """
    many = count[now, y, b]
    i = 0
    while i < many and interval[now, y, b, i, 1] + near < least:
        i += 1
    if many == interval.shape[3] and (i == many or interval[now, y, b, i, 0] - near > greatest):
        i = max(i - 1, 0)
        least = min(least, interval[now, y, b, i, 0])
        greatest = max(greatest, interval[now, y, b, i, 0])
    j = i
    while j < many and interval[now, y, b, j, 0] - near <= greatest:
        least = min(least, interval[now, y, b, j, 0])
        greatest = max(greatest, interval[now, y, b, j, 1])
        paid = min(paid, interval[now, y, b, j, 2])
        j += 1
    if j == i:
        for k in range(many, i, -1):
            for part in range(3):
                interval[now, y, b, k, part] = interval[now, y, b, k - 1, part]
        count[now, y, b] = many + 1
    elif j > i + 1:
        for k in range(j, many):
            for part in range(3):
                interval[now, y, b, k - (j - i - 1), part] = interval[now, y, b, k, part]
        count[now, y, b] = many - (j - i - 1)
    interval[now, y, b, i, 0] = least
    interval[now, y, b, i, 1] = greatest
    interval[now, y, b, i, 2] = paid
