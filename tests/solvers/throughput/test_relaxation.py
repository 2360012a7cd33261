"""The relaxation of the compact program: a bound that holds, and is checked apart."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from brute import best_max_load
from hypothesis import given
from strategies import examples, placed, throughputs

from stagecut import (
    Cluster,
    InputError,
    Limits,
    Plan,
    Throughput,
    VerificationError,
    Workload,
    accelerators_and_cpus,
    check_bound,
    load_plan,
)
from stagecut.api.asked import Judge
from stagecut.formulations.task import pose
from stagecut.instances.formats.files import save
from stagecut.solvers.core.search import Search
from stagecut.solvers.throughput.baselines import greedy
from stagecut.solvers.throughput.relaxation import relaxation


def planned(workload: Workload, cluster: Cluster, problem: Throughput) -> Plan | None:
    """Greedy's plan with the bound of the relaxation; None without either."""
    search = Search(Limits(), Judge(workload, cluster, problem))
    task = pose(workload, cluster, problem)
    greedy(task, search)
    relaxation(task, search)
    if search.best is None or not search.bound_origin:
        return None
    return Plan(
        workload_name=workload.name,
        workload_fingerprint=workload.fingerprint,
        cluster=cluster,
        problem=problem,
        solution=search.best,
        objective=search.objective,
        bound=search.bound,
        method="auto",
        time_unit=workload.time_unit,
        certificate={"origin": search.bound_origin, **search.certificate},
    )


@examples(60)
@given(placed(), throughputs("noncontiguous"))
def test_no_plan_is_below_it_and_its_certificate_proves_it(
    case: tuple[Workload, Cluster], problem: Throughput
) -> None:
    workload, cluster = case
    if cluster.links:
        return
    plan = planned(workload, cluster, problem)
    if plan is not None:
        assert plan.bound <= best_max_load(workload, cluster, problem) * (1 + 1e-9)
        check_bound(workload, plan)


@pytest.fixture(scope="module")
def proved() -> tuple[Workload, Plan]:
    """A plan with memories, flows and steps in its certificate."""
    rng = np.random.default_rng(1)
    times = rng.uniform(1.0, 5.0, 12)
    workload = Workload(
        name="proved",
        ids=tuple(range(12)),
        edges=np.array([(v // 2, v) for v in range(1, 12)]),
        times={"accelerator": times, "cpu": 3 * times},
        memory_bytes=rng.uniform(1.0, 2.0, 12),
        transfer=rng.uniform(0.5, 1.0, 12),
    )
    plan = planned(workload, accelerators_and_cpus(2, 2, 6.0), Throughput(split="noncontiguous"))
    assert plan is not None
    assert plan.certificate["flows"]
    assert plan.certificate["memories"] != [0.0] * 4
    return workload, plan


def test_it_survives_a_file(proved: tuple[Workload, Plan], tmp_path: Path) -> None:
    workload, plan = proved
    save(plan, tmp_path / "plan.json", workload)
    read = load_plan(tmp_path / "plan.json", workload)
    assert json.dumps(dict(read.certificate)) == json.dumps(dict(plan.certificate))
    check_bound(workload, read)


@pytest.mark.parametrize("key", ["loads", "transfers", "memories", "flows", "order", "steps"])
@pytest.mark.parametrize("wrong", ["x", {}, [[1.0]], None, [-1.0] * 4, [1e300] * 4], ids=str)
def test_a_damaged_certificate_is_refused(
    key: str, wrong: object, proved: tuple[Workload, Plan]
) -> None:
    workload, plan = proved
    forged = replace(plan, certificate={**plan.certificate, key: wrong})
    with pytest.raises((InputError, VerificationError), match="certificate: "):
        check_bound(workload, forged)


@pytest.mark.parametrize("seed", range(20))
def test_other_multipliers_prove_nothing_too_high(seed: int, proved: tuple[Workload, Plan]) -> None:
    workload, plan = proved
    rng = np.random.default_rng(seed)
    best = plan.objective
    certificate = dict(plan.certificate)
    for key in ("loads", "memories"):
        values = np.array(certificate[key])
        certificate[key] = (values * rng.uniform(0.0, 3.0, len(values))).tolist()
    flows = plan.certificate["flows"]
    assert isinstance(flows, list)
    certificate["flows"] = [
        [d, nodes, (np.array(values) * rng.uniform(-5.0, 5.0, len(values))).tolist()]
        for d, nodes, values in flows
    ]
    forged = replace(plan, bound=best * 1.001, certificate={**certificate, "target": best * 1.001})
    with pytest.raises(VerificationError, match="certificate: its multipliers prove"):
        check_bound(workload, forged)


def test_its_own_multipliers_prove_nothing_above_them(proved: tuple[Workload, Plan]) -> None:
    workload, plan = proved
    value = check_bound(workload, plan).value
    for target in (plan.bound * (1 + 1e-3), plan.bound * 1.1):
        forged = replace(plan, bound=target, certificate={**plan.certificate, "target": target})
        assert value < target
        with pytest.raises(VerificationError, match="certificate: its multipliers prove"):
            check_bound(workload, forged)
