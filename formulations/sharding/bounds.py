"""Bounds on the cost of a sharding: the cheapest choices, and certificates."""

from __future__ import annotations

from collections.abc import Iterator

from ...instances import Sharding
from ..task import Task
from .costs import ShardingCosts, sharding_costs

#: Relative margin of a bound below the target of its certificate's check, for rounding.
MARGIN = 1e-9


def evidence(costs: ShardingCosts, target: float) -> dict[str, object]:
    """Return the certificate of `target`."""
    return {"target": target} | ({"mixture": list(costs.mixture)} if costs.mixture else {})


def sharding_cheap_bounds(task: Task[Sharding]) -> Iterator[tuple[float, str]]:
    """Yield Σ over operators of the cost of their cheapest choice, conversions left out.

    Where groups of devices work beside each other, a phase counts as the mean over its groups.
    """
    costs = sharding_costs(task)
    mixed = costs if costs.ends is None else costs.mixed(costs.ends.weights)
    least = sum(float(one.cost.min(initial=float("inf"))) for one in mixed.choices)
    yield least * (1 - MARGIN), "cheapest signatures"
