"""What a device must hold at least, whatever the sharding."""

from __future__ import annotations

from ...formulations.sharding.costs import ShardingCosts
from ...formulations.sharding.memory import own_bytes
from ...instances import Role, Solution
from ..core.search import Search


def is_too_small(costs: ShardingCosts, search: Search[Solution]) -> bool:
    """Whether parameters alone take more than the memory; the search is told so."""
    room = costs.problem.memory_bytes
    if room is None or _least(costs) <= room * (1 + 1e-9):
        return False
    search.prove_infeasible(explain(costs))
    return True


def explain(costs: ShardingCosts) -> str:
    """Return why no sharding may exist."""
    room = costs.problem.memory_bytes or 0.0
    return (
        f"no sharding over {costs.problem.mesh.text} devices fits into {room:.0f} bytes: "
        f"parameters with gradients and optimizer state alone take at least {_least(costs):.0f} "
        "on each; give more memory or devices"
    )


def _least(costs: ShardingCosts) -> float:
    operators = costs.program.operators
    return sum(
        min(own_bytes(costs, v)) for v, o in enumerate(operators) if o.role is Role.PARAMETER
    )
