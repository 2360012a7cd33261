"""Brute force, the verifier and every method agree on small cases; failures shrink."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from brute import best_max_load
from brute_latency import least_latency
from conformance import EXACT, METHODS_OF
from hypothesis import given
from strategies import examples, latencies, placed, throughputs, trained
from training_cases import best_objective

from stagecut import (
    Cluster,
    InputError,
    Latency,
    Limits,
    PipelineJob,
    Throughput,
    Workload,
    solve,
    verify,
)
from stagecut.instances import Placement, Problem, Split
from stagecut.runtime import evaluate
from stagecut.solvers import METHODS

#: Ends what hangs; no test waits for it.
LIMITS = Limits(seconds=120, nodes=2000)
FEW = Limits(seconds=120, nodes=20)  # restarts
ROUNDS = Limits(seconds=120, nodes=6)  # of prices


def agree(workload: Workload, cluster: Cluster, problem: Problem, method: str, best: float) -> None:
    """A method proves the optimum if it is exact, and else claims nothing that is not so."""
    limits = (
        ROUNDS
        if method == "column-generation"
        else FEW
        if method in ("local-search", "random", "lns", "learned")
        else LIMITS
    )
    try:
        result = solve(workload, cluster, problem, method=method, limits=limits)
    except InputError:  # the others may not take every case
        if method in EXACT[problem.name]:
            raise
        return
    assert result.bound <= best * (1 + 1e-6)
    if result.plan is not None:
        verify(workload, result.plan)
        assert result.plan.objective >= best * (1 - 1e-9)
    assert result.status != "infeasible" or math.isinf(best)
    contiguous = (
        isinstance(problem, Throughput)
        and problem.split == "contiguous"
        and problem.cpu_split == "contiguous"  # else `dp` proves nothing
    )
    if method in (*EXACT[problem.name], *["dp"] * contiguous):
        assert result.status == ("infeasible" if math.isinf(best) else "optimal")
        if result.plan is not None:
            assert result.plan.objective == pytest.approx(best, rel=2e-6)


@examples(40)
@given(placed(max_nodes=4), throughputs())
def test_the_verifier_is_brute_force(case: tuple[Workload, Cluster], problem: Throughput) -> None:
    workload, cluster = case
    reports = (
        evaluate(workload, cluster, problem, Placement(np.array(devices)))
        for devices in itertools.product(range(cluster.size), repeat=workload.n)
    )
    least = min((r.objective for r in reports if not r.violations), default=math.inf)
    assert least == pytest.approx(best_max_load(workload, cluster, problem), rel=1e-9)


@pytest.mark.parametrize("split", Split)
@pytest.mark.parametrize("method", METHODS["throughput"])
def test_throughput(method: str, split: str) -> None:
    @examples(10)
    @given(placed(), throughputs(split))  # type: ignore[arg-type]
    def check(case: tuple[Workload, Cluster], problem: Throughput) -> None:
        agree(*case, problem, method, best_max_load(*case, problem))

    check()


@pytest.mark.parametrize("method", METHODS["latency"])
def test_latency(method: str) -> None:
    @examples(8)
    @given(placed(max_nodes=5), latencies())
    def check(case: tuple[Workload, Cluster], problem: Latency) -> None:
        agree(*case, problem, method, least_latency(*case, problem))

    check()


@pytest.mark.parametrize("method", METHODS_OF["stream"])
def test_training(method: str) -> None:
    @examples(15)
    @given(trained())
    def check(case: tuple[Workload, Cluster, PipelineJob]) -> None:
        agree(*case, method, best_objective(*case))

    check()
