"""Baselines: their plans are verified, never better than the best, and the same every time."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path

import numpy as np
import pytest
from brute import best_max_load
from cases import random_case

from stagecut import InputError, Limits, Throughput, accelerators_and_cpus, load, solve
from stagecut.instances import Placement
from stagecut.runtime import evaluate
from stagecut.solvers.throughput.partitioners import GPART

METHODS = ["greedy", "local-search", "random", "single", "metis", "scotch"]


@pytest.mark.parametrize("method", METHODS)
def test_no_baseline_beats_brute_force(method: str) -> None:
    if method == "metis":
        pytest.importorskip("pymetis")
    if method == "scotch" and not any(map(shutil.which, GPART)):
        pytest.skip("Scotch is not installed")
    found = 0
    for seed in range(24):
        workload, cluster = random_case(seed, max_nodes=6, max_kinds=2)
        if method in ("metis", "scotch") and not any(k.count for k in cluster.kinds if not k.host):
            continue
        problem = Throughput(pipeline="gpipe" if seed % 2 else "pipedream", overlap=seed % 3 == 0)
        result = solve(workload, cluster, problem, method=method, limits=Limits(nodes=5))
        if result.plan is not None:
            found += 1
            best = best_max_load(workload, cluster, problem)
            assert result.plan.objective >= best * (1 - 1e-12)
            assert not evaluate(workload, cluster, problem, result.plan.solution).violations
    assert found >= 8


@pytest.mark.parametrize("seed", range(40))
def test_local_search_ends_where_no_single_move_helps(seed: int) -> None:
    workload, cluster = random_case(seed, max_nodes=8, max_kinds=2)
    problem = Throughput(pipeline="gpipe" if seed % 2 else "pipedream", overlap=seed % 3 == 0)
    result = solve(workload, cluster, problem, method="local-search", limits=Limits(nodes=1))
    if result.plan is None:
        return
    colours = workload.colours
    for v in range(workload.n):
        unit = colours == colours[v] if colours[v] >= 0 else np.arange(workload.n) == v
        for device in range(cluster.size):
            moved = result.plan.placement.copy()
            moved[unit] = device
            report = evaluate(workload, cluster, problem, Placement(moved))
            better = math.inf if report.violations else report.objective
            assert better >= result.plan.objective * (1 - 1e-9)


def test_the_same_seed_gives_the_same_plan() -> None:
    workload, cluster = random_case(7)
    plans = [
        solve(workload, cluster, method="local-search", limits=Limits(nodes=3, seed=5)).plan
        for _ in range(2)
    ]
    assert plans[0] is not None
    assert plans[1] is not None
    assert (plans[0].placement == plans[1].placement).all()


@pytest.mark.parametrize(
    ("name", "published"),
    [
        ("inceptionv3_inference", 60.417),
        ("resnet50_inference", 39.3981),
        ("bert24_inference", None),
    ],
)
def test_pipedream_merges_branches_that_close_again(
    benchmarks: Path, name: str, published: float | None
) -> None:
    """Published values; BERT-24 is a path but for its inputs, so there it finds the optimum."""
    workload = load(benchmarks / f"placement/throughput/LayerGraphs/{name}.json")
    problem = Throughput(split="contiguous")
    result = solve(workload, problem=problem, method="pipedream")
    assert result.plan is not None
    optimum = solve(workload, problem=problem, method="dp").objective
    assert result.plan.objective == pytest.approx(published or optimum, rel=1e-5)


@pytest.mark.parametrize("seed", range(120))
def test_pipedream_proves_nothing_infeasible_by_its_own_merging(seed: int) -> None:
    workload, cluster = random_case(seed, max_nodes=7, max_cores=0, max_kinds=2)
    problem = Throughput(split="contiguous")
    result = solve(workload, cluster, problem, method="pipedream")
    if result.status == "infeasible":
        assert math.isinf(best_max_load(workload, cluster, problem))
    elif result.plan is None:
        assert "no plan found" in result.notes[-1]


@pytest.mark.parametrize(("name", "published"), [("inference", 33.0311), ("training", 107.35)])
def test_pipedream_skips_the_edges_that_its_authors_picked(
    benchmarks: Path, name: str, published: float
) -> None:
    """Without the three nodes' edges GNMT is a path of layers; with them one device has it all."""
    workload = load(benchmarks / f"placement/throughput/LayerGraphs/gnmt_{name}.json")
    problem = Throughput(split="contiguous")
    picked = solve(workload, problem=problem, method="pipedream:skip=2+40+46").objective
    assert picked == pytest.approx(published, rel=1e-5)
    whole = solve(workload, problem=problem, method="pipedream").objective
    assert whole is not None
    assert whole > 2 * published


def test_pipedream_refuses_to_skip_an_unknown_node() -> None:
    workload = load("gpt2-xl")
    with pytest.raises(InputError, match="skip: gpt2-xl has no node 9999"):
        solve(workload, accelerators_and_cpus(2), method="pipedream:skip=9999")


@pytest.mark.parametrize(
    ("name", "published"),
    [("bert24_training", 49.4049), ("gnmt_inference", 46.2085), ("resnet50_inference", 43.9183)],
)
def test_the_experts_split_is_found_in_its_folder(
    benchmarks: Path, name: str, published: float
) -> None:
    workload = load(benchmarks / f"placement/throughput/LayerGraphs/{name}.json")
    method = f"expert:{benchmarks / 'placement' / 'human-experts'}"
    assert solve(workload, method=method).objective == pytest.approx(published, rel=1e-5)


def test_an_experts_split_must_be_given_and_fit(tmp_path: Path) -> None:
    workload, cluster = load("gpt2-xl"), accelerators_and_cpus(2)
    with pytest.raises(InputError, match="method expert: it needs a split file"):
        solve(workload, cluster, method="expert")
    (tmp_path / "other.json").write_text(json.dumps({"fpgas": [{"nodes": ["elsewhere"]}]}))
    with pytest.raises(InputError, match=r"no file of .* is a split of gpt2-xl"):
        solve(workload, cluster, method=f"expert:{tmp_path}")
    halves = [{"nodes": list(workload.ids[:50])}, {"nodes": list(workload.ids[50:])}]
    (tmp_path / "gpt2_split.json").write_text(json.dumps({"fpgas": halves}))
    plan = solve(workload, cluster, method=f"expert:{tmp_path}").plan
    assert plan is not None
    assert plan.placement.tolist() == [0] * 50 + [1] * (workload.n - 50)


def test_scotch_that_is_not_installed_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(InputError, match="install Scotch"):
        solve(load("gpt2-xl"), accelerators_and_cpus(2), method="scotch")
