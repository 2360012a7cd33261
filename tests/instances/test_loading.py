"""Loading: what valid files of every format mean, shipped names, split files, deadlines on size."""

from __future__ import annotations

import copy
import csv
import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sample_files

from stagecut import InputError, Throughput, Workload, load, verify
from stagecut.api import plan_from_split
from stagecut.instances.formats.files import load_plan, load_split, save
from stagecut.instances.generate import catalogue
from stagecut.runtime import evaluate

EXPERTS = {
    "bert24_inference": 20.084,
    "bert24_training": 49.4049,
    "gnmt_inference": 46.2085,
    "gnmt_training": 137.154,
    "inceptionv3_inference": 102.482,
    "resnet50_inference": 43.9183,
}


def write(folder: Path, data: Any, name: str = "small.json") -> Path:
    path = folder / name
    path.write_text(json.dumps(data))
    return path


def test_placement_json_means_what_its_readme_says(tmp_path: Path) -> None:
    small = load(write(tmp_path, sample_files.placement()))
    assert small.name == "small"
    assert small.ids == (4, 0, 2, 7, 3)
    assert small.names == ("a", "0", "2", "7", "3")
    assert small.edges.tolist() == [[0, 1], [0, 2], [1, 2], [2, 4], [4, 3]]
    assert small.times["accelerator"].tolist() == [1.0, 2.0, np.inf, np.inf, 0.5]
    assert small.times["cpu"].tolist() == [10.0, 20.0, 5.0, 5.0, 5.0]
    assert small.memory_bytes.tolist() == [8.0, 0.0, 16.0, 0.0, 0.0]
    assert small.transfer is not None
    assert small.transfer.tolist() == [0.25, 0.5, 0.0, 0.0, 1.5]
    assert small.output_bytes is not None
    assert small.output_bytes.tolist() == [64.0, 16.0, 0.0, 0.0, 1.0]
    assert small.backward.tolist() == [False, False, False, True, True]
    assert small.colours.tolist() == [0, -1, -1, 0, -1]
    assert small.colour_labels == (9,)
    assert np.array_equal(small.extra["layerId"], [3, np.nan, np.nan, np.nan, np.nan], True)
    assert small.time_unit == "unspecified"
    assert small.cluster is not None
    kinds = [(kind.name, kind.count, kind.memory_bytes, kind.host) for kind in small.cluster.kinds]
    assert kinds == [("accelerator", 2, 100.0, False), ("cpu", 1, np.inf, True)]


@pytest.mark.parametrize("seed", range(5))
def test_the_order_of_a_file_changes_nothing_but_the_order_of_nodes(
    seed: int, tmp_path: Path
) -> None:
    data = sample_files.placement()
    straight = load(write(tmp_path, data))
    rng = random.Random(seed)
    for key in ("nodes", "edges"):
        rng.shuffle(data[key])
    shuffled = load(write(tmp_path, {key: data[key] for key in sorted(data)}))
    columns = straight.to_pandas().loc[list(shuffled.ids)]
    assert columns.equals(shuffled.to_pandas())
    assert edge_ids(straight) == edge_ids(shuffled)


def edge_ids(workload: Workload) -> set[tuple[Any, Any]]:
    return {(workload.ids[u], workload.ids[v]) for u, v in workload.edges.tolist()}


def test_ids_may_be_any_whole_numbers(tmp_path: Path) -> None:
    data = sample_files.placement()
    new = {4: -5, 0: 10**30, 2: 0, 7: 3, 3: 2**63}
    for node in data["nodes"]:
        node["id"] = new[node["id"]]
    for edge in data["edges"]:
        edge["sourceId"], edge["destId"] = new[edge["sourceId"]], new[edge["destId"]]
    assert load(write(tmp_path, data)).ids == (-5, 10**30, 0, 3, 2**63)


@pytest.mark.parametrize("scale", [1e-12, 1.0, 1e12])
def test_costs_of_one_node_may_differ_by_rounding(scale: float, tmp_path: Path) -> None:
    """Relatively: the same file in another unit of time is read alike."""
    data = sample_files.placement()
    for edge in data["edges"]:
        edge["cost"] *= scale
    data["edges"][1]["cost"] *= 1 + 5e-7
    loaded = load(write(tmp_path, data))
    assert loaded.transfer is not None
    assert loaded.transfer[0] == data["edges"][1]["cost"]
    data["edges"][1]["cost"] *= 1 + 1e-6
    with pytest.raises(InputError, match="carry the same data"):
        load(write(tmp_path, data))


def test_output_bytes_are_unknown_if_a_senders_are(tmp_path: Path) -> None:
    data = sample_files.placement()
    del data["edges"][3]["size"]
    assert load(write(tmp_path, data)).output_bytes is None


def test_a_node_without_edges_and_a_file_without(tmp_path: Path) -> None:
    data = sample_files.placement()
    data["edges"] = []
    assert load(write(tmp_path, data)).edges.shape == (0, 2)


