"""Best-first search for the layout of a training job: bounds for all points, programs for few.

Every outer point (a layout without its stages) has a lower bound from memory and work. The search
always takes the point with the least bound: first it solves the linear relaxation of the point's
program, later the program itself, which asks for a plan better than the best known. The estimate
judges each solution, and its longest path is added to the program, until no better solution exists
and the point is ruled out. The least remaining bound holds for every plan of the declared space.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

import highspy
import numpy as np

from ...formulations.job.bounds import first_bounds, least_seconds
from ...formulations.job.memory import MemoryRows, memory_rows
from ...formulations.job.paths import JobPaths
from ...formulations.job.program import PointCosts, ProgramBuilder, point_costs, stage_range
from ...formulations.job.rates import NotPriced, Rates, rates
from ...formulations.job.space import JobSpace
from ...formulations.linear import Linear
from ...instances import StagecutError
from ...instances.common.arrays import Floats
from ...instances.costs.layers import LayerPrices
from ...instances.costs.layout import Layout
from ...instances.costs.stages import kinds_of_rank, stage_times
from ...instances.job.plan import Reason
from ..core.highs import load
from ..core.session import interrupts


def solve_program(
    linear: Linear,
    seconds: float,
    *,
    relaxed: bool = False,
    stopped: Callable[[], bool] = lambda: False,
) -> tuple[float, Floats | None]:
    """Solve a program, or its linear relaxation, for at most `seconds` or until it is `stopped`.

    Returns a lower bound on its objective, infinite if there is no solution, and the best solution.
    """
    if relaxed:
        linear = replace(linear, integer=np.zeros(len(linear.cost), np.bool_))
    highs = load(linear, {"threads": 1, "mip_rel_gap": 1e-6, "time_limit": max(0.01, seconds)})

    def interrupt(event: highspy.highs.HighsCallbackEvent) -> None:
        event.data_in.user_interrupt = stopped()

    highs.cbMipInterrupt.subscribe(interrupt)
    if highs.run() == highspy.HighsStatus.kError:
        highs.setOptionValue("threads", 0)
        highs.run()
    status, ends = highs.getModelStatus(), highspy.HighsModelStatus
    if status in (ends.kInfeasible, ends.kUnboundedOrInfeasible):
        return np.inf, None
    info = highs.getInfo()
    found = status == ends.kOptimal or info.primal_solution_status == 2
    x = np.array(highs.getSolution().col_value) if found else None
    if relaxed:
        if status != ends.kOptimal:
            return -np.inf, None
        return float(info.objective_function_value), x
    if status not in (ends.kOptimal, ends.kTimeLimit, ends.kInterrupt):
        raise StagecutError(f"HiGHS ended with {highs.modelStatusToString(status)!r}")
    return float(info.mip_dual_bound), x


#: Function that returns the seconds of an iteration under each layout; infinite if it does not fit.
Judge = Callable[[Sequence[Layout]], Floats]

#: Number of points whose plans with even stages are judged before any program, and batch size.
FIRST_PLANS, AT_ONCE = 256, 64
#: Most seconds for one program of a point.
PROGRAM_S = 20.0
#: Most relaxations of a point, each with the longest path of the previous solution added; and the
#: relative excess of that path over the objective at which to stop.
RELAXED_ROUNDS, CLOSE = 12, 2e-4
#: Most solutions of one point's program.
ROUNDS = 40


@dataclass(frozen=True)
class JobProgress:
    """Progress of a search: seconds of the best plan, bound for all plans, points left."""

    seconds: float
    bound: float
    left: int


@dataclass
class JobSearch:
    """State of a search: the best plan, and the bounds of all points."""

    #: Space that is searched.
    space: JobSpace
    prices: LayerPrices
    judge: Judge
    #: Relative gap at which to stop.
    gap: float
    #: `time.monotonic()` at which to stop.
    deadline: float
    #: Function that receives reports of progress.
    on_progress: Callable[[JobProgress], None] | None = None
    #: Rates of layers in the space; None if time was up before they were priced.
    table: Rates | None = None
    #: The best plan and its seconds.
    best: Layout | None = None
    seconds: float = np.inf
    #: Shape (points,): lower bound on the seconds of each point's plans.
    bound: Floats = field(default_factory=lambda: np.zeros(0))
    #: Reason for the bound of each point.
    reason: list[Reason] = field(default_factory=list)
    #: Seconds of each judged plan that fits.
    tried: dict[Layout, float] = field(default_factory=dict)
    solved: int = 0
    relaxed: int = 0

    @property
    def threshold(self) -> float:
        """Seconds below which a plan is a sufficient improvement; points above are ruled out."""
        return self.seconds * (1 - self.gap) if np.isfinite(self.seconds) else np.inf

    @property
    def least_bound(self) -> float:
        """Lower bound on the seconds of all plans of the space."""
        return float(min(self.bound.min(), self.seconds))

    @property
    def stopped(self) -> bool:
        """Whether time is up."""
        return time.monotonic() >= self.deadline

    def interrupt(self) -> None:
        """End the search soon with its results so far, as if time were up."""
        self.deadline = -np.inf

    def consider(self, layouts: Sequence[Layout]) -> Floats:
        """Judge plans and keep the best; return their seconds."""
        found = self.judge(layouts)
        for layout, seconds in zip(layouts, found.tolist(), strict=True):
            if np.isfinite(seconds):
                self.tried[layout] = seconds
            if seconds < self.seconds:
                self.best, self.seconds = layout, seconds
                self.say()
        return found

    def say(self) -> None:
        """Report the progress to `on_progress`."""
        if self.on_progress is not None:
            left = int((self.bound < self.threshold).sum())
            self.on_progress(JobProgress(self.seconds, self.least_bound, left))


def search_job(
    space: JobSpace,
    prices: LayerPrices,
    judge: Judge,
    starts: Sequence[Layout] = (),
    *,
    gap: float,
    deadline: float,
    on_progress: Callable[[JobProgress], None] | None = None,
    known: Floats | None = None,
) -> JobSearch:
    """Search a space until no plan in it can be better than the best one by more than `gap`.

    `judge` returns the seconds of plans, infinite if one does not fit; `starts` are initial plans,
    such as the usual layouts. At `deadline` (`time.monotonic()`) or on Ctrl-C, the search ends with
    its results so far. `known`, shape (points,), has lower bounds proved before; points whose bound
    is infinite are excluded.
    """
    search = JobSearch(space, prices, judge, gap, deadline, on_progress)
    search.bound = np.full(len(space), least_seconds(space))
    if known is not None:
        search.bound = np.maximum(search.bound, known)
    search.reason = [Reason.WORK] * len(space)
    with interrupts(search.interrupt):
        if starts:
            search.consider(starts)
        with suppress(NotPriced):
            _bounded(search)
        for point in np.flatnonzero(search.bound < search.threshold * (1 - 1e-6)).tolist():
            if search.reason[point] is not Reason.EXHAUSTED:
                search.reason[point] = Reason.OPEN
        search.say()
    return search


def _bounded(search: JobSearch) -> None:
    """Bound all points, judge first plans, and search the points that the bounds leave."""
    space, prices = search.space, search.prices
    search.table = table = rates(space, prices, lambda: search.stopped)
    first = first_bounds(space, table, prices, lambda: search.stopped)
    search.bound = np.maximum(first, search.bound)
    fits = np.isfinite(search.bound)
    search.reason = [Reason.WORK if there else Reason.CAPACITY for there in fits]
    _first_plans(search, table)
    _best_first(search, table)


def _first_plans(search: JobSearch, table: Rates) -> None:
    """Judge plans with even stages at the points with the least bounds; more until one fits."""
    space = search.space
    order = np.argsort(search.bound, kind="stable")
    order = order[np.isfinite(search.bound[order])]
    for start in range(0, FIRST_PLANS, AT_ONCE):
        points = order[start : start + AT_ONCE]
        points = points[search.bound[points] < search.seconds]
        if not len(points) or search.stopped:
            return
        search.consider([even_plan(space, table, int(point)) for point in points])
    while not np.isfinite(search.seconds) and len(order) > FIRST_PLANS and not search.stopped:
        order = order[AT_ONCE:]
        search.consider([even_plan(space, table, int(p)) for p in order[:AT_ONCE]])


def even_plan(space: JobSpace, table: Rates, point: int) -> Layout:
    """Return a point's layout with stages of even work and about the least recomputation."""
    layout, i = space.layout(point), int(space.setting[point])
    types = np.array(space.model.types_of_layers[: space.model.layers])
    counts = _even_stages(space, table, i, layout)
    layout = replace(layout, stage_layers=counts)
    if not space.job.counts_layers(layout):
        return layout
    rows = memory_rows(space, table, point)
    edges = np.cumsum([0, *counts])
    again = [0] * layout.stages
    for k in range(layout.pipeline):
        own = layout.rank_stages(k)
        counted = _recomputed(rows, k, [types[edges[s] : edges[s + 1]] for s in own])
        for s, count in zip(own, counted, strict=True):
            again[s] = count
    if space.job.settings.recompute_by_stage:
        return replace(layout, recompute_layers=tuple(again))
    return replace(layout, recompute_layers=min(max(again), min(counts)))


