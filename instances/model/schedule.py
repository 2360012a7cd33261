"""Schedules as rows of passes: the user's, checked for deadlock; interleaved; and V-shaped.

A row is a device, a cell an action such as ``2F0`` or nothing, as in the CSV of computations of
torch.distributed.pipelining. The stages 0, 1, …, P − 1 are a chain: a forward pass waits for that
of the stage before, a backward pass for that of the stage behind. So whether an order can be
executed does not depend on what the stages are.

*Interleaved* 1F1B: p ranks hold v chunks each, and take p microbatches of a chunk at a time. Rank r
starts its backward passes after 2 (p − r − 1) + (v − 1) p forward passes.

*Zero-bubble* schedules on stages in a V: ZB-V and DualPipeV.

The model's 2p stages go down the p pipeline ranks and up again: rank r has stages r and
2p − 1 − r, chunks 0 and 1, so that the first and the last stage share rank 0. F0 is a forward pass
of chunk 0; a backward pass is whole (B), or split into I, gradients of the input, and W, gradients
of the weights. Rank r's row, with n = max(M, 2p − 1) and without passes of microbatches from M on:

    ZB-V        (F0)^(2(p − r) − 1)  (F1 F0)^r  (F1 I1 W1)^(p − r)
                (F0 I0 W0 F1 I1 W1)^(n − 2p + 1 + r)  (I0 W0 F1 I1 W1)^(p − 1 − r)
                (I0 I1)^r  (I0 W0)^(p − r)  the W1, then the W0 left
    DualPipeV   (F0)^(2(p − r − 1))  (F0 F1)^(r + 1)  (I1 W F1)^(p − r − 1)
                (F0 B1 F1 B0)^(M − 2p + r + 1)  (B1 F1 B0)^(p − r − 1)  r + 1 of B1, B0, B1, …
                r + 1 of I1, I0, … going on  (W I0)^(p − r − 1)  W^(r + 1)

where W without a chunk is that of the oldest I whose W is left. These are the orders that
`torch.distributed.pipelining` runs; where it runs F and B side by side, F comes first here. So many
microbatches are in flight at once on rank r, of chunks 0 and 1:

    ZB-V        (2p − r, r) and (2p − r − 1, r + 1);  with M < 2p − r: M and min(M, r + 1)
    DualPipeV   (2p − r, r + 1), where M ≥ 2p is needed

References
----------
D. Narayanan et al., *Efficient Large-Scale Language Model Training on GPU Clusters Using
Megatron-LM*, SC 2021, section 2.2 (interleaved). P. Qi et al., *Pipeline Parallelism with
Controllable Memory*, NeurIPS 2024 (ZB-V). DeepSeek-AI, *DeepSeek-V3 Technical Report*, 2024
(DualPipe), of which DualPipeV is half.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache
from typing import NamedTuple, NoReturn

import numpy as np

from ..common.arrays import Ints
from ..common.errors import InputError, quote

#: Largest schedule: it and its simulation take some 100 bytes per action.
MOST_ACTIONS = 20_000_000


class Kind(IntEnum):
    """Kind of an action; names as in torch.distributed.pipelining."""

    F = 0  #: forward
    B = 1  #: whole backward
    I = 2  #: backward, gradients of inputs  # noqa: E741
    W = 3  #: backward, gradients of weights
    RECV_F = 4  #: bring a forward task's inputs in
    SEND_F = 5  #: take its outputs out
    RECV_B = 6
    SEND_B = 7
    REDUCE_GRAD = 8  #: all-reduce between the replicas of a stage
    STEP = 9  #: optimizer step


#: Kinds that belong to a batch or round, not to a microbatch.
PER_BATCH = (Kind.REDUCE_GRAD, Kind.STEP)

#: Kinds that move data.
TRANSFERS = (Kind.RECV_F, Kind.SEND_F, Kind.RECV_B, Kind.SEND_B)


class Action(NamedTuple):
    """One action; written ``2F0``: stage 2, forward, microbatch 0.

    What belongs to a batch has its number instead, and the first one none: ``2STEP``, ``2STEP1``.
    """

    stage: int
    kind: Kind
    microbatch: int = 0

    def __str__(self) -> str:
        """Return the text form, which `parse_action` reads."""
        number = str(self.microbatch or "") if self.kind in PER_BATCH else str(self.microbatch)
        return f"{self.stage}{self.kind.name}{number}"


_PATTERN = re.compile(r"([0-9]{1,9})([A-Z_]+?)([0-9]{0,9})")

#: Kinds of actions that a row may hold: transfers follow from the stages.
COMPUTES = (Kind.F, Kind.B, Kind.I, Kind.W)

#: Most devices of a deadlock that an error names.
NAMED = 3


class Cell(NamedTuple):
    """An action with its row and column, counted from 1."""

    row: int
    column: int
    action: Action

    @property
    def place(self) -> str:
        """Row and column of the cell, as text."""
        return f"row {self.row}, column {self.column}"


@dataclass(frozen=True)
class GivenOrder:
    """Order of actions on each device of a stage chain: complete, free of deadlock."""

    rows: tuple[tuple[Action, ...], ...]  # the actions of each device
    device: tuple[int, ...]  # row of each stage
    microbatches: int  # number of microbatches

    @property
    def texts(self) -> tuple[str, ...]:
        """The rows as CSV, without idle cells."""
        return tuple(",".join(map(str, row)) for row in self.rows)

    @property
    def trains(self) -> bool:
        """Whether the order has backward passes."""
        return any(action.kind != Kind.F for row in self.rows for action in row)

    @property
    def most_stages(self) -> int:
        """Largest number of stages on a device."""
        return max(map(self.device.count, self.device))


def parse_rows(lines: Iterable[str], name: str) -> list[list[Cell]]:
    """Return the cells of lines of CSV; empty cells are left out.

    InputError, with name, row and column, if a cell is not an action.
    """
    rows: list[list[Cell]] = []
    for number, line in enumerate(lines, 1):
        row = []
        for column, cell in enumerate(line.split(","), 1):
            if not cell.strip():
                continue
            try:
                row.append(Cell(number, column, parse_action(cell.strip())))
            except InputError as error:
                raise InputError(f"{name}: row {number}, column {column}: {error}") from None
        rows.append(row)
    return rows


def given_order(lines: Sequence[str], name: str) -> GivenOrder:
    """Return the order that lines of CSV give, a line per device.

    InputError if a cell is no pass, a pass is missing, given twice, or on another device than its
    stage, a backward pass comes before its forward pass, or the devices wait for each other for
    ever. O(actions + devices · waits).

    Examples
    --------
    >>> given_order(["0F0,0F1,,0B0,0B1", ",1F0,1F1,1B0,1B1"], "my.csv").device
    (0, 1)
    """

    def fail(message: str) -> NoReturn:
        raise InputError(f"{name}: {message}")

    rows = parse_rows(lines, name)
    if not any(rows):
        fail("no actions; give a row of cells such as 0F0,0B0 per device")
    for number, row in enumerate(rows, 1):
        if not row:
            fail(f"row {number}: no actions; a row is what a device does: leave it out")
    try:
        place = _places(rows)
        device, microbatches = _sizes(rows)
        _check_complete(place, device, microbatches)
        _check_waits(rows, place, len(device))
    except InputError as error:
        fail(str(error))
    actions = tuple(tuple(cell.action for cell in row) for row in rows)
    return GivenOrder(actions, device, microbatches)


def _places(rows: Sequence[Sequence[Cell]]) -> dict[Action, Cell]:
    """Return the cell of each action; InputError if an action is no pass, or occurs twice."""
    found: dict[Action, Cell] = {}
    for cell in (cell for row in rows for cell in row):
        if cell.action.kind not in COMPUTES:
            raise InputError(
                f"{cell.place}: {cell.action} is no pass; rows have F, B, I and W, and transfers "
                "follow from the stages"
            )
        if cell.action in found:
            first = found[cell.action]
            raise InputError(f"{cell.place}: {cell.action} is in {first.place} already")
        found[cell.action] = cell
    return found


def _sizes(rows: Sequence[Sequence[Cell]]) -> tuple[tuple[int, ...], int]:
    """Return the row of each stage, and the number of microbatches."""
    first: dict[int, Cell] = {}
    numbers = set()
    for cell in (cell for row in rows for cell in row):
        known = first.setdefault(cell.action.stage, cell)
        if known.row != cell.row:
            raise InputError(
                f"{cell.place}: {cell.action} is on another device than {known.action} "
                f"({known.place}); a stage is on one device"
            )
        numbers.add(cell.action.microbatch)
    for what, seen in (("stage", first.keys()), ("microbatch", numbers)):
        last = max(seen)
        if len(seen) <= last:
            lacking = next(n for n in range(len(seen) + 1) if n not in seen)
            raise InputError(f"no {what} {lacking}, but a {what} {last}; number them from 0 on")
    check_size(len(first), len(numbers))
    return tuple(first[s].row - 1 for s in range(len(first))), len(numbers)


def _check_complete(place: dict[Action, Cell], device: Sequence[int], microbatches: int) -> None:
    trains = any(action.kind != Kind.F for action in place)
    for s, row in enumerate(device):
        for j in range(microbatches):
            whole, split = Action(s, Kind.B, j), (Action(s, Kind.I, j), Action(s, Kind.W, j))
            halves = [action for action in split if action in place]
            if whole in place and halves:
                raise InputError(
                    f"{place[halves[0]].place}: {halves[0]}, and also {whole} "
                    f"({place[whole].place}); use one form"
                )
            needed = [Action(s, Kind.F, j), *(split if halves else (whole,) if trains else ())]
            for action in needed:
                if action not in place:
                    raise InputError(f"{action} is missing; it belongs in row {row + 1}")


def _before(action: Action, place: dict[Action, Cell], stages: int) -> list[Action]:
    """Return the actions that must precede an action."""
    s, kind, j = action
    if kind == Kind.F:
        return [Action(s - 1, Kind.F, j)] if s else []
    if kind == Kind.W:
        return [Action(s, Kind.I, j)]
    own = Action(s, Kind.F, j)
    if s == stages - 1:
        return [own]
    whole = Action(s + 1, Kind.B, j)
    return [own, whole if whole in place else Action(s + 1, Kind.I, j)]


def _check_waits(rows: Sequence[Sequence[Cell]], place: dict[Action, Cell], stages: int) -> None:
    """Raise InputError unless the rows can be executed to their end."""
    for cell in place.values():
        for action in _before(cell.action, place, stages):
            needed = place[action]
            if needed.row == cell.row and needed.column > cell.column:
                raise InputError(
                    f"{cell.place}: {cell.action} comes before {action} (column {needed.column}), "
                    "which it waits for"
                )
    done: set[Action] = set()
    at = [0] * len(rows)
    moved = True
    while moved:
        moved = False
        for d, row in enumerate(rows):
            while at[d] < len(row) and done.issuperset(_before(row[at[d]].action, place, stages)):
                done.add(row[at[d]].action)
                at[d] += 1
                moved = True
    stuck = [row[i] for row, i in zip(rows, at, strict=True) if i < len(row)]
    if stuck:
        waits = [" waits for ".join(_words(cell, place, done, stages)) for cell in stuck[:NAMED]]
        raise InputError(f"deadlock: {'; '.join(waits)}{'; …' if len(stuck) > NAMED else ''}")


def _words(cell: Cell, place: dict[Action, Cell], done: set[Action], stages: int) -> Iterator[str]:
    """Yield a cell that cannot run and its missing predecessor, as text."""
    yield f"{cell.place}: {cell.action}"
    for action in _before(cell.action, place, stages):
        if action not in done:
            yield f"{action} ({place[action].place})"
            return


def parse_action(text: str) -> Action:
    """Return the action that a whole text names.

    InputError if `text` is not an action.

    Examples
    --------
    >>> parse_action("2F0")
    Action(stage=2, kind=<Kind.F: 0>, microbatch=0)
    """
    found = _PATTERN.fullmatch(text)
    if found is not None and found[2] in Kind.__members__:
        kind = Kind[found[2]]
        if not found[3].startswith("0") if kind in PER_BATCH else found[3]:
            return Action(int(found[1]), kind, int(found[3] or 0))
    known = "2F0, 2B0, 2I0, 2W0, 2RECV_F0 or 2STEP"
    raise InputError(f"{quote(text)} is not an action such as {known}")


def check_size(stages: int, microbatches: int) -> None:
    """Raise InputError if a schedule would have too many actions."""
    if microbatches < 1:
        raise InputError(f"microbatches: {quote(microbatches)}; at least 1 is needed")
    if 2 * stages * microbatches > MOST_ACTIONS:
        raise InputError(
            f"microbatches: {quote(microbatches)} in {stages} stages are more than "
            f"{MOST_ACTIONS} actions; take fewer"
        )


#: Chunks of a rank under these schedules.
V_CHUNKS = 2
_F, _B, _I, _W = (int(kind) for kind in (Kind.F, Kind.B, Kind.I, Kind.W))
#: The W of the oldest I that has none, of either chunk.
_OLDEST = -1

#: Chunk and kind of a pass.
_Pass = tuple[int, int]


def interleaved_rows(ranks: int, chunks: int, microbatches: int) -> tuple[Ints, ...]:
    """Return every rank's passes in order, shape (actions, 3): stage, kind and microbatch."""
    total = chunks * microbatches
    n = np.arange(total)
    chunk = n // ranks % chunks
    which = n // (ranks * chunks) * ranks + n % ranks
    rows = []
    for rank in range(ranks):
        ahead = min(2 * (ranks - rank - 1) + (chunks - 1) * ranks, total)
        forward = np.stack((chunk * ranks + rank, np.full(total, _F), which), axis=1)
        back = (chunks - 1 - chunk) * ranks + rank
        backward = np.stack((back, np.full(total, _B), which), axis=1)
        order = np.argsort(np.concatenate((2 * n, 2 * (n + ahead) + 1)), kind="stable")
        rows.append(np.concatenate((forward, backward))[order])
    return tuple(rows)


