"""A plan, or what holds one: every function that takes a plan takes the result of a search too."""

from __future__ import annotations

from typing import Protocol

from ..common.errors import InputError
from .plan import Plan


class Planned(Protocol):
    """What holds a plan, if one was found: a `Result`, a `PlannedModel`, an `Explanation`.

    Examples
    --------
    >>> import stagecut
    >>> held: Planned = stagecut.solve("gpt2-xl", stagecut.accelerators_and_cpus(1))
    >>> held.plan is None
    False
    """

    @property
    def plan(self) -> Plan | None:
        """The plan; None if there is none."""


def plan_of(given: Plan | Planned) -> Plan:
    """Return a plan, or the one that is held.

    Parameters
    ----------
    given
        A plan, or a `Result` or other object with one.

    Returns
    -------
    Plan
        The plan itself.

    Raises
    ------
    InputError
        If no plan is held, or what is given is something else.

    Examples
    --------
    >>> import stagecut
    >>> result = stagecut.solve("gpt2-xl", stagecut.accelerators_and_cpus(1))
    >>> plan_of(result) is plan_of(result.plan)
    True
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
