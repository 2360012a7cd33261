"""State of a mapping search, shared by its methods: stages, costs, incumbent and bound."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property, partial

import numpy as np
from numpy.typing import NDArray

from ...formulations.mapping.bound import (
    LowerBounds,
    Verdict,
    least_sufficient_cost,
    stage_lower_bounds,
    threshold_bound,
)
from ...formulations.mapping.costs import MappingCosts, find_blocks, stage_times
from ...formulations.mapping.kernels import has_spread_ring
from ...formulations.mapping.memory import (
    can_be_mapped,
    costs_of_cut,
    held_bytes,
    relative_slowdowns,
    stage_rooms,
)
from ...formulations.task import Task
from ...instances import DeviceMapping, ReplicaPlacement, Solution, StageCosts, stage_costs
from ...instances.common.arrays import Bools, Floats, Ints
from ...instances.common.units import TIME_UNITS
from ..core.search import Search
from .annealing.costs import best_routes, descend
from .layouts import first_mapping, layouts
from .parameters import MAX_SPREAD_DEVICES, ORDER_STEPS
from .partition import balanced_partition, cut_for_devices


class MappingState:
    """Stages to be mapped and their costs, with offers and bounds in seconds per batch.

    It converts them to the search's unit, that of the workload.
    """

    def __init__(self, task: Task[DeviceMapping], search: Search[Solution]) -> None:
        self.problem = task.problem
        self.search = search
        self.unit = TIME_UNITS.get(task.workload.time_unit, 1.0)
        self.task, self.workload = task, task.workload
        known = search.best  # a start, or, in another process, what the solve has found
        with search.phase("first"):
            first_mapping(task, search)
        with search.phase("partition"):
            stage = known.stage if isinstance(known, ReplicaPlacement) else _stages_of(task, search)
        self._take(stage)
        self.lower_bounds = LowerBounds(
            np.zeros(self.problem.stages), np.zeros(self.problem.stages)
        )
        self.segments: SegmentTest | None = None
        self.turns = 0

    def _take(self, stage: Ints) -> None:
        """Replace the stages to be mapped; `stage`, shape (V,), is the stage of each node."""
        self.stage = stage
        self.stages: StageCosts = stage_costs(self.workload, stage, self.problem.stages)
        with self.search.phase("routes"):
            self.costs: MappingCosts = costs_of_cut(self.task, stage)

    @cached_property
    def block(self) -> Ints:
        """Block of each device, shape (D,); computed on first use."""
        return find_blocks(self.costs)

    @cached_property
    def order(self) -> NDArray[np.int32]:
        """Other devices of each by `best_routes`, shape (D, D−1); computed on first use."""
        return best_routes(self.costs)

    @property
    def objective_s(self) -> float:
        """Objective of the incumbent in seconds."""
        return self.search.objective * self.unit

    @property
    def bound_s(self) -> float:
        """Proved bound in seconds."""
        return self.search.bound * self.unit

    @property
    def program_units_per_s(self) -> float:
        """Time unit of integer programs, per second: the incumbent takes 1000 units."""
        return 1000.0 / self.objective_s if 0 < self.objective_s < math.inf else 1000.0

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Set the method's name for a block of code; restore it if nothing improves."""
        search = self.search
        before, objective = search.method, search.objective
        search.method = name
        yield
        if search.objective >= objective:
            search.method = before

    def offer(self, slots: Ints, sends_to: Ints) -> None:
        """Offer a mapping, with better orders if all-reduces other than rings are allowed."""
        self._offer(slots, sends_to)
        if not self.rings_only and self.problem.objective == "stage-time":
            self._offer_orders(slots, sends_to)

    def _offer(self, slots: Ints, sends_to: Ints) -> None:
        """Offer a mapping, unless only rings are allowed and its longest stage is no shorter."""
        costs = self.costs
        if self.rings_only:
            longest = stage_times(costs, slots, sends_to).max()
            if longest >= self.objective_s * (1 - 1e-12):
                return
        self.search.offer(costs.read_back(self.stage, slots, sends_to))

    def _offer_orders(self, slots: Ints, sends_to: Ints) -> None:
        """Offer a mapping with its orders improved for trees and hierarchical rings."""
        costs, search = self.costs, self.search
        if costs.ring.any() and not search.is_over():
            steps, seed = ORDER_STEPS * slots.size, search.limits.seed
            slots, sends_to = descend(costs, slots, sends_to, steps, seed, orders_only=True)
            search.offer(costs.read_back(self.stage, slots, sends_to))

    @property
    def rings_only(self) -> bool:
        """Whether the objective is stage times with ring all-reduces alone."""
        of_stages = self.problem.objective == "stage-time"
        return of_stages and bool(np.isinf(self.costs.non_ring_lower_bound).all())

    def raise_bound(self, bound_s: float, origin: str) -> None:
        """Raise the bound to seconds proved for the given stages, less a margin for rounding."""
        origin = f"{origin}, stages given"
        self.search.raise_bound(bound_s * (1 - 1e-12) / self.unit, origin)

    def layouts(self) -> None:
        """Offer the constructions, fix the stages, and bound each stage alone.

        If the first mapping is better than the constructions, its stages are mapped instead. From
        then on the search takes no mapping of other stages from other processes. If no construction
        fits the memories, there is neither incumbent nor bound.
        """
        with self.search.phase("layouts"):
            offered = self._layouts()
            stage = self._fix_stages()
            if (stage != self.stage).any():
                self._take(stage)
                offered = self._layouts()
        if self.search.best is None:
            return
        self.raise_bound(0.0, "no time is below 0")
        if self.problem.objective == "stage-time":
            compute = max(self.costs.lower_bound, float(self.costs.base.max()))
            self.raise_bound(compute, "compute of the longest stage")
            if not self.search.should_stop():
                self._bound_stages()
            if not self.rings_only:
                for slots, sends_to in offered:
                    self._offer_orders(slots, sends_to)

    def _fix_stages(self) -> Ints:
        """Restrict the search to mappings of the incumbent's stages, and return these."""
        while True:
            best = self.search.best
            stage = best.stage if isinstance(best, ReplicaPlacement) else self.stage
            if self.search.restrict(partial(_has_stages, stage)):  # else a better one came now
                return stage

    def _layouts(self) -> list[tuple[Ints, Ints]]:
        """Offer the constructions; return those offered before a limit."""
        offered = []
        for slots, sends_to in layouts(self.costs):
            offered.append((slots, sends_to))
            self._offer(slots, sends_to)
            if self.search.should_stop():
                break
        return offered

    def _bound_stages(self) -> None:
        """Raise the bound by the lower bound of each stage alone."""
        with self.search.phase("bound"):
            self.lower_bounds = stage_lower_bounds(self.costs, self.search.should_stop)
            alone = self.costs.base + self.lower_bounds.transfer + self.lower_bounds.allreduce
            self.raise_bound(float(alone.max()), "each stage alone")

    def bound_thresholds(self) -> None:
        """Raise the bound to the least threshold at which necessary conditions hold.

        The bisection starts at the incumbent: with a better one it ends sooner.
        """
        search, costs, least = self.search, self.costs, self.lower_bounds
        if search.should_stop():
            return
        with search.phase("bound"):
            bound = threshold_bound(
                costs, least, self.objective_s, search.should_stop, lower=self.bound_s
            )
            self.raise_bound(bound, "necessary conditions at a threshold")

    def bound_segments(self) -> None:
        """Raise the bound to the least threshold at which unsplittable segments fit the blocks."""
        search, costs = self.search, self.costs
        if search.is_over() or not self.block.any():
            return
        with search.phase("segments"):
            test = self.segments = SegmentTest(costs, self.block)
            bound = threshold_bound(
                costs, self.lower_bounds, self.objective_s, search.should_stop, test, self.bound_s
            )
            self.raise_bound(bound, "stages kept together by blocks")


