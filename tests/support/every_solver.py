"""Every solver of the package, found by looking, and what it claims beside a given incumbent.

A solver is what `METHODS` lists, and every public function in `solvers/` that takes a `task`, a
`search` and nothing else that `GIVEN` cannot make: one that is built tomorrow is among them.
"""

from __future__ import annotations

import importlib
import inspect
import math
import pkgutil
import re
import traceback
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

from sweep import OBJECTIVE, WORDS, Case, Word

import stagecut.solvers as solvers
from stagecut import InputError, Limits, solve
from stagecut.api.common import Judge
from stagecut.formulations.latency.graph import latency_graph
from stagecut.formulations.task import Task, pose
from stagecut.formulations.throughput.cheap_bounds import units_of_split
from stagecut.formulations.throughput.hypergraph import Hypergraph, hypergraph, pipeline_units
from stagecut.instances import Problem, Solution
from stagecut.instances.model.pipeline_job import is_stream
from stagecut.solvers import METHODS
from stagecut.solvers.core.search import OPTIMAL_GAP, Search
from stagecut.solvers.core.under_rules import run_method
from stagecut.solvers.latency.bound import heavy_paths
from stagecut.solvers.throughput.column_generation.orders import narrow_order
from stagecut.solvers.throughput.dp import ideals_alone

#: Incumbents that a solver gets, as multiples of the optimum: no claim hides behind the larger.
FACTORS = (1.0, 1.3, 3.0)

#: Seconds only end what hangs.
LIMITS = Limits(nodes=3, gap=0.0, seconds=60.0)

#: Functions of a task and a search that are no solvers: they need what a solver has begun.
PARTS = {
    "core.session.run_alone",
    "core.session.run_session",
    "core.session.solve_in_session",
    "core.under_rules.run_method",
    "core.under_rules.solve_under_rules",
    "job.iteration.frameworks.first_plans",
    "job.iteration.frameworks.default_split",
    "latency.calls.several_calls",
    "latency.label_dp.bound_paths",
    "latency.label_dp.raise_or_refute",
    "sharding.baselines.baseline",
}

#: Solvers that are for some tasks of their problem alone, as those that call them ask first; the
#: others take what the method of their name takes, if there is one.
SCOPE: dict[str, Callable[[Task[Any], Search[Solution]], bool]] = {
    "latency.lns.improve": lambda _, search: search.best is not None,
    "mapping.auto.stage_times": lambda task, _: task.problem.objective == "stage-time",
    "mapping.busiest_link.busiest_link": lambda task, _: task.problem.objective != "stage-time",
    "throughput.multilevel.critical_path.raise_by_critical_path": lambda of, _: ideals_alone(of),
    "throughput.set_partitioning.set_partitioning": lambda of, _: _noncontiguous(of),
    "throughput.set_partitioning.splits": lambda of, _: _noncontiguous(of),
}


@dataclass(frozen=True)
class Known:
    """A solver: what it is for, names of problems or of their classes, and how to run it."""

    problems: frozenset[str]
    run: Callable[[Task[Any], Search[Solution]], object]

    def takes(self, problem: Problem) -> bool:
        """Whether it is for a problem."""
        return bool(self.problems & {problem.name, type(problem).__name__, "Problem"})


def _graph(task: Task[Any], search: Search[Solution]) -> object:  # noqa: ARG001
    if task.problem.name == "latency":
        return latency_graph(task, whole_colours=task.problem.calls == 1)
    return hypergraph(task, units_of_split(task))


def _order(task: Task[Any], search: Search[Solution]) -> object:
    graph = _graph(task, search)
    assert isinstance(graph, Hypergraph)
    return narrow_order(graph)


def _noncontiguous(task: Task[Any]) -> bool:
    return bool(task.problem.split == "noncontiguous")


#: What solvers take besides, by name.
GIVEN: dict[str, Callable[[Task[Any], Search[Solution]], object]] = {
    "task": lambda task, search: task,  # noqa: ARG005
    "search": lambda task, search: search,  # noqa: ARG005
    "clock": lambda task, search: search,  # noqa: ARG005
    "coefficient": lambda task, search: 0.0,  # noqa: ARG005
    "graph": _graph,
    "order": _order,
    "units": lambda task, search: pipeline_units(task),  # noqa: ARG005
    "should_stop": lambda task, search: search.should_stop,  # noqa: ARG005
    "paths": lambda task, search: heavy_paths(_graph(task, search)),
}


@cache
def every_solver() -> dict[str, Known]:
    """Return all solvers, by ``problem method`` or by module and function."""
    found = {
        f"{problem} {name}": Known(frozenset([problem]), method.solve)
        for problem, methods in METHODS.items()
        for name, method in methods.items()
    }
    for name, function, taken in _functions():
        if name not in PARTS:
            of = re.search(r"Task\[(.+)\]", str(inspect.signature(function).parameters["task"]))
            assert of is not None, f"{name}: annotate its task"
            found[name] = Known(
                frozenset(re.findall(r"\w+", of[1])), partial(_run, function, taken)
            )
    return found


