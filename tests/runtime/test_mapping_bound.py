"""Checks of bounds of mappings: of given stages and of all cuts, and forged ones."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from brute_mapping import least_stage_time, place_for, stages_of
from mapping_joint_cases import blocks, drawn_joint

import stagecut
from stagecut import save
from stagecut.api.common import devices_of
from stagecut.cli import run_command
from stagecut.instances import (
    DeviceMapping,
    ReplicaPlacement,
    UncheckedError,
    stage_costs,
    topology,
)
from stagecut.runtime.verify.bounds.check import check_bound
from stagecut.runtime.verify.bounds.mapping import no_mapping_below

SHAPES = [(1, 4), (2, 2), (3, 1), (2, 3), (3, 2), (4, 1), (1, 3)]


@pytest.mark.parametrize("mode", ["p2p", "allr", "both"])
def test_given_stages_are_never_proved_above_their_optimum(mode: str) -> None:
    reached = 0
    for seed in range(42):
        rng = np.random.default_rng([seed, 11])
        stages, replicas = SHAPES[seed % len(SHAPES)]
        used = stages * replicas
        place = blocks([replicas, used], rng) if seed % 2 else place_for(rng, used, 8)
        problem = DeviceMapping(
            place if len(place.usable) <= 7 else topology(f"ring:{used}"),
            stages,
            replicas,
            mode,  # type: ignore[arg-type]
            microbatches=1 + seed % 3,
            gradients=seed % 4 > 0,
            collective="ring" if seed % 3 else "cheapest",
            overlap=seed % 5 == 0,
        )
        workload = stages_of(rng, stages)
        costs = stage_costs(workload, np.arange(stages), stages)
        optimum = 1e3 * least_stage_time(costs, problem)
        # the devices of the given plan do not matter
        cut = ReplicaPlacement(np.arange(stages), np.zeros((stages, replicas)), np.zeros((0, 0)))
        cluster = devices_of(problem.topology)
        if optimum > 0:
            assert not no_mapping_below(workload, cluster, problem, optimum * (1 + 1e-6), cut), seed
            reached += no_mapping_below(workload, cluster, problem, optimum * (1 - 1e-9), cut)
    assert reached >= 20


def test_the_bound_of_all_cuts_is_checked_and_a_forged_one_refused() -> None:
    for seed in (2, 5, 10):
        workload, problem = drawn_joint(seed, "both", "ring")
        plan = stagecut.solve(workload, problem=problem, method="joint").plan
        assert plan is not None
        cuts = replace(plan, certificate={"origin": "all cuts at least prices"})
        proved = replace(cuts, bound=0.99 * _most(cuts, workload))
        assert check_bound(workload, proved).value == proved.bound
        with pytest.raises(UncheckedError, match="without a certificate that can be checked"):
            check_bound(workload, replace(cuts, bound=plan.objective * (1 + 1e-5)))


def _most(plan: stagecut.Plan, workload: stagecut.Workload) -> float:
    """The largest bound of all cuts that the check proves, to a thousandth."""
    assert isinstance(plan.problem, DeviceMapping)
    low, high = 0.0, plan.objective * (1 + 1e-6)
    while high - low > 1e-3 * high:
        middle = (low + high) / 2
        if no_mapping_below(workload, plan.cluster, plan.problem, middle):
            low = middle
        else:
            high = middle
    return low


def test_hundreds_of_stages_are_checked() -> None:
    stages = 201
    workload = stages_of(np.random.default_rng(0), stages, free=False)
    plan = stagecut.solve(
        workload, problem=DeviceMapping(topology(f"ring:{stages}"), stages, 1), method="layouts"
    ).plan
    assert plan is not None
    cut = plan.solution
    assert isinstance(cut, ReplicaPlacement)
    cluster, problem = plan.cluster, plan.problem
    assert isinstance(problem, DeviceMapping)
    assert no_mapping_below(workload, cluster, problem, plan.objective / 10, cut)
    assert not no_mapping_below(workload, cluster, problem, plan.objective * (1 + 1e-6), cut)


def test_a_bound_of_given_stages_is_none_of_all_cuts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    workload = stagecut.load("gpt2-xl")
    problem = DeviceMapping(topology("islands:2x8"), 4, 4, microbatches=4, collective="ring")
    plan = stagecut.solve(workload, problem=problem, method="layouts").plan
    assert plan is not None
    assert plan.certificate["origin"].endswith(", stages given")
    save(plan, tmp_path / "plan.json", workload)
    words = ["verify", "gpt2-xl", str(tmp_path / "plan.json"), "--bound"]
    assert run_command(words) == 0
    assert "proved bound for the stages given" in capsys.readouterr().out
    for bound, said in (
        (plan.objective, "not checked: it comes"),
        (-math.inf, "none to check"),
    ):
        claims = replace(plan, bound=bound, certificate={"origin": "a guess"})
        save(claims, tmp_path / "plan.json", workload)
        assert run_command(words) == 5
        line = capsys.readouterr()
        assert line.out.startswith("verified: ")
        assert said in line.out
        assert not line.err
        assert run_command([*words, "--json"]) == 5
        document = json.loads(capsys.readouterr().out)
        assert document["verified"]
        assert not document["bound_checked"]
        assert not document["of_given_stages"]
        assert said in document["why_not_checked"]
    save(
        replace(plan, certificate={"origin": "a guess, stages given"}),
        tmp_path / "plan.json",
        workload,
    )
    run_command([*words, "--json"])
    assert json.loads(capsys.readouterr().out)["of_given_stages"]
    with pytest.raises(UncheckedError, match="without a certificate that can be checked"):
        check_bound(workload, replace(plan, certificate={"origin": "all cuts at least prices"}))