def _has_stages(stage: Ints, solution: Solution) -> bool:
    return isinstance(solution, ReplicaPlacement) and np.array_equal(solution.stage, stage)


def _stages_of(task: Task[DeviceMapping], search: Search[Solution]) -> Ints:
    """Return the stage of each node, shape (V,): of the start, or of a balanced partition."""
    problem = task.problem
    if task.start is not None and isinstance(task.start.solution, ReplicaPlacement):
        return task.start.solution.stage
    coefficient = 0.0
    if problem.mode != "allr" and len(problem.topology.links):
        coefficient = 1.0 / float(problem.topology.bytes_per_s.max())
    stage = balanced_partition(
        task.workload, problem.stages, coefficient, should_stop=search.should_stop
    )
    rooms, slow = stage_rooms(task), relative_slowdowns(task)
    held = held_bytes(task.workload, stage, problem.stages)
    if can_be_mapped(held, rooms) and slow.min() == slow.max():
        return stage
    cut = cut_for_devices(task, search, coefficient)
    return stage if cut is None else cut


class SegmentTest:
    """Threshold test by segments: whether a mapping can have stage times of at most T seconds.

    At T messages of a boundary can cross between blocks only if the cheapest route across, with the
    least all-reduce, fits the slack of the stage. Between boundaries that cannot be crossed lie the
    *unsplittable segments*: each replica has all stages of a segment in one block. So blocks must
    hold R copies of every segment, and a block of |b| devices holds at most ⌊|b|/L⌋ replicas of a
    stage whose segment has L stages. If that is less than R, the stage's all-reduce crosses as
    well, which may leave too little slack for crossing the segment's end; segments grow until
    nothing changes. On few devices, the ring of such a stage is sought among those with at most so
    many replicas per block; on more, only its cheapest link across is counted.
    """

    def __init__(self, costs: MappingCosts, block: Ints) -> None:
        self._block, self._sizes = block, np.bincount(block)
        self._known: dict[tuple[float, ...], float] = {}
        self._spread = len(block) <= MAX_SPREAD_DEVICES
        across = block[:, None] != block
        inside = ~across & ~np.eye(len(block), dtype=np.bool_)

        def least(of: Floats, among: Bools) -> float:
            return float(of.min(where=among, initial=np.inf))

        self._message = [least(costs.boundary_costs(s), across) for s in range(costs.stages)]
        self._ring = [least(costs.ring_costs(s), across) for s in range(costs.stages)]
        both = costs.latency, costs.inverse
        self._across = np.array([least(of, across) for of in both])
        self._inside = np.array([least(of, inside) for of in both])
        self._islands = bool((_numbers(costs.island) == _numbers(block)).all())

    def __call__(self, costs: MappingCosts, lower_bounds: LowerBounds, threshold: float) -> Verdict:
        """Test a threshold: segments, as first and last stage, grow until nothing changes."""
        slack = (threshold - costs.base) * (1 + 1e-12)
        can_cross = np.ones(costs.stages, np.bool_)
        while True:
            ends = np.flatnonzero(can_cross).tolist()
            segments = list(zip([0, *(end + 1 for end in ends[:-1])], ends, strict=True))
            changed = False
            for first, last in segments:
                copies = self._sizes // (last + 1 - first)
                if copies.sum() < costs.replicas:
                    return Verdict.INFEASIBLE
                for s in range(first, last + 1):
                    reduce = self._allreduce(
                        costs, lower_bounds, s, copies, slack[s] - lower_bounds.transfer[s]
                    )
                    if lower_bounds.transfer[s] + reduce > slack[s]:
                        return Verdict.INFEASIBLE
                if last + 1 < costs.stages and self._message[last] + reduce > slack[last]:
                    can_cross[last] = False
                    changed = True
            if not changed:
                return Verdict.FEASIBLE

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
        ring = self._ring[s]
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
