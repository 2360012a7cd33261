"""Tied weights: copies or a colour, the exchange of gradients, and files that keep both."""

from __future__ import annotations

import itertools
import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tied_chain import chain

import stagecut
from stagecut import InputError, Throughput, Workload, accelerators_and_cpus
from stagecut.instances import DeviceKind, Placement, Problem, tied_as
from stagecut.instances.formats.files import load_plan_with_form
from stagecut.instances.model.cluster import Cluster
from stagecut.instances.model.tied_weights import are_copied, exchange_nodes
from stagecut.instances.model.workload import Copy, Tie

SHIPPED = ("bert-large", "bert-large-training", "t5-large-training", "gpt2-xl-training")


@pytest.mark.parametrize("name", SHIPPED)
def test_each_form_gives_the_other(name: str) -> None:
    copies = stagecut.load(name)
    assert are_copied(copies)
    shared = tied_as(copies, "colour")
    assert not are_copied(shared)
    assert not exchange_nodes(shared)
    assert tied_as(shared, "copies").fingerprint == copies.fingerprint
    assert tied_as(copies, "copies").fingerprint == copies.fingerprint
    assert tied_as(shared, "colour").fingerprint == shared.fingerprint
    assert shared.provenance["shared_weights"] == "colour"
    (tie,) = copies.ties
    extra = (len(tie.copies) - 1) * (tie.weight_bytes + tie.gradient_bytes + tie.optimizer_bytes)
    assert copies.memory_bytes.sum() == shared.memory_bytes.sum() + extra


def test_files_keep_ties(tmp_path: Path) -> None:
    for tied in ("copies", "colour"):
        workload = tied_as(stagecut.load("t5-large-training"), tied)
        stagecut.save(workload, tmp_path / "w.json")
        again = stagecut.load(tmp_path / "w.json")
        assert again.ties == workload.ties
        assert again.fingerprint == workload.fingerprint
    data = json.loads((tmp_path / "w.json").read_text())
    data["ties"][0]["copies"][0]["holder"] = "nobody"
    (tmp_path / "w.json").write_text(json.dumps(data))
    with pytest.raises(InputError, match=r"w\.json: tie .*unknown node .*nobody"):
        stagecut.load(tmp_path / "w.json")
    assert "ties" not in json.loads(stagecut.instances.formats.dumps(stagecut.load("unet")))


def test_each_device_with_a_copy_keeps_it_and_pays_for_the_exchange() -> None:
    workload = chain()
    (x,) = exchange_nodes(workload)
    assert workload.ids[x] == "table.exchange"
    cluster = Cluster((DeviceKind("gpu", 2, 100.0, times="accelerator"),))
    half = np.array([0, 0, 1, 1, 1, 1, 0, 0, 1])
    report = stagecut.evaluate(workload, cluster, Throughput("contiguous"), Placement(half))
    assert not report.violations
    # both: 4 nodes, the output of f1 and of b2, and the exchange of 0.5
    assert [device.load for device in report.devices] == [4 + 0.25 + 0.5] * 2
    assert [device.memory_bytes for device in report.devices] == [2 * 10 + 2, 9 + 3 + 6 + 4]
    one = stagecut.evaluate(workload, cluster, Throughput(), Placement(np.zeros(9, np.int64)))
    assert one.devices[0].load == 8  # no exchange

    eighth = tied_as(workload, "copies", microbatches=8)
    report = stagecut.evaluate(eighth, cluster, Throughput("contiguous"), Placement(half))
    assert [device.load for device in report.devices] == [4 + 0.25 + 0.5 / 8] * 2
    assert tied_as(eighth, "copies").fingerprint == workload.fingerprint


def test_three_users_exchange_along_a_chain() -> None:
    workload = chain(users=(0, 2, 3))
    first, second = exchange_nodes(workload)
    ids = workload.ids
    edges = {(ids[u], ids[v]) for u, v in workload.edges.tolist()}
    assert {e for e in edges if "exchange" in str(e)} == {
        ("b3", ids[first]), (ids[first], "b2"), ("b2", ids[second]), (ids[second], "b0"),
    }  # fmt: skip
    assert ids[second] == "table.exchange#2"


@pytest.mark.parametrize("split", ["contiguous", "noncontiguous"])
@pytest.mark.parametrize("tied", ["copies", "colour"])
@pytest.mark.parametrize("transfer", [0.125, 3.0])
def test_plans_with_ties_are_optimal(split: str, tied: str, transfer: float) -> None:
    workload = tied_as(chain(users=(0, 2), transfer=transfer), tied)
    cluster = Cluster((DeviceKind("gpu", 2, 45.0, times="accelerator"),))
    problem: Problem = Throughput(split)
    best = math.inf
    for devices in itertools.product(range(2), repeat=4):
        layer = [int(str(node)[1]) if "ex" not in str(node) else 2 for node in workload.ids]
        where = Placement(np.array([devices[v] for v in layer]))
        report = stagecut.evaluate(workload, cluster, problem, where)
        best = min(best, math.inf if report.violations else report.objective)
    for method in ("auto", "milp"):
        result = stagecut.solve(workload, cluster, problem, method=method)
        assert result.status == "optimal"
        assert result.plan is not None
        assert result.plan.objective == pytest.approx(best, rel=1e-6)


