"""Checks of bounds, independent of the searches that claim them: their result and errors."""

from __future__ import annotations

from dataclasses import dataclass

from ....instances import Plan, UncheckedError, VerificationError


@dataclass(frozen=True)
class BoundCheck:
    """Result of a bound's check, which proved that no plan is below the target.

    For prices `value` is that of all nodes, and `held` the most that all devices can hold of it
    within the target; for other bounds they are the proved bound, and the target.
    """

    target: float
    value: float
    held: float


def check_target(plan: Plan, target: float) -> None:
    """Raise VerificationError if a certificate's target is below the plan's bound."""
    if not plan.bound <= target:
        raise VerificationError(f"certificate: its target {target!r} is below {plan.bound!r}")


def too_much(what: str) -> UncheckedError:
    """Return the error of a bound whose check would be too large."""
    return UncheckedError(f"bound: not checked: {what}")
