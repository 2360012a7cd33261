"""Versions of plan files and what their certificates may hold: nothing is guessed, nothing dies."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sample_files
from conformance import task

from stagecut import (
    Cluster,
    DeviceKind,
    DeviceMesh,
    InputError,
    Link,
    Plan,
    Sharding,
    Throughput,
    Workload,
    solve,
)
from stagecut.instances import PrimitiveLink, UncheckedError
from stagecut.instances.formats.files import load_plan, save
from stagecut.instances.formats.plan_json import write_plan
from stagecut.runtime.verify.bounds.check import check_bound
from stagecut.solvers import Limits


def read(document: dict[str, Any], folder: Path, workload: Workload | None = None) -> Plan:
    """Return the plan of a parsed file."""
    path = folder / "plan.json"
    path.write_text(json.dumps(document))
    return load_plan(path, workload or sample_files.workload())


@pytest.mark.parametrize(
    ("where", "field"),
    [
        ("problem", "relayed"), ("solution", "order"), ("cluster", "links"), ("", "provenance"),
    ],
)  # fmt: skip
def test_a_field_of_the_version_may_not_be_missing(where: str, field: str, tmp_path: Path) -> None:
    document = sample_files.document(sample_files.plan())
    holder = document[where] if where else document
    assert document["version"] == 5
    del holder[field]
    with pytest.raises(InputError, match=f"{field} is missing; add it"):
        read(document, tmp_path)
    document["version"] = 3
    with pytest.raises(InputError, match="version is 3; it must be a whole number from 4 to 5"):
        read(document, tmp_path)


def test_a_certificate_that_is_missing_is_not_asked_of_the_user(tmp_path: Path) -> None:
    document = sample_files.document(sample_files.plan())
    del document["certificate"]
    with pytest.raises(InputError, match="certificate is missing; plan again"):
        read(document, tmp_path)


def test_older_plans_have_links_of_collectives_beside_their_names(tmp_path: Path) -> None:
    workload, link = task("sharding").workload, Link(1e-6, 1e9)
    own = (PrimitiveLink("all-reduce", Link(2e-6, 5e8), "tree"),)
    problem = Sharding(DeviceMesh((2,), (link,), own))
    plan = solve(workload, problem=problem).plan
    assert plan is not None
    document = json.loads(json.dumps(write_plan(plan, workload)))
    assert read(document, tmp_path, workload).problem == problem
    (one,) = document["problem"]["mesh"]["primitives"]
    one |= one.pop("link")
    with pytest.raises(InputError, match="link is missing; add it"):
        read(document, tmp_path, workload)
    assert read({**document, "version": 4}, tmp_path, workload).problem == problem


def test_a_configuration_is_called_what_it_is(tmp_path: Path) -> None:
    """The number of a layer's configuration counts, so that a false name would mislead readers."""
    posed = task("stream")
    plan = solve(posed.workload, posed.cluster, posed.problem).plan
    assert plan is not None
    document = json.loads(json.dumps(write_plan(plan, posed.workload)))
    read(document, tmp_path, posed.workload)
    document["solution"]["stages"][0]["nodes"][0]["configuration"] = "recomputed"
    with pytest.raises(InputError, match='configuration "recomputed"; number 0 is "vanilla"'):
        read(document, tmp_path, posed.workload)


def test_a_bound_above_the_objective_is_refused(tmp_path: Path) -> None:
    document = sample_files.document(sample_files.plan())
    document |= {"bound": 1.1 * document["objective"], "gap": 0.0}
    with pytest.raises(InputError, match="above the objective"):
        read(document, tmp_path)


@pytest.fixture(scope="module")
def proved() -> tuple[Workload, Plan]:
    """A plan whose bound has a certificate by prices."""
    workload = Workload(
        name="proved",
        ids=tuple(range(5)),
        edges=np.array([(0, 1), (1, 2), (2, 3), (3, 4)]),
        times={"accelerator": np.array([3.0, 1.0, 4.0, 1.0, 5.0])},
        memory_bytes=np.ones(5),
        transfer=np.full(5, 0.5),
    )
    cluster = Cluster((DeviceKind("accelerator", 2, 4.0),))
    result = solve(
        workload, cluster, Throughput(), method="column-generation", limits=Limits(gap=0.0)
    )
    assert result.plan is not None
    assert result.plan.certificate["origin"] == "set partitioning"
    check_bound(workload, result.plan)
    return workload, result.plan


WRONG = ["x", {}, {"a": 1}, [[1.0]], [], None, True, ["nan"] * 5, ["inf"] * 5, [1e300] * 5, -1.0]


@pytest.mark.parametrize("key", ["prices", "memory_prices", "transfer_prices", "target", "order"])
@pytest.mark.parametrize("wrong", WRONG, ids=str)
def test_a_forged_certificate_is_refused_where_it_is_read_and_where_it_is_checked(
    key: str, wrong: object, proved: tuple[Workload, Plan], tmp_path: Path
) -> None:
    workload, plan = proved
    if key == "order" and wrong == []:
        return  # any order is right
    save(plan, tmp_path / "plan.json", workload)
    document = json.loads((tmp_path / "plan.json").read_text())
    document["certificate"][key] = wrong
    with pytest.raises(InputError, match=f"certificate: {key}"):
        read(document, tmp_path, workload)
    forged = replace(plan, certificate={**plan.certificate, key: wrong})
    with pytest.raises(InputError, match=f"certificate: {key}"):
        check_bound(workload, forged)


def test_what_has_no_certificate_is_said_in_a_sentence(proved: tuple[Workload, Plan]) -> None:
    workload, plan = proved
    for certificate, bound, said in (
        ({"origin": ""}, float("-inf"), "bound: there is none to check"),
        ({"origin": "HiGHS"}, 100.0, 'it comes from "HiGHS", without a certificate'),
        ({}, 100.0, "it does not say where it comes from"),
    ):
        bare = replace(plan, certificate=certificate, bound=bound)
        with pytest.raises(UncheckedError, match=said):
            check_bound(workload, bare)
