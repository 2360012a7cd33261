"""All stages that a plan may have: pairs of ideals, with their times and bytes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...formulations.iteration.line import Line
from ...instances.common.arrays import Bools, Floats, Ints
from ..core.lattice import Lattice, incidence_of
from ..core.search import Clock
from . import kernels
from .kept_rules import keep_apart

#: Stages listed between two looks at the clock; at most, of some 100 bytes each; and met at most.
BLOCK, MAX_STAGES, MAX_LOOKED_AT = 500_000, 6_000_000, 20_000_000
#: Part by which limits are widened, so that rounding cuts nothing.
SLACK = 1e-9


@dataclass(frozen=True, eq=False)
class StageList:
    """R stages, the differences of two ideals; K kinds, N ideals.

    Parameters
    ----------
    lattice
        The ideals.
    start, end
        Shape (R,): the smaller and the larger ideal.
    forward, backward
        Shape (K, R): time of each pass; `inf` where unsupported.
    compute
        Shape (K, R): the compute of the backward pass alone.
    engine
        Shape (K, R): what the copy engine does for a microbatch, where transfers overlap.
    resident, activation
        Shape (R,): bytes.
    ahead
        Shape (2, N): least forward and backward compute of the units in each ideal.
    """

    lattice: Lattice
    start: Ints
    end: Ints
    forward: Floats
    backward: Floats
    compute: Floats
    engine: Floats
    resident: Floats
    activation: Floats
    ahead: Floats

    @property
    def size(self) -> int:
        """Number of stages."""
        return len(self.start)

    def keep(self, which: Bools | Ints) -> StageList:
        """Return the list of some of the stages, by mask or by number."""
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

    Parameters
    ----------
    paid
        Shape (E,): the nets that stages pay for; default: all.

    Returns
    -------
    StageList or None
        None if there are more than `MAX_STAGES`, or more to look at, or the search must stop.

    Notes
    -----
    Time linear in the stages listed and in those one unit larger; 100 bytes for each.
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
    incidence = incidence_of(() if relayed else line.graph.pins, order)
    weights = nets.T.copy() if not relayed else np.zeros((0, len(nets)))
    inside = bits(lattice)
    ahead = (inside @ cheapest[:, order].T).T
    most, work = line.most_stages, ahead.sum(axis=0)
    each = max(float(limit[0]), np.finfo(float).tiny)
    before = np.ceil(work / each - SLACK)  # stages that it takes at least, and behind
    behind = np.ceil((work[-1] - work) / each - SLACK)
    pairs, sums, ideal = [], [], 0
    steps = (lattice.start, lattice.unit, lattice.to)
    total = looked_at = 0
    while ideal < lattice.size:
        if search.should_stop() or total > MAX_STAGES or looked_at > MAX_LOOKED_AT:
            return None
        block = (
            np.zeros((BLOCK, 2), np.int64),
            np.zeros((BLOCK, lanes.shape[1] + len(nets))),
        )
        following, filled = kernels.grow_stages(
            ideal, lattice.size, lattice.members, steps, lanes, weights, incidence, limit, block
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


def bits(lattice: Lattice) -> Floats:
    """Return which units are in each ideal, shape (N, U), in the lattice's order, as 0 and 1."""
    raw = np.unpackbits(lattice.members.view(np.uint8), axis=1, bitorder="little")
    return raw[:, : len(lattice.order)].astype(np.float64)


def boundary_costs(line: Line, inside: Floats, nets: Floats) -> Floats:
    """Return what each ideal's boundary costs the stages on both sides, shape (C, N).

    Parameters
    ----------
    inside
        Shape (N, U): which units are in each ideal.
    nets
        Shape (C, E).
    """
    costs = np.zeros((len(nets), len(inside)))
    for e, pins in enumerate(line.graph.pins):
        held = inside[:, list(pins)].sum(axis=1)
        costs += nets[:, e, None] * ((held > 0) & (held < len(pins)))
    return costs
