"""All stages that a plan may have: pairs of ideals, with their times and bytes.

Stages that break the user's rules are left out.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ....formulations.job.line import Line
from ....formulations.rules.stages import StageRules
from ....formulations.throughput.hypergraph import incidence
from ....instances.common.arrays import Bools, Floats, Ints
from ...core.lattice import Lattice
from ...core.search import Clock
from . import stage_kernel as kernels
from .chains import SLACK

#: Stages listed between two looks at the clock; at most, of some 100 bytes each; and met at most.
BLOCK, MAX_STAGES, MAX_LOOKED_AT = 500_000, 6_000_000, 20_000_000


@dataclass(frozen=True, eq=False)
class StageList:
    """R stages, the differences of two ideals; K kinds, N ideals."""

    #: The ideals.
    lattice: Lattice
    #: Shape (R,): the smaller and the larger ideal.
    start: Ints
    end: Ints
    #: Shape (K, R): time of each pass; `inf` where unsupported.
    forward: Floats
    backward: Floats
    #: Shape (K, R): the compute of the backward pass alone.
    compute: Floats
    #: Shape (K, R): time of the copy engine per microbatch, where transfers overlap.
    engine: Floats
    #: Shape (R,): bytes, resident, and per microbatch in flight.
    resident: Floats
    activation: Floats
    #: Shape (2, N): least forward and backward compute of the units in each ideal.
    ahead: Floats

    def keep(self, which: Bools) -> StageList:
        """Return the list of some of the stages, by mask."""
        return StageList(
            self.lattice, self.start[which], self.end[which],
            self.forward[:, which], self.backward[:, which],
            self.compute[:, which], self.engine[:, which],
            self.resident[which], self.activation[which], self.ahead,
        )  # fmt: skip


def list_stages(
    line: Line, lattice: Lattice, most_work: float, search: Clock, paid: Bools | None = None
) -> StageList | None:
    """List the stages whose compute per microbatch is at most `most_work`, as are all in a chain.

    They pay for all nets, or for those `paid`, shape (E,). None if there are more than
    `MAX_STAGES`, or more to look at, or the search must stop. Time is linear in the stages listed
    and in those one unit larger; each takes 100 bytes.
    """
    kinds, order = len(line.kinds), lattice.order
    cheapest = line.compute.min(axis=0)
    finite = np.where(np.isinf(line.compute), cheapest, line.compute)
    lanes = np.concatenate(
        (
            cheapest.sum(axis=0)[None],
            (line.resident + line.activation)[None],
            finite.reshape(2 * kinds, -1),
            np.isinf(line.compute).any(axis=1).astype(np.float64),
            line.resident[None],
            line.activation[None],
        )
    )[:, order].T.copy()
    limit = np.array([most_work, float(line.room.max())]) * (1 + SLACK)
    limit = np.minimum(limit, np.finfo(float).max)
    nets = np.concatenate((line.weight.reshape(2 * kinds, -1), line.overlapped))
    if paid is not None:
        nets = nets * paid
    nets = np.minimum(nets, 2 * most_work if np.isfinite(most_work) else np.finfo(float).max)
    relayed = line.problem.relayed
    shape = incidence(() if relayed else line.graph.pins, order)
    weights = nets.T.copy() if not relayed else np.zeros((0, len(nets)))
    inside = lattice.bits
    ahead = (inside @ cheapest[:, order].T).T
    most, work = line.most_stages, ahead.sum(axis=0)
    each = max(float(limit[0]), np.finfo(float).tiny)
    before = np.ceil(work / each - SLACK)  # stages that it takes at least, and behind
    behind = np.ceil((work[-1] - work) / each - SLACK)
    pairs, sums, ideal = [], [], 0
    about = (lattice.members, lattice.start, lattice.unit, lattice.to)
    total = looked_at = 0
    while ideal < lattice.size:
        if search.should_stop() or total > MAX_STAGES or looked_at > MAX_LOOKED_AT:
            return None
        block = (
            np.zeros((BLOCK, 2), np.int64),
            np.zeros((BLOCK, lanes.shape[1] + len(nets))),
        )
        following, filled = kernels.grow_stages(
            ideal, lattice.size, about, lanes, weights, shape, limit, block
        )
        if following == ideal:
            return None  # the stages of one ideal alone fill a block
        start, end = block[0][:filled].T
        room = before[start] + 1 + behind[end] <= most
        pairs.append(block[0][:filled][room])
        sums.append(block[1][:filled][room])
        ideal, total, looked_at = following, total + int(room.sum()), looked_at + filled
    pair, summed = np.concatenate(pairs), np.concatenate(sums).T
    time = summed[2 : 2 + 2 * kinds].reshape(kinds, 2, -1)
    blocked = summed[2 + 2 * kinds : 2 + 3 * kinds] > 0
    cut = summed[4 + 3 * kinds :]
    if relayed:
        crossing = boundary_costs(line, inside[:, np.argsort(order)], nets)
        cut = crossing[:, pair[:, 0]] + crossing[:, pair[:, 1]]
    move = cut[: 2 * kinds].reshape(kinds, 2, -1)
    listed = StageList(
        lattice=lattice,
        start=pair[:, 0],
        end=pair[:, 1],
        forward=np.where(blocked, np.inf, time[:, 0] + move[:, 0]),
        backward=time[:, 1] + move[:, 1],
        compute=time[:, 1],
        engine=cut[2 * kinds :],
        resident=summed[2 + 3 * kinds],
        activation=summed[3 + 3 * kinds],
        ahead=ahead,
    )
    if not line.rules.apart:
        return listed
    return listed.keep(keep_apart(line.rules, lattice, listed.start, listed.end))


def boundary_costs(line: Line, inside: Floats, nets: Floats) -> Floats:
    """Return the cost of each ideal's boundary to the stages on both sides, shape (C, N).

    `inside`, shape (N, U), says which units are in each ideal; `nets` has shape (C, E).
    """
    costs = np.zeros((len(nets), len(inside)))
    for e, pins in enumerate(line.graph.pins):
        held = inside[:, list(pins)].sum(axis=1)
        costs += nets[:, e, None] * ((held > 0) & (held < len(pins)))
    return costs


def keep_apart(rules: StageRules, lattice: Lattice, start: Ints, end: Ints) -> Bools:
    """Return, shape (R,), which stages (pairs of ideals) hold no two units that must be apart."""
    kept = np.ones(len(start), np.bool_)
    for pair in rules.units_apart:
        inside = [lattice.has(unit) for unit in pair]
        kept &= ~np.logical_and(*(one[end] & ~one[start] for one in inside))
    return kept


def keep_pins(
    rules: StageRules, lattice: Lattice, size: int, s: int, start: Ints, end: Ints
) -> Bools:
    """Return, shape (R,), which stages can be stage s of `size` as far as pins go.

    What is pinned to an earlier stage is in the ideal before, what is pinned to a later one behind.
    """
    kept = np.ones(len(start), np.bool_)
    for unit, own in rules.stages(size).items():
        inside = lattice.has(unit)
        kept &= (inside[start] == (own < s)) & (inside[end] == (own <= s))
    return kept


def keeps(rules: StageRules, lattice: Lattice, device: Ints, end: Ints) -> bool:
    """Whether a chain of stages, given by their devices and the ideals behind, keeps all rules."""

    def stage_of(unit: int) -> int:
        return sum(not lattice.holds(ideal, unit) for ideal in end.tolist())

    pinned = all(stage_of(unit) == own for unit, own in rules.stages(len(device)).items())
    return pinned and not any(
        device[stage_of(u)] == device[stage_of(v)] for u, v in rules.units_apart
    )
