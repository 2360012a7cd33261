"""Stage loads between the states of a series (`tree`), and the fewest devices within a limit."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import maximum_bipartite_matching

from ....instances.common.arrays import Bools, Floats, Ints
from ...core.search import Clock
from .kernel import fewest_devices, larger_states
from .tree import SegmentStates, SeriesNet, opened

#: State pairs of two segments up to which each has its own shared load, where nets make it differ.
DENSE = 100_000

#: Segment pairs at most, some 20 microseconds each, and shared loads of all state pairs at most.
MOST_PAIRS, MOST_EACH = 150_000, 40_000_000

#: State pairs listed of one segment at most.
MOST_INNER = 200_000


class StateLoads(NamedTuple):
    """Parts of stage loads that depend on one state alone; N states of L segments, K kinds.

    Parameters
    ----------
    begin
        Shape (L + 2,): the first state of each segment.
    start, end
        Shape (K, N): load of a stage that starts after a state, less its work so far; load of a
        stage that ends at it.
    by_start, by_end
        Shape (K, N): the states of each segment by increasing `start`, by decreasing `end`.
    memory, memory_sorted
        Shape (N,): bytes of each state, and those of each segment, the most first.
    memory_rank
        Shape (N,): place of a state of its segment in `memory_sorted`.
    """

    begin: Ints
    start: Floats
    end: Floats
    by_start: Ints
    by_end: Ints
    memory: Floats
    memory_sorted: Floats
    memory_rank: Ints


class SegmentPairs(NamedTuple):
    """Pairs of segments that a stage may start and end in, P of them, by the later one.

    Parameters
    ----------
    ptr
        Shape (L + 2,): where those of each later segment begin.
    first
        Shape (P,): the earlier segment.
    shared
        Shape (P, K): most load counted twice in `start` + `end`, over the stages of a pair.
    own
        Shape (P,): where in `each` the loads of a pair's stages begin, by first and last state; −1
        where all stages share as much, or it is only bounded.
    each
        Shape (K, .): load counted twice of each stage; `-inf` where there is no such stage.
    """

    ptr: Ints
    first: Ints
    shared: Floats
    own: Ints
    each: Floats


class InnerPairs(NamedTuple):
    """Pairs of states between which a stage within one segment may run.

    Parameters
    ----------
    bounded
        Shape (L + 1,): segments within which loads are bounded by the work alone.
    ranges
        Shape (K, L + 1, 2): where the pairs of a bounded segment begin and end; −1 where they are
        too many to list, and any may be.
    low, high
        The states of each pair, by number within the segment.
    """

    bounded: Bools
    ranges: Ints
    low: Ints
    high: Ints


class StageLoads(NamedTuple):
    """Loads of all stages between states, and the memory of devices, as the kernels read them.

    `room`, shape (K,), is the memory of a device in bytes; `inf` where no stage can have more.
    """

    states: StateLoads
    pairs: SegmentPairs
    inner: InnerPairs
    room: Floats


@dataclass(frozen=True, eq=False)
class SeriesTable:
    """The states of all segments and of the end of the series, with the loads of stages."""

    states: Sequence[SegmentStates]
    loads: StageLoads

    @property
    def size(self) -> int:
        """Number of states, N."""
        return int(self.loads.states.begin[-1])


class DeviceSets(NamedTuple):
    """Devices of each kind, and the numbers of the sets of them: Σ radix · used; radix[0] is 0."""

    number: Ints
    radix: Ints


def table(
    states: Sequence[SegmentStates],
    nets: Sequence[SeriesNet],
    time: Floats,
    memory: tuple[Floats, Floats],
    longest: float,
    search: Clock,
    *,
    relayed: bool,
) -> SeriesTable | None:
    """Return the loads of stages; None if there are too many pairs of segments, or no time.

    Parameters
    ----------
    time
        Shape (K, U).
    memory
        Bytes of each unit, shape (U,), and of a device of each kind, shape (K,).
    longest
        Stages with more work on all kinds of devices are left out.
    relayed
        Whether nets cost at each boundary that cuts them.
    """
    begin = np.append(0, np.cumsum([one.size for one in states]))
    cut, work = _cut(states, nets, begin, len(time)), _work(states, time, begin)
    held = _work(states, memory[0][None], begin)
    start, end = cut - work, cut + work
    first = work[:, begin[:-1]]
    after = np.append(first[:, 1:], first[:, -1:], axis=1)
    last = [
        np.searchsorted(row, to + longest, "right") for row, to in zip(first, after, strict=True)
    ]
    reach = np.max(last, axis=0)
    if (reach - np.arange(len(states))).sum() > MOST_PAIRS:
        return None
    pairs = _pairs(states, [] if relayed else nets, reach, cut[:, begin[:-1]], search)
    if pairs is None:
        return None
    bounded = np.array([one.size > 1 for one in states])
    bounded[pairs.first[_later(pairs) == pairs.first]] = False
    most = (held[0, begin[np.minimum(reach, len(states) - 1)]] - held[0, begin[:-1]]).max()
    by_held = _sorted(-held, begin)[0]
    room = np.where(memory[1] < most, memory[1], np.inf)
    rank = np.empty(len(by_held), np.int64)
    rank[by_held] = np.arange(len(by_held)) - np.repeat(begin[:-1], np.diff(begin))
    by_state = StateLoads(
        begin=begin,
        start=start,
        end=end,
        by_start=_sorted(start, begin),
        by_end=_sorted(-end, begin),
        memory=held[0],
        memory_sorted=held[0, by_held],
        memory_rank=rank,
    )
    inner = _inner_pairs(states, bounded, time, longest)
    return SeriesTable(states, StageLoads(by_state, pairs, inner, room))


def _sorted(rows: Floats, begin: Ints) -> Ints:
    """Return the states of each segment by each row, shape (K, N)."""
    segment = np.repeat(np.arange(len(begin) - 1), np.diff(begin))
    return np.array([np.lexsort((row, segment)) for row in rows])


def _inner_pairs(
    states: Sequence[SegmentStates], bounded: Bools, time: Floats, longest: float
) -> InnerPairs:
    """Return the pairs of nested states of each bounded segment whose work is within `longest`."""
    ranges = np.zeros((len(time), len(states), 2), np.int64)
    listed, filled = [np.zeros((0, 2), np.int32)], 0
    found: dict[Hashable, tuple[int, int]] = {}  # segments often repeat
    for b in np.flatnonzero(bounded).tolist():
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
            ranges[k, b] = found[k, key]
    low, high = np.concatenate(listed).T.copy()
    return InnerPairs(bounded, ranges, low, high)


def _later(pairs: SegmentPairs) -> Ints:
    """Return the later segment of each pair, shape (P,)."""
    return np.repeat(np.arange(len(pairs.ptr) - 1), np.diff(pairs.ptr))


def _work(states: Sequence[SegmentStates], time: Floats, begin: Ints) -> Floats:
    """Return the work of each state, shape (K, N)."""
    work, before = np.empty((len(time), begin[-1])), np.zeros(len(time))
    for a, one in enumerate(states):
        own = time[:, one.units]
        work[:, begin[a] : begin[a + 1]] = before[:, None] + own @ one.member.T
        before = before + own.sum(axis=1)
    return work


def _cut(
    states: Sequence[SegmentStates], nets: Sequence[SeriesNet], begin: Ints, kinds: int
) -> Floats:
    """Return the weight of the nets that each state cuts, shape (K, N)."""
    through = np.zeros((kinds, len(states) + 1))  # nets that have no pins in a segment
    cut = np.zeros((kinds, begin[-1]))
    for net in nets:
        through[:, net.segments[0] + 1] += net.weight
        through[:, net.segments[-1] + 1] -= net.weight
        for a in net.segments:
            held = net.pins_held(a, states[a])
            split = (held > 0) & (held < net.pins)
            cut[:, begin[a] : begin[a + 1]] += net.weight[:, None] * split
            if a > net.segments[0]:
                through[:, a] -= net.weight
                through[:, a + 1] += net.weight
    passing = np.cumsum(through, axis=1)[:, :-1]
    return np.asarray(cut + np.repeat(passing, np.diff(begin), axis=1))


def _pairs(
    states: Sequence[SegmentStates],
    nets: Sequence[SeriesNet],
    reach: Ints,
    cut: Floats,
    search: Clock,
) -> SegmentPairs | None:
    """Return the pairs of segments; None if the search must stop.

    Parameters
    ----------
    reach
        Shape (L + 1,): one past the last segment that a stage from each can end in.
    cut
        Shape (K, L + 1): by the first state of each segment.
    """
    rows: list[tuple[int, int, Floats, int]] = []
    each = [np.zeros((len(cut), 0))]
    filled = 0
    touching: list[list[SeriesNet]] = [[] for _ in states]
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
            elif many > 1 and listed and states[a].distinct:
                own = _within(states[a], a, touching[a], spanning, len(cut))
                most = own.max(axis=1)
            else:
                continue
            rows.append((b, a, most, -1 if own is None else filled))
            if own is not None:
                each.append(own)
                filled += own.shape[1]
    rows.sort(key=lambda row: row[:2])
    return SegmentPairs(
        np.searchsorted([row[0] for row in rows], np.arange(len(states) + 1)),
        np.array([row[1] for row in rows], np.int64),
        np.array([row[2] for row in rows]).reshape(len(rows), len(cut)),
        np.array([row[3] for row in rows], np.int64),
        np.concatenate(each, axis=1),
    )


def _shared(
    states: Sequence[SegmentStates],
    a: int,
    b: int,
    spanning: Sequence[SeriesNet],
    kinds: int,
    *,
    listed: bool,
) -> tuple[Floats, Floats | None]:
    """Return the most load counted twice over stages from segment a to b, and that of each stage.

    The latter is None unless it differs among stages and is `listed`.
    """
    same, most = np.zeros(kinds), np.zeros(kinds)
    differ: list[SeriesNet] = []
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
        low, high = net.pins_held(a, states[a])[:, None], net.pins_held(b, states[b])[None, :]
        own += net.weight[:, None, None] * _times_double(low, high, net.pins)
    flat = own.reshape(kinds, -1)
    return flat.max(axis=1), flat


def _within(
    states: SegmentStates,
    a: int,
    touching: Sequence[SeriesNet],
    spanning: Sequence[SeriesNet],
    kinds: int,
) -> Floats:
    """Return the load counted twice of each stage within a segment, shape (K, S²)."""
    own = np.zeros((kinds, states.size, states.size))
    for net in {id(net): net for net in (*touching, *spanning)}.values():
        held = net.pins_held(a, states)
        own += net.weight[:, None, None] * _times_double(held[:, None], held[None, :], net.pins)
    inside = (states.member[:, None] <= states.member[None, :]).all(axis=2)
    inside &= ~np.eye(states.size, dtype=np.bool_)
    return np.where(inside, own, -np.inf).reshape(kinds, -1)


def _times_double(low: Ints, high: Ints, pins: int) -> Ints:
    """Return how often a net is counted beyond once, by the pins in both of a stage's ends."""
    return np.where((low > 0) & (high < pins), np.where(high > low, 1, 2), 0)


