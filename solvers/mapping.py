"""Mapping stages × replicas to a topology, with a bound, within a time limit."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..formulations.mapping import MappingCosts, mapping_costs, stage_times
from ..formulations.mapping_blocks import find_blocks
from ..formulations.mapping_bound import Floors, floors, threshold_bound
from ..formulations.mapping_runs import RunTest
from ..formulations.task import Task
from ..instances import InputError, Mapped, Mapping, Solution, StageCosts, stage_costs
from ..instances.arrays import Floats, Ints
from ..instances.units import TIME_UNITS
from .balanced_partition import balanced_partition
from .mapping_anneal import State, best_routes, new_state, repair
from .mapping_blocks import BlockTest
from .mapping_exact import MAX_DEVICES, exact
from .mapping_layouts import layouts, matched, paired
from .search import OPTIMAL_GAP, Search

#: Steps of the first repair of a target; doubled when all targets were given up.
FIRST_STEPS = 100_000
#: Steps that are worth solving for counts and devices.
PROGRAM_STEPS = 1_000_000
#: Steps between two looks at the clock.
SLICE_STEPS = 200_000
#: Temperatures at which a repair begins: one keeps a good beginning, the other
#: forgets it; and at which it ends.
COOL, COLD, HOT, COLDEST = 0.2, 0.35, 1.0, 0.1
#: Targets for which stages are put together in columns; each 2 % above the one before.
COLUMN_TARGETS = 16
#: Seconds for counts per block, at most; and never more than 0.3 of what is left.
BLOCK_SECONDS = 20.0
#: Relative width at which the bisection over them ends; the search narrows it further.
BLOCK_WIDTH = 2e-3


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
        self.block = find_blocks(self.costs)
        self.test = BlockTest(search, self.block)
        self.runs: RunTest | None = None

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
        of_stages = self.problem.objective == "stage-time"
        return of_stages and bool(np.isinf(self.costs.detour).all())

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
            compute = max(costs.floor, float(costs.base.max()))
            self.raise_bound(compute, "compute of the longest stage")
            if search.should_stop():
                return
            self.least = least = floors(costs, search.should_stop)
            alone = float((costs.base + least.transfer + least.allreduce).max())
            self.raise_bound(alone, "each stage alone")
            if search.should_stop():
                return
        self._runs()
        if self.costs.size > 2 * MAX_DEVICES:
            self.anneal(rounds=2)  # a good mapping makes the bisection short
        with search.phase("bound"):
            if search.should_stop():
                return
            bound = threshold_bound(
                costs, least, self.objective_s, search.should_stop, lower=self.bound_s
            )
            self.raise_bound(bound, "necessary conditions at a threshold")
            if self.block.any() and not search.should_stop() and search.gap > OPTIMAL_GAP:
                until = search.seconds + min(BLOCK_SECONDS, 0.3 * search.seconds_left)

                def enough() -> bool:
                    return search.seconds > until or search.should_stop()

                bound = threshold_bound(
                    costs, least, self.objective_s, enough, self.test, self.bound_s, BLOCK_WIDTH
                )
                self.raise_bound(bound, "counts of devices per block")

    def _runs(self) -> None:
        """Bound and constructions from stages that blocks keep together."""
        search, costs = self.search, self.costs
        if not self.block.any() or search.should_stop():
            return
        with search.phase("runs"):
            test = self.runs = RunTest(costs, self.block)
            bound = threshold_bound(
                costs, self.least, self.objective_s, search.should_stop, test, self.bound_s
            )
            self.raise_bound(bound, "stages kept together by blocks")
            done: list[object] = []
            for k in range(COLUMN_TARGETS):
                target = bound * (1 + 1e-6) * 1.02**k
                runs = test(costs, self.least, target)
                if runs is None or runs in done or search.should_stop():
                    continue
                done.append(runs)
                for each in (runs, test.glued(costs, self.block, runs)):
                    slots = test.columns(costs, self.block, each)
                    if slots is not None:
                        self.offer(slots, matched(costs, slots))

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

    def anneal(self, rounds: int | None = None) -> None:
        """Repair at targets between bound and incumbent until a limit.

        Beginnings take turns: the incumbent, cold and hot, and the counts per block.

        Parameters
        ----------
        rounds
            Repairs to try; default: no limit.
        """
        search, costs = self.search, self.costs
        best = search.best
        if not isinstance(best, Mapped) or search.should_stop():
            return
        with search.phase("annealing"):
            where = np.full(int(costs.devices.max()) + 1, -1)
            where[costs.devices] = np.arange(costs.size)
            order = best_routes(costs)
            incumbent = new_state(costs, where[best.slots], best.sends_to, order)
            low = self.bound_s
            arms = [Arm("", incumbent, HOT, low), Arm("", incumbent.copy(), COLD, low)]
            if self.runs is not None:
                low *= 1 + BLOCK_WIDTH
                arms = [Arm(k, incumbent.copy(), COOL, low) for k in ("counts", "columns")] + arms
            turn = 0
            while not search.should_stop() and (rounds is None or turn < rounds):
                if search.gap <= OPTIMAL_GAP:
                    return
                if search.limits.nodes is not None and turn >= search.limits.nodes:
                    search.stop_for("nodes")
                    return
                arm = min(arms, key=lambda a: a.work)
                arm.given_up = max(arm.given_up, self.bound_s)
                turn += 1
                arm.work += arm.steps
                if arm.begins == "columns":
                    self._begin_with_columns(arm)
                if arm.begins == "counts":
                    arm.work += PROGRAM_STEPS
                    if not self._begin_with_counts(arm):
                        continue
                left = self._repair(arm, turn)
                slots, sends_to = arm.state.slots(costs), arm.state.sends_to[:-1].copy()
                self.offer(slots, matched(costs, slots) if left else sends_to)
                arm.next(bool(left), self.bound_s, self.objective_s)

    def _begin_with_counts(self, arm: Arm) -> bool:
        """Solve counts and devices at the arm's target; False if the target is impossible."""
        costs = self.costs
        if self.test.count(costs, self.least, arm.target, first=False) is None:
            self.raise_bound(arm.target, "counts of devices per block")
            arm.next(True, self.bound_s, self.objective_s)
            return False
        slots = self.test.slots(costs)
        if slots is not None:
            pairs = [matched(costs, slots), paired(costs, slots)]
            fits = stage_times(costs, slots, pairs[0]).max() <= arm.target
            arm.state = new_state(costs, slots, pairs[0 if fits else 1], arm.state.order)
        return True

    def _begin_with_columns(self, arm: Arm) -> None:
        """Put stages that blocks keep together at the arm's target, and others, in columns."""
        assert self.runs is not None
        runs = self.runs(self.costs, self.least, arm.target)
        if runs is not None:
            runs = self.runs.glued(self.costs, self.block, runs)
            slots = self.runs.columns(self.costs, self.block, runs)
            if slots is not None:
                arm.state = new_state(self.costs, slots, paired(self.costs, slots), arm.state.order)

    def _repair(self, arm: Arm, turn: int) -> float:
        """Anneal in slices, so that the clock is looked at; return the violation left."""
        left = 1.0
        slices = max(1, -(-arm.steps // SLICE_STEPS))
        for k in range(slices):
            seed = (self.search.limits.seed * 7919 + turn * 31 + k) % 2**31
            left = repair(
                self.costs,
                self.least,
                arm.state,
                self.block,
                arm.target,
                min(arm.steps, SLICE_STEPS),
                seed,
                arm.heat * (COLDEST / arm.heat) ** (k / slices),
                arm.heat * (COLDEST / arm.heat) ** ((k + 1) / slices),
            )
            if left == 0 or self.search.should_stop():
                break
        return left


@dataclass
class Arm:
    """One of the beginnings from which targets are tried in turn.

    Parameters
    ----------
    begins
        With what each repair begins anew: ``counts``, ``columns``; empty: where the last one ended.
    state, heat
        The mapping under repair, and the temperature at which a repair begins.
    given_up
        The largest target that was tried in vain.
    """

    begins: str
    state: State
    heat: float
    given_up: float
    target: float = 0.0
    steps: int = FIRST_STEPS
    work: int = 0

    def __post_init__(self) -> None:
        self.target = self.given_up * (1 + 1e-9)

    def next(self, failed: bool, low: float, high: float) -> None:
        """Choose the next target between the bound and the incumbent."""
        if failed:
            self.given_up = max(self.given_up, self.target)
        if self.given_up >= high * (1 - 1e-4):  # all targets were given up: try harder
            self.given_up, self.steps = low, self.steps * 2
        self.target = self.given_up + (high - self.given_up) / 3


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
