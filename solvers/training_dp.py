"""Training plans by dynamic programming over the lattice of ideals, exact.

For a cap T on the time of every stage, the labels of `training_kernels` answer whether a plan
exists; bisection over T brackets the least one. Since the states are only (ideal, devices,
replicas) with the undominated pairs kept, a cap costs milliseconds on layer graphs. A first
bracket comes from one topological order alone.

Complexity: per cap, pairs of nested ideals × degrees × undominated labels. Ideals from which the
units outside cannot be served by the devices left (Σ least t·p / T > devices) are not extended.

References
----------
The recurrence of Piper (NeurIPS 2021, section 4.1), decided for one cap at a time; its inner
knapsack is solved exactly instead of by a rule.
"""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass

import numpy as np

from ..formulations.task import Task
from ..formulations.training import Staging, state_staging
from ..instances import InputError, Solution, Stage, in_stages
from ..instances.arrays import Ints
from .lattice import Lattice, chain, list_ideals
from .search import Search
from .training_kernels import (
    Ask,
    Board,
    Labels,
    configure,
    grow,
    ideal_sums,
    in_flight,
    no_labels,
    price_stage,
)

#: Relative width of the bracket at which the search ends.
CLOSE = 1e-9
#: Ideals that are listed at most; beyond, only one topological order is planned.
MOST_IDEALS = 3_000_000
#: Steps of the lattice that are taken between two looks at the clock.
SLICE_STEPS = 2_000


@dataclass(frozen=True)
class Chosen:
    """A stage of a plan: its units, and numbers of its degree and divisor."""

    units: Ints
    degree: int
    divisor: int


def training_dp(task: Task, search: Search[Solution]) -> None:
    """Find the best training plan, and prove it."""
    _run(task, search, greedy=False)


def piper(task: Task, search: Search[Solution]) -> None:
    """Plan with the authors' rule for configurations instead of the exact knapsack: a baseline."""
    _run(task, search, greedy=True)


def _run(task: Task, search: Search[Solution], greedy: bool) -> None:
    staging = state_staging(task)
    if len(staging.kinds) > 1:
        names = ", ".join(task.cluster.kinds[k].name for k in staging.kinds.tolist())
        raise InputError(
            f"method: the DP plans for devices that are alike, not for {names}; use milp"
        )
    with search.phase("build"):
        line = Planner(task, staging, chain(staging.size), greedy)
        order = staging.edges[:, ::-1]  # an ideal is closed under successors
    with search.phase("solve"):
        line.minimise(search, exact=False)
    if search.should_stop():
        return
    with search.phase("build"):
        lattice = list_ideals(staging.size, order, MOST_IDEALS, search)
    if lattice is None:
        if not search.should_stop():
            search.note(f"more than {MOST_IDEALS} ideals: planned along one topological order only")
        return
    with search.phase("solve"):
        Planner(task, staging, lattice, greedy).minimise(search, exact=not greedy)


