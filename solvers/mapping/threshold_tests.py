"""Threshold tests: whether a mapping can have stage times of at most T seconds.

Each tests a relaxation; `bound.Verdict` says what the outcome proves.

*Segments*, `SegmentTest`. At T messages of a boundary can cross between blocks only if the cheapest
route across, with the least all-reduce, fits the slack of the stage. Between boundaries that cannot
be crossed lie the *unsplittable segments*: each replica has all stages of a segment in one block.
So blocks must hold R copies of every segment, and a block of |b| devices holds at most ⌊|b|/L⌋
replicas of a stage whose segment has L stages. If that is less than R, the stage's all-reduce
crosses as well, which may leave too little slack for crossing the segment's end; segments grow
until nothing changes. On few devices, the ring of such a stage is sought among those with at most
so many replicas per block; on more, only its cheapest link across is counted.

*Rings*, `RingTest`, and *messages*, `MessageTest`: the integer programs of devices in
`formulations.mapping.ring_program` and `message_program`. Only the *bottlenecks* are in them: rings
and boundaries to which few pairs of devices in different blocks are admitted. The others find their
pairs among the remaining devices, as a rule, and without them the program is a relaxation. Ring
programs are solved again with cuts until every ring is one cycle. Where no message can leave a
component of the admitted pairs, each component holds whole pipelines, one device per stage:
components are then solved one after the other, and their bounds kept for other thresholds.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Generic

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components

from ...formulations.linear import Linear
from ...formulations.mapping.bound import (
    LowerBounds,
    Verdict,
    fitting,
    least_sufficient_cost,
    pair_upper_bounds,
)
from ...formulations.mapping.costs import MappingCosts
from ...formulations.mapping.kernels import has_spread_ring, least_across
from ...formulations.mapping.message_program import MessageProgram, message_program
from ...formulations.mapping.ring_program import RingProgram, cells_of, cuts, orders
from ...instances.common.arrays import Bools, Floats, Ints
from ..core.highs import Outcome, run_highs
from ..core.search import Clock, S, Search
from .parameters import (
    COMPLETION_PAIRS,
    MAX_SPREAD_DEVICES,
)


@dataclass(frozen=True, eq=False)
class Decision:
    """Verdict on a threshold, with the devices by stage of a solution; none are known if empty."""

    verdict: Verdict
    devices: dict[int, Ints] = field(default_factory=dict)


_INFEASIBLE, _UNKNOWN = Decision(Verdict.INFEASIBLE), Decision(Verdict.UNKNOWN)


class ProgramTest(Generic[S]):
    """Threshold test by integer programs of devices for the bottleneck stages.

    It keeps the least threshold with a solution, in seconds, and the devices of the bottleneck
    stages in it. A ring or boundary is a bottleneck up to `most_pairs` admitted pairs between
    blocks, per device; `seconds` limit one program.
    """

    def __init__(self, search: Search[S], block: Ints, most_pairs: float, seconds: float) -> None:
        self._search = search
        self._block = block
        self._most_pairs = most_pairs
        self._seconds = seconds
        self._rng = np.random.default_rng(search.limits.seed)
        self.threshold = np.inf
        self.devices: dict[int, Ints] = {}

    def __call__(self, costs: MappingCosts, lower_bounds: LowerBounds, threshold: float) -> Verdict:
        """Test a threshold; asked again for the least one, find another solution."""
        decision = self._decide(costs, lower_bounds, threshold)
        if decision.devices and threshold <= self.threshold:
            self.threshold, self.devices = threshold, decision.devices
        return decision.verdict

    def _decide(self, costs: MappingCosts, lower_bounds: LowerBounds, threshold: float) -> Decision:
        """Solve the program; feasible without devices if there is no bottleneck."""
        raise NotImplementedError

    def _crossing(self, admitted: Bools) -> int:
        """Count the pairs, not ordered, of devices in different blocks; all pairs if no blocks."""
        if self._block.any():
            admitted = admitted & (self._block[:, None] != self._block[None, :])
        return int(admitted.sum()) // 2


class MessageTest(ProgramTest[S]):
    """Threshold test of the messages over boundaries to which few pairs are admitted."""

    def __init__(self, search: Search[S], block: Ints, most_pairs: float, seconds: float) -> None:
        super().__init__(search, block, most_pairs, seconds)
        self._components: dict[bytes, _Pipelines] = {}

    def _decide(self, costs: MappingCosts, lower_bounds: LowerBounds, threshold: float) -> Decision:
        bounds = pair_upper_bounds(costs, lower_bounds, threshold)
        fits = None if bounds is None else fitting(costs, lower_bounds, threshold)
        if bounds is None or fits is None:
            return _INFEASIBLE
        counted = np.flatnonzero(costs.boundary.any(axis=1)).tolist()
        admitted: dict[int, Bools] = {}
        for s in counted:
            able = costs.boundary_costs(s) <= bounds[0][s]
            able &= fits[s][:, None] & fits[s + 1][None, :]
            np.fill_diagonal(able, False)
            if self._crossing(able) <= self._most_pairs * costs.size:
                admitted[s] = able
        if not admitted:
            return Decision(Verdict.FEASIBLE)
        label: Ints = np.zeros(costs.size, np.int64)
        if len(admitted) == costs.stages - 1:
            graph = csr_array(np.any(list(admitted.values()), axis=0))
            label = connected_components(graph)[1].astype(np.int64)
        if label.any():
            return self._place_pipelines(costs, admitted, fits, label, threshold)
        program = message_program(admitted, fits, self._block, costs.replicas)
        return _decision(program, self._run(program.linear))

    def complete(self, costs: MappingCosts, lower_bounds: LowerBounds) -> Ints | None:
        """Return slots, shape (S, R), with the counts per block of `devices`; None if not found.

        All boundaries are in this program, those of many admitted pairs with the cheapest of them.
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
        found = _decision(program, self._run(program.linear)).devices
        if len(found) < costs.stages:
            return None
        return np.array([found[s] for s in range(costs.stages)])

    def _place_pipelines(
        self,
        costs: MappingCosts,
        admitted: dict[int, Bools],
        fits: Bools,
        label: Ints,
        threshold: float,
    ) -> Decision:
        """Place R pipelines in the components, `label`, of the admitted pairs."""
        groups = [np.flatnonzero(label == k) for k in range(int(label.max()) + 1)]
        groups = [group for group in groups if len(group) >= costs.stages]
        known = [
            self._components.setdefault(g.tobytes(), _Pipelines(len(g) // costs.stages))
            for g in groups
        ]
        spare = sum(c.most(threshold) for c in known) - costs.replicas
        for k in np.argsort([-c.refuted for c in known], kind="stable").tolist():
            if spare < 0:
                return _INFEASIBLE
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
            members = _decision(program, outcome).devices
            if members:
                pipelines.found.append((threshold, {s: group[row] for s, row in members.items()}))
            if outcome.status == "infeasible":  # not even none: rows say that it cannot be
                pipelines.above.append((threshold, 0))
            elif np.isfinite(outcome.bound):
                pipelines.above.append((threshold, int(-outcome.bound + 1e-6)))
            spare -= before - pipelines.most(threshold)
        if spare < 0:
            return _INFEASIBLE
        slots: dict[int, list[int]] = {s: [] for s in range(costs.stages)}
        for pipelines in known:
            for s, row in pipelines.best(threshold).items():
                slots[s] += row.tolist()
        if min(map(len, slots.values())) < costs.replicas:
            return _UNKNOWN
        rows = {s: np.array(row[: costs.replicas]) for s, row in slots.items()}
        return Decision(Verdict.FEASIBLE, rows)

    def _run(self, linear: Linear, *, most: bool = False) -> Outcome:
        """Solve a program for any solution; with `most`, for as many pipelines as possible."""
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
        )


def _decision(program: MessageProgram, outcome: Outcome) -> Decision:
    """Read an outcome of HiGHS; a solution whose fill finds no devices decides nothing."""
    if outcome.status == "infeasible":
        return _INFEASIBLE
    found = None if outcome.x is None else program.members(outcome.x)
    return Decision(Verdict.FEASIBLE, found) if found else _UNKNOWN


class _Pipelines:
    """Bounds on the number of pipelines in a component, at the thresholds tried so far."""

    def __init__(self, most: int) -> None:
        self._most = most
        self.above: list[tuple[float, int]] = []
        self.found: list[tuple[float, dict[int, Ints]]] = []

    @property
    def refuted(self) -> float:
        """The largest threshold at which the component cannot be full."""
        return max((t for t, count in self.above if count < self._most), default=0.0)

    def most(self, threshold: float) -> int:
        """Upper bound on the number of pipelines at a threshold."""
        return min((n for t, n in self.above if t >= threshold), default=self._most)

    def best(self, threshold: float) -> dict[int, Ints]:
        """Devices by stage of the most pipelines found so far within a threshold."""
        fitting_ = [members for t, members in self.found if t <= threshold]
        return max(fitting_, key=lambda members: len(members[0]), default={})

    def count(self, threshold: float) -> int:
        """Lower bound on the number of pipelines at a threshold."""
        best = self.best(threshold)
        return len(best[0]) if best else 0


class RingTest(ProgramTest[S]):
    """Threshold test of the rings, of three devices or more, to which few pairs are admitted.

    Its `devices` are in ring order.
    """

    def _decide(self, costs: MappingCosts, lower_bounds: LowerBounds, threshold: float) -> Decision:
        bounds = pair_upper_bounds(costs, lower_bounds, threshold)
        if bounds is None:
            return _INFEASIBLE
        program = RingProgram(costs, self._block)
        around = costs.ring.any(axis=1) & np.isfinite(bounds[1]) & (costs.replicas > 2)
        for s in np.flatnonzero(around).tolist():
            admitted = costs.ring_costs(s) <= bounds[1][s]
            np.fill_diagonal(admitted, False)
            if self._crossing(admitted) > self._most_pairs * costs.size:
                continue
            cell = cells_of(admitted, self._block, costs.replicas)
            if cell is None:
                return _INFEASIBLE
            program.add(s, admitted, cell)
        if not program.rings:
            return Decision(Verdict.FEASIBLE)
        program.share()
        cost = np.zeros(len(program.rows.upper))
        if threshold == self.threshold:
            cost = self._rng.uniform(0.0, 1.0, len(cost))
        return self._solve(program, cost)

    def _solve(self, program: RingProgram, cost: Floats) -> Decision:
        """Solve a program with cuts until every ring is one cycle, or the time is up."""
        search = self._search
        clock = Clock(self._seconds, within=search)
        while not clock.should_stop():
            outcome = run_highs(
                replace(program.rows.build(), cost=cost),
                search,
                on_incumbent=lambda _: True,
                seconds=clock.seconds_left,
            )
            if outcome.status == "infeasible":
                return _INFEASIBLE
            if outcome.x is None:
                return _UNKNOWN
            found = [cut for ring in program.rings for cut in cuts(ring, outcome.x)]
            if not found:
                rows = orders(program.rings, outcome.x)
                return Decision(Verdict.FEASIBLE, rows) if rows else _UNKNOWN
            for cut in found:
                program.rows.row("one_piece", cut.columns, cut.factors, cut.least, np.inf)
        return _UNKNOWN


#: First and last stage of each segment.
Segments = list[tuple[int, int]]


class SegmentTest:
    """Threshold test: whether blocks can hold R copies of every unsplittable segment."""

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

    def __call__(self, costs: MappingCosts, lower_bounds: LowerBounds, threshold: float) -> Verdict:
        """Test a threshold."""
        found = self.segments(costs, lower_bounds, threshold)
        return Verdict.INFEASIBLE if found is None else Verdict.FEASIBLE

    def segments(
        self, costs: MappingCosts, lower_bounds: LowerBounds, threshold: float
    ) -> Segments | None:
        """Return the segments at a threshold; None if it is infeasible."""
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
        """Least longest message in seconds of a ring of stage s with at most `copies` per block."""
        key = (*costs.ring[s].tolist(), *copies.tolist())
        if key not in self._known:

            def enough(admitted: Bools) -> bool:
                return has_spread_ring(admitted, self._block, copies, costs.replicas)

            self._known[key] = least_sufficient_cost(costs.ring_costs(s), enough)
        return self._known[key]

    def _allreduce(
        self, costs: MappingCosts, lower_bounds: LowerBounds, s: int, copies: Ints, slack: float
    ) -> float:
        """Least seconds of stage s's all-reduce; block b holds at most `copies[b]` of its replicas.

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


def _numbers(names: Ints) -> Ints:
    """Number a partition by first member, so that equal partitions become equal."""
    _, first, inverse = np.unique(names, return_index=True, return_inverse=True)
    return np.asarray(first[inverse])


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
