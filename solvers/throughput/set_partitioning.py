"""Non-contiguous splits by neighbourhood search, and their bounds by column generation, in turn.

Rounds of both grow while they bring no progress. The targets of the bound follow the incumbent.
"""

from __future__ import annotations

import numpy as np

from ...formulations.task import Task
from ...formulations.throughput.certificate import Prices, certificate
from ...formulations.throughput.hypergraph import Hypergraph, hypergraph
from ...formulations.throughput.infeasible import why_infeasible
from ...instances import Solution, Throughput
from ...instances.common.arrays import Ints
from ..core.search import OPTIMAL_GAP, Clock, Search
from .baselines import greedy
from .column_generation.column_generation import DualState, Outcome, boxstep
from .column_generation.frontier import orders
from .column_generation.pricing_problem import first_prices, pricing_problem
from .neighbourhood import Neighbourhood

ORIGIN = "set partitioning"

#: Name of the strategy that improves splits in another process; this one then only proves bounds.
SPLITS = "splits"

#: Moves of the neighbourhood search, and pricings, in the first round; and the factor up to which
#: rounds grow.
MOVES, PRICINGS, GROWTH = 100, 20, 64

#: Most of the time left that one round's moves, and its pricings, may take.
SPLIT_SHARE, BOUND_SHARE = 0.15, 0.4

#: Rounds without progress after which a search ends that has no deadline, or no patience.
MOST_IDLE = 12

#: Load limits tried: the largest useful target, then halfway from the bound to the last limit, ….
LIMITS = 4

#: First gap aimed for; and the relative fall of the largest useful target that resets the prices.
NEAR = 0.01

#: Relative distance of a target from the first bounds, which count work and hardly any transfers,
#: up to which sets are priced by value: prices near the work prove such targets alone.
BY_VALUE_GAP = NEAR

#: Inverse of the part of the gap that a target leaves.
STRIDE = 4

#: Attempts at a target before one halfway to it is tried.
TRIES = 2

#: Relative distance from a hopeless target within which a target is hopeless, too.
RESOLUTION = 1e-5


def set_partitioning(
    task: Task[Throughput],
    search: Search[Solution],
    *,
    patient: bool = True,
    part: float = 1.0,
    rounds: float = np.inf,
) -> None:
    """Find a non-contiguous split, and a bound with its certificate, until the gap or a limit.

    Unless `patient`, it ends when nothing has improved for long. Under GPipe's objective and with
    overlap, splits are sought by sums of compute and transfers; they are judged by the objective
    asked for, and the bound holds for it. `part` is the part of the time left that splits and
    bounds share; `rounds` and `limits.nodes` count rounds.
    """
    graph = hypergraph(task)
    reason = why_infeasible(task, graph)
    if reason is not None:
        search.prove_infeasible(reason)
        return
    tried = _begin(task, graph, search)
    if search.best is None or search.done:
        return
    rng = np.random.default_rng(search.limits.seed)
    walk = Neighbourhood(task, graph, tried[0], graph.restrict(search.best.device), rng)
    alternation = _Alternation(task, graph, tried, walk, search, search.part(part))
    alternation.run(rounds, patient=patient)


def splits(task: Task[Throughput], search: Search[Solution]) -> None:
    """Only improve the split, until a limit, in a process beside `set_partitioning`."""
    graph = hypergraph(task)
    if why_infeasible(task, graph) is not None:
        return
    tried = _begin(task, graph, search)
    if search.best is None:
        return
    rng = np.random.default_rng(search.limits.seed)
    walk = Neighbourhood(task, graph, tried[0], graph.restrict(search.best.device), rng)
    moves, rounds, idle = MOVES, 0, 0
    most_idle = MOST_IDLE if search.limits.seconds is None else np.inf
    while not search.is_over() and idle < most_idle:
        if search.limits.nodes is not None and rounds >= search.limits.nodes:
            return
        rounds += 1
        better = walk.walk(search, moves)
        idle = 0 if better else idle + 1
        moves = MOVES if better else min(2 * moves, GROWTH * MOVES)


def _begin(task: Task[Throughput], graph: Hypergraph, search: Search[Solution]) -> list[Ints]:
    """Return orders of the units with small frontiers; offer a first split if none is known."""
    with search.phase("start"):
        if search.best is None:
            greedy(task, search)
        tried = orders(graph)
    if search.best is None:
        from .packing import packing  # imported only if needed

        with search.phase("packing"):
            packing(task, graph, search)
    return tried


