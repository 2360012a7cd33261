"""The fewest devices up to each state within a limit, and the plan that shows it."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import maximum_bipartite_matching

from ....instances.common.arrays import Bools, Floats, Ints
from .kernel import fewest_devices
from .states import States
from .table import Table


class Loads(NamedTuple):
    """What `Table` and its `Pairs` say, as the kernel has it."""

    first: Ints
    pair_start: Ints
    pair_first: Ints
    shared: Floats
    own: Ints
    each: Floats
    ahead: Floats
    behind: Floats
    order: Ints
    later: Ints
    held: Floats
    most_held: Floats
    rank: Ints
    room: Floats
    loose: Bools
    inner: Ints
    low: Ints
    high: Ints


class Stage(NamedTuple):
    """A kind of device, the state before the stage, and its segment."""

    kind: int
    state: int
    segment: int


class Fewest:
    """How many devices of kind 0 stages up to each state need; see `series_dp`.

    Parameters
    ----------
    table
        The states, and what stages cost, by kind.
    count
        Shape (K,): devices of each kind.
    limit
        Of loads.
    """

    def __init__(self, table: Table, count: Ints, limit: float) -> None:
        self.table, self.count, self.limit = table, count, limit
        self.radix = np.append(0, np.cumprod(np.append(1, count[1:] + 1))[:-1])[: len(count)]
        shape = int(np.prod(count[1:] + 1)), int(table.begin[-1])
        self.fewest = np.full(shape, int(count[0]) + 1)
        self.fewest[0, 0] = 0
        least = np.empty((shape[0], len(count), shape[1]), np.int64)
        tree = np.empty((shape[0], int(np.diff(table.begin).max()) + 1), np.int64)
        fewest_devices(limit, self._loads, count, self.radix, self.fewest, least, tree)

    @property
    def _loads(self) -> Loads:
        table, pairs = self.table, self.table.pairs
        return Loads(
            table.begin, pairs.start, pairs.first, pairs.shared, pairs.own, pairs.each,
            table.ahead, table.behind, table.order, table.later, table.held, table.most_held,
            table.rank, table.room, table.loose, table.inner, table.low, table.high,
        )  # fmt: skip

    @property
    def enough(self) -> bool:
        """Whether there are enough devices, as far as loads are known."""
        return bool(self.fewest[:, -1].min() <= self.count[0])

    def stages(self, size: int) -> tuple[Ints, Ints] | None:
        """Return the device of each unit, by kind, and those in use by stage; None if not known.

        Parameters
        ----------
        size
            U.
        """
        table, first = self.table, np.append(0, np.cumsum(self.count))
        device, order = np.full(size, -1), list[int]()
        used, j, b = (
            int(self.fewest[:, -1].argmin()),
            int(table.begin[-1]) - 1,
            len(table.states) - 1,
        )
        inside, held = np.ones(size, np.bool_), table.states[b].member[0]
        while j:
            stage = self._last_stage(used, j, b)
            if stage is None:
                return None
            k, i, a = stage
            one = table.states[a]
            held = nested(one, i - int(table.begin[a]), held if a == b else None)
            before = np.zeros(size, np.bool_)
            for earlier in table.states[:a]:
                before[earlier.units] = True
            before[one.units[held]] = True
            own = inside & ~before
            if own.any():
                order.append(int(first[k]) + self._number(k, used, j) - 1)
                device[own] = order[-1]
            used -= int(self.radix[k])
            inside, j, b = before, i, a
        return device, np.array(order[::-1])

    def _number(self, k: int, used: int, j: int) -> int:
        """Return how many devices of a kind are used up to a state."""
        if k == 0:
            return int(self.fewest[used, j])
        return int(used // self.radix[k] % (self.count[k] + 1))

    def _last_stage(self, used: int, j: int, b: int) -> Stage | None:
        """Return a last stage of what comes up to a state of segment b, None if none is known."""
        for k in range(len(self.count)):
            if k and not self._number(k, used, j):
                continue
            good = self.fewest[used - self.radix[k]] + (k == 0) <= self.fewest[used, j]
            good &= self.table.held[j] - self.table.held <= self.table.room[k]
            for p in range(self.table.pairs.start[b], self.table.pairs.start[b + 1]):
                a = int(self.table.pairs.first[p])
                first, behind = self.table.begin[a : a + 2].tolist()
                found = np.flatnonzero(good[first:behind] & (self._load(p, k, j, b) <= self.limit))
                if len(found):
                    return Stage(k, first + int(found[0]), a)
            begin, inner = int(self.table.begin[b]), slice(*self.table.inner[k, b].tolist())
            low = self.table.low[inner][self.table.high[inner] == j - begin]
            work = (self.table.behind[k] - self.table.ahead[k]) / 2
            found = low[good[begin + low] & (work[j] - work[begin + low] <= self.limit)]
            if len(found):
                return Stage(k, begin + int(found[0]), b)
        return None

    def _load(self, p: int, k: int, j: int, b: int) -> Floats:
        """Return the loads of stages from a pair's first segment to a state of its later one."""
        table, pairs = self.table, self.table.pairs
        first, behind = table.begin[pairs.first[p] : pairs.first[p] + 2]
        load: Floats = table.ahead[k, first:behind] + table.behind[k, j]
        if pairs.own[p] < 0:
            load -= pairs.shared[p, k]
            return load
        size = table.begin[b + 1] - table.begin[b]
        own = pairs.each[k, pairs.own[p] : pairs.own[p] + (behind - first) * size]
        load -= own.reshape(-1, size)[:, j - table.begin[b]]
        return load


def nested(states: States, number: int, inside: Bools | None) -> Bools:
    """Return a state such that branches that are alike have changed places, within some units.

    Parameters
    ----------
    number
        Of the state.
    inside
        Shape (U,): of a larger state, branches changed; None for all units.
    """
    own: Bools = states.member[number]
    if inside is None or states.alone:
        return own
    found: Bools = np.zeros_like(own)
    at = 0
    for many, size in states.shape:
        part = slice(at, at + many * size)
        rows, room = own[part].reshape(many, size), inside[part].reshape(many, size)
        fits = ~(rows[:, None] & ~room[None]).any(axis=2)
        places = maximum_bipartite_matching(
            csr_array(np.asarray(fits, np.int8)), perm_type="column"
        )
        moved = np.zeros_like(rows)
        moved[places] = rows
        found[part] = moved.ravel()
        at = part.stop
    return found
