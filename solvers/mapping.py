"""Mapping stages × replicas to a topology, with a bound, within a time limit."""

from __future__ import annotations

import numpy as np

from ..formulations.mapping import MappingCosts, mapping_costs, stage_times
from ..formulations.mapping_bound import Floors, floors, threshold_bound
from ..formulations.task import Task
from ..instances import InputError, Mapped, Mapping, Solution, StageCosts, stage_costs
from ..instances.arrays import Floats, Ints
from ..instances.units import TIME_UNITS
from .balanced_partition import balanced_partition
from .mapping_anneal import State, new_state, repair
from .mapping_blocks import IslandTest, slots_from
from .mapping_exact import MAX_DEVICES, exact
from .mapping_layouts import layouts, matched
from .search import OPTIMAL_GAP, Search

#: Steps of the first repair of a target; doubled at every failure.
FIRST_STEPS = 100_000
#: Seconds for counts per island, at most; and never more than 0.3 of what is left.
ISLAND_SECONDS = 20.0


def auto(task: Task, search: Search[Solution]) -> None:
    """Partition the workload into stages and map them: layouts, bound, then annealing or exact.

    The partition is that of `balanced_partition`, with messages priced at the bandwidth of the
    fastest link where the mode counts them, or that of the plan to start from. The bound is for
    the mapping of these stages: another partition may have a better one.
    """
    hunt = Hunt(task, search)
    hunt.layouts()
    hunt.bound()
    if hunt.costs.size <= MAX_DEVICES and search.gap > OPTIMAL_GAP:
        hunt.anneal(rounds=8)
        hunt.exact()
    if hunt.start is not None:
        hunt.anneal(rounds=12, slots=hunt.start)
    hunt.anneal()


def layouts_only(task: Task, search: Search[Solution]) -> None:
    """Partition the workload into stages and take the best construction; bound as in `auto`."""
    hunt = Hunt(task, search)
    hunt.layouts()
    hunt.bound()


