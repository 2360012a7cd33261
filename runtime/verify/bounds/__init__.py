"""Checks of bounds, apart from the searches that claim them: the outcome, and what refuses."""

from __future__ import annotations

from dataclasses import dataclass

from ....instances import Plan, UncheckedError, VerificationError


@dataclass(frozen=True)
class BoundCheck:
    """The two sides of the inequality: `value` of all nodes, `held` by all devices at most.

    Of a certificate by multipliers or potentials, what they prove, and the target.
    """

    target: float
    value: float
    held: float


def check_target(plan: Plan, target: float) -> None:
    """Raise VerificationError if a certificate's target is below the plan's bound."""
    if not plan.bound <= target:
        raise VerificationError(f"certificate: its target {target!r} is below {plan.bound!r}")


def too_much(what: str) -> UncheckedError:
    """Return the error of a bound that is not checked, as the check would be too large."""
    return UncheckedError(f"bound: not checked: {what}")
