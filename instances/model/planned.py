"""A plan, or what holds one: every function that takes a plan takes the result of a search too."""

from __future__ import annotations

from typing import Protocol

from ..common.errors import InputError
from .plan import Plan


class Planned(Protocol):
    """What holds a plan, if one was found: a `Result`, a `PlannedModel`, an `Explanation`."""

    @property
    def plan(self) -> Plan | None:
        """The plan; None if there is none."""


def plan_of(given: Plan | Planned) -> Plan:
    """Return a plan, or the one that is held.

    Raises
    ------
    InputError
        If no plan is held, or what is given is something else.
    """
    if isinstance(given, Plan):
        return given
    if not hasattr(given, "plan"):
        raise InputError(
            f"plan: this is of type {type(given).__name__}; give a Plan, or the Result that holds "
            "it; of a file, what load_plan returns"
        )
    if given.plan is None:
        why = ": ".join(str(getattr(given, key, "")) for key in ("status", "reason"))
        raise InputError(f"plan: the result has none ({why.strip(': ')})")
    return given.plan