class Hunt:
    """One search for a mapping; all in seconds per batch, while the search has the user's unit."""

    def __init__(self, task: Task, search: Search[Solution]) -> None:
        if not isinstance(task.problem, Mapping):
            raise InputError(f"mapping: {task.problem.name} is another problem")
        if task.cluster.links:
            raise InputError("cluster: a mapping has the topology's links; remove the cluster's")
        self.problem = task.problem
        self.search = search
        self.unit = TIME_UNITS.get(task.workload.time_unit, 1.0)
        with search.phase("partition"):
            self.stage = _stages_of(task, search)
            self.stages: StageCosts = stage_costs(task.workload, self.stage, self.problem.stages)
        with search.phase("routes"):
            self.costs: MappingCosts = mapping_costs(self.stages, self.problem)
        self.least = Floors(np.zeros(self.problem.stages), np.zeros(self.problem.stages))
        self.start: Ints | None = None

    @property
    def objective_s(self) -> float:
        """Objective of the incumbent in seconds."""
        return self.search.objective * self.unit

    @property
    def bound_s(self) -> float:
        """Proved bound in seconds."""
        return self.search.bound * self.unit

    def offer(self, slots: Ints, sends_to: Ints, times: Floats | None = None) -> bool:
        """Offer a mapping, unless rings alone count and show that it is no better.

        Of mappings with one maximum the first with the least sum stays: `Search` wants less.
        """
        if self.rings_only:
            times = stage_times(self.costs, slots, sends_to) if times is None else times
            if times.max() >= self.objective_s * (1 - 1e-12):
                return False
        return self.search.offer(self.costs.read_back(self.stage, slots, sends_to))

    @property
    def rings_only(self) -> bool:
        """Whether stage times with rings are the objective."""
        return bool(np.isinf(self.costs.detour).all())

    def raise_bound(self, bound_s: float, origin: str) -> None:
        """Tell the search of a proved bound for the given stages, rounding of sums taken off."""
        origin = f"{origin}, stages given"
        self.search.raise_bound(
            min(bound_s * (1 - 1e-12) / self.unit, self.search.objective), origin
        )

    def layouts(self) -> None:
        """Offer the constructions."""
        with self.search.phase("layouts"):
            for slots, sends_to in layouts(self.costs):
                self.offer(slots, sends_to)
                if self.search.should_stop():
                    return

    def bound(self) -> None:
        """Raise the bound: stages alone, thresholds, blocks."""
        search, costs = self.search, self.costs
        with search.phase("bound"):
            self.raise_bound(float(costs.base.max()), "compute of the longest stage")
            if search.should_stop():
                return
            self.least = least = floors(costs, search.should_stop)
            alone = float((costs.base + least.transfer + least.allreduce).max())
            self.raise_bound(alone, "each stage alone")
            if search.should_stop():
                return
        if self.costs.size > 2 * MAX_DEVICES:
            self.anneal(rounds=2)  # a good mapping makes the bisection short
        with search.phase("bound"):
            if search.should_stop():
                return
            bound = threshold_bound(
                costs, least, self.objective_s, search.should_stop, lower=self.bound_s
            )
            self.raise_bound(bound, "necessary conditions at a threshold")
            islands = len(np.unique(costs.island)) > 1
            if islands and not search.should_stop() and search.gap > OPTIMAL_GAP:
                possible = IslandTest(search)
                until = search.seconds + min(ISLAND_SECONDS, 0.3 * search.seconds_left)

                def enough() -> bool:
                    return search.seconds > until or search.should_stop()

                bound = threshold_bound(
                    costs, least, self.objective_s, enough, possible, self.bound_s
                )
                if possible.counts is not None:
                    self.start = slots_from(costs, possible.counts)
                self.raise_bound(bound, "counts of devices per island")

    def exact(self) -> None:
        """Search to the end over sets of devices."""
        search = self.search
        with search.phase("exact"):
            bound, found, finished = exact(
                self.costs, self.least, self.bound_s, self.objective_s, search
            )
            if found is not None:
                self.offer(*found)
            if finished and self.rings_only:
                bound = self.objective_s
            self.raise_bound(bound, "all sets of devices")

    def anneal(self, rounds: int | None = None, slots: Ints | None = None) -> None:
        """Repair at targets between bound and incumbent until a limit.

        Parameters
        ----------
        rounds
            Repairs to try; default: no limit.
        slots
            Shape (S, R): where to begin; default: at the incumbent.
        """
        search, costs = self.search, self.costs
        best = search.best
        if not isinstance(best, Mapped) or search.should_stop():
            return
        with search.phase("annealing"):
            where = np.full(int(costs.devices.max()) + 1, -1)
            where[costs.devices] = np.arange(costs.size)
            if slots is None:
                state = new_state(costs, where[best.slots], best.sends_to)
            else:
                state = new_state(costs, slots, matched(costs, slots))
            given_up, steps, turn = self.bound_s, FIRST_STEPS, 0
            target = self.bound_s * (1 + 1e-9)
            while not search.should_stop() and (rounds is None or turn < rounds):
                if search.gap <= OPTIMAL_GAP:
                    return
                if search.limits.nodes is not None and turn >= search.limits.nodes:
                    search.stop_for("nodes")
                    return
                left = self._repair(state, target, steps, turn)
                turn += 1
                slots, sends_to = state.slots(costs), state.sends_to[:-1].copy()
                self.offer(slots, matched(costs, slots) if left else sends_to)
                high = self.objective_s
                if left:
                    given_up = max(given_up, target)
                if given_up >= high * (1 - 1e-4):  # all targets were given up: try harder
                    given_up, steps = self.bound_s, steps * 2
                target = (given_up + high) / 2 if turn % 5 or left else self.bound_s * (1 + 1e-9)

    def _repair(self, state: State, target: float, steps: int, turn: int) -> int:
        """Anneal in slices, so that the clock is looked at; return the violated edges left."""
        left = 1
        slice_steps = 200_000
        for k in range(max(1, -(-steps // slice_steps))):
            seed = (self.search.limits.seed * 7919 + turn * 31 + k) % 2**31
            heat = 0.35 * (1 - 0.9 * k * slice_steps / steps)
            left = repair(
                self.costs, self.least, state, target, min(steps, slice_steps), seed, heat
            )
            if left == 0 or self.search.should_stop():
                break
        return left


def _stages_of(task: Task, search: Search[Solution]) -> Ints:
    problem = task.problem
    if task.start is not None and isinstance(task.start.solution, Mapped):
        return task.start.solution.stage
    assert isinstance(problem, Mapping)
    coefficient = 0.0
    if problem.mode != "allr":
        coefficient = 1.0 / float(problem.topology.bytes_per_s.max())
    part = balanced_partition(
        task.workload, problem.stages, coefficient, should_stop=search.should_stop
    )
    return part.stage
