"""A lower bound on the memory of any sharding, and the infeasibility that follows."""

from __future__ import annotations

from ...formulations.sharding.costs import ShardingCosts
from ...formulations.sharding.memory import own_bytes, state_bytes
from ...formulations.throughput.whole_bytes import room_of
from ...instances import Role, Solution
from ..core.search import Search


def is_too_small(costs: ShardingCosts, search: Search[Solution]) -> bool:
    """Return whether every sharding exceeds the memory, and tell the search so."""
    room = costs.problem.memory_bytes
    if room is None or sum(_least(costs)) <= float(room_of(room)):
        return False
    search.prove_infeasible(explain(costs))
    return True


def explain(costs: ShardingCosts) -> str:
    """Return the reason that no sharding may exist, for users."""
    room = costs.problem.memory_bytes or 0.0
    parameters, activations = _least(costs)
    return (
        f"no sharding over {costs.problem.mesh.text} devices fits into {room:.0f} bytes: "
        f"parameters with gradients and optimizer state take at least {parameters:.0f} on each, "
        f"activations kept for the backward pass {activations:.0f}; give more memory or devices"
    )


def _least(costs: ShardingCosts) -> tuple[float, float]:
    """Return a lower bound on the bytes per device of every sharding: parameters, activations.

    Of a tensor and what looks at it something is kept if a backward operator reads any of them.
    """
    operators, maker = costs.program.operators, costs.program.maker
    parameters = sum(
        min(own_bytes(costs, v)) for v, o in enumerate(operators) if o.role is Role.PARAMETER
    )
    root = list(range(len(maker)))
    for operator in operators:
        if operator.view:
            for t in operator.outputs:
                root[t] = root[operator.inputs[0]]
    size: dict[int, float] = {}
    for t, one in enumerate(root):
        least = min(state_bytes(costs, t, b) for b in range(len(costs.conversions[t].states)))
        size[one] = min(size.get(one, least), least)
    read = {
        root[t]
        for operator in operators
        if operator.backward
        for t in operator.inputs
        if not operators[maker[t]].backward and operators[maker[root[t]]].role is not Role.PARAMETER
    }
    return parameters, sum(size[t] for t in read)
