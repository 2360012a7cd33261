"""Latency planners against brute force, against each other, and against published inputs."""

from __future__ import annotations

import math
from pathlib import Path

import networkx as nx
import numpy as np
import pytest
from brute_latency import least_latency
from cases import random_case

import stagecut
from stagecut import Cluster, DeviceKind, Latency, Limits, Workload, accelerators_and_cpus
from stagecut.formulations.latency import graph as latency_module
from stagecut.formulations.latency.execute_kernel import call_slots, execute, flatten
from stagecut.formulations.latency.graph import latency_graph
from stagecut.formulations.task import pose
from stagecut.instances import CallPlacement, Solution
from stagecut.runtime import evaluate
from stagecut.solvers import Search
from stagecut.solvers.latency.greedy import divide
from stagecut.solvers.latency.label_dp import solve_one_call


def solved(seed: int, calls: int, method: str, **sizes: int) -> tuple[float, stagecut.Result]:
    workload, cluster = random_case(seed, **sizes)
    problem = Latency(calls)
    best = least_latency(workload, cluster, problem)
    return best, stagecut.solve(workload, cluster, problem, method=method)


def agree(best: float, result: stagecut.Result) -> None:
    """A proof, and the value of brute force."""
    if math.isinf(best):
        assert result.status == "infeasible"
        assert result.reason
    else:
        assert result.status == "optimal"
        assert result.objective == pytest.approx(best, rel=1e-9, abs=1e-12)
        assert result.bound <= best * (1 + 1e-9) + 1e-12


def sound(best: float, result: stagecut.Result) -> None:
    """Never better than brute force, and never a bound above it."""
    assert result.bound <= best * (1 + 1e-9) + 1e-12
    # a bound that a plan is below is withdrawn, and noted
    assert not any("a defect" in note for note in result.notes)
    if result.objective is not None:
        assert result.objective >= best * (1 - 1e-9)
    if result.status == "optimal":
        assert result.objective == pytest.approx(best, rel=2e-6, abs=1e-9)
    if result.status == "infeasible":
        assert math.isinf(best)


@pytest.mark.parametrize("seed", range(20))
def test_searches_execute_calls_as_the_verifier_does(seed: int) -> None:
    """Random divisions of a random case."""
    draw = np.random.default_rng(seed)
    workload, cluster = random_case(seed, max_nodes=6, max_accelerators=3, max_kinds=2)
    task = pose(workload, cluster, Latency(2))
    graph = latency_graph(task, whole_colours=True)
    flat, host = flatten(task, graph), task.costs.host[task.costs.kind_of]
    for _ in range(20):
        device = draw.integers(0, cluster.size, workload.n)
        call = np.where(host[device], -1, draw.integers(0, 2, workload.n))
        plan = CallPlacement(device, call)
        report = evaluate(workload, cluster, task.problem, plan)
        last = execute(flat, *call_slots(task, graph, plan))[0]
        if not report.violations:
            assert last == pytest.approx(report.objective, rel=1e-12)