@lru_cache(maxsize=4096)
def interleaved_in_flight(
    ranks: int, chunks: int, rank: int, microbatches: int
) -> tuple[tuple[int, ...], ...]:
    """Return the microbatches of each chunk in flight on a rank at its fullest moments.

    After the warm-up, equally many passes are in flight behind every forward pass, but of changing
    chunks. While neither forward nor backward passes go on to another chunk, the memory changes by
    the same amount from one to the next, so that the ends of such spans suffice.
    """
    total, period = chunks * microbatches, chunks * ranks
    ahead = min(2 * (ranks - rank - 1) + (chunks - 1) * ranks, total - 1)
    n = np.arange(ahead, min(ahead + period, total))
    n = n[((n + 1) % ranks == 0) | ((n - ahead) % ranks == 0)]

    def by_chunk(passes: Ints) -> Ints:
        rounds, left = np.divmod(passes[:, None], period)
        return rounds * ranks + np.clip(left - ranks * np.arange(chunks), 0, ranks)

    held = by_chunk(n + 1) - by_chunk(n - ahead)[:, ::-1]
    return tuple(dict.fromkeys(map(tuple, held.tolist())))


def v_rows(schedule: str, ranks: int, microbatches: int) -> tuple[Ints, ...]:
    """Return every rank's passes as `interleaved_rows` does, of ``zb-v`` or ``dualpipe-v``."""
    check_size(V_CHUNKS * ranks, microbatches)
    blocks = _zero_bubble_v if schedule == "zb-v" else _dual_pipe_v
    return tuple(
        _numbered(blocks(ranks, rank, microbatches), ranks, rank, microbatches)
        for rank in range(ranks)
    )


