"""The behaviour that every throughput method must show, whichever it is."""

from __future__ import annotations

import math
import threading
import time

import numpy as np
import pytest
from brute import best_max_load
from cases import random_case

from stagecut import (
    Cluster,
    DeviceKind,
    InputError,
    Limits,
    Plan,
    Throughput,
    Workload,
    accelerators_and_cpus,
    solve,
    verify,
)
from stagecut.solvers import METHODS

ALL = sorted(METHODS["throughput"])
EXACT = {"noncontiguous": ["auto", "milp"], "contiguous": ["auto", "milp", "dp"]}
LIMITS = Limits(seconds=20, nodes=2000)
FEW = Limits(seconds=20, nodes=20)  # restarts


@pytest.fixture(params=ALL)
def method(request: pytest.FixtureRequest) -> str:
    """Every method in turn."""
    if request.param == "metis":
        pytest.importorskip("pymetis")
    return str(request.param)


def chain(seconds: list[float], /, **changes: object) -> Workload:
    """A chain of nodes that take so long, ten times that on a CPU, and move in 0.1."""
    n = len(seconds)
    fields: dict[str, object] = {
        "name": "a chain",
        "ids": tuple(f"node {v}" for v in range(n)),
        "edges": np.array([(v, v + 1) for v in range(n - 1)]).reshape(-1, 2),
        "times": {"accelerator": np.array(seconds), "cpu": 10 * np.array(seconds)},
        "memory_bytes": np.ones(n),
        "transfer": np.full(n, 0.1),
    }
    return Workload(**(fields | changes))  # type: ignore[arg-type]


def planned(workload: Workload, cluster: Cluster, method: str, **options: object) -> Plan:
    """The verified plan of a method that must find one."""
    problem = Throughput(**options)  # type: ignore[arg-type]
    result = solve(workload, cluster, problem, method=method, limits=LIMITS)
    assert result.plan is not None, result.reason or result.notes
    verify(workload, result.plan)
    assert result.bound <= result.plan.objective
    assert result.status in ("optimal", "feasible")
    return result.plan


def test_one_node(method: str) -> None:
    assert planned(chain([3.0]), accelerators_and_cpus(1), method).objective == 3.0


def test_no_edges(method: str) -> None:
    workload = chain([1.0, 2.0, 3.0], edges=np.zeros((0, 2)))
    plan = planned(workload, accelerators_and_cpus(2), method)
    assert plan.objective >= 3.0


def test_two_components(method: str) -> None:
    workload = chain([1.0, 1.0, 1.0, 1.0], edges=np.array([(0, 1), (2, 3)]))
    assert planned(workload, accelerators_and_cpus(2), method).objective >= 2.0


def test_nothing_costs_anything(method: str) -> None:
    workload = chain([0.0, 0.0, 0.0], transfer=np.zeros(3), memory_bytes=np.zeros(3))
    plan = planned(workload, accelerators_and_cpus(2, 1), method)
    assert plan.objective == 0.0
    assert plan.gap == 0.0


def test_only_cpu_cores(method: str) -> None:
    if method == "metis":
        with pytest.raises(InputError, match="accelerator"):
            solve(chain([1.0]), accelerators_and_cpus(0, 1), method=method)
        return
    assert planned(chain([1.0, 1.0]), accelerators_and_cpus(0, 2), method).objective <= 20.0


def test_no_memory_anywhere_is_infeasible_or_no_plan(method: str) -> None:
    result = solve(chain([1.0, 1.0]), accelerators_and_cpus(2, 0, 0.5), method=method,
                   limits=LIMITS)  # fmt: skip
    assert result.plan is None
    assert result.objective is None
    assert result.status in ("infeasible", "no solution")
    if method in ("auto", "dp", "milp"):
        assert result.status == "infeasible"
        assert "byte" in result.reason


def test_a_node_that_no_device_supports_is_infeasible_or_no_plan(method: str) -> None:
    times = {"accelerator": np.array([1.0, math.inf]), "cpu": np.array([1.0, math.inf])}
    result = solve(chain([1.0, 1.0], times=times), accelerators_and_cpus(1, 1), method=method,
                   limits=LIMITS)  # fmt: skip
    assert result.plan is None
    if method in ("auto", "dp", "milp"):
        assert result.status == "infeasible"
        assert "node 1" in result.reason