class _Alternation:
    """Rounds of neighbourhood search and column generation in turn."""

    def __init__(
        self,
        task: Task[Throughput],
        graph: Hypergraph,
        orders: list[Ints],
        walk: Neighbourhood,
        search: Search[Solution],
        clock: Clock,
    ) -> None:
        self._walk, self._search, self._clock = walk, search, clock
        self._targets = _Targets(search)
        self._prover = _Prover(task, graph, orders, search, clock)
        self._split_first = clock.part(SPLIT_SHARE)
        self._reproducible = search.limits.nodes is not None  # the same rounds on every machine
        self._started, self._rounds = False, 0
        self._moves, self._pricings = MOVES, PRICINGS

    def run(self, most_rounds: float, *, patient: bool) -> None:
        """Make rounds until the gap is closed, a limit is reached, or nothing improves for long.

        While rounds find better splits, bounds wait, for a part of the time: with a better
        incumbent, fewer sets have to be priced.
        """
        search, idle = self._search, 0
        while not self._clock.should_stop() and search.gap > OPTIMAL_GAP:
            if self._rounds >= most_rounds:
                return
            if search.out_of_nodes(self._rounds):
                return
            self._rounds += 1
            bound = search.bound
            better = self._improve_split()
            if better and not self._bound_due():
                continue
            target, self._started = self._raise_bound(), True
            progress = better or search.bound > bound or target is not None
            idle = 0 if progress else idle + 1
            if idle >= MOST_IDLE and not (patient and search.limits.seconds is not None):
                search.note("column-generation: neither split nor bound got better for long")
                return
            self._moves = MOVES if better else min(2 * self._moves, GROWTH * MOVES)
            self._pricings = min(2 * self._pricings, GROWTH * PRICINGS)

    def _improve_split(self) -> bool:
        """Make moves, and return whether they found a better split.

        No kernel is compiled before the first bound, as that may end the search.
        """
        search = self._search
        if search.beside and self._targets.next() is not None:
            return False
        with search.phase("split"):
            return self._walk.walk(
                search,
                self._moves,
                self._clock.part(SPLIT_SHARE),
                compiling=self._reproducible or self._started,
            )

    def _bound_due(self) -> bool:
        """Whether the splits have used their share of the time, or need to compile kernels."""
        return self._split_first.should_stop() or self._walk.needs_compiling

    def _raise_bound(self) -> float | None:
        """Try to prove the next target, and return that target; None if none is left."""
        target = self._targets.next()
        if target is not None and not self._clock.should_stop():
            self._targets.record(*self._prover.prove(target, self._targets.most, self._pricings))
        return target


class _Prover:
    """Proofs of targets by column generation, over the sets whose load is within a limit.

    The limit is the largest useful target at which the frontier is exact, or a part of the way to
    it: low limits leave fewer states. It rises once it is proved. Memory gets a price once column
    generation without one stalls.
    """

    def __init__(
        self,
        task: Task[Throughput],
        graph: Hypergraph,
        orders: list[Ints],
        search: Search[Solution],
        clock: Clock,
    ) -> None:
        self._task, self._graph, self._orders = task, graph, orders
        self._search, self._clock = search, clock
        self._limit, self._by_value = -np.inf, True
        self._first_bound = max(0.0, search.bound)

    def prove(self, target: float, most: float, pricings: int) -> tuple[float, Outcome]:
        """Try to prove that no split has a max-load below `target`; return the target tried.

        It is at most `target`, and comes with the outcome; `most` is the largest useful target.
        """
        if self._limit <= self._search.bound or self._limit > most * (1 + NEAR):
            with self._search.phase("frontier"):
                self._begin(most)
        target = min(target, self._limit)
        if self._search.bound >= target:
            return target, "proved"
        with self._search.phase("bound"):
            clock = self._clock.part(BOUND_SHARE)
            outcome = boxstep(self._state, self._pricing, target, self._raise, clock, pricings)
        if outcome == "stalled" and self._pricing.without_memory:
            self._limit, self._by_value = -np.inf, False
            return target, "stopped"
        return target, outcome

    def _begin(self, most: float) -> None:
        """Choose the load limit, and start with new prices."""
        task, search, stop = self._task, self._search, self._clock.should_stop
        low = max(0.0, search.bound)
        by_value = self._by_value and self._first_bound > most * (1 - BY_VALUE_GAP)
        for halvings in (*range(LIMITS), 0):
            self._limit = low + (most - low) / 2**halvings
            self._pricing = pricing_problem(
                task, self._graph, self._limit, self._orders, by_value=by_value
            )
            if all(states.exact for states in self._pricing.states) or stop():
                break
        prices = first_prices(self._pricing, self._graph, task.costs.host)
        self._state = DualState(prices, first=1 - low / most)

    def _raise(self, bound: float, prices: Prices) -> None:
        if bound > self._search.bound:
            order, parts = self._pricing.states[0].order, self._pricing.parts
            evidence = certificate(self._task, self._graph, prices, bound, order, parts)
            self._search.raise_bound(bound, ORIGIN, evidence)


class _Targets:
    """Targets for the bound, each a part of the way from the bound to the incumbent."""

    def __init__(self, search: Search[Solution]) -> None:
        self._search = search
        self._target: float | None = None
        self._hopeless, self._stopped = np.inf, 0

    @property
    def most(self) -> float:
        """Largest useful target: proving it closes the gap asked for."""
        return self._search.objective * (1 - self._asked_gap)

    @property
    def _asked_gap(self) -> float:
        return max(self._search.next_gap * (1 - 1e-6), OPTIMAL_GAP / 2)

    def next(self) -> float | None:
        """Return the next target; None if no provable target is left."""
        objective, bound = self._search.objective, max(0.0, self._search.bound)
        if self._target is None or self._target > self.most or self._target <= bound:
            gap = (objective - bound) / objective
            self._target = objective * (1 - max(self._asked_gap, min(gap / STRIDE, NEAR)))
        if self._target >= self._hopeless * (1 - RESOLUTION):
            if self._hopeless - bound < 2 * RESOLUTION * objective:
                return None
            self._target = (bound + self._hopeless) / 2
        return self._target

    def record(self, target: float, outcome: Outcome) -> None:
        """Record the outcome of an attempt at a target.

        After a stall, targets from `target` up are hopeless; after `TRIES` stops in a row, the next
        target is halfway between bound and target.
        """
        if outcome == "stalled":
            self._hopeless = min(self._hopeless, target)
        self._stopped = self._stopped + 1 if outcome == "stopped" else 0
        if self._stopped >= TRIES:
            self._target, self._stopped = (max(0.0, self._search.bound) + target) / 2, 0