def test_transfers_within_a_call_leave_no_rounding_in_its_bound() -> None:
    """All in one call take 1e-12, once the outputs of 0.1 to 0.3 that it keeps are subtracted."""
    workload = Workload(
        name="large transfers",
        ids=tuple(range(5)),
        edges=np.array(
            [(0, 3), (1, 0), (1, 2), (1, 3), (1, 4), (2, 0), (2, 3), (4, 0), (4, 2), (4, 3)]
        ),
        times={"accelerator": np.array([1e-12, 0, 0, 0, 0]), "cpu": np.ones(5)},
        memory_bytes=np.array([3.0, 0, 4, 0, 2]),
        transfer=np.array([0.3, 0.2, 0.1, 0.1, 0.2]),
    )
    task = pose(workload, accelerators_and_cpus(3, cpus=1, memory_bytes=9), Latency())
    search: Search[Solution] = Search(Limits(), lambda _: 1.3e-12)
    search.offer(CallPlacement(np.zeros(5, np.int64), np.zeros(5, np.int64)))
    solve_one_call(task, search, search.should_stop)
    assert 1e-12 * (1 - 1e-6) <= search.bound <= 1e-12


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("whole_colours", [True, False])
def test_the_order_of_the_nodes_changes_nothing(seed: int, whole_colours: bool) -> None:
    """What searches number, and in which order, of a graph and of the same one renumbered."""
    draw = np.random.default_rng(seed)
    n = 14
    edges = np.array([(u, v) for u in range(n) for v in range(u) if draw.random() < 0.2])
    time, memory, transfer = draw.random((3, n))
    colours = np.where(draw.random(n) < 0.3, draw.integers(0, 2, n), -1)
    graphs = []
    for old in (np.arange(n), draw.permutation(n)):  # the node of each new one
        workload = Workload(
            name="nodes in some order",
            ids=tuple(old.tolist()),
            edges=np.argsort(old)[edges],
            times={"accelerator": time[old], "cpu": 4 * time[old]},
            memory_bytes=memory[old],
            transfer=transfer[old],
            colours=colours[old],
        )
        of = pose(workload, accelerators_and_cpus(2, 1), Latency(1 if whole_colours else 2))
        graphs.append(latency_graph(of, whole_colours=whole_colours))
    one, other = graphs
    assert other.successors == one.successors
    np.testing.assert_allclose(other.unit_compute, one.unit_compute)
    np.testing.assert_allclose(other.unit_memory, one.unit_memory)
    assert np.array_equal(other.group, one.group)


@pytest.mark.parametrize("block", range(10))
def test_the_dp_and_brute_force_agree(block: int) -> None:
    for seed in range(100 * block, 100 * (block + 1)):
        agree(*solved(seed, 1, "dp", max_nodes=7, max_accelerators=3))


@pytest.mark.parametrize("block", range(4))
def test_the_dp_and_brute_force_agree_on_unequal_accelerators(block: int) -> None:
    for seed in range(5000 + 50 * block, 5000 + 50 * (block + 1)):
        agree(*solved(seed, 1, "dp", max_nodes=7, max_accelerators=3, max_kinds=2 + block % 2))


@pytest.mark.parametrize("block", range(4))
@pytest.mark.parametrize("calls", [2, 3])
def test_several_calls_never_beat_brute_force_and_the_bound_never_passes_it(
    calls: int, block: int
) -> None:
    proved = 0
    for seed in range(2000 + 25 * block, 2025 + 25 * block):
        best, result = solved(
            seed, calls, "dp", max_nodes=5, max_accelerators=8 - 2 * calls - 2, max_kinds=2
        )
        sound(best, result)
        proved += result.status in ("optimal", "infeasible")
    assert proved > 10


@pytest.mark.parametrize("method", ["greedy", "linear", "lns", "auto", "max-load"])
def test_other_methods_are_sound(method: str) -> None:
    for seed in range(3000, 3008):
        sound(*solved(seed, 1 + seed % 2, method, max_nodes=5, max_accelerators=2, max_kinds=2))


@pytest.mark.parametrize("method", ["milp", "milp-big-m"])
def test_integer_programs_and_brute_force_agree(method: str) -> None:
    for seed in range(4000, 4010):
        best, result = solved(
            seed, 1 + seed % 2, method, max_nodes=5, max_accelerators=2, max_kinds=2
        )
        sound(best, result)
        assert result.status in ("optimal", "infeasible")


