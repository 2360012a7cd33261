"""Set partitioning: a split and its certificate, found in turn by one recipe without parameters.

The neighbourhood search betters the split, column generation the bound, a round of each in turn;
rounds grow while they bring nothing. The targets of the bound follow the best split known.
"""

from __future__ import annotations

import numpy as np

from ...formulations.task import Task
from ...formulations.throughput.certificate import Prices, certificate
from ...formulations.throughput.hypergraph import Hypergraph, hypergraph
from ...formulations.throughput.infeasible import why_infeasible
from ...instances import Placement, Solution, Throughput
from ...instances.common.arrays import Ints
from ..core.search import OPTIMAL_GAP, Search, Share
from .column_generation.column_generation import DualState, Outcome, boxstep
from .column_generation.frontier import Incidence, incidence, orders
from .column_generation.pricing_problem import first_prices, pricing_problem
from .greedy import greedy
from .linear_split_kernel import linear_split
from .multilevel.least_load import WIDE, raise_by_least_load
from .neighbourhood import Neighbourhood

ORIGIN = "set partitioning"

#: Name of the strategy that betters the split in a process of its own; then bounds are left here.
SPLITS = "splits"

#: Moves and pricings of the first round.
MOVES, PRICINGS = 100, 20

#: Steps of annealing for each move of the neighbourhood search: at most, and for each unit.
STEPS, STEPS_PER_UNIT = 1_000, 5

#: Rounds without annealing: it takes a second to compile, and few small graphs need it.
MOVES_ALONE = 2

#: Part of the gap that the bound must close for the next round to leave out annealing that has
#: found nothing: then bounds are what is missing.
RISING = 0.1

#: Parts of the way from the bound to the largest target of use that are tried as limits.
LIMITS = (1.0, 0.7, 0.4, 0.2, 0.1)

#: By how much the largest target of use must fall for prices to begin anew below it.
ANEW = 1e-2

#: Bounds wait until so many rounds in a row have found no better split, or for so many rounds: the
#: nearer a target is to the bound, the fewer sets are in question.
CALM, EARLY = 1, 12

#: Most of the time left that one round's moves take, and that its pricings take.
PART, PRICED = 0.15, 0.4

#: Rounds grow up to so many times the first.
GROWTH = 64

#: Part of the gap that is left that a target leaves, and the first gap to aim for.
STRIDE, FIRST_GAP = 4, 0.01

#: Orders that are cut into segments, and sequences of devices for each, for the first split.
ORDERS, SEQUENCES = 10, 2

#: How often a target is tried before one half way to it is.
TRIES = 2

#: A target that differs from a hopeless one by less than this, relatively, is hopeless too.
RESOLUTION = 1e-5

#: Seconds after which the bound by a share of the work is tried, if the gap is above `FAR` and
#: prices stop closing it: its certificate cannot be checked, and they prove most splits earlier.
LATE, FAR = 8.0, 0.01

#: Gap up to which sets are sought by value: prices that are near the work close it.
NEAR = 0.015

#: Rounds without any success after which a search ends that has no deadline, or no patience.
ENOUGH = 12


def set_partitioning(
    task: Task[Throughput],
    search: Search[Solution],
    *,
    patient: bool = True,
    part: float = 1.0,
    rounds: float = np.inf,
) -> None:
    """Find a non-contiguous split and a bound with its certificate, until the gap or a limit.

    Under GPipe's objective and with overlap, splits are sought by the sums of compute and
    transfers; what is found is judged by the objective asked for, and the bound holds for it.
    `limits.nodes` counts rounds.

    Parameters
    ----------
    patient
        Whether to use all the time there is; else it ends when nothing gets better for long.
    part
        Of the time left, for splits and bounds in turn.
    rounds
        Most rounds.
    """
    graph = hypergraph(task)
    reason = why_infeasible(task, graph)
    if reason is not None:
        search.prove_infeasible(reason)
        return
    rng = np.random.default_rng(search.limits.seed)
    shape = incidence(graph)
    tried = _begin(task, graph, shape, rng, search)
    if search.best is None or search.done:
        return
    walk = Neighbourhood(task, graph, shape, tried[0], graph.restrict(search.best.device), rng)
    _alternate(task, graph, tried, walk, search, Share(search, part), rounds, patient=patient)


