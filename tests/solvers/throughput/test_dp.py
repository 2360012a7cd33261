"""The DP over ideals against brute force, a plain recurrence, and the published optima."""

from __future__ import annotations

import csv
import itertools
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from brute import best_max_load
from cases import random_case

from stagecut import Cluster, DeviceKind, Throughput, Workload, load, solve
from stagecut.formulations.task import pose
from stagecut.formulations.throughput.hypergraph import Hypergraph, colour_units, hypergraph
from stagecut.formulations.throughput.ideals import pipeline, topological_orders
from stagecut.formulations.throughput.infeasible import why_infeasible
from stagecut.instances import Placement, accelerators_and_cpus
from stagecut.runtime import evaluate, verify
from stagecut.solvers import Limits
from stagecut.solvers.core.lattice import count_ideals, list_ideals

CONTIGUOUS = Throughput(split="contiguous")


class Endless:
    """A search without limits."""

    seconds_left = math.inf

    def should_stop(self) -> bool:
        return False


def small_case(seed: int) -> tuple[Workload, Cluster]:
    """Return a random case that brute force can do: several kinds and cores, memory, colours."""
    kinds = 1 + seed % 2
    workload, cluster = random_case(seed, max_nodes=7, max_cores=2, max_kinds=kinds)
    if cluster.size**workload.n > 300_000:
        return random_case(seed, max_nodes=6, max_accelerators=2, max_kinds=kinds)
    return workload, cluster


def check_against_brute_force(seed: int, problem: Throughput) -> None:
    workload, cluster = small_case(seed)
    best = best_max_load(workload, cluster, problem)
    result = solve(workload, cluster, problem, method="dp")
    if math.isinf(best):
        assert result.status == "infeasible", seed
        assert result.reason, seed
    else:
        assert result.status == "optimal", seed
        assert result.objective == pytest.approx(best, rel=1e-9, abs=1e-12), seed
        assert result.plan is not None
        verify(workload, result.plan)


@pytest.mark.parametrize("chunk", range(20))
def test_500_random_cases_equal_brute_force(chunk: int) -> None:
    for seed in range(25 * chunk, 25 * chunk + 25):
        check_against_brute_force(seed, replace(CONTIGUOUS, overlap=seed % 3 == 0))


@pytest.mark.parametrize("chunk", range(10))
def test_200_random_cases_equal_brute_force_with_the_gpipe_objective(chunk: int) -> None:
    for seed in range(1000 + 20 * chunk, 1020 + 20 * chunk):
        problem = replace(CONTIGUOUS, pipeline="gpipe", overlap=seed % 3 == 0)
        check_against_brute_force(seed, problem)


@pytest.mark.parametrize("chunk", range(20))
def test_400_random_cases_with_relayed_data_equal_brute_force(chunk: int) -> None:
    for seed in range(2000 + 20 * chunk, 2020 + 20 * chunk):
        pipeline = "gpipe" if seed % 4 == 0 else "pipedream"
        problem = replace(CONTIGUOUS, pipeline=pipeline, overlap=seed % 3 == 0, relayed=True)
        check_against_brute_force(seed, problem)


@pytest.mark.parametrize("seed", range(60))
def test_where_other_splits_are_asked_for_it_gives_a_plan_but_no_bound(seed: int) -> None:
    workload, cluster = small_case(seed)
    problem = [
        Throughput("noncontiguous"),
        Throughput("per-device"),
        Throughput("contiguous", "free"),
        Throughput("noncontiguous", "free", "gpipe"),
    ][seed % 4]
    best = best_max_load(workload, cluster, problem)
    contiguous = best_max_load(workload, cluster, replace(CONTIGUOUS, pipeline=problem.pipeline))
    result = solve(workload, cluster, problem, method="dp")
    if math.isinf(best):
        assert result.status in ("infeasible", "no solution")
    elif result.objective is None:
        assert math.isinf(contiguous)
        assert result.status == "no solution"
    else:
        assert result.objective == pytest.approx(contiguous, rel=1e-9, abs=1e-12)
        assert result.bound <= best * (1 + 1e-9)