def _even_stages(space: JobSpace, table: Rates, i: int, layout: Layout) -> tuple[int, ...]:
    """Return the number of layers of each stage that divides the work evenly, greedily."""
    types = np.array(space.model.types_of_layers[: space.model.layers])
    lies_on = [kinds_of_rank(rank, layout, space.cluster) for rank in range(layout.pipeline)]
    of_stages = [table.on(lies_on[rank]) for rank in layout.stage_ranks]
    each = of_stages[0].passes[i, types, :2].sum(axis=1)
    speed = [each.sum() / one.passes[i, types, :2].sum() for one in of_stages]
    first = of_stages[0].ends[i, 0, :2].sum()
    last = of_stages[-1].ends[i, 1, :2].sum() * speed[-1]
    stages = layout.stages
    least, most = stage_range(space.model, layout)
    total = np.concatenate(([0.0], np.cumsum(each))) + first
    ends = (total[-1] + last) * np.cumsum(speed) / np.sum(speed)
    cuts = [int(np.abs(total - end).argmin()) for end in ends[:-1]]
    edges = [0, *cuts, len(types)]
    for s in range(1, stages):
        edges[s] = min(max(edges[s], edges[s - 1] + least[s - 1]), edges[s - 1] + most[s - 1])
    for s in range(stages - 1, 0, -1):
        edges[s] = max(min(edges[s], edges[s + 1] - least[s]), edges[s + 1] - most[s])
    return tuple(np.diff(edges).tolist())


