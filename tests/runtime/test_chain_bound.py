"""Checks of bounds of contiguous splits, by chains of stages and by intervals of a path."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from brute import best_max_load
from cases import beside_a_path, linked_case, random_case

import stagecut
from stagecut import Throughput, VerificationError, Workload
from stagecut.instances import UncheckedError, price
from stagecut.instances.model.contiguity import pipeline_edges
from stagecut.runtime.verify.bounds import stage_chains as ideals
from stagecut.runtime.verify.bounds.check import check_bound
from stagecut.runtime.verify.bounds.stage_chains import no_chain_below, no_intervals_below


def drawn(seed: int) -> Throughput:
    rng = np.random.default_rng([seed, 7])
    return Throughput(
        split="contiguous",
        cpu_split="contiguous",
        pipeline="gpipe" if rng.random() < 0.4 else "pipedream",
        overlap=bool(rng.random() < 0.3),
        relayed=bool(rng.random() < 0.3),
    )


@pytest.mark.parametrize("chunk", range(4))
def test_says_what_brute_force_says(chunk: int) -> None:
    proved = 0
    for seed in range(100 * chunk, 100 * (chunk + 1)):
        workload, cluster = random_case(seed, max_nodes=7, max_cores=2, max_kinds=1 + seed % 2)
        problem, costs = drawn(seed), price(workload, cluster)
        best = best_max_load(workload, cluster, problem)
        if math.isinf(best):
            assert no_chain_below(workload, costs, problem, 1e6), seed
        elif best > 0:
            proved += 1
            assert no_chain_below(workload, costs, problem, best * (1 - 1e-9)), seed
            assert not no_chain_below(workload, costs, problem, best * (1 + 1e-6)), seed
    assert proved >= 60


def test_links_between_devices_make_it_weaker_not_wrong() -> None:
    missed = 0
    for seed in range(80):
        workload, cluster = linked_case(seed, max_nodes=6, max_kinds=1 + seed % 2)
        problem = replace(drawn(seed), relayed=False)
        best = best_max_load(workload, cluster, problem)
        if 0 < best < math.inf:
            costs = price(workload, cluster)
            assert not no_chain_below(workload, costs, problem, best * (1 + 1e-6)), seed
            missed += not no_chain_below(workload, costs, problem, best * (1 - 1e-9))
    assert missed <= 20


def test_of_plans_as_they_are_found() -> None:
    workload = stagecut.load("gpt2-xl")
    problem = Throughput(split="contiguous")
    plan = stagecut.solve(workload, stagecut.accelerators_and_cpus(4), problem, method="dp").plan
    assert plan is not None
    assert plan.certificate["origin"] == "dp over ideals"
    assert check_bound(workload, plan).value == plan.bound
    forged = replace(plan, bound=plan.bound * (1 + 1e-6), objective=plan.objective * (1 + 1e-6))
    with pytest.raises(UncheckedError, match="without a certificate that can be checked"):
        check_bound(workload, forged)


def test_nodes_without_time_add_no_ideals(monkeypatch: pytest.MonkeyPatch) -> None:
    """A chain of ten nodes, each of which has two readers that take no time: 3^10 ideals more."""
    time = np.array([1.0] * 10 + [0.0] * 20)
    workload = Workload(
        name="readers",
        ids=tuple(range(30)),
        edges=np.array(
            [(v, v + 1) for v in range(9)] + [(v, 10 + v) for v in range(10)]
            + [(10 + v, 20 + v) for v in range(10)]
        ),
        times={"accelerator": time},
        memory_bytes=np.zeros(30),
        transfer=np.full(30, 0.1),
    )  # fmt: skip
    costs = price(workload, stagecut.accelerators_and_cpus(2, 0))
    assert (
        len(
            ideals.ideals_of(
                workload, ideals.relevant_nodes(workload, costs), pipeline_edges(workload)
            ).members
        )
        == 11
    )
    assert no_chain_below(workload, costs, Throughput(split="contiguous"), 5.0999)
    assert not no_chain_below(workload, costs, Throughput(split="contiguous"), 5.11)
    monkeypatch.setattr(ideals, "IDEALS", 10)
    with pytest.raises(VerificationError, match="more than 10 ideals"):
        no_chain_below(workload, costs, Throughput(split="contiguous"), 5.0999)


def test_intervals_of_a_path_prove_no_more_than_brute_force() -> None:
    proved = 0
    for seed in range(200):
        workload, cluster = random_case(seed, max_nodes=7, max_cores=2, max_kinds=1 + seed % 2)
        problem, costs = drawn(seed), price(workload, cluster)
        best = best_max_load(workload, cluster, problem)
        if 0 < best < math.inf:
            assert not no_intervals_below(workload, costs, problem, best * (1 + 1e-6)), seed
            proved += no_intervals_below(workload, costs, problem, best * (1 - 1e-9))
    assert proved >= 60


def test_intervals_of_a_path_need_not_have_what_lies_beside_it() -> None:
    workload, cluster = beside_a_path()
    problem, costs = Throughput(split="contiguous"), price(workload, cluster)
    assert best_max_load(workload, cluster, problem) == 3.5
    assert not no_intervals_below(workload, costs, problem, 3.5 * (1 + 1e-6))
    assert no_intervals_below(workload, costs, problem, 3.0 * (1 - 1e-9))


def test_the_bound_by_intervals_of_a_path_is_checked() -> None:
    """The bound of a U-Net, whose ideals are too many for all chains of stages."""
    workload = stagecut.load("stable-diffusion-unet-operators-training@deeper=2")
    problem = Throughput(split="contiguous")
    result = stagecut.solve(
        workload, stagecut.accelerators_and_cpus(4), problem, method="multilevel",
        limits=stagecut.Limits(gap=0.01),
    )  # fmt: skip
    plan = result.plan
    assert plan is not None
    assert plan.certificate["origin"] == "intervals of a critical path"
    assert check_bound(workload, plan).value == plan.bound
    with pytest.raises(VerificationError, match="ideals"):
        check_bound(workload, replace(plan, bound=plan.objective))
