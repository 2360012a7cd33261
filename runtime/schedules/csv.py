"""Schedules as CSV: a row per device, a cell per action, an empty cell for an idle step."""

from __future__ import annotations

from ...instances import InputError
from ...instances.model.schedules.given import parse_rows
from .actions import Schedule, schedule_of


def write_csv(schedule: Schedule) -> str:
    """Return the schedule as CSV text; torch.distributed.pipelining reads the same form.

    Parameters
    ----------
    schedule
        What to write.

    Returns
    -------
    str
        A line per device; `read_csv` is the inverse.

    Examples
    --------
    >>> write_csv(read_csv("0F0,0B0\\n"))
    '0F0,0B0\\n'
    """
    rows = (",".join(map(str, schedule.of(d))) for d in range(len(schedule.actions)))
    return "".join(f"{row}\n" for row in rows)


def read_csv(text: str, *, name: str = "schedule") -> Schedule:
    """Read a schedule, strictly.

    Parameters
    ----------
    text
        A line per device, cells such as ``0F0`` (stage 0, forward, microbatch 0).
    name
        Of the schedule, and for messages.

    Returns
    -------
    Schedule
        Device d does the actions of row d.

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
