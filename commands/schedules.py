"""`--schedule`: a name, or a CSV file of the user's own."""

from __future__ import annotations

from typing import NamedTuple

from ..instances import InputError, PipelineSchedule
from ..instances.formats.source import read_source
from ..instances.model.schedules.given import given_order

ENDING = ".csv"
HELP = (
    "Iteration: 1f1b (default), gpipe, interleaved, zb-h1, zb-h2; a CSV file with a row of "
    "passes such as 0F0,0B0 for each device"
)


class Asked(NamedTuple):
    """What `--schedule` and `--microbatches` say, None where they say nothing."""

    schedule: str | None
    microbatches: int | None
    actions: tuple[str, ...] | None = None
    file: str | None = None


def read_schedule(schedule: str | None, microbatches: int | None) -> Asked:
    """Return what the options say; a file also says how many microbatches there are.

    Raises
    ------
    InputError
        If the file holds no schedule, with row and column, or is of other microbatches.
    """
    if schedule == PipelineSchedule.GIVEN:
        raise InputError("--schedule: name the CSV file that gives it, such as my.csv")
    if schedule is None or not is_file(schedule):
        return Asked(schedule, microbatches)
    order = given_order(read_source(schedule).text.splitlines(), schedule)
    if microbatches not in (None, order.microbatches):
        raise InputError(
            f"--microbatches: {microbatches}; {schedule} is of {order.microbatches}: leave it out"
        )
    return Asked(PipelineSchedule.GIVEN, order.microbatches, order.texts, schedule)


def is_file(schedule: str) -> bool:
    """Whether `--schedule` names a file."""
    return schedule.lower().endswith(ENDING)


def for_iteration(asked: Asked, objective: str) -> None:
    """Raise InputError if a file is given for another objective than an iteration."""
    if asked.actions is not None and objective != "iteration":
        raise InputError(f"--schedule: a file is for --objective iteration, not {objective}")