class Planner:
    """Answers for a task and a lattice which plans keep a cap.

    Parameters
    ----------
    greedy
        Configure stages by the authors' rule.
    """

    def __init__(self, task: Task, staging: Staging, lattice: Lattice, greedy: bool) -> None:
        self.task = task
        self.staging = staging
        self.lattice = lattice
        self.board = _board(staging, lattice, greedy)
        self.capacity = float(staging.capacity[0])
        self.devices = int(staging.count[0])
        work = np.min(self.board.fast * staging.degrees[:, None], axis=0)
        below = ideal_sums(lattice.start, lattice.unit, lattice.to, work)
        self.outside = below[-1] - below
        self.torn = np.zeros(lattice.size, np.bool_)
        for a, b in staging.uncut.tolist():
            ends = np.zeros(staging.size)
            ends[a] += 1
            ends[b] -= 1
            self.torn |= ideal_sums(lattice.start, lattice.unit, lattice.to, ends) != 0
        self.gave_up = False

    def minimise(self, search: Search[Solution], exact: bool) -> None:
        """Minimise the problem's objective; raise bounds only if `exact`."""
        if exact and self._infeasible(search):
            return
        if self.staging.problem.objective == "batch":
            self._minimise_batch(search, exact)
        else:
            self._bisect(search, exact)

    def plan(
        self, within: float, search: Search[Solution], most_total: float = math.inf
    ) -> tuple[Chosen, ...] | None:
        """Return a plan with all TPS_i ≤ `within`, None if there is none or the search must stop.

        For the objective ``batch`` it is one of least Σ TPS_i.
        """
        lattice, problem = self.lattice, self.staging.problem
        rest = np.ceil(self.outside / within * (1 - 1e-9)).clip(1, 2**40).astype(np.int64)
        rest[-1] = 0
        rest[self.torn] = 2**40
        ask = Ask(
            within,
            self.devices,
            self.capacity,
            problem.max_stages or 0,
            problem.objective == "batch",
            most_total,
            rest,
        )
        labels = no_labels(lattice.size)
        low = 0
        while low < lattice.size - 1:
            if search.should_stop():
                return None
            high = max(low + 1, int(np.searchsorted(lattice.start, lattice.start[low] + SLICE_STEPS)))
            high = min(high, lattice.size - 1)
            labels = grow(low, high, self.board, ask, labels)
            low = high
        self.gave_up |= bool(labels.count[1])
        ends = []
        label = int(labels.head[-1])
        while label >= 0:
            ends.append(label)
            label = int(labels.following[label])
        if not ends:
            return None
        best = min(ends, key=lambda x: (labels.total[x], labels.devices[x], labels.replicas[x]))
        return self._trace(labels, best)

    def _trace(self, labels: Labels, label: int) -> tuple[Chosen, ...]:
        stages = []
        while labels.parent[label] >= 0:
            parent = int(labels.parent[label])
            ahead = self.lattice.units(int(labels.ideal[label]))
            behind = self.lattice.units(int(labels.ideal[parent]))
            units = np.setdiff1d(ahead, behind, assume_unique=True)
            stages.append(Chosen(units, int(labels.degree[label]), int(labels.divisor[label])))
            label = parent
        return tuple(stages)

    def configured(self, chosen: tuple[Chosen, ...]) -> tuple[Solution, list[float]]:
        """Return the plan with the best configurations, and the time of each stage."""
        staging, board = self.staging, self.board
        stages, times = [], []
        behind = sum(int(staging.divisors[c.divisor]) for c in chosen)
        for c in chosen:  # first stage of the pipeline first
            d = int(staging.divisors[c.divisor])
            behind -= d
            inside = np.zeros(staging.size, np.bool_)
            inside[c.units] = True
            size = len(board.time)
            item = np.zeros(len(c.units) + 1, np.int64)
            cost, size_a, size_b, weight = (np.zeros(size) for _ in range(4))
            choice = np.zeros(len(c.units), np.int64)
            gave_up = np.zeros(1, np.int64)
            transfer = price_stage(
                board, c.units, len(c.units), inside, c.degree, item, cost, size_a, size_b, weight
            )
            least = configure(
                board, item, cost, size_a, size_b, weight, board.kappa[c.degree, c.divisor],
                in_flight(board, d, behind), self.capacity, math.inf, False, choice, gave_up,
            )  # fmt: skip
            times.append((least + transfer) / d)
            pairs = []
            for i, unit in enumerate(c.units.tolist()):
                number = staging.choices(unit, c.degree)[int(choice[i] - item[i])]
                pairs.append((int(staging.node_of[unit]), int(staging.configuration[number])))
            pairs.sort()
            stages.append(
                Stage(
                    nodes=tuple(v for v, _ in pairs),
                    configuration=tuple(conf for _, conf in pairs),
                    replicas=d,
                    degree=int(staging.degrees[c.degree]),
                    kind=int(staging.kinds[0]),
                )
            )
        return in_stages(stages, self.task.cluster), times

    def _bisect(self, search: Search[Solution], exact: bool) -> None:
        """Bracket the least cap; every plan found pulls the upper end down to its own maximum."""
        low = float(self.outside[0]) / self.devices
        origin = "work over devices" if low else "times are not negative"
        if exact:
            search.raise_bound(low, origin)
        high = search.objective
        if math.isinf(high):
            chosen = self.plan(math.inf, search)
            if chosen is None:
                if not search.should_stop() and exact and not self.gave_up:
                    search.prove_infeasible(self.why_infeasible(search))
                return
            high = self._offer(chosen, search)
        below = False
        while high > low * (1 + CLOSE) and not search.should_stop():
            close = high <= low * 1.002
            within = high * (1 - CLOSE / 2) if close and not below else (low + high) / 2
            chosen = self.plan(within, search)
            if chosen is not None:
                high = min(high, self._offer(chosen, search))
                below = False
            elif search.should_stop():
                return
            else:
                low = within
                below = True
                if exact and not self.gave_up:
                    search.raise_bound(low, "dynamic program over ideals")

    def _offer(self, chosen: tuple[Chosen, ...], search: Search[Solution]) -> float:
        solution, times = self.configured(chosen)
        search.offer(solution)
        return max(times)

    def _minimise_batch(self, search: Search[Solution], exact: bool) -> None:
        """Minimise Σ TPS + (N − 1) max TPS: brackets of the maximum, most promising first.

        Within max TPS ∈ (low, high], Σ TPS is at least its least value under the cap `high`,
        which the DP yields together with a plan.
        """
        more = self.staging.microbatches - 1
        floor = float(self.outside[0]) / self.devices
        heap = [(more * floor, floor, math.inf)]
        while heap and not search.should_stop():
            bound, low, high = heapq.heappop(heap)
            if exact and not self.gave_up:
                search.raise_bound(min(bound, search.objective), "dynamic program over ideals")
            if bound >= search.objective * (1 - CLOSE):
                return
            chosen = self.plan(high, search, search.objective - more * low)
            if chosen is None:
                if math.isinf(high) and math.isinf(search.objective) and not search.should_stop():
                    if exact and not self.gave_up:
                        search.prove_infeasible(self.why_infeasible(search))
                    return
                continue
            solution, times = self.configured(chosen)
            search.offer(solution)
            total, reached = sum(times), max(times)
            # no plan has a maximum in (reached, high] and a lower objective than this one
            high = reached * (1 - CLOSE)
            if high <= low:
                continue
            middle = (low + high) / 2
            for a, b in ((low, middle), (middle, high)):
                if total + more * a < search.objective * (1 - CLOSE):
                    heapq.heappush(heap, (total + more * a, a, b))
        if not heap and exact and not self.gave_up and not math.isinf(search.objective):
            search.raise_bound(search.objective * (1 - CLOSE), "dynamic program over ideals")

    def _infeasible(self, search: Search[Solution]) -> bool:
        """Whether one layer alone does not fit, which is then said."""
        least = np.min(self.board.light, axis=0)
        unit = int(np.argmax(least))
        if least[unit] <= self.capacity or self.board.greedy:
            return False
        search.prove_infeasible(self.why_infeasible(search))
        return True

    def why_infeasible(self, search: Search[Solution]) -> str:
        """Say how many bytes are missing."""
        raise NotImplementedError