def plain_optimum(graph: Hypergraph, count: list[int], capacity: list[float]) -> float:
    """Return the least max-load by the recurrence as it stands: no reduction, no pruning."""
    units = range(graph.size)
    before = [sum(1 << int(u) for u, v in graph.edges.tolist() if v == w) for w in units]
    ideals = [
        s for s in range(1 << graph.size) if all(before[v] & ~s == 0 for v in units if s >> v & 1)
    ]
    pins = [sum(1 << u for u in net) for net in graph.pins]

    def load_of(stage: int, kind: int) -> float:
        inside = [v for v in units if stage >> v & 1]
        if graph.memory_bytes[inside].sum() > capacity[kind]:
            return math.inf
        cut = [e for e, net in enumerate(pins) if 0 != net & stage != net]
        return float(graph.compute[kind][:, inside].sum() + graph.weight[kind][:, cut].sum())

    states = list(itertools.product(*(range(c + 1) for c in count)))
    dp = {(s, 0): 0.0 for s in states}
    for ideal in ideals[1:]:
        for state in states:
            dp[state, ideal] = math.inf
        for smaller in ideals:
            if smaller & ~ideal or smaller == ideal:
                continue
            for kind in range(len(count)):
                cost = load_of(ideal & ~smaller, kind)
                for state in states:
                    if state[kind]:
                        last = tuple(s - (k == kind) for k, s in enumerate(state))
                        worst = max(dp[last, smaller], cost)
                        dp[state, ideal] = min(dp[state, ideal], worst)
    return dp[tuple(count), ideals[-1]]


@pytest.mark.parametrize("seed", range(12))
def test_larger_cases_equal_the_plain_recurrence(seed: int) -> None:
    rng = np.random.default_rng(seed)
    n = 9
    edges = np.array([(u, v) for v in range(n) for u in range(v) if rng.random() < 0.3])
    time = rng.random(n) * (rng.random(n) < 0.8)
    workload = Workload(
        name=f"recurrence {seed}",
        ids=tuple(range(n)),
        edges=edges,
        times={"accelerator": time, "cpu": 3 * time},
        memory_bytes=rng.integers(0, 4, n).astype(float),
        transfer=rng.random(n) * rng.choice([0.05, 0.5, 2.0]),
    )
    room = float(rng.choice([0.6, 1.0]) * workload.memory_bytes.sum())
    kinds = (DeviceKind("accelerator", 3, room), DeviceKind("cpu", 1, host=True))
    task = pose(workload, Cluster(kinds), CONTIGUOUS)
    best = plain_optimum(hypergraph(task, colour_units(task)), [3, 1], [room, math.inf])
    result = solve(workload, Cluster(kinds), CONTIGUOUS, method="dp")
    assert result.status == "optimal"
    assert result.objective == pytest.approx(best, rel=1e-9)


@pytest.mark.parametrize("seed", range(20))
def test_ideals_are_listed_once_each_and_counted_right(seed: int) -> None:
    rng = np.random.default_rng(seed)
    n = int(rng.integers(1, 11))
    relabel = rng.permutation(n)
    edges = np.array(
        [(relabel[u], relabel[v]) for v in range(n) for u in range(v) if rng.random() < 0.2],
        dtype=np.int64,
    ).reshape(-1, 2)
    order = relabel
    closed = [
        {v for v in range(n) if s >> v & 1}
        for s in range(1 << n)
        if all(s >> u & 1 or not s >> v & 1 for u, v in edges.tolist())
    ]
    lattice = list_ideals(order, edges, 10**6, Endless(), expected=1)
    assert lattice.complete
    listed = [frozenset(order[lattice.units(i)].tolist()) for i in range(lattice.size)]
    assert len(set(listed)) == len(listed)
    assert set(listed) == set(map(frozenset, closed))
    assert [len(s) for s in listed] == sorted(len(s) for s in listed)
    for ideal in range(lattice.size):
        for step in range(lattice.start[ideal], lattice.start[ideal + 1]):
            added = order[lattice.unit[step]]
            assert listed[lattice.to[step]] == listed[ideal] | {int(added)}
    assert count_ideals(n, edges, 10**6) == (len(closed), True)


def test_listing_stops_at_the_size_of_ideals_at_which_there_are_too_many() -> None:
    lines = chains(3, 6)
    order = np.arange(lines.n)
    cut_short = list_ideals(order, lines.edges, 100, Endless())
    assert not cut_short.complete
    assert 100 < cut_short.size < 7**3
    assert list_ideals(order, lines.edges, 7**3, Endless()).complete