def splits(task: Task[Throughput], search: Search[Solution]) -> None:
    """Better the split alone, until a limit; for what runs beside `set_partitioning`."""
    graph = hypergraph(task)
    if why_infeasible(task, graph) is not None:
        return
    rng = np.random.default_rng(search.limits.seed)
    shape = incidence(graph)
    tried = _begin(task, graph, shape, rng, search, known=search.best is not None)
    if search.best is None:
        return
    walk = Neighbourhood(task, graph, shape, tried[0], graph.restrict(search.best.device), rng)
    moves, rounds, idle, steps = MOVES, 0, 0, min(STEPS, STEPS_PER_UNIT * graph.size)
    most_idle = ENOUGH if search.limits.seconds is None else np.inf
    while not search.should_stop() and search.gap > OPTIMAL_GAP and idle < most_idle:
        if search.limits.nodes is not None and rounds >= search.limits.nodes:
            return
        rounds += 1
        better = walk.walk(search, moves)
        better = walk.anneal(search, steps * moves, search) or better
        idle = 0 if better else idle + 1
        moves = MOVES if better else min(2 * moves, GROWTH * MOVES)


def _begin(
    task: Task[Throughput],
    graph: Hypergraph,
    shape: Incidence,
    rng: np.random.Generator,
    search: Search[Solution],
    *,
    known: bool = False,
) -> list[Ints]:
    """Return orders of the units; offer first splits, unless a good one is known."""
    with search.phase("start"):
        tried = orders(graph, shape, np.random.default_rng(0))
        if not known:
            _start(task, graph, shape, tried, rng, search)
    if search.best is None:
        from .packing import packing  # only here, as Pyomo takes long to import

        with search.phase("packing"):
            packing(task, graph, search)
    return tried


def _start(
    task: Task[Throughput],
    graph: Hypergraph,
    shape: Incidence,
    tried: list[Ints],
    rng: np.random.Generator,
    search: Search[Solution],
) -> None:
    """Offer first splits: greedy's, and orders of small frontier cut into segments."""
    greedy(task, search)
    for order in tried[:ORDERS]:
        for _ in range(SEQUENCES):
            if search.should_stop():
                return
            devices = rng.permutation(task.cluster.size)
            where = linear_split(task, graph, shape, order, devices, search.objective)
            if where is not None:
                search.offer(Placement(graph.expand(where)))


def _alternate(
    task: Task[Throughput],
    graph: Hypergraph,
    tried: list[Ints],
    walk: Neighbourhood,
    search: Search[Solution],
    share: Share,
    most_rounds: float,
    *,
    patient: bool,
) -> None:
    """Better the split and the bound in turn.

    The bound comes before anything is compiled for splits: where it closes the gap asked for,
    nothing is.
    """
    targets, prover = _Targets(search), _Prover(task, graph, tried, search, share)
    early = Share(share, PART)
    steps = min(STEPS, STEPS_PER_UNIT * graph.size)
    moves, pricings, rounds, idle, calm = MOVES, PRICINGS, 0, 0, 0
    rising = found = False
    counted = search.limits.nodes is not None  # the same rounds on every machine then
    compiling, late = counted, not counted
    while not share.should_stop() and search.gap > OPTIMAL_GAP and rounds < most_rounds:
        if search.limits.nodes is not None and rounds >= search.limits.nodes:
            search.stop_for("nodes")
            return
        rounds += 1
        if late and not rising and search.seconds > LATE and search.gap > FAR:
            late = False
            with search.phase("least load"):
                raise_by_least_load(task, graph, tried[0], search, share, WIDE)
        before = search.bound
        better = False
        if not search.beside or targets.next() is None:
            with search.phase("split"):
                better = walk.walk(search, moves, Share(share, PART), compiling=compiling)
                if rounds > MOVES_ALONE and not rising:
                    found = walk.anneal(search, steps * moves, share)
                    better = better or found
        calm = 0 if better else calm + 1
        if calm < CALM and rounds < EARLY and not (early.should_stop() or walk.waits):
            continue
        compiling = True
        target = targets.next()
        if target is not None and not share.should_stop():
            targets.update(*prover.prove(target, targets.most, pricings))
        rising = not found and search.bound - before > RISING * (search.objective - before)
        idle = 0 if better or search.bound > before or target is not None else idle + 1
        if idle >= ENOUGH and not (patient and search.limits.seconds is not None):
            search.note("column-generation: neither split nor bound got better for long")
            return
        moves = MOVES if better else min(2 * moves, GROWTH * MOVES)
        pricings = min(2 * pricings, GROWTH * PRICINGS)