def test_no_times_for_a_kind_of_device_is_bad_input(method: str) -> None:
    cluster = Cluster((DeviceKind("tpu", 1, times="tpu"),))
    with pytest.raises(InputError, match="no times for device kind 'tpu'"):
        solve(chain([1.0]), cluster, method=method)


@pytest.mark.parametrize("split", ["contiguous", "noncontiguous"])
def test_exact_methods_find_the_optimum_and_the_others_nothing_better(
    method: str, split: str
) -> None:
    if (method, split) == ("setpart", "contiguous"):
        with pytest.raises(InputError, match="noncontiguous"):
            solve(*random_case(0), Throughput(split="contiguous"), method=method)
        return
    for seed in range(30):
        workload, cluster = random_case(seed, max_nodes=6, max_accelerators=2)
        if method == "metis" and not any(k.count for k in cluster.kinds if not k.host):
            continue
        problem = Throughput(split=split)  # type: ignore[arg-type]
        best = best_max_load(workload, cluster, problem)
        limits = FEW if method in ("local-search", "random", "setpart") else LIMITS
        result = solve(workload, cluster, problem, method=method, limits=limits)
        if result.plan is not None:
            assert result.plan.objective >= best * (1 - 1e-9)
            assert result.bound <= best * (1 + 1e-6)
            verify(workload, result.plan)
        if method in EXACT[split]:
            assert result.status == ("infeasible" if math.isinf(best) else "optimal"), seed
            if result.plan is not None:
                assert result.plan.objective == pytest.approx(best, rel=1e-6)


def test_the_same_input_and_seed_give_the_same_plan(method: str) -> None:
    workload, cluster = chain([1.0, 2.0, 3.0, 2.0, 1.0, 4.0]), accelerators_and_cpus(3, 1)
    plans = [
        solve(workload, cluster, method=method, limits=Limits(nodes=50, seed=3)).plan
        for _ in range(2)
    ]
    assert (plans[0] is None) == (plans[1] is None)
    if plans[0] is not None and plans[1] is not None:
        assert (plans[0].placement == plans[1].placement).all()


def test_a_deadline_that_is_over_is_no_error(method: str) -> None:
    result = solve(chain([1.0] * 30), accelerators_and_cpus(3), method=method,
                   limits=Limits(seconds=1e-9))  # fmt: skip
    assert result.limit in ("time", "none")


def test_solving_in_a_thread_needs_no_signals(method: str) -> None:
    found: list[Plan | None] = []

    def work() -> None:
        found.append(
            solve(chain([1.0, 2.0]), accelerators_and_cpus(1), method=method, limits=LIMITS).plan
        )

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(60)
    assert found[0] is not None


def test_a_start_is_used_or_said_not_to_be() -> None:
    workload, cluster = chain([1.0, 2.0, 3.0]), accelerators_and_cpus(2)
    start = planned(workload, cluster, "milp")
    result = solve(workload, cluster, method="greedy", start=start)
    assert result.plan is not None
    assert result.plan.objective <= start.objective
    torn = Throughput(split="contiguous")
    jumbled = planned(
        chain([1.0, 1.0, 1.0, 1.0], transfer=np.zeros(4), colours=np.array([0, -1, 0, -1])),
        cluster,
        "milp",
    )
    workload = chain([1.0] * 4, transfer=np.zeros(4), colours=np.array([0, -1, 0, -1]))
    result = solve(workload, cluster, torn, method="single", start=jumbled)
    assert any("start" in note for note in result.notes) or result.plan is not None


def test_a_long_search_can_be_stopped_from_progress() -> None:
    workload, cluster = chain([1.0] * 20), accelerators_and_cpus(3)
    began = time.monotonic()
    result = solve(
        workload, cluster, method="local-search", limits=Limits(seconds=0.5),
    )  # fmt: skip
    assert result.limit == "time"
    assert result.plan is not None
    assert time.monotonic() - began < 60