def test_ideals_of_more_units_than_a_word_has_bits() -> None:
    lines = chains(2, 40)
    lattice = list_ideals(np.arange(lines.n), lines.edges, 41**2, Endless())
    assert lattice.complete
    assert lattice.size == 41**2


def test_the_optimum_does_not_depend_on_the_order_of_the_nodes() -> None:
    for seed in range(40):
        workload, cluster = random_case(seed, max_nodes=30, max_cores=1, max_kinds=2)
        rng = np.random.default_rng(seed)
        new = rng.permutation(workload.n)  # new number of each node
        old = np.argsort(new)
        assert workload.transfer is not None
        shuffled = replace(
            workload,
            ids=tuple(workload.ids[v] for v in old),
            names=(),
            edges=new[workload.edges],
            times={kind: time[old] for kind, time in workload.times.items()},
            memory_bytes=workload.memory_bytes[old],
            transfer=workload.transfer[old],
            backward=workload.backward[old],
            colours=workload.colours[old],
        )
        problem = replace(CONTIGUOUS, pipeline=("pipedream", "gpipe")[seed % 2])
        first = solve(workload, cluster, problem, method="dp")
        again = solve(workload, cluster, problem, method="dp")
        other = solve(shuffled, cluster, problem, method="dp")
        assert first.status == other.status
        assert (first.objective or 0) == pytest.approx(other.objective or 0, rel=1e-9)
        if first.plan is not None and again.plan is not None:
            assert (first.plan.placement == again.plan.placement).all()


def two_nodes(sizes: tuple[float, float], time: tuple[float, float] = (0.0, 1.0)) -> Workload:
    return Workload(
        name="two",
        ids=("a", "b"),
        edges=np.array([(0, 1)]),
        times={"accelerator": np.array(time), "cpu": np.array([math.inf, math.inf])},
        memory_bytes=np.array(sizes),
        transfer=np.array([0.5, 0.0]),
    )


def test_what_costs_nothing_is_merged_only_if_its_memory_cannot_matter() -> None:
    roomy = pipeline(pose(two_nodes((2, 2)), accelerators_and_cpus(2, 0, 4), CONTIGUOUS))
    assert roomy.graph.size == 1
    tight = accelerators_and_cpus(2, 0, 3)
    assert pipeline(pose(two_nodes((2, 2)), tight, CONTIGUOUS)).graph.size == 2
    assert pipeline(pose(two_nodes((0, 2)), tight, CONTIGUOUS)).graph.size == 1
    assert solve(two_nodes((2, 2)), tight, CONTIGUOUS, method="dp").objective == 1.5


def reason(workload: Workload, cluster: Cluster, problem: Throughput = CONTIGUOUS) -> str:
    result = solve(workload, cluster, problem, method="dp")
    assert result.status == "infeasible"
    return result.reason


def test_infeasible_is_explained() -> None:
    pair = two_nodes((2, 3))
    assert "node b takes 3 B, 1 B more than any" in reason(pair, accelerators_and_cpus(2, 1, 2))
    coloured = replace(pair, colours=np.array([0, 0]), colour_labels=("left",))
    assert "colour left (2 nodes) takes 5 B, 2 B more than any" in reason(
        coloured, accelerators_and_cpus(2, 1, 3), Throughput()
    )
    assert "2 nodes can run only on 1 × accelerator and take 5 B, 1 B more than the 4 B" in reason(
        pair, accelerators_and_cpus(1, 1, 4)
    )
    nowhere = replace(pair, times={kind: np.array([math.inf, 1.0]) for kind in pair.times})
    assert "node a: no device of the cluster (2 × accelerator) supports it" in reason(
        nowhere, accelerators_and_cpus(2)
    )
    three = Workload(
        name="three",
        ids=(1, 2, 3),
        edges=np.array([(0, 1), (1, 2)]),
        times={"accelerator": np.ones(3), "cpu": np.ones(3)},
        memory_bytes=np.array([2.0, 2.0, 2.0]),
        transfer=np.zeros(3),
    )
    assert "no contiguous split fits: 6 B on 2 × accelerator of 3 B" in reason(
        three, accelerators_and_cpus(2, 0, 3)
    )


