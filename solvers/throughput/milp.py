"""Compact integer program by HiGHS or any solver of Pyomo, with neighbourhood search inside it.

The neighbourhood search frees two or three slots at a time and fixes the units of all others.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from itertools import combinations

import numpy as np
from pyomo.common.gc_manager import PauseGC

from ...formulations.linear import Linear
from ...formulations.program import quiet_pyomo
from ...formulations.task import Task
from ...formulations.throughput.compact import Compact
from ...formulations.throughput.compact import compact as state
from ...formulations.throughput.hypergraph import hypergraph
from ...formulations.throughput.infeasible import why_infeasible
from ...instances import Solution, Throughput
from ...instances.common.arrays import Floats, Ints
from ..core.compiled_model import Compiled
from ..core.highs import run_highs
from ..core.milp_driver import Improve, IntegerProgram, TimeIsUp, integer_program, solve_program
from ..core.other_solvers import check_solver
from ..core.search import Search
from .baselines import greedy
from .packing import packing

#: Limits of one neighbourhood: nodes, and seconds unless the search is limited by nodes.
NODES = 100

SECONDS = 2.0

#: Share of the time left that all neighbourhoods may take.
SHARE = 0.2


def compact(task: Task[Throughput], search: Search[Solution]) -> None:
    """Solve the compact program, from the best solution known or from greedy's.

    ``task.solver`` names the solver: ``highs`` (default), or one of `other_solvers`.
    """
    check_solver(task.solver)
    if search.best is None:
        with search.phase("start"):
            greedy(task, search)
            if search.best is None and why_infeasible(task) is None:
                packing(task, hypergraph(task), search)
    solve_program(lambda: _program(task, search), search, solver=task.solver)


def _program(task: Task[Throughput], search: Search[Solution]) -> IntegerProgram[Solution]:
    """State the program for the best solution known."""

    def watch() -> None:
        if search.should_stop():
            raise TimeIsUp

    known = math.isfinite(search.objective)
    with PauseGC(), quiet_pyomo():
        stated = state(
            task,
            reference=search.objective if known else _reference(task),
            cutoff=search.objective,
            floor=search.bound,
            watch=watch,
        )

    def improve(compiled: Compiled) -> Improve:
        return lambda linear, start, offer: improve_slots(
            stated, compiled, linear, search, start, offer
        )

    return integer_program(
        stated,
        search.best,
        origin="compact MILP",
        infeasible="no placement keeps all rules of memory, colours and contiguity",
        improve=improve,
    )


def _reference(task: Task[Throughput]) -> float:
    """Even share of the least times: a scale for the objective where no plan is known."""
    least = task.costs.compute[task.costs.count > 0].min(axis=0)
    return float(least[np.isfinite(least)].sum()) / len(task.costs.kind_of)


def improve_slots(
    stated: Compact,
    compiled: Compiled,
    linear: Linear,
    search: Search[Solution],
    start: Floats,
    offer: Callable[[Floats], None],
) -> Floats:
    """Re-optimise the most loaded slot with one or two others until none helps.

    Return the last start, NaN but for the whole-number columns as the given one.

    All rules stay, so this serves every split, pipeline and cluster.
    """
    columns = {key: compiled.column(var) for key, var in stated.model.x.items()}
    unit, slot, column = np.array(
        [(v, d, j) for (v, d), j in columns.items() if j is not None], dtype=np.int64
    ).T
    by_nodes = search.limits.nodes is not None
    clock = search.part(1.0 if by_nodes else SHARE)
    x, improved = start, True
    while improved:
        improved = False
        at = np.full(stated.graph.size, -1)
        chosen = x[column] > 0.5
        at[unit[chosen]] = slot[chosen]
        loads = _loads(stated, at)
        worst = int(loads.argmax())
        others = [d for d in np.argsort(loads, kind="stable").tolist() if d != worst]
        for freed in (*combinations(others, 1), *combinations(others, 2)):
            if clock.should_stop():
                return x
            slots = (worst, *freed)
            free = np.isin(at[unit], slots) & np.isin(slot, slots)
            keep = column[~free]
            lower, upper = linear.column_lower.copy(), linear.column_upper.copy()
            lower[keep] = upper[keep] = np.round(x[keep])
            outcome = run_highs(
                replace(linear, column_lower=lower, column_upper=upper),
                search,
                start=x,
                gap=1e-4,
                options={"mip_max_nodes": NODES},
                seconds=min(math.inf if by_nodes else SECONDS, clock.seconds_left),
            )
            if outcome.x is None:
                continue
            before = search.objective
            offer(outcome.x)
            # The program's own objective is noise where it was stated for a much worse plan.
            if search.objective < before * (1 - 1e-6):
                improved = True
                # Whole numbers only: the rest, rounded, may miss a row by more than the tolerance.
                x = np.where(linear.integer, outcome.x, np.nan)
                break
    return x


def _loads(stated: Compact, at: Ints) -> Floats:
    """Load of each slot, compute and transfers added up; shape (slots,)."""
    graph = stated.graph
    loads = np.zeros(len(stated.slots))
    for d, s in enumerate(stated.slots):
        loads[d] = graph.compute[s.kind].sum(axis=0)[at == d].sum()
        weight = graph.weight[s.kind].sum(axis=0)
        for e, pins in enumerate(graph.pins):
            inside = sum(at[v] == d for v in pins)
            if 0 < inside < len(pins):
                loads[d] += weight[e]
    return loads
