"""Schedules as data: for each device a list of actions such as ``2F0`` or ``2B0``.

As CSV, a schedule has a row per device and a cell per action; an empty cell is an idle step.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...instances import InputError
from ...instances.common.arrays import frozen
from ...instances.common.choices import Choice, choose
from ...instances.model.schedule import PER_BATCH, TRANSFERS, Action, Kind, parse_action, parse_rows

__all__ = [
    "PER_BATCH",
    "TRANSFERS",
    "Action",
    "ActionTable",
    "Kind",
    "Schedule",
    "WeightVersions",
    "parse_action",
    "schedule_of",
]

ActionTable = NDArray[np.int32]


class WeightVersions(Choice):
    """Weight versions that a stage keeps: one, two (2BW), or one per microbatch in flight.

    Examples
    --------
    >>> import stagecut
    >>> stages = stagecut.runtime.simulate.chain([1.0, 1.0], [2.0, 2.0])
    >>> stagecut.make_schedule("2bw", stages, 4).versions is WeightVersions.TWO
    True
    """

    ONE = "one"
    TWO = "two"
    IN_FLIGHT = "in flight"


@dataclass(frozen=True, eq=False)
class Schedule:
    """The order of actions on each device.

    Parameters
    ----------
    name
        Name, such as ``1f1b``.
    microbatches
        Number of microbatches.
    actions
        For each device, shape (n, 3): stage, kind and microbatch of each action, in order.
    versions
        Versions of its weights that a stage keeps.
    engines
        For each device, the order of its copy engine if transfers overlap with compute; empty:
        first come, first served.
    depth
        Approximate number of microbatches until the order becomes periodic; None if unknown.
    repeat
        Period of the order from then on, in microbatches.
    cyclic
        Whether the order is exactly periodic until the end.

    Raises
    ------
    InputError
        If there is no microbatch, or `versions` is no choice.

    Examples
    --------
    >>> import stagecut
    >>> schedule = stagecut.make_schedule("gpipe", stagecut.runtime.simulate.chain([1.0], [2.0]), 2)
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
    """Return the schedule in which device d performs the actions of row d."""
    lists = [list(row) for row in rows]
    most = max((a.microbatch + 1 for row in lists for a in row), default=1)
    tables = tuple(np.array(row, dtype=np.int32).reshape(-1, 3) for row in lists)
    return Schedule(name, microbatches or most, tables)


def write_csv(schedule: Schedule) -> str:
    """Return the schedule as CSV text; torch.distributed.pipelining reads the same form.

    Parameters
    ----------
    schedule
        Schedule to write.

    Returns
    -------
    str
        Text with a line per device; `read_csv` is the inverse.

    Examples
    --------
    >>> write_csv(read_csv("0F0,0B0\\n"))
    '0F0,0B0\\n'
    """
    rows = (",".join(map(str, schedule.of(d))) for d in range(len(schedule.actions)))
    return "".join(f"{row}\n" for row in rows)


def read_csv(text: str, *, name: str = "schedule") -> Schedule:
    """Read a schedule from CSV text; any cell that is not an action is an error.

    Parameters
    ----------
    text
        A line per device, with cells such as ``0F0`` (stage 0, forward, microbatch 0).
    name
        Name of the schedule, also in error messages.

    Returns
    -------
    Schedule
        Schedule in which device d performs the actions of row d.

    Raises
    ------
    InputError
        If a cell is not an action; the message names row and column.

    Examples
    --------
    >>> read_csv("0F0,0B0\\n").size
    2
    """
    rows = parse_rows(text.splitlines(), name)
    if not any(rows):
        raise InputError(f"{name}: no actions; give a row of cells such as 0F0,0B0 per device")
    return schedule_of(([cell.action for cell in row] for row in rows), name=name)