class _Prover:
    """Prices that leave out sets of too many transfers for plans within a limit.

    Memory gets a price once prices without one stall.

    The limit is the largest asked for at which the frontier is exact, or a part of the way to it:
    low limits leave fewer states. It rises once it is proved.
    """

    def __init__(
        self,
        task: Task[Throughput],
        graph: Hypergraph,
        tried: list[Ints],
        search: Search[Solution],
        share: Share,
    ) -> None:
        self._task, self._graph, self._tried = task, graph, tried
        self._search, self._share = search, share
        self._limit, self._by_value = -np.inf, True

    def prove(self, target: float, most: float, pricings: int) -> tuple[float, Outcome]:
        """Try to prove that no split has a max-load of `target`, in so many pricings.

        Parameters
        ----------
        most
            The largest target of use.

        Returns
        -------
        float, str
            The target that was tried, at most `target`, and how it went.
        """
        if self._limit <= self._search.bound or self._limit > most * (1 + ANEW):
            with self._search.phase("frontier"):
                self._begin(most)
        target = min(target, self._limit)
        if self._search.bound >= target:
            return target, "proved"
        with self._search.phase("bound"):
            clock = Share(self._share, PRICED)
            outcome = boxstep(self._state, self._pricing, target, self._raise, clock, pricings)
        if outcome == "stalled" and self._pricing.without_memory:
            self._limit, self._by_value = -np.inf, False
            return target, "stopped"
        return target, outcome

    def _begin(self, most: float) -> None:
        """Choose the limit, and begin with new prices."""
        task, search, stop = self._task, self._search, self._share.should_stop
        low = max(0.0, search.bound)
        by_value = self._by_value and low > most * (1 - NEAR)
        for part in (*LIMITS, 1.0):
            self._limit = low + part * (most - low)
            self._pricing = pricing_problem(
                task, self._graph, self._limit, self._tried, by_value=by_value
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
    """What to prove next: a part of the way to what was asked for, and of the way left."""

    def __init__(self, search: Search[Solution]) -> None:
        self._search = search
        self._now: float | None = None
        self._hopeless, self._tries = np.inf, 0

    @property
    def most(self) -> float:
        """The largest target that is of use."""
        return self._search.objective * (1 - self._asked)

    @property
    def _asked(self) -> float:
        return max(self._search.next_gap * (1 - 1e-6), OPTIMAL_GAP / 2)

    def next(self) -> float | None:
        """Return the next target; None if no target that could be proved is left."""
        objective, bound = self._search.objective, max(0.0, self._search.bound)
        if self._now is None or self._now > self.most or self._now <= bound:
            left = (objective - bound) / objective
            self._now = objective * (1 - max(self._asked, min(left / STRIDE, FIRST_GAP)))
        if self._now >= self._hopeless * (1 - RESOLUTION):
            if self._hopeless - bound < 2 * RESOLUTION * objective:
                return None
            self._now = (bound + self._hopeless) / 2
        return self._now

    def update(self, target: float, outcome: Outcome) -> None:
        """Note how it went."""
        if outcome == "stalled":
            self._hopeless = min(self._hopeless, target)
        self._tries = self._tries + 1 if outcome == "stopped" else 0
        if self._tries >= TRIES:
            self._now, self._tries = (max(0.0, self._search.bound) + target) / 2, 0
