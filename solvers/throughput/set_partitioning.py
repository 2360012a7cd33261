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
from ..core.search import OPTIMAL_GAP, Search
from ..core.share import Share
from .column_generation.column_generation import (
    DualState,
    Outcome,
    PricingProblem,
    boxstep,
    first_prices,
    pricing_problem,
)
from .greedy import greedy
from .linear_split import linear_split
from .neighbourhood import Neighbourhood

ORIGIN = "set partitioning"

#: Moves and pricings of the first round.
MOVES, PRICINGS = 100, 20

#: Rounds grow up to so many times the first.
GROWTH = 64

#: Part of the gap that is left that a target leaves, and the first gap to aim for.
STRIDE, FIRST_GAP = 4, 0.01

#: Orders that are cut into segments, and sequences of devices for each, for the first split.
ORDERS, SEQUENCES = 10, 2

#: A target that differs from a hopeless one by less than this, relatively, is hopeless too.
RESOLUTION = 1e-5

#: Rounds without any success after which a search ends that has no deadline, or no patience.
ENOUGH = 12


def set_partitioning(
    task: Task[Throughput], search: Search[Solution], *, patient: bool = True, part: float = 1.0
) -> None:
    """Find a non-contiguous split and a bound with its certificate, until the gap or a limit.

    Under GPipe's objective and with overlap, the neighbourhood search goes by the sums of
    compute and transfers; what it finds is judged by the objective asked for, and the bound
    holds for it. `limits.nodes` counts rounds.

    Parameters
    ----------
    patient
        Whether to use all the time there is; else it ends when nothing gets better for long.
    part
        Of the time left, for splits and bounds in turn.
    """
    graph = hypergraph(task)
    reason = why_infeasible(task, graph)
    if reason is not None:
        search.prove_infeasible(reason)
        return
    rng = np.random.default_rng(search.limits.seed)
    with search.phase("frontier"):
        pricing = pricing_problem(task, graph)
    with search.phase("start"):
        _start(task, graph, pricing, rng, search)
    if search.best is None:
        from .packing import packing  # only here, as Pyomo takes long to import

        with search.phase("packing"):
            packing(task, graph, search)
    if search.best is None or search.done:
        return
    _alternate(task, graph, pricing, rng, search, Share(search, part), patient=patient)


def _start(
    task: Task[Throughput],
    graph: Hypergraph,
    pricing: PricingProblem,
    rng: np.random.Generator,
    search: Search[Solution],
) -> None:
    """Offer first splits: greedy's, and orders of small frontier cut into segments."""
    greedy(task, search)
    for order in pricing.orders[:ORDERS]:
        for _ in range(SEQUENCES):
            if search.should_stop():
                return
            devices = rng.permutation(task.cluster.size)
            where = linear_split(task, graph, pricing.shape, order, devices, search.objective)
            if where is not None:
                search.offer(Placement(graph.expand(where)))


def _alternate(
    task: Task[Throughput],
    graph: Hypergraph,
    pricing: PricingProblem,
    rng: np.random.Generator,
    search: Search[Solution],
    share: Share,
    *,
    patient: bool,
) -> None:
    assert search.best is not None
    start = graph.restrict(search.best.device)
    walk = Neighbourhood(task, graph, pricing.shape, pricing.orders[0], start, rng)
    state = DualState(first_prices(pricing, graph, task.costs.host))
    targets = _Targets(search)
    moves, pricings, rounds, idle = MOVES, PRICINGS, 0, 0

    def prove(bound: float, prices: Prices) -> None:
        if bound > search.bound:
            evidence = certificate(task, graph, prices, bound, pricing.orders[0])
            search.raise_bound(bound, ORIGIN, evidence)

    while not share.should_stop() and search.gap > OPTIMAL_GAP:
        if search.limits.nodes is not None and rounds >= search.limits.nodes:
            search.stop_for("nodes")
            return
        rounds += 1
        before = search.bound
        with search.phase("split"):
            better = walk.walk(search, moves, share)
        target = targets.next()
        if target is not None and not share.should_stop():
            with search.phase("bound"):
                outcome = boxstep(state, pricing, target, prove, share, pricings)
            targets.learn(target, outcome)
        idle = 0 if better or search.bound > before or target is not None else idle + 1
        if idle >= ENOUGH and not (patient and search.limits.seconds is not None):
            search.note("column-generation: neither split nor bound got better for long")
            return
        moves = MOVES if better else min(2 * moves, GROWTH * MOVES)
        pricings = min(2 * pricings, GROWTH * PRICINGS)


class _Targets:
    """What to prove next: a part of the way to what was asked for, and of the way left."""

    def __init__(self, search: Search[Solution]) -> None:
        self._search = search
        self._now: float | None = None
        self._hopeless = np.inf

    def next(self) -> float | None:
        """Return the next target; None if no target that could be proved is left."""
        objective, bound = self._search.objective, max(0.0, self._search.bound)
        asked = max(self._search.next_gap * (1 - 1e-6), OPTIMAL_GAP / 2)
        most = objective * (1 - asked)
        if self._now is None or self._now > most or self._now <= bound:
            left = (objective - bound) / objective
            self._now = objective * (1 - max(asked, min(left / STRIDE, FIRST_GAP)))
        if self._now >= self._hopeless * (1 - RESOLUTION):
            if self._hopeless - bound < 2 * RESOLUTION * objective:
                return None
            self._now = (bound + self._hopeless) / 2
        return self._now

    def learn(self, target: float, outcome: Outcome) -> None:
        """Note how it went."""
        if outcome == "stalled":
            self._hopeless = min(self._hopeless, target)
