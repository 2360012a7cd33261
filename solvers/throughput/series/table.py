"""Stage loads between the states of a series (`tree`), and the fewest devices within a limit."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import maximum_bipartite_matching

from ....instances.common.arrays import Bools, Floats, Ints
from ...core.search import Stoppable
from .kernel import fewest_devices, larger_states
from .tree import Net, States, opened


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


#: Pairs of states up to which each has what its stage shares, where nets make it differ.
DENSE = 100_000


#: Pairs of segments at most, some 20 microseconds each, and what all of their stages share.
MOST_PAIRS, MOST_EACH = 150_000, 40_000_000


#: Pairs of states of a segment at most between which there may be a stage.
MOST_INNER = 200_000


@dataclass(frozen=True, eq=False)
class Pairs:
    """Pairs of segments that a stage may begin and end in, P of them, by the later one.

    Parameters
    ----------
    start
        Shape (L + 2,): where those of each later segment begin.
    first
        Shape (P,): the earlier segment.
    shared
        Shape (P, K): what the loads of the stages are less than `ahead` and `behind`, at most.
    own
        Shape (P,): where in `each` what each stage shares begins, by its first and its last state;
        −1 where it is the same for all, or not known.
    each
        Shape (K, .): `-inf` where there is no such stage.
    """

    start: Ints
    first: Ints
    shared: Floats
    own: Ints
    each: Floats


@dataclass(frozen=True, eq=False)
class Table:
    """The states of L segments and of the end, N in all, and what stages cost, for K kinds.

    Parameters
    ----------
    states
        By segment.
    begin
        Shape (L + 2,): the first state of each segment.
    ahead, behind
        Shape (K, N).
    order, later
        Shape (K, N): the states of each segment, the least `ahead` and the most `behind` first.
    held, most_held
        Shape (N,): bytes of each state, and those of each segment, the most first.
    rank
        Shape (N,): how many states of its segment come before a state in `most_held`.
    room
        Shape (K,): bytes that a device has; `inf` where no stage can have more.
    loose
        Shape (L + 1,): segments within which it is not known what stages cost.
    inner
        Shape (K, L + 1, 2): where the pairs of states of a loose segment begin and end between
        which there may be a stage; −1 where they are too many, and any may be.
    low, high
        By number within the segment.
    pairs
        Of segments.
    """

    states: Sequence[States]
    begin: Ints
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
    pairs: Pairs


def table(
    states: Sequence[States],
    nets: Sequence[Net],
    time: Floats,
    bytes_and_room: tuple[Floats, Floats],
    longest: float,
    search: Stoppable,
    *,
    relayed: bool,
) -> Table | None:
    """Return what stages cost; None if there are too many pairs of segments, or no time.

    Parameters
    ----------
    time
        Shape (K, U).
    bytes_and_room
        Of each unit, shape (U,); and of each kind of device, shape (K,).
    longest
        Stages with more work on all kinds of devices are left out.
    relayed
        Whether nets cost at each boundary that cuts them.
    """
    begin = np.append(0, np.cumsum([one.size for one in states]))
    cut, work = _cut(states, nets, begin, len(time)), _work(states, time, begin)
    held = _work(states, bytes_and_room[0][None], begin)
    ahead, behind = cut - work, cut + work
    starts = work[:, begin[:-1]]
    ends = np.append(starts[:, 1:], starts[:, -1:], axis=1)
    last = [
        np.searchsorted(row, end + longest, "right") for row, end in zip(starts, ends, strict=True)
    ]
    reach = np.max(last, axis=0)
    if (reach - np.arange(len(states))).sum() > MOST_PAIRS:
        return None
    pairs = _pairs(states, [] if relayed else nets, reach, cut[:, begin[:-1]], search)
    if pairs is None:
        return None
    loose = np.array([one.size > 1 for one in states])
    loose[pairs.first[_later(pairs) == pairs.first]] = False
    most = (held[0, begin[np.minimum(reach, len(states) - 1)]] - held[0, begin[:-1]]).max()
    by_held = _sorted(-held, begin)[0]
    room = np.where(bytes_and_room[1] < most, bytes_and_room[1], np.inf)
    rank = np.empty(len(by_held), np.int64)
    rank[by_held] = np.arange(len(by_held)) - np.repeat(begin[:-1], np.diff(begin))
    return Table(
        states, begin, ahead, behind, _sorted(ahead, begin), _sorted(-behind, begin),
        held[0], held[0, by_held], rank, room, loose, *_inner(states, loose, time, longest), pairs,
    )  # fmt: skip


def _sorted(rows: Floats, begin: Ints) -> Ints:
    """Return the states of each segment by each row, shape (K, N)."""
    segment = np.repeat(np.arange(len(begin) - 1), np.diff(begin))
    return np.array([np.lexsort((row, segment)) for row in rows])


def _inner(
    states: Sequence[States], loose: Bools, time: Floats, longest: float
) -> tuple[Ints, Ints, Ints]:
    """Return the pairs of states of the same segment."""
    inner = np.zeros((len(time), len(states), 2), np.int64)
    listed, filled = [np.zeros((0, 2), np.int32)], 0
    found: dict[Hashable, tuple[int, int]] = {}  # segments are often the same
    for b in np.flatnonzero(loose).tolist():
        own = time[:, states[b].units]
        key = states[b].member.tobytes(), own.tobytes(), states[b].shape, states[b].larger
        for k in range(len(time)):
            if (k, key) not in found:
                begin, to = states[b].steps()
                rows = np.empty((MOST_INNER, 2), np.int32)
                many = larger_states(begin, to, states[b].member @ own[k], longest, rows)
                found[k, key] = (-1, -1) if many < 0 else (filled, filled + many)
                filled += max(many, 0)
                listed.append(rows[: max(many, 0)].copy())
            inner[k, b] = found[k, key]
    low, high = np.concatenate(listed).T.copy()
    return inner, low, high


def _later(pairs: Pairs) -> Ints:
    """Return the later segment of each pair, shape (P,)."""
    return np.repeat(np.arange(len(pairs.start) - 1), np.diff(pairs.start))


def _work(states: Sequence[States], time: Floats, begin: Ints) -> Floats:
    """Return the work of each state, shape (K, N)."""
    work, before = np.empty((len(time), begin[-1])), np.zeros(len(time))
    for a, one in enumerate(states):
        own = time[:, one.units]
        work[:, begin[a] : begin[a + 1]] = before[:, None] + own @ one.member.T
        before = before + own.sum(axis=1)
    return work


def _cut(states: Sequence[States], nets: Sequence[Net], begin: Ints, kinds: int) -> Floats:
    """Return the weight of the nets that each state cuts, shape (K, N)."""
    through = np.zeros((kinds, len(states) + 1))  # nets that have no pins in a segment
    cut = np.zeros((kinds, begin[-1]))
    for net in nets:
        through[:, net.segments[0] + 1] += net.weight
        through[:, net.segments[-1] + 1] -= net.weight
        for a in net.segments:
            held = net.held(a, states[a])
            split = (held > 0) & (held < net.pins)
            cut[:, begin[a] : begin[a + 1]] += net.weight[:, None] * split
            if a > net.segments[0]:
                through[:, a] -= net.weight
                through[:, a + 1] += net.weight
    passing = np.cumsum(through, axis=1)[:, :-1]
    return np.asarray(cut + np.repeat(passing, np.diff(begin), axis=1))


def _pairs(
    states: Sequence[States], nets: Sequence[Net], reach: Ints, cut: Floats, search: Stoppable
) -> Pairs | None:
    """Return the pairs of segments; None if the search must stop.

    Parameters
    ----------
    reach
        Shape (L + 1,): behind the last segment that a stage from each can end in.
    cut
        Shape (K, L + 1): by the first state of each segment.
    """
    rows: list[tuple[int, int, Floats, int]] = []
    each = [np.zeros((len(cut), 0))]
    filled = 0
    touching: list[list[Net]] = [[] for _ in states]
    for net in nets:
        for a in net.segments:
            touching[a].append(net)
    for a, spanning in enumerate(opened(nets, len(states))):
        if search.should_stop():
            return None
        for b in range(a, int(reach[a])):
            many = states[a].size * states[b].size
            listed = many <= DENSE and filled + many <= MOST_EACH
            if a < b:
                most, own = _shared(states, a, b, spanning, len(cut), listed=listed)
            elif many > 1 and listed and states[a].alone:
                own = _within(states[a], a, touching[a], spanning, len(cut))
                most = own.max(axis=1)
            else:
                continue
            rows.append((b, a, most, -1 if own is None else filled))
            if own is not None:
                each.append(own)
                filled += own.shape[1]
    rows.sort(key=lambda row: row[:2])
    return Pairs(
        np.searchsorted([row[0] for row in rows], np.arange(len(states) + 1)),
        np.array([row[1] for row in rows], np.int64),
        np.array([row[2] for row in rows]).reshape(len(rows), len(cut)),
        np.array([row[3] for row in rows], np.int64),
        np.concatenate(each, axis=1),
    )


def _shared(
    states: Sequence[States], a: int, b: int, spanning: Sequence[Net], kinds: int, *, listed: bool
) -> tuple[Floats, Floats | None]:
    """Return what the stages from a segment to a later one share at most, and what each does.

    The latter only if it differs, and is to be listed.
    """
    same, most = np.zeros(kinds), np.zeros(kinds)
    differ: list[Net] = []
    for net in spanning:
        if net.segments[-1] < b:
            break  # the others end before, too
        least = net.weight if net.between(a, b) else 2 * net.weight
        if a in net.segments or b in net.segments:
            differ.append(net)
            most += least
        else:
            same += least
    if not differ:
        return same, None
    if not listed:
        return same + most, None
    own = np.zeros((kinds, states[a].size, states[b].size)) + same[:, None, None]
    for net in differ:
        low, high = net.held(a, states[a])[:, None], net.held(b, states[b])[None, :]
        own += net.weight[:, None, None] * _times(low, high, net.pins)
    flat = own.reshape(kinds, -1)
    return flat.max(axis=1), flat


def _within(
    states: States, a: int, touching: Sequence[Net], spanning: Sequence[Net], kinds: int
) -> Floats:
    """Return what each stage between two states of a segment shares, shape (K, S²)."""
    own = np.zeros((kinds, states.size, states.size))
    for net in {id(net): net for net in (*touching, *spanning)}.values():
        held = net.held(a, states)
        own += net.weight[:, None, None] * _times(held[:, None], held[None, :], net.pins)
    inside = (states.member[:, None] <= states.member[None, :]).all(axis=2)
    inside &= ~np.eye(states.size, dtype=np.bool_)
    return np.where(inside, own, -np.inf).reshape(kinds, -1)


def _times(low: Ints, high: Ints, pins: int) -> Ints:
    """Return how many times a net is paid for too often, by the pins that both ends hold."""
    return np.where((low > 0) & (high < pins), np.where(high > low, 1, 2), 0)


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
