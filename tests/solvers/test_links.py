"""Links between devices: prices by hand, all methods against brute force, files."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import sample_files
from brute import best_max_load
from brute_latency import least_latency
from cases import THROUGHPUT_PROBLEMS, linked_case

import stagecut
from stagecut import (
    Cluster,
    DeviceKind,
    InputError,
    Latency,
    Limits,
    Link,
    PipelineJob,
    Throughput,
    Workload,
    accelerators_and_cpus,
)
from stagecut.instances import CallPlacement, PairLink, Placement
from stagecut.instances.formats.files import load_cluster, load_plan, save
from stagecut.runtime import evaluate
from stagecut.solvers.throughput import auto


def star() -> tuple[Workload, Cluster]:
    """a feeds b, c, d; gpu 0 and gpu 1 are linked, all others go through host memory."""
    workload = Workload(
        name="star",
        ids=("a", "b", "c", "d"),
        edges=np.array([(0, 1), (0, 2), (0, 3)]),
        times={"gpu": np.array([1.0, 2.0, 3.0, 4.0]), "cpu": np.full(4, 100.0)},
        memory_bytes=np.ones(4),
        transfer=None,
        output_bytes=np.array([8.0, 1.0, 1.0, 1.0]),
        time_unit="s",
    )
    gpu = DeviceKind("gpu", 3, link=Link(0.0, 0.5))
    linked = PairLink(("gpu 0", "gpu 1"), Link(1.0, 2.0))
    return workload, Cluster((gpu, DeviceKind("cpu", 1, host=True)), (linked,))


def test_loads_over_links_by_hand() -> None:
    """To gpu 1 a takes 1 + 8/2 = 5, paid by both; through host memory 16 on either side."""
    workload, cluster = star()

    def loads(*device: int) -> list[float]:
        report = evaluate(workload, cluster, Throughput(), Placement(np.array(device)))
        return [one.load for one in report.devices]

    assert loads(0, 1, 0, 0) == [8 + 5, 2 + 5, 0, 0]
    assert loads(0, 2, 0, 0) == [8 + 16, 0, 2 + 16, 0]
    # one message to gpu 1 for b and c; once out to host memory for gpu 2
    assert loads(0, 1, 1, 2) == [1 + 5 + 16, 5 + 5, 4 + 16, 0]
    # gpu 2 and a CPU both read it there; the CPU pays nothing
    assert loads(0, 1, 2, 3) == [1 + 5 + 16, 2 + 5, 3 + 16, 100]


def test_latency_over_links_by_hand() -> None:
    """Two calls on gpu 1 get a message each; what returns to gpu 0 goes through host memory."""
    workload, cluster = star()
    plan = CallPlacement(np.array([0, 1, 1, 0]), np.array([0, 0, 1, 1]))
    report = evaluate(workload, cluster, Latency(2), plan)
    assert not report.violations
    took = {call.nodes: (call.start, call.finish) for call in report.calls}
    assert took["a",] == (0.0, 1 + 5 + 5 + 16)
    assert took["b",] == (27.0, 27 + 5 + 2)
    assert took["c",] == (34.0, 34 + 5 + 3)
    assert took["d",] == (27.0, 27 + 16 + 4)
    assert report.objective == 47.0


@pytest.mark.parametrize("block", range(10))
def test_throughput_and_brute_force_agree_on_200_cases(block: int) -> None:
    for seed in range(20 * block, 20 * (block + 1)):
        problem = THROUGHPUT_PROBLEMS[seed % len(THROUGHPUT_PROBLEMS)]
        workload, cluster = linked_case(
            seed, max_nodes=5 + seed % 2, max_accelerators=3, max_kinds=1 + seed % 2
        )
        best = best_max_load(workload, cluster, problem)
        result = stagecut.solve(workload, cluster, problem, method=("milp", "auto")[seed % 2])
        where = f"seed {seed}: {problem}"
        if math.isinf(best):
            assert result.status == "infeasible", where
        else:
            assert result.objective == pytest.approx(best, rel=1e-6, abs=1e-9), where
            assert result.status == "optimal", where
            assert result.bound <= best * (1 + 1e-9) + 1e-12, where


@pytest.mark.parametrize("block", range(10))
def test_latency_and_brute_force_agree_on_200_cases(block: int) -> None:
    for seed in range(7000 + 20 * block, 7000 + 20 * (block + 1)):
        calls = 1 + seed % 2
        workload, cluster = linked_case(
            seed, max_nodes=5, max_accelerators=3 if calls == 1 else 2, max_kinds=2
        )
        best = least_latency(workload, cluster, Latency(calls))
        result = stagecut.solve(
            workload, cluster, Latency(calls), method=("milp", "auto")[block % 2]
        )
        if math.isinf(best):
            assert result.status == "infeasible", seed
        else:
            assert result.objective == pytest.approx(best, rel=1e-6, abs=1e-9), seed
            assert result.status == "optimal", seed
            assert result.bound <= best * (1 + 1e-9) + 1e-12, seed


METHODS = [
    "dp",
    "linear-dp",
    "pipedream",
    "column-generation",
    "greedy",
    "local-search",
    "random",
    "single",
]


@pytest.mark.parametrize("method", METHODS)
def test_methods_of_throughput_that_know_no_links_are_sound(method: str) -> None:
    for seed in range(12):
        problem = THROUGHPUT_PROBLEMS[
            seed % 4 if method == "column-generation" else seed % len(THROUGHPUT_PROBLEMS)
        ]
        workload, cluster = linked_case(seed, max_nodes=6, max_accelerators=3, max_kinds=2)
        best = best_max_load(workload, cluster, problem)
        result = stagecut.solve(
            workload, cluster, problem, method=method, limits=Limits(seconds=20, nodes=5)
        )
        assert result.bound <= best * (1 + 1e-9) + 1e-12, seed
        if result.objective is not None:
            assert result.objective >= best * (1 - 1e-9), seed
        if result.status == "infeasible":
            assert math.isinf(best), seed


@pytest.mark.parametrize("method", ["dp", "milp-big-m", "lns", "linear", "greedy", "max-load"])
def test_methods_of_latency_that_know_no_links_are_sound(method: str) -> None:
    for seed in range(8000, 8008):
        calls = 1 + seed % 2
        workload, cluster = linked_case(seed, max_nodes=5, max_accelerators=2, max_kinds=2)
        best = least_latency(workload, cluster, Latency(calls))
        result = stagecut.solve(
            workload, cluster, Latency(calls), method=method, limits=Limits(seconds=20)
        )
        assert result.bound <= best * (1 + 1e-9) + 1e-12, seed
        if result.objective is not None:
            assert result.objective >= best * (1 - 1e-9), seed
        if result.status == "infeasible":
            assert math.isinf(best), seed


def test_relayed_data_over_links_is_sound() -> None:
    """Against every placement with every order of its devices."""
    problem = Throughput("contiguous", relayed=True)
    found = 0
    for seed in range(12):
        workload, cluster = linked_case(seed, max_nodes=4, max_accelerators=3)
        result = stagecut.solve(workload, cluster, problem)
        values = [math.inf]
        for chosen in itertools.product(range(cluster.size), repeat=workload.n):
            for order in itertools.permutations(sorted(set(chosen))):
                plan = Placement(np.array(chosen), order)
                report = evaluate(workload, cluster, problem, plan)
                values += [] if report.violations else [report.objective]
        assert result.bound <= min(values) * (1 + 1e-9) + 1e-12, seed
        if result.objective is not None:
            found += 1
            assert result.objective >= min(values) * (1 - 1e-9), seed
    assert found > 6


def test_an_uneven_pair_of_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four devices in a row: which of them hold neighbours decides.

    A chain of four nodes, one per device (memory), each of time 1, outputs of 4 bytes. Host memory
    takes 40 either way. Links 0–2, 2–1 and 1–3 take 1, so the chain has to run 0, 2, 1, 3 or back:
    1 + 2 for the ends, 1 + 2 in the middle, max-load 3 and latency 4 · 1 + 6 · 1 = 10.
    """
    workload = Workload(
        name="row",
        ids=tuple(range(4)),
        edges=np.array([(0, 1), (1, 2), (2, 3)]),
        times={"gpu": np.ones(4)},
        memory_bytes=np.ones(4),
        transfer=None,
        output_bytes=np.full(4, 4.0),
        time_unit="s",
    )
    fast = Link(0.0, 4.0)
    links = tuple(PairLink((f"gpu {a}", f"gpu {b}"), fast) for a, b in ((0, 2), (2, 1), (1, 3)))
    cluster = Cluster((DeviceKind("gpu", 4, 1.0, link=Link(0.0, 0.1)),), links)
    for problem, value in ((Throughput(), 3.0), (Throughput("contiguous"), 3.0), (Latency(), 10.0)):
        result = stagecut.solve(workload, cluster, problem)
        assert result.objective == pytest.approx(value)
        assert result.status == "optimal"
        assert result.plan is not None
        assert result.plan.placement.tolist() in ([0, 2, 1, 3], [3, 1, 2, 0])
    monkeypatch.setattr(auto, "LARGE", 0)
    result = stagecut.solve(workload, cluster, Throughput("contiguous"))
    assert result.method == "multilevel"
    assert result.objective == pytest.approx(3.0)


