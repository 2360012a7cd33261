"""Method `learned`: placements drawn from a policy, of which the best of each batch are offered."""

from __future__ import annotations

import math

import numpy as np

from ...formulations.task import Task
from ...instances import Latency, PipelineJob, Solution, Throughput
from ...instances.common.arrays import Floats, Ints
from ..core.search import Search
from .environments import PlacementEnvironment, environment
from .groups import grouped_order, interleaved_order, random_order
from .policy import SampledPlacements, draw_placements, one_thread
from .policy_file import policy_of, read_policy
from .train import FineTuning, targets

#: Placements in a batch. A step takes as long for 32 as for 8, and 1.4 times as long for 128.
BATCH = 128
#: Largest number of units times placements in a batch, which bounds its memory.
MOST_DECISIONS = 200_000
#: Placements in a search without limits.
DRAWN = 256
#: Range of the objectives to aim at, relative to the best one found.
LOWEST_AIM, HIGHEST_AIM = 0.8, 1.05
#: Periods, in batches of contiguous splits, of orders that interleave branches, and of orders in
#: which the groups of the best placement drawn so far are contiguous.
INTERLEAVED, KEPT = 3, 2


def learned(task: Task[Throughput | PipelineJob | Latency], search: Search[Solution]) -> None:
    """Draw placements until a limit, of which `limits.nodes` is their number; prove no bound.

    With the option ``fine-tune`` the policy learns from its samples for so many seconds. The clock
    decides only when learning and drawing end: the same seed gives the same samples.
    """
    with one_thread():
        _learned(task, search)


def _learned(task: Task[Throughput | PipelineJob | Latency], search: Search[Solution]) -> None:
    with search.phase("load"):
        policy = policy_of(read_policy(task.options.get("policy")))
        of = environment(task)
    if not of.rules:
        return
    rng = np.random.default_rng(search.limits.seed)
    tuning = FineTuning(policy, of)
    seconds = float(task.options.get("fine-tune", 0))
    until = search.seconds + seconds if seconds else -math.inf
    drawn, number = 0, 0
    best, group = math.inf, None
    while not search.should_stop():
        left = _most(search) - drawn
        if left <= 0:
            search.stop_for("nodes")
            return
        batch = min(left, BATCH, max(1, MOST_DECISIONS // of.observation.graph.size))
        with search.phase("solve"):
            aims = _aims(of, search.objective / of.unit, int(batch), rng)
            order = _order(of, group, number, rng)
            try:
                made = draw_placements(
                    policy, of, aims, rng, order=order, check=lambda: _check(search)
                )
            except _Stopped:
                return
            _offer(of, made, search)
            least = int(made.values.argmin())
            if made.values[least] < best:
                best, group = float(made.values[least]), made.group[least]
        if search.seconds < until:
            with search.phase("fine-tune"):
                tuning.learn_from(made)
        drawn, number = drawn + len(made.values), number + 1


def _most(search: Search[Solution]) -> float:
    """Return how many placements may be drawn."""
    if search.limits.nodes is None:
        return DRAWN if search.limits.seconds is None else math.inf
    return search.limits.nodes


def _aims(of: PlacementEnvironment, best: float, count: int, rng: np.random.Generator) -> Floats:
    if math.isinf(best):
        return targets(of, count, rng)
    return best * rng.uniform(LOWEST_AIM, HIGHEST_AIM, count)


def _order(
    of: PlacementEnvironment, group: Ints | None, number: int, rng: np.random.Generator
) -> Ints | None:
    """Return the order of the units in a batch; None if groups are not contiguous."""
    if not of.rules[0].contiguous:
        return None
    interleaved = number % INTERLEAVED == 1
    order = (interleaved_order if interleaved else random_order)(of.observation, rng)
    return order if group is None or number % KEPT else grouped_order(of.observation, order, group)


class _Stopped(Exception):
    """Exception that ends a batch: the search must stop, and has a plan."""


def _check(search: Search[Solution]) -> None:
    if search.best is not None and search.should_stop():
        raise _Stopped


def _offer(of: PlacementEnvironment, drawn: SampledPlacements, search: Search[Solution]) -> None:
    """Offer placements with a value below the objective, the best first, until one is accepted."""
    for i in np.argsort(drawn.values, kind="stable").tolist():
        if not drawn.values[i] * of.unit < search.objective or search.should_stop():
            return
        if search.offer(of.solution(drawn.group[i], drawn.device[i])):
            return
