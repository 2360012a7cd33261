"""Actions of a schedule: what a device does with a microbatch of a stage, such as ``2F0``."""

from __future__ import annotations

import re
from enum import IntEnum
from typing import NamedTuple

from ...common.errors import InputError, quote


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
    known = "2F0, 2B0, 2I0, 2W0, 2RECV_F0 or 2STEP"
    raise InputError(f"{quote(text)} is not an action such as {known}")