def test_the_simulator_prices_links_alike() -> None:
    for seed in range(20):
        workload, cluster = linked_case(seed, max_nodes=6, max_accelerators=3, max_kinds=2)
        plan = stagecut.solve(workload, cluster, Latency(), method="linear").plan
        if plan is not None:
            assert stagecut.simulate(workload, plan).makespan == pytest.approx(plan.objective)
        split = Throughput(split="contiguous")
        if workload.backward.any() or not np.isfinite(workload.times["accelerator"]).all():
            continue
        plan = stagecut.solve(workload, cluster, split, method="linear-dp").plan
        if plan is not None and plan.objective > 0:
            run = stagecut.simulate(workload, plan, "inference", 30)
            assert run.time_per_sample == pytest.approx(plan.objective)


def test_files_keep_links(tmp_path: Path) -> None:
    workload, cluster = star()
    save(cluster, tmp_path / "c.json")
    assert load_cluster(tmp_path / "c.json") == cluster
    assert load_cluster(tmp_path / "c.json").fingerprint == cluster.fingerprint
    assert cluster.fingerprint != replace(cluster, links=()).fingerprint
    plan = stagecut.solve(workload, cluster).plan
    assert plan is not None
    save(plan, tmp_path / "p.json", workload)
    assert load_plan(tmp_path / "p.json", workload, cluster).cluster == cluster
    suggested = replace(workload, cluster=cluster)
    save(suggested, tmp_path / "w.json")
    assert stagecut.load(tmp_path / "w.json").cluster == cluster