def v_in_flight(schedule: str, ranks: int, rank: int, microbatches: int) -> list[tuple[int, int]]:
    """Return the microbatches of chunks 0 and 1 in flight on a rank at its fullest moments.

    `schedule` is ``zb-v`` or ``dualpipe-v``; of two moments either may take more bytes.
    """
    down, up = 2 * ranks - rank, rank + 1
    if microbatches < down:
        return [(microbatches, min(microbatches, up))]
    return [(down, up)] if schedule == "dualpipe-v" else [(down, up - 1), (down - 1, up)]


def _zero_bubble_v(p: int, r: int, m: int) -> list[tuple[list[_Pass], int]]:
    forward, backward = [(0, _F)], [(1, _F), (1, _I), (1, _W)]
    whole = [(0, _I), (0, _W), *backward]
    n = max(m, 2 * p - 1)
    return [
        (forward, 2 * (p - r) - 1),
        ([(1, _F), (0, _F)], r),
        (backward, p - r),
        (forward + whole, n - 2 * p + 1 + r),
        (whole, p - 1 - r),
        ([(0, _I), (1, _I)], r),
        ([(0, _I), (0, _W)], p - r),
        ([(1, _W)], r),
        ([(0, _W)], r),
    ]


def _dual_pipe_v(p: int, r: int, m: int) -> list[tuple[list[_Pass], int]]:
    oldest = (_OLDEST, _W)
    last = [(1 - k % 2, _B if k <= r else _I) for k in range(2 * (r + 1))]
    return [
        ([(0, _F)], 2 * (p - r - 1)),
        ([(0, _F), (1, _F)], r + 1),
        ([(1, _I), oldest, (1, _F)], p - r - 1),
        ([(0, _F), (1, _B), (1, _F), (0, _B)], m - 2 * p + r + 1),
        ([(1, _B), (1, _F), (0, _B)], p - r - 1),
        (last, 1),
        ([oldest, (0, _I)], p - r - 1),
        ([oldest], r + 1),
    ]


def _numbered(blocks: list[tuple[list[_Pass], int]], p: int, rank: int, microbatches: int) -> Ints:
    """Return a row of repeated blocks of passes, each kind in the order of microbatches."""
    parts = [np.tile(np.array(passes).reshape(-1, 2), (times, 1)) for passes, times in blocks]
    chunk, kind = np.concatenate(parts).T
    which = np.zeros(len(chunk), np.int64)
    for c in range(V_CHUNKS):
        for kinds in ([_F], [_B, _I], [_W]):
            own = (chunk == c) & np.isin(kind, kinds)
            which[own] = np.arange(own.sum())
    late, split = chunk == _OLDEST, kind == _I
    if late.any():
        chunk[late], which[late] = chunk[split], which[split]
    stage = np.where(chunk == 0, rank, 2 * p - 1 - rank)
    return np.stack((stage, kind, which), axis=1)[which < microbatches]
