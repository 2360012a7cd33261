"""What a device holds of tensors and parameters."""

from __future__ import annotations

import math

from ...instances.model.sharding.properties import local_shape
from .costs import ShardingCosts


def state_bytes(costs: ShardingCosts, t: int, b: int) -> float:
    """Return size_{T,b}: the bytes on a device of tensor t in its property number b."""
    tensor = costs.program.tensors[t]
    part = local_shape(tensor.shape, costs.conversions[t].states[b], costs.problem.mesh.shape)
    return math.prod(part) * tensor.size_bytes / max(tensor.elements, 1)


def own_bytes(costs: ShardingCosts, v: int) -> list[float]:
    """Return own_{v,k} of each choice of a parameter v."""
    operator = costs.program.operators[v]
    copies = 1.0 if operator.gradient is None else 2.0 + costs.problem.state
    t = operator.outputs[0]
    return [copies * state_bytes(costs, t, int(b)) for b in costs.choices[v].makes[0]]
