"""Schedules given by users: rows of forward and backward passes, checked for deadlock.

A row is a device, a cell an action such as ``2F0`` or nothing, as in the CSV of computations of
torch.distributed.pipelining. The stages 0, 1, …, P − 1 are a chain: a forward pass waits for that
of the stage before, a backward pass for that of the stage behind. So whether an order can be
executed does not depend on what the stages are.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple, NoReturn

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

#: Devices of a deadlock that are named at most.
NAMED = 3


class Cell(NamedTuple):
    """An action, and where it stands, counted from 1."""

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
    device: tuple[int, ...]  # for each stage the row that has it
    microbatches: int  # how many there are

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
        """Stages of the device that has most of them."""
        return max(map(self.device.count, self.device))


def parse_rows(lines: Iterable[str], name: str) -> list[list[Cell]]:
    """Read rows of cells, strictly; empty cells are left out.

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
    """Read the order that the user gives.

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
    """Return where each action stands."""
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
    """Return the row of each stage, and how many microbatches there are."""
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
    """Read an action, strictly: nothing may come before or after it.

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
    """Raise InputError if a schedule has too many actions; asked before they are made."""
    if microbatches < 1:
        raise InputError(f"microbatches: {quote(microbatches)}; at least 1 is needed")
    if 2 * stages * microbatches > MOST_ACTIONS:
        raise InputError(
            f"microbatches: {quote(microbatches)} in {stages} stages are more than "
            f"{MOST_ACTIONS} actions; take fewer"
        )
