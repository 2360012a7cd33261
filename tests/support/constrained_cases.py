"""Small cases with a random constraint that a user adds, and the best solution that keeps it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pyomo.environ as pyo
import pytest
from brute_iteration import training_case
from cases import random_case
from rules_cases import solutions

import stagecut
from stagecut import InfeasibleError, Latency, Limits, PipelineJob, Throughput
from stagecut.formulations.stated import node_names

EXACT = Limits(gap=0.0, seconds=60)

#: The place of a node in a solution, as a formulation calls it.
PlaceOf = Callable[[Any, int], str]


def throughput_case(seed: int) -> tuple[Any, Any, Any, str, PlaceOf]:
    """A random case, its formulation, and what its places are."""
    split = ("noncontiguous", "contiguous", "per-device")[seed % 3]
    workload, cluster = random_case(seed, max_nodes=5, max_cores=1, max_kinds=1 + seed % 2)
    problem = Throughput(split, overlap=seed % 4 == 0, cpu_split=("free", "contiguous")[seed % 2])

    def place(solution: Any, v: int) -> str:
        return cluster.devices[int(solution.device[v])].name

    return workload, cluster, problem, "by-device", place


def latency_case(seed: int) -> tuple[Any, Any, Any, str, PlaceOf]:
    workload, cluster = random_case(seed, max_nodes=4, max_cores=1, max_kinds=1 + seed % 2)
    problem = Latency(1 + seed % 2)

    def place(solution: Any, v: int) -> str:
        call = int(solution.call[v])
        if call < 0:
            return "CPUs"
        name = cluster.devices[int(solution.device[v])].name
        return f"{name}, call {call}" if problem.calls > 1 else name

    return workload, cluster, problem, ("big-m", "potentials")[seed // 2 % 2], place


def iteration_case(seed: int) -> tuple[Any, Any, Any, str, PlaceOf]:
    workload, cluster = training_case(np.random.default_rng(seed), kinds=1)
    problem = PipelineJob(2, ("gpipe", "1f1b")[seed % 2])
    return workload, cluster, problem, "actions", lambda solution, v: f"stage {solution.stage[v]}"


MAKERS = {"throughput": throughput_case, "latency": latency_case, "iteration": iteration_case}


def check_against_brute_force(problem: str, seed: int, solver: str = "highs") -> bool:
    """Compare a case under a random constraint with all its solutions; False if none fits it."""
    workload, cluster, asked, name, place_of = MAKERS[problem](seed)
    try:
        f = stagecut.formulation(workload, cluster, asked, name)
    except InfeasibleError:
        return False
    rng = np.random.default_rng([seed, 8])
    nodes = node_names(workload)
    place = str(rng.choice(f.places))
    weight = rng.integers(1, 4, workload.n)
    most = int(rng.integers(0, weight.sum() + 1))
    there = sum(int(w) * f.at(v, place) for w, v in zip(weight, nodes, strict=True))
    f.model.added = pyo.Constraint(expr=there <= most)
    best = math.inf
    for solution in solutions(workload, cluster, asked):
        if sum(int(w) for v, w in enumerate(weight) if place_of(solution, v) == place) <= most:
            report = stagecut.evaluate(workload, cluster, asked, solution)
            best = best if report.violations else min(best, report.objective)
    result = f.solve(solver, limits=EXACT)
    where = f"{problem} seed {seed}: {asked}, {place} {weight} <= {most}: {result} {result.notes}"
    if math.isinf(best):
        assert result.plan is None, where
        return False
    assert result.objective == pytest.approx(best, rel=1e-6), where
    assert result.bound <= best * (1 + 1e-9), where
    assert "under user constraints" in result.bound_origin, where
    assert result.plan is not None
    held = sum(int(w) for v, w in enumerate(weight) if place_of(result.plan.solution, v) == place)
    assert held <= most, where
    return True
