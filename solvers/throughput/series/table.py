"""What stages between the states of a series cost; see `states`."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np

from ....instances.common.arrays import Bools, Floats, Ints
from ...core.search import Stoppable
from .kernel import larger_states
from .nets import Net, opened
from .states import States

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