def _recomputed(rows: MemoryRows, rank: int, stages: Sequence[Floats]) -> list[int]:
    """Return the number of layers to recompute in each stage of a rank, greedily, so that it fits.

    `stages` has the layer types of each stage's layers.
    """
    every = np.concatenate(list(stages)).astype(int)

    def bytes_at(moment: int) -> float:
        held = zip(rows.flight[moment, rank], stages, strict=True)
        kept = [float((rows.state + a * rows.kept)[own.astype(int)].sum()) for a, own in held]
        return float(rows.fixed[moment, rank]) + sum(kept)

    fullest = max(range(len(rows.flight)), key=bytes_at)
    needed, flight = bytes_at(fullest), rows.flight[fullest, rank]
    last = rank == rows.head
    work = rows.working[every].max(initial=0.0)
    over = needed + max(work, float(rows.last), last * float(rows.loss)) - rows.limit[rank]
    left = [len(own) for own in stages]
    counts = [0] * len(stages)
    if over > 0 and len(every):
        heaviest = rows.saved[every].max()
        over = max(over, needed + work + (heaviest if work else 0.0) - rows.limit[rank])
    while over > 0:
        open_stages = [j for j in range(len(stages)) if counts[j] < left[j]]
        if not open_stages:
            break
        j = max(open_stages, key=lambda one: flight[one])
        over -= flight[j] * rows.saved[int(stages[j][counts[j]])]
        counts[j] += 1
    return counts