GPUS = (DeviceKind("gpu", 2, link=Link(0.0, 1.0)), DeviceKind("cpu", 1, host=True))


@pytest.mark.parametrize(
    ("links", "message"),
    [
        ([("gpu 0", "gpu 2")], 'no accelerator or kind "gpu 2"'),
        ([("gpu", "cpu")], 'no accelerator or kind "cpu"'),
        ([("gpu 0", "gpu 0")], "joins a device with itself"),
        ([("gpu 0", "gpu 1"), ("gpu 1", "gpu 0")], "is given twice"),
        ([("gpu 0",)], "name two ends"),
    ],
)
def test_links_that_do_not_fit_are_refused(links: list[tuple[str, str]], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Cluster(GPUS, tuple(PairLink(ends, Link(0.0, 1.0)) for ends in links))


def test_workloads_and_problems_that_take_no_links_say_so() -> None:
    workload, cluster = star()
    timed = replace(workload, transfer=np.ones(4), output_bytes=None)
    no_host = Cluster((DeviceKind("gpu", 3),), cluster.links)
    with pytest.raises(InputError, match="it gives transfer times, not bytes; remove the link"):
        stagecut.solve(timed, no_host)
    with pytest.raises(InputError, match="time unit"):
        stagecut.solve(replace(workload, time_unit="unspecified"), cluster)
    with pytest.raises(InputError, match="the schedule stream takes no links"):
        stagecut.solve(
            stagecut.load("gpt2-xl"),
            replace(accelerators_and_cpus(2), links=(PairLink(("accelerator",) * 2, Link(0, 1)),)),
            PipelineJob(microbatches=8, schedule="stream", bandwidth=1e9),
        )


def test_the_last_link_that_names_a_pair_counts() -> None:
    links = (
        PairLink(("gpu", "gpu"), Link(0.0, 1.0)),
        PairLink(("gpu 0", "gpu 1"), Link(0.0, 2.0)),
    )
    cluster = Cluster((DeviceKind("gpu", 3),), links)
    assert cluster.link_of.tolist() == [[-1, 1, 0], [1, -1, 0], [0, 0, -1]]
    assert sample_files.cluster().link_of.max() == -1


def test_a_program_whose_end_highs_disowns_is_solved() -> None:
    """Going on from the start, HiGHS 1.12 ends this one with "Solve error" for 2e-6 of a row."""
    workload = Workload(
        name="disowned", ids=tuple(range(4)), edges=np.array([(2, 3), (3, 0), (3, 1)]),
        times={"accelerator": np.array([5.0, 3.0, 2.0, 9.0])}, memory_bytes=np.ones(4),
        transfer=None, output_bytes=np.array([3e6, 3e6, 8e6, 8e6]), time_unit="s",
    )  # fmt: skip
    speeds = {(0, 1): Link(0.0, 1e6), (0, 2): Link(0.1, 5e6), (1, 2): Link(0.0, 5e7)}
    links = [PairLink((f"gpu {a}", f"gpu {b}"), link) for (a, b), link in speeds.items()]
    cluster = Cluster((DeviceKind("gpu", 3, link=Link(0.0, 2e6)),), tuple(links))
    best = least_latency(workload, cluster, Latency())
    for method in ("auto", "milp"):
        result = stagecut.solve(workload, cluster, Latency(), method=method)
        assert result.status == "optimal"
        assert result.objective == pytest.approx(best)
