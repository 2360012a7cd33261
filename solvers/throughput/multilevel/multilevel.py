"""Multilevel planning: for graphs whose units are too many for the methods that see them all.

*Coarsen*: units next to each other in a topological order become one. *Solve*: the dynamic program
finds the best plan of coarse units. *Refine*: units are left as they are where stages meet, coarser
the farther from there, and the dynamic program is run again, until that brings nothing. Every step
costs time near-linear in the graph.
"""

from __future__ import annotations

import math

import numpy as np

from ....formulations.task import Task
from ....formulations.throughput.hypergraph import Hypergraph, hypergraph, pipeline_units
from ....formulations.throughput.ideals import topological_orders
from ....formulations.throughput.infeasible import why_infeasible
from ....instances import Placement, Solution, Throughput
from ....instances.common.arrays import Ints
from ...core.search import Search
from ..dp.dp import contracted_dp
from .coarsen import around, crossing, even, labels

#: Coarse units: at least, and for each device.
LEAST, PER_DEVICE = 256, 16

#: Sizes of coarse units between the end of a stage and its middle.
SIZES = 12

#: Rounds of refinement that better a plan by less than this, relatively, are the last.
ENOUGH = 1e-4


def multilevel(task: Task[Throughput], search: Search[Solution]) -> None:
    """Plan on coarse units, and refine the plan where its stages meet."""
    with search.phase("build"):
        graph = hypergraph(task, pipeline_units(task))
        reason = why_infeasible(task)
        if reason is not None:
            search.prove_infeasible(reason)
            return
        orders = topological_orders(graph)
    for order in orders:
        with search.phase("coarse"):
            _coarse(task, graph, order, search)
        if search.should_stop():
            return
        before = math.inf
        while search.objective < before * (1 - ENOUGH) and search.best is not None:
            before = search.objective
            with search.phase("refine"):
                _refine(task, graph, order, search)
            if search.should_stop():
                return


def _coarse(
    task: Task[Throughput], graph: Hypergraph, order: Ints, search: Search[Solution]
) -> None:
    kinds = np.flatnonzero(task.costs.count)
    work = graph.compute[kinds].sum(axis=1).min(axis=0)
    weight = graph.weight[kinds].sum(axis=1).min(axis=0)
    count = max(LEAST, PER_DEVICE * task.cluster.size)
    boundaries = even(work[order], crossing(graph, weight, order), count)
    contracted_dp(task, search, labels(order, boundaries)[graph.unit_of])


def _refine(
    task: Task[Throughput], graph: Hypergraph, order: Ints, search: Search[Solution]
) -> None:
    """Plan anew with units as they are where the stages of the best plan meet."""
    assert isinstance(search.best, Placement)
    device = graph.restrict(search.best.device)[order]
    first = {d: i for i, d in reversed(list(enumerate(device.tolist())))}
    stage = np.array([first[d] for d in device.tolist()])
    by_stage = np.argsort(stage, kind="stable")
    boundaries = around(stage[by_stage], SIZES)
    contracted_dp(task, search, labels(order[by_stage], boundaries)[graph.unit_of])