def test_two_machines_of_different_speed_and_memory() -> None:
    """A chain of 8 layers, a fast machine for at most 5 of them and a slow one for all.

    A layer takes 1 on the fast machine, 2 on the slow one and 10 on CPUs. Cutting after layer i
    costs c_i on either side, c = 4 4 1 4 1.5 4 4. One cut is needed at least, unless all is slow:

    - all slow: 16
    - fast first, i ≤ 5 layers: i + 2 (8 − i) + 2 c_i = 16 − i + 2 c_i: 15 for i = 3, 14 for i = 5
    - slow first, i ≥ 3 layers: 2 i + (8 − i) + 2 c_i = 8 + i + 2 c_i: 13 for i = 3, 16 for i = 5
    - any layer on CPUs: at least 10 + 7 = 17

    So the slow machine takes layers 1 to 3, the fast one 4 to 8: 13. A second call per machine
    does not help: the fast one computes 5 layers at most, so 11 is computed in all, and one cut
    costs 2 at least.
    """
    workload = Workload(
        name="8 layers",
        ids=tuple(range(1, 9)),
        edges=np.array([(i, i + 1) for i in range(7)]),
        times={"accelerator": np.ones(8), "cpu": np.full(8, 10.0)},
        memory_bytes=np.ones(8),
        transfer=np.array([4, 4, 1, 4, 1.5, 4, 4, 9.0]),
    )
    fast = DeviceKind("fast", 1, memory_bytes=5, times="accelerator")
    slow = DeviceKind("slow", 1, memory_bytes=8, times="accelerator", slowdown=2.0)
    cluster = Cluster((fast, slow, DeviceKind("cpu", 1, host=True)))
    for calls in (1, 2):
        for method in ("dp", "milp", "auto"):
            result = stagecut.solve(workload, cluster, Latency(calls), method=method)
            assert result.objective == pytest.approx(13.0)
            assert result.status == "optimal" or (calls, method) == (2, "dp")
            assert result.plan is not None
            assert result.plan.placement.tolist() == [1, 1, 1, 0, 0, 0, 0, 0]


def test_a_colour_is_divided_over_two_calls() -> None:
    """x → m → y; x and y share a device, m runs on CPUs only, and takes 5.

    On the accelerator x and y take 1 each, on CPUs 100 each; moving an output takes 0.5. With one
    call x and y cannot be on the accelerator, for the call would wait for itself: 205. With two,
    x is the first call (1 + 0.5), m follows (5), y is the second call (0.5 + 1): 8.
    """
    workload = Workload(
        name="there and back",
        ids=("x", "m", "y"),
        edges=np.array([(0, 1), (1, 2)]),
        times={
            "accelerator": np.array([1.0, math.inf, 1.0]),
            "cpu": np.array([100.0, 5.0, 100.0]),
        },
        memory_bytes=np.ones(3),
        transfer=np.full(3, 0.5),
        colours=np.array([0, -1, 0]),
    )
    for calls, memory, value in ((1, 2.0, 205.0), (2, 2.0, 8.0), (2, 1.0, 205.0)):
        cluster = accelerators_and_cpus(1, 1, memory)
        result = stagecut.solve(workload, cluster, Latency(calls), method="dp")
        assert result.objective == pytest.approx(value)
        assert result.status == "optimal"


def test_a_placement_is_divided_into_calls_that_no_node_makes_faster() -> None:
    """Against the verifier's times of all divisions that differ in one node."""
    divided = 0
    for seed in range(60):
        workload, cluster = random_case(seed, max_nodes=6, max_accelerators=2)
        problem = Latency(2)
        placement = np.random.default_rng(seed).integers(0, cluster.size, workload.n)
        task = pose(workload, cluster, problem)
        graph = latency_graph(task, whole_colours=False)
        plan = divide(task, graph, placement, lambda: False)
        if plan is None:
            continue
        own = evaluate(workload, cluster, problem, plan).objective
        assert math.isfinite(own) or not np.isfinite(task.costs.compute).all()
        for v in np.flatnonzero(plan.call >= 0).tolist():
            call = plan.call.copy()
            call[v] = 1 - call[v]
            other = evaluate(workload, cluster, problem, CallPlacement(placement, call))
            assert other.objective >= own * (1 - 1e-12)
        divided += bool(plan.call.max(initial=0))
    assert divided > 5


