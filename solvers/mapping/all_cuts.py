"""Best of all cuts at given prices: the DP of `formulations.mapping.all_cuts`.

At the least prices of the topology it bounds all mappings of all cuts. At the prices of a mapping,
boundary by boundary and ring by ring, it cuts anew for the devices that the stages have.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ...formulations.mapping.all_cuts import LeastPrices, run_states, split_bytes
from ...formulations.mapping.costs import MappingCosts
from ...formulations.mapping.partition import partition_units
from ...formulations.task import Task
from ...instances import DeviceMapping
from ...instances.common.arrays import Bools, Floats, Ints
from ...instances.model.stage_costs import parameter_bytes
from ..core.lattice import Lattice, list_ideals
from ..core.search import Clock
from .all_cuts_kernel import StageEnds, add_stage
from .parameters import IDEAL_SLICE, MOST_IDEALS
from .partition import orders


@dataclass(frozen=True, eq=False)
class PricedIdeals:
    """All ideals of a workload's units, N of them, with what a chain of them adds up."""

    lattice: Lattice
    unit_of: Ints  # (n,): unit of each node
    inside: Bools  # (N, U)
    work: Floats  # (N,): seconds of compute per batch
    held: Floats  # (N,): bytes of parameters
    split: Floats  # (N,): bytes of the tensors that the ideal splits


class StagePrices(NamedTuple):
    """Prices of a stage, within blocks and across; seconds per batch."""

    reduced: Floats  # (2,): of a byte of parameters
    sent: Floats  # (2, N): of the boundary at each ideal


def list_all(task: Task[DeviceMapping], clock: Clock) -> PricedIdeals | None:
    """Return the ideals; None if there are more than `MOST_IDEALS`, or it must stop."""
    unit_of, units = partition_units(task.workload)
    lattice = list_ideals(next(orders(units)), units.edges, MOST_IDEALS, clock)
    if not lattice.complete:
        return None
    bits = np.unpackbits(lattice.members.view(np.uint8), axis=1, bitorder="little")
    inside = np.zeros((lattice.size, units.size), np.bool_)
    inside[:, lattice.order] = bits[:, : units.size]
    held = np.bincount(unit_of, weights=parameter_bytes(task.workload), minlength=units.size)
    return PricedIdeals(
        lattice,
        unit_of,
        inside,
        task.problem.microbatches * (inside @ units.seconds),
        np.asarray(inside @ held, np.float64),
        split_bytes(task.workload, task.problem, units, inside),
    )


def least_stage_prices(
    task: Task[DeviceMapping], ideals: PricedIdeals, prices: LeastPrices
) -> list[StagePrices]:
    """Return the least prices of the topology, those of every stage."""
    one = StagePrices(np.array(prices.reduced), prices.boundary(ideals.split))
    return [one] * task.problem.stages


def prices_of(
    task: Task[DeviceMapping],
    costs: MappingCosts,
    ideals: PricedIdeals,
    slots: Ints,
    sends_to: Ints,
) -> list[StagePrices]:
    """Return the prices of a mapping's stages with rings, whose latency is left out."""
    problem, found = task.problem, []
    r, m = problem.replicas, problem.microbatches
    messages = m * (1 + bool(problem.gradients and task.workload.backward.any()))
    for s, row in enumerate(slots):
        reduced, sent = 0.0, np.zeros(len(ideals.split))
        if problem.mode != "p2p" and r > 1:
            reduced = 2 * (r - 1) / r * float(costs.inverse[row, np.roll(row, -1)].max())
        if problem.mode != "allr" and s + 1 < costs.stages:
            pairs = row, slots[s + 1, sends_to[s]]
            times = messages * costs.latency[pairs][:, None]
            times = times + m * costs.inverse[pairs][:, None] * ideals.split
            sent = np.where(ideals.split > 0, times.max(axis=0), 0.0)
        found.append(StagePrices(np.array([reduced, reduced]), np.array([sent, sent])))
    return found


def best_cut(
    task: Task[DeviceMapping],
    ideals: PricedIdeals,
    prices: list[StagePrices],
    longest_run: int,
    cutoff: float,
    clock: Clock,
) -> tuple[float, Ints | None]:
    """Return the least longest stage below the cutoff in seconds, and the stage of each node.

    The cutoff and None if no cut is below it; 0 and None if it must stop. `longest_run` is L of the
    least prices, at least the number of stages where blocks do not count.
    """
    problem, size = task.problem, ideals.lattice.size
    alone = problem.replicas == 1 or problem.mode == "p2p"
    table = run_states(longest_run, problem.stages, alone=alone)
    before = np.full((size, len(table)), np.inf)
    before[0, 0] = 0.0
    back = []
    for s in range(problem.stages):
        last = s == problem.stages - 1
        after = np.full((size, len(table)), cutoff)
        came = np.full((size, len(table), 2), -1, np.int32)
        sent = np.zeros_like(prices[s].sent) if last else prices[s].sent
        begin = size - 1 if last else 1
        ends = StageEnds(
            ideals.lattice.members, ideals.work, ideals.held, sent, prices[s].reduced, table,
            problem.overlap,
        )  # fmt: skip
        for low in range(begin, size - (not last), IDEAL_SLICE):
            high = min(low + IDEAL_SLICE, size - (not last))
            add_stage(ends, before, after, came, low, high)
            if clock.should_stop():
                return 0.0, None
        before = np.where(came[:, :, 0] >= 0, after, np.inf)
        back.append(came)
    state = int(before[-1].argmin())
    value = float(before[-1, state])
    if not np.isfinite(value):
        return cutoff, None
    stage, at = np.zeros(ideals.inside.shape[1], np.int64), size - 1
    for s in reversed(range(problem.stages)):
        stage[ideals.inside[at]] = s
        at, state = back[s][at, state].tolist()
    return value, stage[ideals.unit_of]