def _board(staging: Staging, lattice: Lattice, greedy: bool) -> Board:
    size, degrees = staging.size, len(staging.degrees)
    incident: list[list[tuple[int, int]]] = [[] for _ in range(size)]
    for e, (a, b) in enumerate(staging.edges.tolist()):
        incident[a].append((e, b))
        incident[b].append((e, a))
    time = staging.time * staging.slowdown[0]
    fast = np.full((degrees, size), np.inf)
    light = np.full((degrees, size), np.inf)
    for t in range(degrees):
        for unit in range(size):
            for c in staging.choices(unit, t):
                fast[t, unit] = min(fast[t, unit], time[c])
                light[t, unit] = min(light[t, unit], staging.per_microbatch[c] + staging.fixed[c])
    kappa = [
        [staging.kappa(t, d) for d in staging.divisors.tolist()] for t in range(degrees)
    ]
    return Board(
        start=lattice.start,
        unit=lattice.unit,
        to=lattice.to,
        degrees=staging.degrees,
        first=staging.first,
        time=time,
        weight=staging.weight,
        per_microbatch=staging.per_microbatch,
        fixed=staging.fixed,
        sync_start=staging.sync_start,
        sync_edge=staging.sync_edge,
        sync_time=staging.sync_time,
        edges=staging.edges,
        edge_time=staging.edge_time,
        incident_start=np.cumsum([0, *map(len, incident)]),
        incident=np.array([e for row in incident for e, _ in row], np.int64),
        other=np.array([u for row in incident for _, u in row], np.int64),
        fast=fast,
        light=light,
        kappa=np.array(kappa),
        divisors=staging.divisors,
        allowed=staging.allowed,
        microbatches=staging.microbatches,
        most_replicas=staging.most_replicas,
        gpipe=staging.problem.schedule == "gpipe",
        greedy=greedy,
    )