def test_a_plan_is_read_in_the_form_that_it_is_for(tmp_path: Path) -> None:
    workload, cluster = chain(), accelerators_and_cpus(2)
    for form in (tied_as(workload, "colour"), workload):
        result = stagecut.solve(form, cluster, method="greedy")
        assert result.plan is not None
        stagecut.save(result.plan, tmp_path / "p.json", form)
        for known in (workload, tied_as(workload, "colour")):
            found, plan = load_plan_with_form(tmp_path / "p.json", known)
            assert found.fingerprint == form.fingerprint
            stagecut.verify(found, plan)
    shared = tied_as(workload, "colour")
    with pytest.raises(InputError, match=r"another form of .* plan again; in Python, load_plan"):
        stagecut.load_plan(tmp_path / "p.json", shared)
    other = replace(workload, times={"accelerator": np.full(9, 2.0)})
    with pytest.raises(InputError, match="plan again"):
        load_plan_with_form(tmp_path / "p.json", other)


def test_it_is_said_how_often_gradients_are_exchanged() -> None:
    workload, cluster = stagecut.load("bert-large-training"), accelerators_and_cpus(2)
    said = [
        any("exchanged with every microbatch" in note for note in result.notes)
        for form in (workload, tied_as(workload, "copies", 4), tied_as(workload, "colour"))
        for result in [stagecut.solve(form, cluster, stagecut.PipelineJob(4), method="megatron")]
    ]
    assert said == [True, False, False]


@pytest.mark.parametrize(
    ("tie", "said"),
    [
        (Tie("w", (Copy((0,), 0),), 1.0), "it has 1 users"),
        (Tie("w", (Copy((0,), 0), Copy((99,), 99)), 1.0), "does not exist"),
        (Tie("w", (Copy((0,), 0), Copy((0, 1), 1)), 1.0), "a node in common"),
        (Tie("w", (Copy((0,), 0), Copy((1,), 2)), 1.0), "holder and deliverer"),
        (Tie("w", (Copy((0,), 0), Copy((7,), 7)), 1.0), "holders are forward nodes"),
        (Tie("w", (Copy((0,), 0), Copy((1,), 1)), 1.0, exchange=(1,)), "one tie, and is no user's"),
        (Tie("w", (Copy((0,), 0), Copy((1,), 1)), -1.0), "finite and at least 0"),
    ],
)
def test_wrong_ties_are_refused(tie: Tie, said: str) -> None:
    with pytest.raises(InputError, match=said):
        replace(chain(), ties=(tie,))


def test_wrong_forms_are_refused() -> None:
    with pytest.raises(InputError, match='"knot" is not one of colour, copies'):
        tied_as(chain(), "knot")
    with pytest.raises(InputError, match="microbatches: 0"):
        tied_as(chain(), "copies", 0)
    untied = stagecut.load("unet")
    assert tied_as(untied, "colour").fingerprint == untied.fingerprint


def test_a_colour_that_closes_a_cycle_is_named_with_its_cost() -> None:
    shared = tied_as(chain(), "colour")
    cluster = accelerators_and_cpus(4, 0)
    result = stagecut.solve(shared, cluster, Throughput("contiguous"), method="greedy")
    (said,) = [note for note in result.notes if "closes a cycle" in note]
    assert 'colour "f0" (f0, f3) closes a cycle: in a contiguous split 8 of 8 nodes' in said
    assert "100.0 % of the compute" in said
    assert "no max-load is below 8;" in said
    assert "--tied copies" in said
    for problem, workload in ((Throughput(), shared), (Throughput("contiguous"), chain())):
        result = stagecut.solve(workload, cluster, problem, method="greedy")
        assert not [note for note in result.notes if "cycle" in note]


def test_colours_that_close_a_cycle_together_are_all_named() -> None:
    workload = Workload(
        name="crossing",
        ids=("a", "b", "c", "d"),
        edges=np.array([(0, 1), (2, 3)]),
        times={"accelerator": np.ones(4)},
        memory_bytes=np.zeros(4),
        transfer=np.zeros(4),
        colours=np.array([0, 1, 1, 0]),
        colour_labels=("red", "blue"),
    )
    result = stagecut.solve(
        workload, accelerators_and_cpus(2, 0), Throughput("contiguous"), method="greedy"
    )
    (said,) = [note for note in result.notes if "cycle" in note]
    assert 'colours "red" (a, d) and "blue" (b, c) close a cycle' in said
    assert "--split noncontiguous divides them" in said
    assert "--tied" not in said
