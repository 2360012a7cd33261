"""Annealing on violated edges: repair a mapping until every stage fits under a target.

At a target T the slack of stage s can be split in several ways between its longest message and its
longest ring message: a *split* is a pair of upper bounds. The violation of a split is a sum over
the edges above their bounds; that of the stage is the violation of its best split. A step takes a
random violated edge and moves a device that is admitted at one end to the other, by one of the
moves in `moves.py`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numba import njit
from numpy.typing import NDArray

from ....formulations.mapping.bound import LowerBounds
from ....formulations.mapping.costs import MappingCosts
from ....instances.model.arrays import Floats, Ints
from ..parameters import MIN_TARGET_SECONDS, SPLITS, VIOLATION_SCALE
from .moves import (
    admitted,
    best_split,
    copy_row,
    edge_cost,
    edges_of_slot,
    exchange_receivers,
    places,
    reverse,
    violated_edge,
    violation_left,
)


@dataclass(eq=False)
class State:
    """A mapping under repair.

    Parameters
    ----------
    slot
        Shape (D,): device in each slot; slot s·R + i is position i of stage s, the last slots are
        spare.
    sends_to
        Shape (S, R): as in `ReplicaPlacement`; the last row is not used.
    order
        Shape (D, D−1): the other devices, best route first.
    """

    slot: Ints
    sends_to: Ints
    order: NDArray[np.int32]

    def copy(self) -> State:
        """Return a state to be changed apart from this one."""
        return State(self.slot.copy(), self.sends_to.copy(), self.order)

    def slots(self, costs: MappingCosts) -> Ints:
        """Return the used slots; shape (S, R)."""
        used = costs.stages * costs.replicas
        return self.slot[:used].reshape(costs.stages, costs.replicas).copy()


def new_state(
    costs: MappingCosts, slots: Ints, sends_to: Ints, order: NDArray[np.int32] | None = None
) -> State:
    """Return the state of a mapping; `order` as `best_routes` returns it."""
    used = slots.ravel()
    spare = np.setdiff1d(np.arange(costs.size), used)
    full = np.zeros((costs.stages, costs.replicas), np.int64)
    full[: costs.stages - 1] = sends_to
    slot = np.concatenate([used, spare]).astype(np.int64)
    return State(slot, full, best_routes(costs) if order is None else order)


def best_routes(costs: MappingCosts) -> NDArray[np.int32]:
    """Return the other devices of each, best route first; shape (D, D−1)."""
    order = np.empty((costs.size, costs.size - 1), np.int32)
    for d in range(costs.size):
        row = np.lexsort((costs.latency[d], costs.inverse[d]))
        order[d] = row[row != d]
    return order


def repair(
    costs: MappingCosts,
    lower_bounds: LowerBounds,
    state: State,
    block: Ints,
    threshold: float,
    steps: int,
    seed: int,
    hot: float = 0.35,
    cold: float = 0.1,
) -> float:
    """Anneal for at most `steps` steps; return the violation that is left, 0 for none.

    The temperature falls geometrically from `hot` to `cold`. About a microsecond per step.
    """
    messages, rings = sampled_splits(costs, lower_bounds, threshold)
    left: float = _repair(
        costs.latency,
        costs.inverse,
        costs.boundary,
        costs.ring,
        messages,
        rings,
        state.slot,
        state.sends_to,
        state.order,
        block,
        VIOLATION_SCALE / max(threshold, MIN_TARGET_SECONDS),
        steps,
        seed,
        hot,
        cold,
    )
    return left


def sampled_splits(
    costs: MappingCosts, lower_bounds: LowerBounds, threshold: float
) -> tuple[Floats, Floats]:
    """Return the upper bounds of messages and ring messages in each split, shape (S, SPLITS) both.

    Where a stage has both terms, its splits are quantiles of what pairs of devices cost: half of
    them of messages, half of what ring messages leave of the slack.
    """
    slack = (threshold - costs.base) * (1 + 1e-12)
    has_both = costs.boundary.any(axis=1) & costs.ring.any(axis=1)
    count = SPLITS if has_both.any() else 1
    messages, rings = np.repeat(slack[:, None], count, 1), np.repeat(slack[:, None], count, 1)
    rows = np.linspace(0, costs.size - 1, min(costs.size, 64)).astype(np.int64)
    latency, inverse = costs.latency[rows], costs.inverse[rows]
    for s in np.flatnonzero(has_both).tolist():
        low, high = float(lower_bounds.transfer[s]), float(slack[s] - lower_bounds.allreduce[s])
        (alpha, beta), (gamma, delta) = costs.boundary[s], costs.ring[s]
        sent = (alpha * latency + beta * inverse).ravel()
        left = (slack[s] - gamma * latency - delta * inverse).ravel()
        values = [v[(v > low) & (v < high)] for v in (sent, left)]
        marks = np.linspace(0, 1, count // 2)
        spread = [np.quantile(v, marks) if len(v) else np.linspace(low, high, 12) for v in values]
        messages[s] = np.sort(np.concatenate(spread))[::-1]
        messages[s, 0], messages[s, -1] = high, low
        rings[s] = slack[s] - messages[s]
    return messages, rings


@njit(cache=True)
def add_violation(row, cost, upper_bounds, scale, sign):  # type: ignore[no-untyped-def]
    """Add what one edge violates in each split to `row`, shape (Q,); subtract with sign −1."""
    for k in range(len(row)):
        over = cost - upper_bounds[k]
        if over > 0:
            row[k] += sign * (1.0 + min(1.0, over * scale))


@njit(cache=True)
def _repair(  # type: ignore[no-untyped-def]
    latency, inverse, boundary, ring, messages, rings, slot, sends_to, order, block, scale,
    steps, seed, hot, cold,
):  # fmt: skip
    np.random.seed(seed)  # noqa: NPY002
    stages, replicas = sends_to.shape
    size, used, count = len(slot), stages * replicas, messages.shape[1]
    place, came_from = places(slot, sends_to)
    violation = np.zeros((stages, count))
    for e in range(2 * used):
        s = (e if e < used else e - used) // replicas
        cost = edge_cost(e, latency, inverse, boundary, ring, slot, sends_to, stages, replicas)
        add_violation(violation[s], cost, rings[s] if e < used else messages[s], scale, 1.0)
    touched = np.empty(16, np.int64)
    before = np.empty(16)
    trial = np.empty_like(violation)
    changed = np.empty(stages, np.int64)
    is_changed = np.zeros(stages, np.bool_)
    step = 0
    left = 1.0
    while step < steps:
        left = violation_left(violation)
        if left < 0.5:
            return 0.0
        # a sweep of so many steps, so that the sum above costs little
        for _ in range(stages):
            step += 1
            heat = hot * (cold / hot) ** (min(step, steps) / steps)
            s = np.random.randint(stages)  # noqa: NPY002
            split = best_split(violation, s)
            if violation[s, split] < 0.5:
                continue
            start = np.random.randint(2 * replicas)  # noqa: NPY002
            near, far, on_ring = violated_edge(
                latency, inverse, boundary, ring, slot, sends_to, s, start, messages[s, split],
                rings[s, split],
            )  # fmt: skip
            if near < 0:
                continue
            factors, upper_bound = boundary[s], messages[s, split]
            if on_ring:
                factors, upper_bound = ring[s], rings[s, split]
            if np.random.random() < 0.5:  # noqa: NPY002
                near, far = far, near
            # a neighbour of `near` that would do, to take the place of `far`
            u = slot[near]
            able = admitted(order, u, factors, latency, inverse, upper_bound)
            kind, a, b = 0, far, -1
            if able == 0:
                a, b = near, np.random.randint(size)  # noqa: NPY002
            else:
                b = place[order[u, np.random.randint(able)]]  # noqa: NPY002
                # rather one of the block of `far`
                for _ in range(np.random.randint(4)):  # noqa: NPY002
                    if block[slot[b]] == block[slot[far]]:
                        break
                    b = place[order[u, np.random.randint(able)]]  # noqa: NPY002
                if b < used and b // replicas == far // replicas:
                    # both stand in the stage of `far`: another receiver, or a turn of the ring
                    if on_ring and replicas > 3:
                        kind = 2
                    elif not on_ring and np.random.random() < 0.7:  # noqa: NPY002
                        kind = 1
            if a == b or b == near:
                continue
            t, i1, i2, first, length = s, 0, 0, 0, 0
            if kind == 0:
                n = edges_of_slot(a, came_from, stages, replicas, touched, 0)
                n = edges_of_slot(b, came_from, stages, replicas, touched, n)
            elif kind == 1:
                if near < far:  # `near` sends to b instead of a
                    i1, i2 = came_from[t + 1, a % replicas], came_from[t + 1, b % replicas]
                else:
                    i1, i2 = a % replicas, b % replicas
                touched[0], touched[1] = used + t * replicas + i1, used + t * replicas + i2
                n = 2
            else:
                # reverse the part that ends with b, so that b comes to stand beside `near`
                p, f, q = near % replicas, far % replicas, b % replicas
                if (p + 1) % replicas == f:  # near, far … b → near, b … far
                    first, length = f, (q - f) % replicas + 1
                else:  # b … far, near → far … b, near
                    first, length = q, (f - q) % replicas + 1
                if length >= replicas:
                    continue
                touched[0] = t * replicas + (first - 1) % replicas
                touched[1] = t * replicas + (first + length - 1) % replicas
                n = 2
            for j in range(n):
                before[j] = edge_cost(touched[j], latency, inverse, boundary, ring, slot, sends_to,
                                      stages, replicas)  # fmt: skip
            if kind == 0:
                slot[a], slot[b] = slot[b], slot[a]
            elif kind == 1:
                exchange_receivers(sends_to, came_from, t, i1, i2)
            else:
                reverse(slot, place, sends_to, came_from, t, first, length, replicas, stages)
            m = 0
            for j in range(n):
                e = touched[j]
                x = (e if e < used else e - used) // replicas
                if not is_changed[x]:
                    is_changed[x] = True
                    changed[m] = x
                    m += 1
                    copy_row(trial, violation, x)
                upper_bounds = rings[x] if e < used else messages[x]
                after = edge_cost(e, latency, inverse, boundary, ring, slot, sends_to, stages,
                                  replicas)  # fmt: skip
                add_violation(trial[x], before[j], upper_bounds, scale, -1.0)
                add_violation(trial[x], after, upper_bounds, scale, 1.0)
            change = 0.0
            for j in range(m):
                x = changed[j]
                is_changed[x] = False
                change += trial[x, best_split(trial, x)]
                change -= violation[x, best_split(violation, x)]
            if change <= 0 or np.random.random() < np.exp(-change / heat):  # noqa: NPY002
                if kind == 0:
                    place[slot[a]], place[slot[b]] = a, b
                for j in range(m):
                    copy_row(violation, trial, changed[j])
            elif kind == 0:
                slot[a], slot[b] = slot[b], slot[a]
            elif kind == 1:
                exchange_receivers(sends_to, came_from, t, i1, i2)
            else:
                reverse(slot, place, sends_to, came_from, t, first, length, replicas, stages)
    return left
