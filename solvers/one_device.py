"""A bound on the max-load from what one device alone can take by T."""

from __future__ import annotations

import math

import numpy as np

from ..formulations.hypergraph import Hypergraph, hypergraph
from ..formulations.one_device import one_device, prices
from ..formulations.task import Task
from ..instances import Solution
from ..instances.arrays import Floats
from .highs import compile_model, run_highs
from .search import Search

ORIGIN = "one-device MILP (HiGHS)"
#: Relative slack left for HiGHS's tolerances.
SLACK = 1e-6
#: Halvings of the range that T lies in.
STEPS = 7


def one_device_bound(task: Task, search: Search[Solution], seconds: float) -> None:
    """Raise the bound as far as one device alone shows; at once to the gap asked for, if it does.

    Parameters
    ----------
    seconds
        At most so long; a program that takes longer than a fair part of it counts as no proof.

    References
    ----------
    `formulations.one_device` says why this is a bound for every split, pipeline and cluster.
    """
    graph, ends = hypergraph(task), search.seconds + seconds
    price = prices(task, graph)
    low = max(search.bound, 0.0)
    target = search.objective * (1 - max(search.limits.gap, 2 * SLACK))
    limit = target
    for step in range(STEPS):
        if search.should_stop() or search.seconds >= ends or not math.isfinite(target):
            return
        if not low < limit:
            return
        share = (ends - search.seconds) / 2
        if _impossible(task, search, graph, price, limit, share):
            search.raise_bound(limit * (1 - SLACK), ORIGIN)
            low = limit
        else:
            target = limit
        limit = (low + target) / 2


def _impossible(
    task: Task,
    search: Search[Solution],
    graph: Hypergraph,
    price: Floats,
    limit: float,
    seconds: float,
) -> bool:
    """Whether Σ_k n_k g_k(limit) < Σ π is proved within `seconds`."""
    costs, ends = task.costs, search.seconds + seconds
    need = float(price.sum()) * (1 - SLACK)
    # The cheap knapsacks of the hosts first; the rest of the need falls to the accelerators.
    kinds = sorted(np.flatnonzero(costs.count > 0), key=lambda k: (not costs.host[k], k))
    for i, k in enumerate(kinds):
        stated = one_device(task, graph, int(k), limit, price)
        compiled = compile_model(stated.model)
        count, unit = int(costs.count[k]), stated.scale
        if compiled.linear is None:  # a net's pin cannot be on this kind, so the net is cut
            continue
        last = i == len(kinds) - 1
        enough = need / (count * unit)  # of the last kind's program: below it T is impossible

        def too_little(bound: float, enough: float = enough, last: bool = last) -> bool:
            return last and bound < enough

        def sufficient(
            x: Floats,
            enough: float = enough,
            last: bool = last,
            cost: Floats = compiled.linear.cost,
        ) -> bool:
            return last and float(cost @ x) >= enough

        outcome = run_highs(
            compiled.linear,
            search,
            gap=1e-6,
            seconds=(ends - search.seconds) / (len(kinds) - i),
            nodes=None,
            on_bound=too_little,
            on_incumbent=sufficient,
        )
        need -= count * unit * outcome.bound
    return need > 0
