"""The check of bounds by prices and hubs: what is true is accepted, and nothing above an optimum."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from brute import best_max_load
from cases import random_case

from stagecut import (
    InputError,
    Limits,
    Plan,
    Throughput,
    VerificationError,
    Workload,
    accelerators_and_cpus,
    check_bound,
    load,
    load_plan,
    solve,
)
from stagecut.api.judge import Judge
from stagecut.formulations.task import pose
from stagecut.formulations.throughput.cheap_bounds import units_of_split
from stagecut.formulations.throughput.hypergraph import hypergraph
from stagecut.instances.formats.certificate import HUBS
from stagecut.instances.formats.files import save
from stagecut.solvers.core.search import Search
from stagecut.solvers.throughput.column_generation.narrow_orders import narrow_order
from stagecut.solvers.throughput.greedy import greedy
from stagecut.solvers.throughput.multilevel import hub_sets
from stagecut.solvers.throughput.multilevel.hubs import raise_by_hubs


def planned(seed: int, monkeypatch: pytest.MonkeyPatch) -> tuple[Workload, Plan, float] | None:
    """Return a plan with a bound by one to three hubs, and the optimum; None without either."""
    monkeypatch.setattr(hub_sets, "NETS", seed % 3)
    monkeypatch.setattr(hub_sets, "PINS", 2 + seed % 4)
    monkeypatch.setattr(hub_sets, "HUBS", 1 + seed % 3)
    workload, cluster = random_case(seed, max_nodes=7)
    split = "noncontiguous" if seed % 2 else "contiguous"
    problem = Throughput(split, pipeline="gpipe" if seed % 5 == 0 else "pipedream")
    search, task = (
        Search(Limits(), Judge(workload, cluster, problem)),
        pose(workload, cluster, problem),
    )
    greedy(task, search)
    graph = hypergraph(task, units_of_split(task))
    raise_by_hubs(task, graph, narrow_order(graph), search, search)
    if search.best is None or search.bound_origin != HUBS:
        return None
    plan = Plan(
        workload_name=workload.name,
        workload_fingerprint=workload.fingerprint,
        cluster=cluster,
        problem=problem,
        solution=search.best,
        objective=search.objective,
        bound=search.bound,
        method="multilevel",
        time_unit=workload.time_unit,
        certificate={"origin": HUBS, **search.certificate},
    )
    return workload, plan, best_max_load(workload, cluster, problem)


@pytest.mark.parametrize("seed", range(200))
def test_a_true_bound_is_accepted_and_none_above_the_optimum(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the search's own prices, and by others."""
    made = planned(seed, monkeypatch)
    if made is None:
        return
    workload, plan, best = made
    check = check_bound(workload, plan)
    assert check.target == plan.bound <= best * (1 + 1e-9)
    rng = np.random.default_rng(seed)
    for spread in (0.0, 0.01, 0.3, 1.0):
        points = [
            [
                (np.array(part) * rng.uniform(1 - spread, 1 + spread, len(part))).tolist()
                for part in point
            ]
            for point in plan.certificate["points"]
        ]
        for above in (1e-8, 1e-3, 1.0):
            target = best * (1 + above) + 1e-12
            certificate = {**plan.certificate, "target": target, "points": points}
            with pytest.raises(VerificationError, match="the bound is not proved"):
                check_bound(workload, replace(plan, bound=target, certificate=certificate))
