"""Schedules as data: per device a list of actions such as ``2F0`` or ``2B0``."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...instances import InputError
from ...instances.common.arrays import frozen
from ...instances.common.choices import Choice, choose

ActionTable = NDArray[np.int32]


class WeightVersions(Choice):
    """Weight versions that a stage keeps: one, two (2BW), or one per microbatch in flight.

    Examples
    --------
    >>> import stagecut
    >>> stages = stagecut.chain([1.0, 1.0], [2.0, 2.0])
    >>> stagecut.make_schedule("2bw", stages, 4).versions is WeightVersions.TWO
    True
    """

    ONE = "one"
    TWO = "two"
    IN_FLIGHT = "in flight"


class Kind(IntEnum):
    """What a device does; the names are those of torch.distributed.pipelining."""

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


def parse_action(text: str) -> Action:
    """Read an action, strictly: nothing may come before or after it.

    Raises
    ------
    InputError
        If `text` is not an action.

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
    raise InputError(f"{text!r} is not an action such as 2F0, 2B0, 2I0, 2W0, 2RECV_F0 or 2STEP")


@dataclass(frozen=True, eq=False)
class Schedule:
    """The order of actions on each device.

    Parameters
    ----------
    name
        Such as ``1f1b``.
    microbatches
        How many there are.
    actions
        Per device, shape (n, 3): stage, kind and microbatch of each action, in order.
    versions
        How many versions of its weights a stage keeps.
    engines
        Per device, the order of its copy engine where transfers run beside compute; empty for
        first come, first served.
    depth
        About so many microbatches pass until the order repeats itself; None if unknown.
    repeat
        From then on, it repeats itself every so many microbatches.
    cyclic
        And so exactly that each action comes back after each repeat, until the end.

    Raises
    ------
    InputError
        If there is no microbatch, or `versions` is no choice.

    Examples
    --------
    >>> import stagecut
    >>> schedule = stagecut.make_schedule("gpipe", stagecut.chain([1.0], [2.0]), 2)
    >>> [str(action) for action in schedule.of(0)]
    ['0F0', '0F1', '0B0', '0B1']
    """

    name: str
    microbatches: int
    actions: tuple[ActionTable, ...]
    versions: WeightVersions | str = WeightVersions.ONE
    depth: int | None = None
    repeat: int = 1
    cyclic: bool = False
    engines: tuple[ActionTable, ...] = ()

    def __post_init__(self) -> None:
        if self.microbatches < 1:
            raise InputError(f"microbatches: {self.microbatches}; at least 1 is needed")
        choose(self, versions=WeightVersions)
        for name in ("actions", "engines"):
            tables = (frozen(table, np.int32).reshape(-1, 3) for table in getattr(self, name))
            object.__setattr__(self, name, tuple(tables))

    def of(self, device: int) -> list[Action]:
        """Return the actions of a device."""
        return [Action(s, Kind(k), j) for s, k, j in self.actions[device].tolist()]

    @property
    def size(self) -> int:
        """Number of actions."""
        return sum(len(table) for table in self.actions)


def schedule_of(
    rows: Iterable[Sequence[Action]], *, name: str = "given", microbatches: int | None = None
) -> Schedule:
    """Return the schedule whose device d does the actions of row d."""
    lists = [list(row) for row in rows]
    most = max((a.microbatch + 1 for row in lists for a in row), default=1)
    tables = tuple(np.array(row, dtype=np.int32).reshape(-1, 3) for row in lists)
    return Schedule(name, microbatches or most, tables)
