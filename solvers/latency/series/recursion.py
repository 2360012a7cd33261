"""Tables of a series for the recursion, and the plan that its values stand for.

With F[r][x] the least time from when s_r has ended on CPUs, x calls left, and W[r][y][x] from when
a call begins that holds y bytes of region r, its own place among the x:

    F[r][x] = min( all of R_r on CPUs:        time + q of s_{r+1} + F[r+1][x],
                   a call begins in R_r:      time + W[r][y][x] )
    W[r][y][x] = min over j > r, and ends in R_j that fit beside y and all from s_{r+1} to s_j:
                   p of all those + ( the rest on CPUs:   time + q of s_{j+1} + F[j+1][x−1],
                                      the next call begins in R_j, too:  time + W[j][y'][x−1] )

R_r may have calls of its own in between: for bounds it then takes the least time along a chain, and
one call.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ....instances.common.arrays import Floats, Ints
from ....instances.common.exact_sums import summable
from .divisions_kernel import BEGINS, ENDS
from .options import Region
from .recursion_kernel import recurse
from .regions import Series


class Tables(NamedTuple):
    """What `recurse` reads; R regions, each with its starts, heads and ends in compressed rows.

    A start is what a call may hold of the region in which it begins, a head a way to get there from
    CPUs, an end a way in which a call ends: `end_start` is where the next one begins, −1 on CPUs.
    """

    compute: Floats  # (R,) p of s_1 … s_r and of the regions between them
    skipped: Floats  # (R,) the part of it that a call which begins in region r lacks
    memory: Floats
    skipped_memory: Floats
    blocked: Ints  # (R,) 2: no call holds s_r, 1: none holds the region before it
    through: Floats
    inner: Floats
    cross: Floats  # (R,) q of s_{r+1}, 0 after the last
    start_at: Ints
    start_memory: Floats
    head_at: Ints
    head_start: Ints
    head_time: Floats
    head_calls: Ints
    end_at: Ints
    end_memory: Floats
    end_time: Floats
    end_calls: Ints
    end_start: Ints


@dataclass(frozen=True, eq=False)
class Solved:
    """Tables with the values of the recursion."""

    table: Tables
    room: float
    rest: Floats
    held: Floats
    best: Floats
    origin: list[tuple[str, int]]  # of each end: the list of its region and the place there

    @property
    def value(self) -> float:
        """Least time of all."""
        return float(self.rest[0, -1])


def solve_series(series: Series, regions: list[Region], calls: int, price: float = 0.0) -> Solved:
    """Return the least times with at most so many calls; each byte of theirs counts as `price`."""
    table, origin = _tables(series, regions, price)
    rest = np.zeros((len(regions) + 1, calls + 1))
    held = np.full((len(table.start_memory), calls + 1), np.inf)
    best = np.full((len(table.end_memory), calls + 1), np.inf)
    recurse(table, series.capacity, rest, held, best)
    return Solved(table, series.capacity, rest, held, best, origin)


def _tables(
    series: Series, regions: list[Region], price: float
) -> tuple[Tables, list[tuple[str, int]]]:
    count = len(regions)
    inside = [list(units) for units in series.regions]
    seps = series.separators
    sums = []
    compute = np.where(np.isfinite(series.compute), series.compute, 0.0) + price * series.memory
    for of_unit in (summable(compute), series.memory):  # as differences of sums are taken
        between = np.array([of_unit[units].sum() for units in inside])
        upto, lacks = np.zeros(count), np.zeros(count)
        upto[1:] = np.cumsum(of_unit[seps])
        upto[2:] += np.cumsum(between[1:-1])
        lacks[1:] = upto[1:] + between[1:]
        sums += [upto, lacks]
    blocked = np.zeros(count, np.int64)
    for r in range(1, count):
        if np.isinf(series.compute[seps[r - 1]]):
            blocked[r] = 2
        elif np.isinf(series.compute[inside[r - 1]]).any():
            blocked[r] = 1
    on_path = series.up == series.down
    cheapest = np.minimum(series.compute + price * series.memory, series.cpu)
    chains = [
        max(region.inner, float(cheapest[[u for u in units if on_path[u]]].sum()))
        for region, units in zip(regions, inside, strict=True)
    ]
    starts: list[Floats] = []
    heads: list[tuple[Ints, Floats, Ints]] = []
    ends: list[tuple[Floats, Floats, Ints, Ints]] = []
    origin: list[tuple[str, int]] = []
    offset = 0
    for region, chain in zip(regions, chains, strict=True):
        ends_of, heads_of, both_of = (
            np.column_stack([value[:, :2], value[:, 2] + price * (value[:, 0] + value[:, 1])])
            for value in (region.ends.value, region.begins.value, region.both.value)
        )
        levels = np.unique(np.concatenate([[0.0], heads_of[:, 1], both_of[:, 1]]))
        starts.append(levels)
        inner = np.isfinite(chain)
        extra = np.zeros(1) if inner else np.zeros(0)
        heads.append((
            offset + np.concatenate([np.searchsorted(levels, heads_of[:, 1]), extra]).astype(int),
            np.concatenate([heads_of[:, 2], extra + chain]),
            np.concatenate([np.zeros(len(heads_of)), extra + 1]).astype(int),
        ))  # fmt: skip
        memory = np.concatenate([ends_of[:, 0], both_of[:, 0], extra, extra])
        where = np.concatenate([
            np.full(len(ends_of), -1), offset + np.searchsorted(levels, both_of[:, 1]),
            extra - 1, extra + offset,
        ]).astype(int)  # fmt: skip
        time = np.concatenate([ends_of[:, 2], both_of[:, 2], *(2 * [extra + chain])])
        taken = np.concatenate([np.ones(len(ends_of) + len(both_of)), extra + 2, extra + 2])
        order = np.argsort(memory, kind="stable")
        ends.append((memory[order], time[order], taken[order].astype(int), where[order]))
        names = [("ends", k) for k in range(len(ends_of))]
        names += [("both", k) for k in range(len(both_of))] + [("", 0)] * (2 * len(extra))
        origin += [names[k] for k in order]
        offset += len(levels)
    cpu = np.append(series.cpu[seps], 0.0)
    columns = [
        *sums, blocked,
        np.array([region.through for region in regions]),
        np.array(chains),
        cpu,
        _starts(starts), np.concatenate(starts),
        _starts([h for h, _, _ in heads]), *_joined(heads),
        _starts([m for m, _, _, _ in ends]), *_joined(ends),
    ]  # fmt: skip
    return Tables._make(columns), origin


def _starts(rows: list[np.ndarray]) -> Ints:
    return np.cumsum([0, *map(len, rows)]).astype(np.int64)


def _joined(rows: Sequence[tuple[np.ndarray, ...]]) -> list[np.ndarray]:
    return [np.concatenate(column) for column in zip(*rows, strict=True)]


def call_of_units(series: Series, regions: list[Region], solved: Solved) -> Ints:
    """Return the call of each unit, −1 on CPUs and for units set aside, shape (U,)."""
    table, rest = solved.table, solved.rest
    call = np.full(series.graph.size, -1)
    r, x, current = 0, rest.shape[1] - 1, -1
    start = -1  # of the call at work, −1 on CPUs
    while r < len(regions):
        if start < 0:
            heads = range(int(table.head_at[r]), int(table.head_at[r + 1]))
            offers = [table.through[r] + table.cross[r] + rest[r + 1, x]]
            offers += [table.head_time[h] + solved.held[table.head_start[h], x] for h in heads]
            best = int(np.argmin(offers))
            if best == 0:
                r += 1
                continue
            current += 1
            levels = regions[r].begins.levels[best - 1]
            call[np.array(series.regions[r], np.int64)[levels == BEGINS]] = current
            start = int(table.head_start[heads[best - 1]])
        j, e = _next_end(table, solved, r, start, x)
        for t in range(r + 1, j + 1):
            call[series.separators[t - 1]] = current
            if t < j:
                call[list(series.regions[t])] = current
        kind, place = solved.origin[e]
        levels = getattr(regions[j], kind).levels[place]
        units = np.array(series.regions[j], np.int64)
        call[units[levels == ENDS]] = current
        start, x = int(table.end_start[e]), x - 1
        if start >= 0:
            current += 1
            call[units[levels == BEGINS]] = current
            r = j
        else:
            r = j + 1
    return call


def _next_end(table: Tables, solved: Solved, r: int, start: int, x: int) -> tuple[int, int]:
    """The region in which a call ends, and the end, by the least time."""
    least, found = np.inf, (-1, -1)
    for j in range(r + 1, len(table.through)):
        if table.blocked[j] and (table.blocked[j] == 2 or j > r + 1):
            break
        free = solved.room - table.start_memory[start] - (table.memory[j] - table.skipped_memory[r])
        if free < 0:
            break
        first = int(table.end_at[j])
        last = first + int(
            np.searchsorted(table.end_memory[first : table.end_at[j + 1]], free, "right")
        )
        if last == first:
            continue
        value = table.compute[j] - table.skipped[r] + solved.best[last - 1, x]
        if value < least:
            ends = np.flatnonzero(solved.best[first:last, x] <= solved.best[last - 1, x])
            least, found = value, (j, first + int(ends[0]))
    return found
