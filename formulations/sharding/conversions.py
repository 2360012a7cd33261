"""What it costs to convert a tensor from one property to another, on a mesh.

Along one axis of p devices, for |T| bytes among them (what other axes split is divided out):

    from   to     by               bytes of all devices     seconds, latency α and bandwidth W
    S(i)   S(j)   all-to-all       (p − 1)/p · |T|          (p − 1) α + (p − 1)/p² · |T| / W
    S      B      all-gather       (p − 1) · |T|            (p − 1) α + (p − 1)/p · |T| / W
    P      S      reduce-scatter   (p − 1) · |T|            (p − 1) α + (p − 1)/p · |T| / W
    P      B      all-reduce       2 (p − 1) · |T|          2 (p − 1) α + 2 (p − 1)/p · |T| / W
    B      S      slice            0                        0
    B      P      one keeps it     0                        0
    S      P      pad with zeros   0                        0

Along several axes a conversion is a cheapest sequence of such steps, each along one axis. An axis
of a tensor that several axes of the mesh split is put together in the reverse order: a step
from or to S(i) along an axis of the mesh waits until no later one splits i.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from ...instances import DeviceMesh, ShardingObjective
from ...instances.common.arrays import Floats
from ...instances.model.sharding.properties import COPIED, PARTIAL, Property, divides


@dataclass(frozen=True, eq=False)
class Conversions:
    """The properties that a tensor can have, and what it costs to get from one to another.

    Parameters
    ----------
    states
        The properties.
    number
        Position of each in `states`.
    cost
        Shape (states, states): from row to column, in the objective's unit.
    """

    states: tuple[Property, ...]
    number: dict[Property, int]
    cost: Floats


@lru_cache(maxsize=4096)
def conversions(
    shape: tuple[int, ...],
    size_bytes: int,
    mesh: DeviceMesh,
    objective: ShardingObjective,
    unit_s: float,
) -> Conversions:
    """Return the conversions of a tensor; see the table above.

    Parameters
    ----------
    shape, size_bytes
        Of the whole tensor.
    mesh, objective
        Of the problem.
    unit_s
        Seconds of the workload's unit of time.
    """
    single = (*range(len(shape)), COPIED, PARTIAL)
    states = tuple(
        state
        for state in itertools.product(single, repeat=len(mesh.shape))
        if divides(shape, state, mesh.shape)
    )
    number = {state: k for k, state in enumerate(states)}
    cost = np.full((len(states), len(states)), np.inf)
    np.fill_diagonal(cost, 0.0)
    for state, k in number.items():
        for d in range(len(mesh.shape)):
            for one in single:
                after = (*state[:d], one, *state[d + 1 :])
                if after != state and after in number and not _held(state, d, one):
                    amount = step_cost(state, d, one, size_bytes, mesh, objective)
                    cost[k, number[after]] = amount / (unit_s if objective == "time" else 1.0)
    for k in range(len(states)):
        np.minimum(cost, cost[:, k, None] + cost[None, k, :], out=cost)
    cost.setflags(write=False)
    return Conversions(states, number, cost)


def _held(state: Sequence[int], d: int, one: int) -> bool:
    """Whether a later axis of the mesh splits what the step along axis d takes up or puts down."""
    return any(later >= 0 and later in (state[d], one) for later in state[d + 1 :])


def step_cost(
    state: Property,
    d: int,
    one: int,
    size_bytes: float,
    mesh: DeviceMesh,
    objective: ShardingObjective,
) -> float:
    """Return what a step along axis d of the mesh to the property `one` costs, seconds or bytes."""
    p, before = mesh.shape[d], state[d]
    among = size_bytes
    for e, other in enumerate(state):
        if e != d and other >= 0:
            among /= mesh.shape[e]
    if before == COPIED or one == PARTIAL:
        return 0.0
    if before >= 0 and one >= 0:
        rounds, moved = p - 1, (p - 1) / p * among
    elif before == PARTIAL and one == COPIED:
        rounds, moved = 2 * (p - 1), 2 * (p - 1) * among
    else:
        rounds, moved = p - 1, (p - 1) * among
    return collective_cost(rounds, moved, d, mesh, objective)


def collective_cost(
    rounds: int, moved: float, d: int, mesh: DeviceMesh, objective: ShardingObjective
) -> float:
    """Return what a collective along axis d costs.

    Parameters
    ----------
    rounds
        Messages that each device sends, one after the other.
    moved
        Bytes that all devices of one group send.
    """
    if objective == "distpar":
        return moved * (mesh.size // mesh.shape[d])
    link = mesh.links[d]
    return rounds * link.latency_s + moved / mesh.shape[d] / link.bytes_per_s