class ChainStage(NamedTuple):
    """A stage: its kind of device, the state before it, and that state's segment."""

    kind: int
    state: int
    segment: int


class FewestDevices:
    """Fewest devices of kind 0 that stages up to each state need within a load limit (`series_dp`).

    Parameters
    ----------
    table
        The states and stage loads, by kind.
    count
        Shape (K,): devices of each kind.
    limit
        Of loads.
    """

    def __init__(self, table: SeriesTable, count: Ints, limit: float) -> None:
        radix = np.append(0, np.cumprod(np.append(1, count[1:] + 1))[:-1])[: len(count)]
        self._table, self._devices, self._limit = table, DeviceSets(count, radix), limit
        shape = int(np.prod(count[1:] + 1)), table.size
        self._fewest = np.full(shape, int(count[0]) + 1)
        self._fewest[0, 0] = 0
        least = np.empty((shape[0], len(count), shape[1]), np.int64)
        widest = int(np.diff(table.loads.states.begin).max())
        tree = np.empty((shape[0], widest + 1), np.int64)
        fewest_devices(limit, table.loads, self._devices, self._fewest, least, tree)

    @property
    def feasible(self) -> bool:
        """Whether there are enough devices, by the lower bounds on the loads."""
        return bool(self._fewest[:, -1].min() <= self._devices.number[0])

    def plan(self, size: int) -> tuple[Ints, Ints] | None:
        """Return the device of each of `size` units, by kind, and those in use by stage.

        None where loads are only bounded, and no chain of stages is within the limit.
        """
        table, begin = self._table, self._table.loads.states.begin
        first = np.append(0, np.cumsum(self._devices.number))
        device, order = np.full(size, -1), list[int]()
        used = int(self._fewest[:, -1].argmin())
        j, b = table.size - 1, len(table.states) - 1
        inside, held = np.ones(size, np.bool_), table.states[b].member[0]
        while j:
            stage = self._last_stage(used, j, b)
            if stage is None:
                return None
            k, i, a = stage
            segment = table.states[a]
            held = nested(segment, i - int(begin[a]), held if a == b else None)
            before = np.zeros(size, np.bool_)
            for earlier in table.states[:a]:
                before[earlier.units] = True
            before[segment.units[held]] = True
            own = inside & ~before
            if own.any():
                order.append(int(first[k]) + self._used_of(k, used, j) - 1)
                device[own] = order[-1]
            used -= int(self._devices.radix[k])
            inside, j, b = before, i, a
        return device, np.array(order[::-1])

    def _used_of(self, k: int, used: int, j: int) -> int:
        """Return how many devices of a kind are used up to a state."""
        if k == 0:
            return int(self._fewest[used, j])
        return int(used // self._devices.radix[k] % (self._devices.number[k] + 1))

    def _last_stage(self, used: int, j: int, b: int) -> ChainStage | None:
        """Return a last stage up to state j of segment b; None if none is within the limit."""
        states, pairs, inner, room = self._table.loads
        for k in range(len(self._devices.number)):
            if k and not self._used_of(k, used, j):
                continue
            before = self._fewest[used - self._devices.radix[k]]
            fits = before + (k == 0) <= self._fewest[used, j]
            fits &= states.memory[j] - states.memory <= room[k]
            for p in range(pairs.ptr[b], pairs.ptr[b + 1]):
                a = int(pairs.first[p])
                first, after = states.begin[a : a + 2].tolist()
                found = np.flatnonzero(fits[first:after] & (self._load(p, k, j, b) <= self._limit))
                if len(found):
                    return ChainStage(k, first + int(found[0]), a)
            begin, listed = int(states.begin[b]), slice(*inner.ranges[k, b].tolist())
            low = inner.low[listed][inner.high[listed] == j - begin]
            work = (states.end[k] - states.start[k]) / 2
            found = low[fits[begin + low] & (work[j] - work[begin + low] <= self._limit)]
            if len(found):
                return ChainStage(k, begin + int(found[0]), b)
        return None

    def _load(self, p: int, k: int, j: int, b: int) -> Floats:
        """Return the loads of stages from a pair's first segment to a state of its later one."""
        states, pairs = self._table.loads.states, self._table.loads.pairs
        first, after = states.begin[pairs.first[p] : pairs.first[p] + 2]
        load: Floats = states.start[k, first:after] + states.end[k, j]
        if pairs.own[p] < 0:
            load -= pairs.shared[p, k]
            return load
        size = states.begin[b + 1] - states.begin[b]
        own = pairs.each[k, pairs.own[p] : pairs.own[p] + (after - first) * size]
        load -= own.reshape(-1, size)[:, j - states.begin[b]]
        return load


def nested(states: SegmentStates, number: int, inside: Bools | None) -> Bools:
    """Return a state within some units, by exchanging branches of one symmetry class.

    Parameters
    ----------
    number
        Of the state.
    inside
        Shape (U,): units of a larger state, its branches exchanged; None for all units.
    """
    own: Bools = states.member[number]
    if inside is None or states.distinct:
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