@pytest.mark.parametrize("name", ["noending", "wrong.txt", "plan.json", "gpt2-xl", "ä b.csv"])
def test_the_format_is_found_by_content_not_by_name(name: str, tmp_path: Path) -> None:
    published = load(write(tmp_path, sample_files.placement(), name))
    save(published, tmp_path / name)
    assert load(tmp_path / name).fingerprint == published.fingerprint
    assert load(str(tmp_path / name)).fingerprint == published.fingerprint


def test_a_byte_order_mark_is_no_damage(tmp_path: Path) -> None:
    path = tmp_path / "bom.json"
    path.write_text(json.dumps(sample_files.placement()), encoding="utf-8-sig")
    assert load(path).n == 5


def test_shipped_workloads_have_names_and_unknown_names_have_neighbours(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    ready = {"gpt2-xl": sample_files.workload, "bert-large": sample_files.workload}
    monkeypatch.setattr(catalogue, "CATALOGUE", ready)
    monkeypatch.setattr(catalogue, "generate", lambda name: ready[name]())
    monkeypatch.chdir(tmp_path)
    assert load("gpt2-xl").name == "sämple"
    with pytest.raises(InputError, match=r"gpt2xl: no such file, .* did you mean gpt2-xl\?"):
        load("gpt2xl")
    with pytest.raises(InputError, match=r"zzz: no such file, .* shipped are gpt2-xl, bert-large"):
        load("zzz")
    write(tmp_path, sample_files.placement(), "gpt2-xl")
    assert load("gpt2-xl").n == 5  # a file wins
    with pytest.raises(InputError, match=r"^folder/gpt2-xl: no such file; check the path$"):
        load("folder/gpt2-xl")


def test_every_published_placement_file_loads(benchmarks: Path) -> None:
    paths = sorted(benchmarks.glob("placement/[tl]*/*/*.json"))
    assert len(paths) == 18
    for path in paths:
        data, loaded = json.loads(path.read_text()), load(path)
        assert loaded.ids == tuple(node["id"] for node in data["nodes"])
        assert len(loaded.edges) == len(data["edges"])
        assert loaded.memory_bytes.sum() == pytest.approx(sum(n["size"] for n in data["nodes"]))
        assert loaded.backward.sum() == sum(bool(n["isBackwardNode"]) for n in data["nodes"])


@pytest.mark.parametrize(("name", "value"), EXPERTS.items())
def test_expert_splits_have_their_published_loads(
    name: str, value: float, benchmarks: Path
) -> None:
    workload = load(benchmarks / f"placement/throughput/LayerGraphs/{name}.json")
    split = load_split(benchmarks / f"placement/human-experts/{name}_expert.json", workload)
    assert workload.cluster is not None
    report = evaluate(workload, workload.cluster, Throughput(), split)
    assert report.violations == ()
    assert float(f"{report.objective:.6g}") == value


def test_a_split_becomes_a_plan_that_can_be_saved_and_verified(tmp_path: Path) -> None:
    workload = load(write(tmp_path, sample_files.placement()))
    data = {"fpgas": [{"nodes": [0]}], "cpus": [{"nodes": [4, 2, 3]}]}
    plan = plan_from_split(write(tmp_path, data, "split.json"), workload)
    assert plan.objective == 10 + 5 + 5 + 5
    save(plan, tmp_path / "plan.json", workload)
    assert verify(workload, load_plan(tmp_path / "plan.json", workload)).violations == ()
    data = {"fpgas": [{"nodes": [4]}], "cpus": [{"nodes": [0, 2, 3]}]}
    with pytest.raises(InputError, match="node 7 is on accelerator 0, which does not support it"):
        plan_from_split(write(tmp_path, data, "split.json"), workload)


def test_the_expert_table_is_the_references(benchmarks: Path) -> None:
    table = benchmarks.parent / "reference-values.csv"
    if not table.is_file():
        pytest.skip("the table of reference values is not beside the published inputs")
    with table.open() as stream:
        rows = [row for row in csv.DictReader(stream) if row["quantity"] == "expert split"]
    assert {row["workload"]: float(row["value"]) for row in rows} == EXPERTS


def test_an_inference_split_serves_the_training_workload(benchmarks: Path) -> None:
    experts = benchmarks / "placement/human-experts"
    training = load(benchmarks / "placement/throughput/LayerGraphs/gnmt_training.json")
    split = load_split(experts / "gnmt_inference_expert.json", training)
    assert training.cluster is not None
    for members in training.colour_classes:
        assert len(set(split.device[list(members)].tolist())) == 1


def test_a_split_may_leave_out_what_follows_its_colour(tmp_path: Path) -> None:
    workload = load(write(tmp_path, sample_files.placement()))
    data = {"fpgas": [{"nodes": []}, {"nodes": [4]}], "cpus": [{"nodes": [0, 2, 3]}]}
    placed = load_split(write(tmp_path, data, "split"), workload).device
    assert placed.tolist() == [1, 2, 2, 1, 2]
    without_cpus = copy.deepcopy(data)
    del without_cpus["cpus"]
    without_cpus["fpgas"][0]["nodes"] = [0, 2, 3]
    assert load_split(write(tmp_path, without_cpus, "s"), workload).device.tolist() == [
        1,
        0,
        0,
        1,
        0,
    ]
