"""Conversions of a tensor from one property to another, and the costs of their collectives.

Along one axis of p devices, for |T| bytes among them (what other axes split is divided out), each
collective takes r α + b |T| / W, by latency α and bandwidth W of its own, or of the axis:

    collective      from → to     bytes of all   ring: r      b           tree: r  b
    all-to-all      S(i) → S(j)   (p−1)/p |T|    p − 1        (p−1)/p²    —
    all-gather      S → B         (p−1) |T|      p − 1        (p−1)/p     L        (p−1)/p
    reduce-scatter  P → S         (p−1) |T|      p − 1        (p−1)/p     L        (p−1)/p
    all-reduce      P → B         2 (p−1) |T|    2 (p−1)      2 (p−1)/p   2 L      2
    gather          S → I         (p−1)/p |T|    p − 1        (p−1)/p     L        (p−1)/p
    scatter         I → S         (p−1)/p |T|    p − 1        (p−1)/p     L        (p−1)/p
    reduce          P → I         (p−1) |T|      p − 1        1           L        L
    broadcast       I → B         (p−1) |T|      p − 1        1           L        L
    slice           B → S         0
    one keeps it    B → P, I      0
    pad with zeros  S, I → P      0

with L = ⌈log₂ p⌉, and I for whole on the first device along the axis, nothing on others, as tensors
are within conversions, and where parts of the program are placed on groups of devices: those with
one number along the first axis. I1 is so on the second, and costs the same; I → I1 is a broadcast
that one keeps. A ring of pieces so small that b is all that counts; the tree of an
all-reduce is pipelined, too. With the same numbers for all, what passes through I costs more than
what does not; so it is left out where no collective has a link of its own and nothing is placed.

A conversion is a cheapest sequence of such steps: S → B by an all-gather, or by a gather and a
broadcast; P → S by a reduce-scatter, or by an all-reduce and a slice; S(i) → S(j) by an all-to-all,
or by an all-gather and a slice. Along several axes each step is along one of them. An axis of a
tensor that several axes of the mesh split is put together in the reverse order: a step from or to
S(i) along an axis of the mesh waits until no later one splits i.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from ...instances import DeviceMesh, ShardingObjective
from ...instances.common.arrays import Floats
from ...instances.common.choices import Primitive, Rounds
from ...instances.model.tensor_program import COPIED, FIRST, PARTIAL, Property, divides


@dataclass(frozen=True, eq=False)
class Conversions:
    """The properties of a tensor, and the cost of converting each to each."""

    states: tuple[Property, ...]  # the properties
    number: dict[Property, int]  # position of each in `states`
    cost: Floats  # (states, states): from row to column, in the objective's unit


@lru_cache(maxsize=4096)
def conversions(
    shape: tuple[int, ...],
    size_bytes: int,
    mesh: DeviceMesh,
    objective: ShardingObjective,
    unit_s: float,
    share: float = 1.0,
    groups: int = 0,
) -> Conversions:
    """Return the conversions of a whole tensor; see the table above.

    `unit_s` are the seconds of the workload's unit of time; `share` is the part of latencies that
    the tensor pays; `groups` is the number of groups along the first axis, 0 if nothing is placed.
    """
    plain = (*range(len(shape)), COPIED, PARTIAL)
    single = (*plain, *([FIRST] if mesh.primitives else []))
    first = (*plain, *(FIRST - j for j in range(groups))) if groups else single
    states = [
        state
        for state in itertools.product(first, *[single] * (len(mesh.shape) - 1))
        if divides(shape, state, mesh.shape)
    ]

    def passing(state: Property) -> bool:
        return FIRST in (state[1:] if groups else state)

    states.sort(key=passing)
    number = {state: k for k, state in enumerate(states)}
    cost = np.full((len(states), len(states)), np.inf)
    np.fill_diagonal(cost, 0.0)
    for state, k in number.items():
        for d in range(len(mesh.shape)):
            for one in single if d else first:
                after = (*state[:d], one, *state[d + 1 :])
                if state[d] <= FIRST >= one:
                    continue  # by a broadcast, which is a step of its own
                if after != state and after in number and not _held(state, d, one):
                    amount = step_cost(state, d, one, size_bytes, mesh, objective, share)
                    cost[k, number[after]] = amount / (unit_s if objective == "time" else 1.0)
    for k in range(len(states)):
        np.minimum(cost, cost[:, k, None] + cost[None, k, :], out=cost)
    count = sum(not passing(state) for state in states)
    cost = cost[:count, :count].copy()
    cost.setflags(write=False)
    return Conversions(tuple(states[:count]), dict(itertools.islice(number.items(), count)), cost)


def _held(state: Sequence[int], d: int, one: int) -> bool:
    """Return whether a later axis of the mesh splits a dimension that a step along axis d moves."""
    return any(later >= 0 and later in (state[d], one) for later in state[d + 1 :])


def step_cost(
    state: Property,
    d: int,
    one: int,
    size_bytes: float,
    mesh: DeviceMesh,
    objective: ShardingObjective,
    share: float = 1.0,
) -> float:
    """Return the cost of a step along axis d of the mesh to property `one`, seconds or bytes."""
    among = size_bytes
    for e, other in enumerate(state):
        if e != d and other >= 0:
            among /= mesh.shape[e]
    primitive = primitive_between(state[d], one)
    return 0.0 if primitive is None else primitive_cost(primitive, among, d, mesh, objective, share)


def primitive_between(before: int, after: int) -> Primitive | None:
    """Return the collective of one step along an axis; None if nothing is sent."""
    if before == COPIED or after == PARTIAL:
        return None
    after = max(after, FIRST)  # whichever device it is on
    if before == PARTIAL:
        by = {COPIED: Primitive.ALL_REDUCE, FIRST: Primitive.REDUCE}
        return by.get(after, Primitive.REDUCE_SCATTER)
    if before <= FIRST:
        return Primitive.BROADCAST if after == COPIED else Primitive.SCATTER
    by = {COPIED: Primitive.ALL_GATHER, FIRST: Primitive.GATHER}
    return by.get(after, Primitive.ALL_TO_ALL)


def primitive_cost(
    primitive: Primitive,
    among: float,
    d: int,
    mesh: DeviceMesh,
    objective: ShardingObjective,
    share: float = 1.0,
) -> float:
    """Return the cost of a collective along axis d on `among` bytes, seconds or bytes.

    `share` is the part of latencies that counts.
    """
    p = mesh.shape[d]
    if p == 1:
        return 0.0
    part, twice = (p - 1) / p, 2 if primitive is Primitive.ALL_REDUCE else 1
    if objective == "distpar":
        apart = primitive in (Primitive.ALL_TO_ALL, Primitive.GATHER, Primitive.SCATTER)
        return twice * (part if apart else p - 1) * among * (mesh.size // p)
    own = mesh.priced(primitive, d)
    tree = own.algorithm is Rounds.TREE
    rounds = twice * ((p - 1).bit_length() if tree else p - 1)
    if primitive is Primitive.ALL_TO_ALL:
        passed = part / p
    elif primitive is Primitive.ALL_REDUCE:
        passed = 2.0 if tree else 2 * part
    elif primitive in (Primitive.REDUCE, Primitive.BROADCAST):
        passed = float(rounds) if tree else 1.0
    else:
        passed = part
    return rounds * share * own.link.latency_s + passed * among / own.link.bytes_per_s
