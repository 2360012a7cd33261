"""The bound of the compact program's relaxation: of one linear program, proved by multipliers.

With several kinds of devices it can be better than what prices reach in a hundred times as long.
HiGHS proposes the multipliers; what they prove is computed here, with outward rounding, and once
more from the definition by `runtime.verify.bounds.max_load`.
"""

from __future__ import annotations

import math

from ...formulations.task import Task
from ...formulations.throughput.hypergraph import hypergraph
from ...formulations.throughput.relaxation import relaxation as state
from ...instances import Solution, Throughput
from ...instances.formats.certificate import MULTIPLIERS
from ..core.proofs import dual_bound, relax
from ..core.search import Search
from .baselines import greedy

#: Units times devices up to which it takes seconds.
MOST_SIZE = 6_000

#: What the check of the certificate may take off for multipliers that break a rule by a hair.
MARGIN = 1e-7

#: Most limits; part of the bound by which the next limit is above it, and by which it must rise.
ROUNDS, ABOVE, RISE = 5, 1e-4, 1e-6


def pays(task: Task[Throughput]) -> bool:
    """Whether its bound may be better than that of the total work, and is had in seconds.

    With devices of one kind it is that, unless memory or an unsupported unit tells them apart.
    """
    several = int((task.costs.count > 0).sum()) > 1
    return several and task.workload.n * task.cluster.size <= MOST_SIZE


def relaxation(task: Task[Throughput], search: Search[Solution]) -> None:
    """Raise the bound by the relaxation for a non-contiguous split, below the best one known.

    The relaxation leaves out what alone exceeds a limit: a plan is above the limit, or above its
    optimum. Limits come down to the bound, as lower ones leave out more.
    """
    if search.best is None:
        greedy(task, search)
    if not 0 < search.objective < math.inf:
        return
    graph, limit, before = hypergraph(task), search.objective, 0.0
    with search.phase("relaxation"):
        for _ in range(ROUNDS):
            stated = state(task, graph, limit)
            multipliers = relax(stated.linear).multipliers
            if multipliers is None:
                return
            bound = min(dual_bound(stated.linear, multipliers), 1.0) * limit
            bound -= MARGIN * abs(bound)
            if bound > max(search.bound, 0.0):
                search.raise_bound(bound, MULTIPLIERS, stated.evidence(multipliers, bound))
            if not bound > before * (1 + RISE) or search.should_stop():
                return
            before, limit = bound, min(limit, bound * (1 + ABOVE))