def test_cycles_of_colours_are_named_by_their_nodes() -> None:
    workload = Workload(
        name="crossed",
        ids=(1, 2, 3, 4),
        edges=np.array([(0, 1), (2, 3)]),
        times={"accelerator": np.ones(4), "cpu": np.ones(4)},
        memory_bytes=np.ones(4),
        transfer=np.zeros(4),
        colours=np.array([0, 1, 1, 0]),
    )
    cluster = accelerators_and_cpus(3, 0, 2)
    assert "nodes 1, 2, 3, 4 (4 that must share a device) takes 4 B" in reason(workload, cluster)
    assert why_infeasible(pose(workload, cluster, CONTIGUOUS)) is None
    assert solve(workload, cluster, Throughput(), method="dp").status == "no solution"


def chains(width: int, length: int) -> Workload:
    rng = np.random.default_rng(0)
    n = width * length
    edges = [(v, v + 1) for v in range(n) if (v + 1) % length]
    return Workload(
        name="chains",
        ids=tuple(range(n)),
        edges=np.array(edges),
        times={"accelerator": rng.random(n), "cpu": np.ones(n)},
        memory_bytes=np.ones(n),
        transfer=rng.random(n),
    )


def test_a_lattice_that_is_too_large_is_said_to_be_and_a_plan_comes_all_the_same() -> None:
    result = solve(chains(20, 10), accelerators_and_cpus(4), CONTIGUOUS, method="dp")
    assert result.status == "feasible"
    assert any("6.727e+20 ideals" in note for note in result.notes)
    linearised = solve(chains(20, 10), accelerators_and_cpus(4), CONTIGUOUS, method="linear-dp")
    assert linearised.objective == result.objective


def test_what_is_a_hundredth_too_large_is_divided() -> None:
    """Two nodes that had better stay together, behind one that leaves room in the sum."""
    workload = Workload(
        name="three",
        ids=(0, 1, 2),
        edges=np.array([(0, 1), (1, 2)]),
        times={"accelerator": np.ones(3)},
        memory_bytes=np.array([5e8, 1e9, 1e9]),
        transfer=np.array([0.0, 50.0, 0.0]),
    )
    for room, least in ((2e9, 2.0), (1.99e9, 51.0)):
        result = solve(workload, accelerators_and_cpus(3, 0, room), CONTIGUOUS, method="dp")
        assert result.objective == least
        assert result.status == "optimal"


def test_it_gives_up_early_what_the_deadline_does_not_allow() -> None:
    workload, cluster = chains(8, 6), accelerators_and_cpus(4)
    result = solve(workload, cluster, CONTIGUOUS, method="dp", limits=Limits(seconds=2.0))
    assert result.plan is not None
    assert result.status == "feasible"


def published(benchmarks: Path) -> list[tuple[str, str, str, float]]:
    with (benchmarks.parent / "reference-values.csv").open() as file:
        return [
            (row["graph"], row["workload"], row["quantity"], float(row["value"]))
            for row in csv.DictReader(file)
            if row["problem"] == "throughput"
            and row["quantity"] in ("contiguous DP optimum", "linearised DP")
        ]


def test_published_optima(benchmarks: Path) -> None:
    folders = {"layer": "LayerGraphs", "operator": "OperatorGraphs"}
    rows = published(benchmarks)
    assert len(rows) == 14
    for graph, name, quantity, value in rows:
        workload = load(benchmarks / "placement" / "throughput" / folders[graph] / f"{name}.json")
        method = "linear-dp" if quantity == "linearised DP" else "dp"
        result = solve(workload, problem=CONTIGUOUS, method=method)
        assert result.plan is not None
        report = evaluate(
            workload, result.plan.cluster, CONTIGUOUS, Placement(result.plan.placement)
        )
        assert not report.violations
        if method == "dp":
            assert result.status == "optimal", name
            assert report.objective == pytest.approx(value, rel=1e-6), name
        else:
            assert report.objective <= value * (1 + 1e-5), name


def test_gnmt_has_17914_ideals(benchmarks: Path) -> None:
    folder = benchmarks / "placement" / "throughput" / "LayerGraphs"
    for name in ("gnmt_inference", "gnmt_training"):
        workload = load(folder / f"{name}.json")
        assert workload.cluster is not None
        graph = pipeline(pose(workload, workload.cluster, CONTIGUOUS)).graph
        assert count_ideals(graph.size, graph.edges, 10**6) == (17_914, True)
        order = topological_orders(graph)[0]
        assert list_ideals(order, graph.edges, 10**6, Endless()).size == 17_914