def _best_first(search: JobSearch, table: Rates) -> None:
    """Solve relaxation or program of the point with the least bound, up to the threshold."""
    fits = np.flatnonzero(np.isfinite(search.bound)).tolist()
    queue = [(float(search.bound[p]), 0, p) for p in fits]
    heapq.heapify(queue)
    points = _Points(search, table)
    while queue and not search.stopped:
        bound, stage, point = heapq.heappop(queue)
        if bound >= search.threshold:
            return
        if stage == 0:
            bound = max(bound, points.relax(point))
            search.relaxed += 1
            search.bound[point] = bound
            search.reason[point] = Reason.RELAXATION
            if np.isfinite(bound):
                heapq.heappush(queue, (bound, 1, point))
        else:
            bound, reason = points.solve(point)
            search.solved += 1
            search.bound[point], search.reason[point] = max(search.bound[point], bound), reason


class _Points:
    """Programs of outer points; points with the same schedule share its paths."""

    def __init__(self, search: JobSearch, table: Rates) -> None:
        self.search, self.table = search, table
        self.paths: dict[tuple[object, ...], JobPaths] = {}
        self.costs: dict[int, PointCosts] = {}

    def builder(self, point: int) -> tuple[ProgramBuilder, JobPaths]:
        """Return the builder of a point's program, and the paths of its schedule."""
        space, prices = self.search.space, self.search.prices
        if point not in self.costs:
            self.costs[point] = point_costs(space, point, prices)
        costs = self.costs[point]
        layout = costs.layout
        builder = ProgramBuilder(space, self.table, costs, point, prices)
        key = (layout.schedule, layout.pipeline, layout.chunks, layout.microbatches)
        if key not in self.paths:
            self.paths[key] = JobPaths(*key)
        paths = self.paths[key]
        if not paths.found:
            share = self.table.count / self.table.count.sum()
            mean = share @ self.table.passes[builder.i]
            even = np.array(layout.layers_of_stages(space.model.layers))[:, None] * mean
            paths.begin(even + builder.ends * builder.unit, costs.message)
        return builder, paths

    def relax(self, point: int) -> float:
        """Return a lower bound on a point's seconds by its relaxation; infinite without a solution.

        The relaxation has no cutoff at the threshold, so that higher bounds become known as well.
        """
        builder, paths = self.builder(point)
        value = -np.inf
        for _ in range(RELAXED_ROUNDS):
            program = builder.program(paths, np.inf)
            left = self.search.deadline - time.monotonic()
            bound, x = solve_program(program, left, relaxed=True)
            value = max(value, bound * builder.unit)
            if x is None or value >= self.search.threshold:
                break
            seconds = paths.longest(builder.seconds(x), self.costs[point].message)
            if seconds <= x[builder.t] * builder.unit * (1 + CLOSE):
                break
        return value

    def solve(self, point: int) -> tuple[float, Reason]:
        """Return a point's lower bound and its reason; better plans go to the search.

        Whether the point stays open is known once the search has ended (`search_job`).
        """
        search = self.search
        if search.space.pipeline[point] == 1:
            return self.solve_one_stage(point), Reason.EXHAUSTED
        bound = -np.inf
        for _ in range(ROUNDS):
            builder, paths = self.builder(point)
            program = builder.program(paths, search.threshold)
            left = min(PROGRAM_S, search.deadline - time.monotonic())
            if left <= 0:
                break
            least, x = solve_program(program, left, stopped=lambda: search.stopped)
            bound = max(bound, min(least * builder.unit, search.threshold))
            if least * builder.unit >= search.threshold * (1 - 1e-7):
                return bound, Reason.PROGRAM
            if x is None:
                break
            plan = builder.plan(x)
            search.consider([plan])
            stages = stage_times(plan, search.prices)
            passes = np.array([[s.forward, s.backward, s.weights] for s in stages])
            known = len(paths.found)
            paths.around(passes, self.costs[point].message)
            if len(paths.found) == known:
                break  # the program cannot tell this plan from a better one
        return bound, Reason.PROGRAM

    def solve_one_stage(self, point: int) -> float:
        """Return the seconds of a point's best plan if it has no pipeline, by trying all."""
        layout = self.search.space.layout(point)
        every = [layout]
        if self.search.space.job.counts_layers(layout):
            numbers = range(self.search.space.model.layers + 1)
            every = [replace(layout, recompute_layers=k) for k in numbers]
        return float(self.search.consider(every).min())
