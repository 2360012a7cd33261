"""Bounds by hubs and their check: what is true is accepted, and nothing above an optimum."""

from __future__ import annotations

import math
import sys
from typing import Any

import numpy as np
import pytest
from brute import best_max_load
from cases import hub_case

from stagecut import (
    InputError,
    Throughput,
    VerificationError,
)
from stagecut.formulations.task import pose
from stagecut.formulations.throughput.cheap_bounds import units_of_split
from stagecut.formulations.throughput.hypergraph import hypergraph
from stagecut.instances import UncheckedError, price
from stagecut.instances.formats.plan_json import HUBS, hub_certificate
from stagecut.runtime.verify.bounds import BoundCheck
from stagecut.runtime.verify.bounds.max_load import check_hubs
from stagecut.solvers.throughput.column_generation.orders import narrow_order
from stagecut.solvers.throughput.multilevel import hub_bound as hub_sets
from stagecut.solvers.throughput.multilevel.hub_bound import raise_by_hubs


class Noted:
    """What the bound needs of a search."""

    def __init__(self, objective: float) -> None:
        self.objective, self.bound, self.certificate = objective, 0.0, dict[str, Any]()

    def should_stop(self) -> bool:
        return False

    def raise_bound(self, bound: float, origin: str, certificate: dict[str, Any]) -> None:
        if bound > self.bound:
            self.bound, self.certificate = bound, {"origin": origin, **certificate}


class Case:
    """A random workload with a hub on a few devices, its optimum, and a bound by hubs."""

    def __init__(self, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(hub_sets, "HUB_NETS", 1 + seed % 2)
        monkeypatch.setattr(hub_sets, "CHARGED_PINS", 2 + seed % 5)
        monkeypatch.setattr(hub_sets, "MOST_HUBS", 1 + seed % 3)
        self.workload, self.cluster = hub_case(seed)
        split = "noncontiguous" if seed % 3 == 0 else "contiguous"
        pipeline = "gpipe" if seed % 5 == 0 else "pipedream"
        self.problem = Throughput(split, pipeline=pipeline)
        self.best = best_max_load(self.workload, self.cluster, self.problem)
        task = pose(self.workload, self.cluster, self.problem)
        graph = hypergraph(task, units_of_split(task))
        self.found = Noted(self.best * (1.0, 1.1, 2.0)[seed % 3] if self.best < np.inf else 1e9)
        raise_by_hubs(task, graph, narrow_order(graph), self.found, self.found)  # type: ignore[arg-type]

    def check(self, **changes: object) -> BoundCheck:
        """Check the bound's certificate with other values of some fields."""
        costs = price(self.workload, self.cluster)
        values = {**self.found.certificate, **changes}
        data = hub_certificate(values, self.workload.n, len(self.cluster.kinds))
        return check_hubs(self.workload, costs, self.problem, data)


@pytest.mark.parametrize("block", range(10))
def test_a_true_bound_is_accepted_and_none_above_the_optimum(
    block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the search's own prices, and by others."""
    for seed in range(10 * block, 10 * block + 10):
        case = Case(seed, monkeypatch)
        assert case.found.bound <= case.best * (1 + 1e-9), seed
        if not case.found.certificate:
            continue
        assert case.check().target == case.found.bound
        if case.best == np.inf:
            continue
        rng = np.random.default_rng(seed)
        for spread in (0.0, 0.01, 0.5):
            points = [
                [(np.array(p) * rng.uniform(1 - spread, 1 + spread, len(p))).tolist() for p in own]
                for own in case.found.certificate["points"]
            ]
            for above in (1e-8, 1e-3, 0.1, 1.0):
                with pytest.raises(VerificationError, match="the bound is not proved"):
                    case.check(target=case.best * (1 + above) + 1e-12, points=points)


def test_hubs_are_found_with_nodes_on_both_sides(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that the test above is of something."""
    cases = [Case(seed, monkeypatch).found.certificate for seed in range(8)]
    slopes = [len(found["points"][0][1]) for found in cases if found]
    assert {2, 3} < set(slopes)
    assert len(slopes) > 6
    assert any(len(found["points"]) > 1 for found in cases if found)


#: A contiguous case of one hub with nodes on both sides, and so of three groups.
DIVIDED = 1


@pytest.mark.parametrize(
    ("key", "wrong"),
    [
        ("target", math.nan), ("target", -1.0), ("target", "x"), ("target", 1e99),
        ("kind", -1), ("kind", 2), ("kind", 0.5),
        ("hubs", []), ("hubs", [99]), ("hubs", [-1]), ("hubs", [0] * 7), ("hubs", [0, 1, 2]),
        ("classes", [0]), ("classes", {}), ("classes", [99] * 7),
        ("points", []), ("points", [[[], []]]), ("points", [[[1.0]]]), ("points", None),
        ("points", [[[math.nan] * 9, [1.0] * 3]]), ("points", [[[math.inf] * 9, [1.0] * 3]]),
        ("points", [[[1.0] * 9, [-1.0] * 3]]), ("points", [[[1.0] * 9, [1e300] * 3]]),
        ("points", [[[1.0] * 9, [1.0] * 2]]), ("points", [[[0.0] * 9, [0.0] * 3]]),
        ("points", [[[-1e99] * 9, [1e99] * 3]]), ("points", [[[1e99] * 9, [1e-99] * 3]]),
        ("points", [[[1.0] * 9, [1.0] * 3]] * 1000),
    ],
)  # fmt: skip
def test_a_damaged_certificate_is_refused(
    key: str, wrong: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = Case(DIVIDED, monkeypatch)
    with pytest.raises(
        (InputError, VerificationError), match=r"^(certificate: |bound: not checked: ).*$"
    ):
        case.check(**{key: wrong})


def test_prices_say_nothing_of_transfers_beside_compute(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case(DIVIDED, monkeypatch)
    case.problem = Throughput(case.problem.split, overlap=True)
    with pytest.raises(VerificationError, match="transfers overlap compute"):
        case.check()
    assert case.found.certificate["origin"] == HUBS


def test_graphs_that_are_too_large_for_the_check_are_refused_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    case = Case(DIVIDED, monkeypatch)
    monkeypatch.setattr(sys.modules[check_hubs.__module__], "MOST_NODES", case.workload.n - 1)
    with pytest.raises(UncheckedError, match="not checked"):
        case.check()