def unknown_arguments() -> list[str]:
    """Return functions of a task and a search with arguments that `GIVEN` does not make."""
    return [name for name, _, taken in _functions() if set(taken) - set(GIVEN)]


def _functions() -> list[tuple[str, Callable[..., object], list[str]]]:
    """Return public functions of a task and a search, and the arguments that they must get."""
    found = []
    for info in pkgutil.walk_packages(solvers.__path__, f"{solvers.__name__}."):
        module = importlib.import_module(info.name)
        for name, function in inspect.getmembers(module, inspect.isfunction):
            arguments = inspect.signature(function).parameters
            if name.startswith("_") or function.__module__ != info.name:
                continue
            if {"task", "search"} <= set(arguments):
                taken = [key for key, it in arguments.items() if it.default is it.empty]
                where = info.name.removeprefix(f"{solvers.__name__}.")
                found.append((f"{where}.{name}", function, taken))
    return found


def _run(
    function: Callable[..., object], taken: list[str], task: Task[Any], search: Search[Solution]
) -> None:
    function(**{name: GIVEN[name](task, search) for name in taken})


class Recorded(Search[Solution]):
    """A search that keeps what was claimed, whatever became of it."""

    def __init__(self, judge: Judge, incumbent: Solution | None, objective: float) -> None:
        super().__init__(LIMITS, judge)
        self.best, self.objective = incumbent, objective
        self.claims: list[tuple[float, str]] = []
        self.said_infeasible: list[str] = []

    def raise_bound(
        self, bound: float, origin: str, certificate: dict[str, object] | None = None
    ) -> bool:
        """Keep the claim."""
        self.claims.append((bound, origin))
        return super().raise_bound(bound, origin, certificate)

    def prove_infeasible(self, because: str) -> None:
        """Keep the claim."""
        self.said_infeasible.append(because)
        super().prove_infeasible(because)


def claimed(
    case: Case, name: str, optimum: float, incumbent: Solution | None, factor: float
) -> Word:
    """Return what a solver claims of a case, against the optimum.

    Parameters
    ----------
    incumbent
        A solution, which the solver is told to have `factor` times the optimum; None for none.
    """
    known = every_solver()[name]
    task = pose(case.workload, case.cluster, case.problem)
    start = math.inf if incumbent is None else factor * optimum
    search = Recorded(Judge(case.workload, case.cluster, case.problem), incumbent, start)
    streams = {"job.stream.": True, "job.iteration.": False}  # each for one kind of schedule
    if any(name.startswith(x) and is_stream(task.problem) != of for x, of in streams.items()):
        return Word("method refuses")
    if name in SCOPE and not SCOPE[name](task, search):
        return Word("method refuses")
    methods, method = METHODS[case.problem.name], re.split("[ .]", name)[-1]
    try:
        if method in methods:
            methods[method].check(method, task)
        run_method(known.run, task, search)
    except InputError as refusal:
        return Word("method refuses", str(refusal))
    except Exception as failure:
        last = traceback.extract_tb(failure.__traceback__)[-1]
        return Word(
            "exception", f"{type(failure).__name__}: {failure} ({last.filename}:{last.lineno})"
        )
    return _said(search, optimum)


def _said(search: Recorded, optimum: float) -> Word:
    detail = f"{search.objective!r}, optimum {optimum!r}"
    for bound, origin in search.claims:
        if not bound <= optimum + OPTIMAL_GAP * abs(optimum):
            return Word("bound above the optimum", f"{bound!r} ({origin}); {detail}")
    if search.said_infeasible and math.isfinite(optimum):
        return Word("infeasible that is feasible", f"{search.said_infeasible[0]}; {detail}")
    if search.objective < optimum * (1 - OBJECTIVE):
        return Word("better than brute force", detail)
    for note in search.notes:
        if "defect" in note:
            return Word("noted defect", f"{note}; {detail}")
    return Word("no plan" if search.status == "no solution" else str(search.status))


def solvers_of(case: Case) -> list[str]:
    """Return the names of the solvers for a case's problem."""
    return [name for name, known in every_solver().items() if known.takes(case.problem)]


def incumbent_of(case: Case) -> Solution | None:
    """Return a solution to begin with; None if none is found."""
    plan = solve(case.workload, case.cluster, case.problem, limits=LIMITS).plan
    return None if plan is None else plan.solution


def worst(case: Case, name: str, optimum: float, incumbent: Solution | None) -> Word:
    """Return the worst that a solver claims of a case beside any of `FACTORS`."""
    factors = (1.0,) if incumbent is None else FACTORS
    said = []
    for factor in factors:
        word = claimed(case, name, optimum, incumbent, factor)
        said.append(replace(word, detail=f"incumbent of {factor:g} × the optimum: {word.detail}"))
    return min(said, key=lambda word: WORDS.index(word.word))