def test_without_cpus_infeasible_is_explained() -> None:
    workload, _ = random_case(3, max_nodes=7)
    supported = Workload(
        name="tight",
        ids=workload.ids,
        edges=workload.edges,
        times={"accelerator": np.ones(workload.n), "cpu": np.ones(workload.n)},
        memory_bytes=np.full(workload.n, 10.0),
        transfer=np.zeros(workload.n),
    )
    result = stagecut.solve(supported, accelerators_and_cpus(1, 0, 15.0), Latency())
    assert result.status == "infeasible"
    assert "45 B more" in result.reason


def test_the_same_limits_give_the_same_plan() -> None:
    workload, cluster = random_case(11, max_nodes=8)
    plans = [
        stagecut.solve(
            workload, cluster, Latency(2), method="lns", limits=Limits(nodes=3, seed=5)
        ).plan
        for _ in range(2)
    ]
    assert plans[0] is not None
    assert plans[1] is not None
    assert plans[0].solution.device.tolist() == plans[1].solution.device.tolist()


OPTIMA = {
    "LayerGraphs/bert24_inference": 100.2185,
    "LayerGraphs/gnmt_inference": 225.6479,
    "LayerGraphs/resnet50_inference": 1156.8813,
    "OperatorGraphs/bert_l-3_inference": 408.4744,
    "OperatorGraphs/bert_l-12_inference": 729.5646,
    "OperatorGraphs/resnet50_inference": 651.1208,
}


#: The label DP takes some seconds on these, for one call and for two.
LONG = {"LayerGraphs/gnmt_inference", "OperatorGraphs/bert_l-12_inference"}
LONG_FOR_TWO = LONG | {"OperatorGraphs/bert_l-3_inference"}


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.slow] * (n in LONG)) for n in OPTIMA]
)
def test_published_workloads_are_proved(benchmarks: Path, name: str) -> None:
    workload = stagecut.load(benchmarks / "placement" / "latency" / f"{name}.json")
    result = stagecut.solve(workload, problem=Latency(), method="dp")
    assert result.status == "optimal"
    assert result.objective == pytest.approx(OPTIMA[name], abs=5e-5)


#: With two calls per accelerator, where that is better than one: colours are divided over them.
BETTER = {"OperatorGraphs/resnet50_inference": 645.4639}


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.slow] * (n in LONG_FOR_TWO)) for n in OPTIMA]
)
def test_published_workloads_are_proved_for_two_calls(benchmarks: Path, name: str) -> None:
    workload = stagecut.load(benchmarks / "placement" / "latency" / f"{name}.json")
    result = stagecut.solve(workload, problem=Latency(2), method="dp")
    assert result.status == "optimal"
    assert result.objective == pytest.approx(BETTER.get(name, OPTIMA[name]), abs=5e-5)


@pytest.mark.parametrize("block", [1, 3, 4096])
def test_colours_are_contracted_where_every_entry_reaches_every_exit(
    block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(latency_module, "BLOCK", block)
    draw = np.random.default_rng(0)
    contracted = 0
    for _ in range(60):
        n = int(draw.integers(2, 12))
        pairs = np.argwhere(np.triu(draw.random((n, n)) < 0.3, 1))
        workload = Workload(
            name="random", ids=tuple(range(n)), edges=pairs, times={"accelerator": np.ones(n)},
            memory_bytes=np.ones(n), transfer=np.ones(n), colours=draw.integers(-1, 4, n),
        )  # fmt: skip
        graph = workload.to_networkx()
        wanted = []
        for members in workload.colour_classes:
            inside = set(members)
            entries = [v for v in inside if not inside.issuperset(workload.predecessors[v])]
            exits = [v for v in inside if not inside.issuperset(workload.successors[v])]
            if len(members) > 1 and all(nx.has_path(graph, a, b) for a in entries for b in exits):
                wanted.append(members)
        task = pose(workload, accelerators_and_cpus(2), Latency())
        assert latency_module.contractible_colours(task) == wanted
        contracted += len(wanted)
    assert contracted > 10
