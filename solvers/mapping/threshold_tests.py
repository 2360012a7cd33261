"""Unsplittable segments: stages that share a block at a threshold, as crossing costs too much.

At a threshold T messages of a boundary can cross between blocks only if the cheapest route across,
with the least all-reduce, fits the slack of the stage. Between boundaries that cannot be crossed
lie the *unsplittable segments*: each replica has all stages of a segment in one block. So blocks
must hold R copies of every segment, and a block of |b| devices holds at most ⌊|b|/L⌋ replicas of a
stage whose segment has L stages. If that is less than R, the stage's all-reduce crosses as well,
which may leave too little slack for crossing the segment's end; segments grow until nothing
changes. On few devices, the ring of such a stage is sought among those with at most so many
replicas per block; on more, only its cheapest link across is counted.

Counts of devices per block at a threshold: the program of `formulations.mapping.counts`.

Rings at a threshold, exactly: the program of `formulations.mapping.ring_program`, by HiGHS.

The program is solved, solutions whose rings are not connected are cut off, and it is solved again,
until every ring is in one piece or the program is infeasible. Only stages for whose rings few pairs
are admitted are in it: those with many find their rings in what the others leave, as a rule, and
without them it is a relaxation.

Messages at a threshold, exactly: the program of `formulations.mapping.message_program`.

Only boundaries to which few pairs between blocks are admitted are in it; the others find their
pairs, as a rule, and without them it is a relaxation. Where no message can leave a component of the
admitted pairs, each component holds whole pipelines, one device per stage: then components are
solved one after the other, and what is known of one at some thresholds is kept for others.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Generic

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components

from ...formulations.linear import Linear
from ...formulations.mapping.blocks import block_capacities, program
from ...formulations.mapping.bound import (
    LowerBounds,
    fitting,
    least_sufficient_cost,
    pair_upper_bounds,
)
from ...formulations.mapping.costs import MappingCosts
from ...formulations.mapping.kernels import has_spread_ring
from ...formulations.mapping.message_program import MessageProgram, message_program
from ...formulations.mapping.ring_program import RingProgram, cells_of, cuts, orders
from ...instances.common.arrays import Bools, Floats, Ints
from ..core.highs import Outcome, run_highs
from ..core.search import S, Search
from .kernels import least_across
from .parameters import (
    COMPLETION_PAIRS,
    COUNT_PROGRAM_NODES,
    COUNT_PROGRAM_SECONDS,
    MAX_SPREAD_DEVICES,
    MESSAGE_HEURISTICS,
    RING_PROGRAM_SECONDS,
)


class MessageTest(Generic[S]):
    """A test for `threshold_bound`, which keeps what it found at the least threshold with any.

    Parameters
    ----------
    block
        Shape (D,): as `find_blocks` returns it.
    most_pairs
        Admitted pairs between blocks, per device, up to which a boundary is in the program.
    seconds
        For one program; what is not decided by then counts as possible.

    Attributes
    ----------
    threshold, devices
        The least threshold at which messages are possible, and the devices of the stages in the
        program there; empty if none were found.
    """

    def __init__(self, search: Search[S], block: Ints, most_pairs: float, seconds: float) -> None:
        self._search = search
        self._block = block
        self._most_pairs = most_pairs
        self._seconds = seconds
        self._rng = np.random.default_rng(search.limits.seed)
        self._known: dict[bytes, _Pipelines] = {}
        self.threshold = np.inf
        self.devices: dict[int, Ints] = {}

    def __call__(
        self, costs: MappingCosts, lower_bounds: LowerBounds, threshold: float
    ) -> dict[int, Ints] | bool | None:
        """Return None where no mapping has its messages on the tight boundaries.

        Else devices by stage, others each time; empty if it is not decided; True if no boundary is
        tight.
        """
        bounds = pair_upper_bounds(costs, lower_bounds, threshold)
        fits = None if bounds is None else fitting(costs, lower_bounds, threshold)
        if bounds is None or fits is None:
            return None
        counted = np.flatnonzero(costs.boundary.any(axis=1)).tolist()
        admitted: dict[int, Bools] = {}
        for s in counted:
            able = costs.boundary_costs(s) <= bounds[0][s]
            able &= fits[s][:, None] & fits[s + 1][None, :]
            np.fill_diagonal(able, False)
            if self._crossing(able) <= self._most_pairs * costs.size:
                admitted[s] = able
        if not admitted:
            return True
        label: Ints = np.zeros(costs.size, np.int64)
        if len(admitted) == costs.stages - 1:
            graph = csr_array(np.any(list(admitted.values()), axis=0))
            label = connected_components(graph)[1].astype(np.int64)
        if label.any():
            found = self._in_pipelines(costs, admitted, fits, label, threshold)
        else:
            program = message_program(admitted, fits, self._block, costs.replicas)
            found = self._devices(program, self._run(program.linear))
        if found is None:
            return None
        if found and threshold <= self.threshold:
            self.threshold, self.devices = threshold, found
        return found

    def complete(self, costs: MappingCosts, lower_bounds: LowerBounds) -> Ints | None:
        """Return slots, (S, R), that keep the threshold's counts per block; None if none are found.

        Here all boundaries are in the program, dense ones with their cheapest pairs.
        """
        bounds = pair_upper_bounds(costs, lower_bounds, self.threshold)
        fits = fitting(costs, lower_bounds, self.threshold)
        if bounds is None or fits is None or not self.devices:
            return None
        counts = np.full((costs.stages, int(self._block.max()) + 1), costs.replicas)
        for s, row in self.devices.items():
            counts[s] = np.bincount(self._block[row], minlength=counts.shape[1])
        fits = fits & (counts[:, self._block] > 0)
        admitted = {}
        for s in np.flatnonzero(costs.boundary.any(axis=1)).tolist():
            pair_costs = costs.boundary_costs(s)
            able = (pair_costs <= bounds[0][s]) & fits[s][:, None] & fits[s + 1][None, :]
            np.fill_diagonal(able, False)
            admitted[s] = _cheapest(able, pair_costs, self._block)
        program = message_program(admitted, fits, self._block, costs.replicas, counts)
        found = self._devices(program, self._run(program.linear))
        if not found or len(found) < costs.stages:
            return None
        return np.array([found[s] for s in range(costs.stages)])

    def _crossing(self, able: Bools) -> int:
        """Pairs that are told apart, each direction counted."""
        if not self._block.any():
            return int(able.sum()) // 2
        return int((able & (self._block[:, None] != self._block[None, :])).sum()) // 2

    def _in_pipelines(
        self,
        costs: MappingCosts,
        admitted: dict[int, Bools],
        fits: Bools,
        label: Ints,
        threshold: float,
    ) -> dict[int, Ints] | None:
        """Place pipelines in components; None if they hold fewer than R in all."""
        groups = [np.flatnonzero(label == k) for k in range(int(label.max()) + 1)]
        groups = [group for group in groups if len(group) >= costs.stages]
        known = [
            self._known.setdefault(g.tobytes(), _Pipelines(len(g) // costs.stages)) for g in groups
        ]
        spare = sum(c.most(threshold) for c in known) - costs.replicas
        for k in np.argsort([-c.refuted for c in known], kind="stable").tolist():
            if spare < 0:
                return None
            pipelines, group = known[k], groups[k]
            before = pipelines.most(threshold)
            if before == pipelines.count(threshold) or self._search.should_stop():
                continue
            among = np.ix_(group, group)
            program = message_program(
                {s: able[among] for s, able in admitted.items()},
                fits[:, group],
                np.unique(self._block[group], return_inverse=True)[1],
                None,
            )
            outcome = self._run(program.linear, most=True)
            members = self._devices(program, outcome)
            if members:
                pipelines.found.append((threshold, {s: group[row] for s, row in members.items()}))
            if outcome.status == "infeasible":  # not even none: rows say that it cannot be
                pipelines.above.append((threshold, 0))
            elif np.isfinite(outcome.bound):
                pipelines.above.append((threshold, int(-outcome.bound + 1e-6)))
            spare -= before - pipelines.most(threshold)
        if spare < 0:
            return None
        slots: dict[int, list[int]] = {s: [] for s in range(costs.stages)}
        for pipelines in known:
            for s, row in pipelines.best(threshold).items():
                slots[s] += row.tolist()
        if min(map(len, slots.values())) < costs.replicas:
            return {}
        return {s: np.array(row[: costs.replicas]) for s, row in slots.items()}

    def _devices(self, program: MessageProgram, outcome: Outcome) -> dict[int, Ints] | None:
        """Devices by stage; None if there are none, empty if it is not known."""
        if outcome.status == "infeasible":
            return None
        found = None if outcome.x is None else program.members(outcome.x)
        return {} if found is None else found

    def _run(self, linear: Linear, *, most: bool = False) -> Outcome:
        """Solve for any solution, or for the most pipelines."""
        # without costs, or with many different ones, HiGHS finds its first solution later
        cost = self._rng.integers(0, 2, len(linear.cost)).astype(float)
        if most:
            cost[:] = 0.0
            cost[0] = -1.0
        return run_highs(
            replace(linear, cost=cost),
            self._search,
            on_incumbent=lambda _: not most,
            seconds=self._seconds,
            options={"mip_heuristic_effort": MESSAGE_HEURISTICS},
        )


class _Pipelines:
    """Bounds on how many pipelines a component holds, at the thresholds tried."""

    def __init__(self, most: int) -> None:
        self._most = most
        self.above: list[tuple[float, int]] = []
        self.found: list[tuple[float, dict[int, Ints]]] = []

    @property
    def refuted(self) -> float:
        """The largest threshold at which it was not full."""
        return max((t for t, count in self.above if count < self._most), default=0.0)

    def most(self, threshold: float) -> int:
        """Upper bound at a threshold."""
        return min((n for t, n in self.above if t >= threshold), default=self._most)

    def best(self, threshold: float) -> dict[int, Ints]:
        """Most pipelines found so far that fit a threshold: devices by stage."""
        fitting_ = [members for t, members in self.found if t <= threshold]
        return max(fitting_, key=lambda members: len(members[0]), default={})

    def count(self, threshold: float) -> int:
        """Lower bound at a threshold."""
        best = self.best(threshold)
        return len(best[0]) if best else 0


class RingTest(Generic[S]):
    """A test for `threshold_bound`, which keeps the rings of the least threshold with any.

    Parameters
    ----------
    block
        Shape (D,): as `find_blocks` returns it.
    most_pairs
        Admitted pairs between blocks, per device, up to which a stage's ring is in the program.

    Attributes
    ----------
    threshold, devices
        The least threshold with rings, and the ring of each stage of the program there.
    """

    def __init__(self, search: Search[S], block: Ints, most_pairs: float) -> None:
        self._search = search
        self._block = block
        self._most_pairs = most_pairs
        self._rng = np.random.default_rng(search.limits.seed)
        self.threshold = np.inf
        self.devices: dict[int, Ints] = {}

    def __call__(
        self, costs: MappingCosts, lower_bounds: LowerBounds, threshold: float
    ) -> dict[int, Ints] | bool | None:
        """Return None where the stages cannot have their rings, of three or more, at the threshold.

        Else the ring of each tight stage, others if it is asked again for the least threshold;
        empty if it is not decided; True if no stage is tight.
        """
        bounds = pair_upper_bounds(costs, lower_bounds, threshold)
        if bounds is None:
            return None
        program = RingProgram(costs, self._block)
        around = costs.ring.any(axis=1) & np.isfinite(bounds[1]) & (costs.replicas > 2)
        apart = self._block[:, None] != self._block[None, :]
        for s in np.flatnonzero(around).tolist():
            admitted = costs.ring_costs(s) <= bounds[1][s]
            np.fill_diagonal(admitted, False)
            if self._pairs(admitted, apart) > self._most_pairs * costs.size:
                continue
            cell = cells_of(admitted, self._block, costs.replicas)
            if cell is None:
                return None
            program.add(s, admitted, cell)
        if not program.rings:
            return True
        program.share()
        cost = np.zeros(len(program.rows.upper))
        if threshold == self.threshold:
            cost = self._rng.uniform(0.0, 1.0, len(cost))
        found = self._solve(program, cost)
        if found is None:
            return None
        if found and threshold <= self.threshold:
            self.threshold, self.devices = threshold, found
        return found

    def _pairs(self, admitted: Bools, apart: Bools) -> int:
        among = admitted & apart if self._block.any() else admitted
        return int(among.sum()) // 2

    def _solve(self, program: RingProgram, cost: Floats) -> dict[int, Ints] | None:
        """Return rings by stage, empty if it is not known whether there are, None if not."""
        search = self._search
        until = search.seconds + RING_PROGRAM_SECONDS
        while search.seconds < until and not search.should_stop():
            outcome = self._run(program, cost, until - search.seconds)
            if outcome.status == "infeasible":
                return None
            if outcome.x is None:
                return {}
            found = [cut for ring in program.rings for cut in cuts(ring, outcome.x)]
            if not found:
                rows = orders(program.rings, outcome.x)
                return {} if rows is None else rows
            for cut in found:
                program.rows.row("one_piece", cut.columns, cut.factors, cut.least, np.inf)
        return {}

    def _run(self, program: RingProgram, cost: Floats, seconds: float) -> Outcome:
        linear = replace(program.rows.build(), cost=cost)
        return run_highs(linear, self._search, on_incumbent=lambda _: True, seconds=seconds)


Test = Callable[[MappingCosts, LowerBounds, float], Outcome | None]


Segments = list[tuple[int, int]]


class SegmentTest:
    """A test for `threshold_bound`: whether blocks can hold R copies of every segment.

    Parameters
    ----------
    block
        Shape (D,): as `find_blocks` returns it.
    """

    def __init__(self, costs: MappingCosts, block: Ints) -> None:
        self._block, self._sizes = block, np.bincount(block)
        self._known: dict[tuple[float, ...], float] = {}
        self._spread = len(block) <= MAX_SPREAD_DEVICES
        tables = costs.latency, costs.inverse, block
        self._message = least_across(*tables, costs.boundary, True)
        self._ring = least_across(*tables, costs.ring, True)
        factors = np.array([[1.0, 0.0], [0.0, 1.0]])
        self._across = least_across(*tables, factors, True)  # latency, inverse
        self._inside = least_across(*tables, factors, False)
        self._islands = bool((_numbers(costs.island) == _numbers(block)).all())

    def __call__(
        self, costs: MappingCosts, lower_bounds: LowerBounds, threshold: float
    ) -> Segments | None:
        """Return the first and last stage of each segment; None if the threshold is infeasible."""
        slack = (threshold - costs.base) * (1 + 1e-12)
        can_cross = np.ones(costs.stages, np.bool_)
        while True:
            ends = np.flatnonzero(can_cross).tolist()
            segments = list(zip([0, *(end + 1 for end in ends[:-1])], ends, strict=True))
            changed = False
            for first, last in segments:
                copies = self._sizes // (last + 1 - first)
                if copies.sum() < costs.replicas:
                    return None
                for s in range(first, last + 1):
                    reduce = self._allreduce(
                        costs, lower_bounds, s, copies, slack[s] - lower_bounds.transfer[s]
                    )
                    if lower_bounds.transfer[s] + reduce > slack[s]:
                        return None
                if last + 1 < costs.stages and self._message[last] + reduce > slack[last]:
                    can_cross[last] = False
                    changed = True
            if not changed:
                return segments

    def _spread_ring(self, costs: MappingCosts, s: int, copies: Ints) -> float:
        """Least longest link of a ring of stage s with so many replicas per block at most."""
        key = (*costs.ring[s].tolist(), *copies.tolist())
        if key not in self._known:

            def enough(admitted: Bools) -> bool:
                return has_spread_ring(admitted, self._block, copies, costs.replicas)

            self._known[key] = least_sufficient_cost(costs.ring_costs(s), enough)
        return self._known[key]

    def _allreduce(
        self, costs: MappingCosts, lower_bounds: LowerBounds, s: int, copies: Ints, slack: float
    ) -> float:
        """Least all-reduce of stage s if block b holds at most `copies[b]` of its replicas.

        Above `slack` any value is returned that exceeds it.
        """
        r, alone = costs.replicas, float(lower_bounds.allreduce[s])
        most = int(copies.max())
        if most >= r or not costs.ring[s].any():
            return alone
        ring = float(self._ring[s])
        if self._spread and ring <= slack < float(costs.ring_costs(s).max()):
            ring = max(ring, self._spread_ring(costs, s, copies))
        if np.isinf(costs.non_ring_lower_bound[s]):
            return max(alone, ring)
        if not self._islands:
            return max(alone, min(ring, float(costs.non_ring_lower_bound[s])))
        size = float(costs.ring[s, 1]) * r / (2 * (r - 1))
        best = min(ring, 2 * (r.bit_length() - 1) * float(self._across @ (1, size)))
        for k in range(2, most + 1):
            if r % k == 0:
                inside = 2 * (k - 1) * float(self._inside @ (1, size / k))
                across = 2 * (r // k - 1) * float(self._across @ (1, size / r))
                best = min(best, inside + across)
        return max(alone, best)

    def pack(self, costs: MappingCosts, block: Ints, segments: Segments) -> Ints | None:
        """Return slots, (S, R), with each copy of a segment in one block; None without a packing.

        Longest segments first; each block takes copies of one segment as long as they fit.
        """
        slack = [np.flatnonzero(block == b).tolist() for b in range(len(self._sizes))]
        slots = np.zeros((costs.stages, costs.replicas), np.int64)
        for first, last in sorted(segments, key=lambda segment: segment[0] - segment[1]):
            length = last + 1 - first
            # the block that is filled best comes first, so that what is left stays in one piece
            order = sorted(range(len(slack)), key=lambda b: (len(slack[b]) % length, len(slack[b])))
            placed = 0
            for b in order:
                while len(slack[b]) >= length and placed < costs.replicas:
                    slots[first : last + 1, placed] = slack[b][:length]
                    del slack[b][:length]
                    placed += 1
            if placed < costs.replicas:
                return None
        return slots


def _numbers(names: Ints) -> Ints:
    """Number a partition by first member, so that equal partitions become equal."""
    _, first, inverse = np.unique(names, return_index=True, return_inverse=True)
    return np.asarray(first[inverse])


def count_test(search: Search[S], block: Ints) -> Test:
    """Return a test for `threshold_bound`: None where the counts per block are infeasible.

    Parameters
    ----------
    block
        Shape (D,): as `find_blocks` returns it.
    """

    def possible(
        costs: MappingCosts, lower_bounds: LowerBounds, threshold: float
    ) -> Outcome | None:
        counts = block_capacities(costs, lower_bounds, threshold, block)
        if counts is None:
            return None
        outcome = run_highs(
            program(counts),
            search,
            on_incumbent=lambda _: True,
            seconds=COUNT_PROGRAM_SECONDS,
            options={"mip_max_nodes": COUNT_PROGRAM_NODES},
            gap=0.02,
        )
        return None if outcome.status == "infeasible" else outcome

    return possible


def _cheapest(able: Bools, pair_costs: Floats, block: Ints) -> Bools:
    """Return the admitted pairs inside blocks, and between them the cheapest of each end."""
    across = able & (block[:, None] != block[None, :])
    if int(across.sum()) <= COMPLETION_PAIRS * len(block):
        return able
    value = np.where(across, pair_costs, np.inf)
    kept: Bools = able & ~across
    for axis in (0, 1):
        best = np.argpartition(value, COMPLETION_PAIRS, axis=axis).take(
            range(COMPLETION_PAIRS), axis=axis
        )
        chosen = np.zeros_like(kept)
        np.put_along_axis(chosen, best, True, axis=axis)
        kept |= chosen & across
    return kept
