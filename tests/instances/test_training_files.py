"""Files of training workloads and plans: read, written, and refused with one line when broken."""

from __future__ import annotations

import copy
import json
import pickle
from pathlib import Path
from typing import Any

import pytest
from broken_files_cases import Damage, again, drop, put
from training_cases import random_training_case
from training_files_cases import _configuration, piper

from stagecut import (
    InputError,
    Workload,
    load,
    load_plan,
    pareto,
    save,
    solve,
    verify,
)
from stagecut.instances import StagePlacement
from stagecut.instances.formats.pipedream_txt import read_pipedream
from stagecut.instances.formats.piper_json import read_piper
from stagecut.instances.formats.source import parse
from stagecut.runtime.pictures.charts import plot_front

PIPER: list[tuple[Damage, str]] = [
    (drop("nodes"), "nodes is missing"),
    (put("nodes", to=[]), "nodes is empty"),
    (drop("bandwidth"), "bandwidth is missing"),
    (put("bandwidth", to=0), "bandwidth is 0"),
    (put("maxDevices", to=0), "maxDevices is 0"),
    (put("maxMemoryPerDevice", to=-1), "maxMemoryPerDevice is -1"),
    (drop("mbsInBatch"), "mbsInBatch is missing"),
    (put("mbsInBatch", to=0), "mbsInBatch is 0"),
    (put("maxBatchSize", to=9), "both mean microbatches"),
    (again("nodes", 0), "node 5: its id occurs twice"),
    (put("nodes", 1, "TMPCs", to={}), "node 6: TMPCs is empty"),
    (
        put("nodes", 1, "TMPCs", to={"x": [_configuration(1.0)]}),
        "node 6: TMPCs: key is a wrong value; it must be a whole",
    ),
    (
        put("nodes", 1, "TMPCs", to={"0": []}),
        "node 6: TMPCs: key is a wrong value; it must be at least 1",
    ),
    (
        put("nodes", 0, "TMPCs", "1", 0, "timePerSample", to=-1),
        "TMPCs: 1[0]: timePerSample is -1; it must be at least 0",
    ),
    (put("nodes", 0, "TMPCs", "1", 0, "timePerSample", to="a"), "must be a number"),
    (drop("nodes", 0, "TMPCs", "1", 0, "parameterSize"), "parameterSize is missing"),
    (
        put("nodes", 0, "TMPCs", "1", 0, "memoryUsageA", to=float("nan")),
        "node 5: TMPCs: 1[0]: memoryUsageA is NaN",
    ),
    (put("nodes", 0, "TMPCs", "2", 0, "syncTimeFw", to={"6": 1.0}), "no such edge"),
    (put("nodes", 0, "TMPCs", "2", 0, "syncTimeBw", to={"99": 1.0}), "no such edge"),
    (put("nodes", 0, "TMPCs", "2", 0, "syncTimeBw", to={"--6": 1.0}), "it must be a whole number"),
    (put("edges", 0, "destId", to=99), "edge 5 → 99: unknown destId 99"),
    (put("edges", 0, "destId", to=5), "a node cannot feed itself"),
    (put("edges", 0, "communicationCost", to=-2), "communicationCost is -2"),
    (
        lambda data: data["edges"].append({"sourceId": 7, "destId": 5, "communicationCost": 0}),
        "close a cycle",
    ),
]


@pytest.mark.parametrize(("damage", "words"), PIPER)
def test_a_broken_piper_file_is_one_line(tmp_path: Path, damage: Damage, words: str) -> None:
    data = piper()
    damage(data)
    path = tmp_path / "layers.json"
    path.write_text(json.dumps(data))
    with pytest.raises(InputError, match=r"layers\.json: ") as caught:
        load(path)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def _read(data: dict[str, Any]) -> Workload:
    return read_piper(parse(json.dumps(data).encode(), "layers.json", "layers"))


def test_a_piper_file_is_read() -> None:
    workload = _read(piper())
    layers = workload.layers
    assert layers is not None
    assert workload.ids == (5, 6, 7)
    assert layers.size == 9
    assert layers.degree.tolist() == [1, 1, 2] * 3
    assert layers.recomputes.tolist() == [False, True, False] * 3
    assert dict(layers.sync_bytes[5]) == {0: 3.0, 1: 2.0}
    assert layers.edge_bytes.tolist() == [10.0, 20.0]
    assert (layers.microbatches, layers.bandwidth) == (8, 10.0)
    assert workload.cluster is not None
    assert workload.cluster.kinds[0].memory_bytes == 100.0


def test_both_spellings_of_microbatches_and_no_order_matter() -> None:
    data = piper()
    one = _read(data)
    data["maxBatchSize"] = data.pop("mbsInBatch")
    assert _read(data).fingerprint == one.fingerprint
    shuffled = copy.deepcopy(data)
    shuffled["nodes"].reverse()
    shuffled["edges"].reverse()
    assert solve(_read(shuffled)).objective == solve(one).objective


GRAPH = (
    "node1 -- Input0 -- forward_compute_time=0.000, backward_compute_time=0.000, "
    "activation_size=0.000, parameter_size=0.000\n"
    "node4 -- LSTM(8, -- 9) -- forward_compute_time=3.190, backward_compute_time=5.348, "
    "activation_size=[64.0; 16.0], parameter_size=128.000 -- stage_id=0\n"
    "node2 -- Linear -- forward_compute_time=1.000, backward_compute_time=2.000, "
    "activation_size=32.000, parameter_size=256.000 -- stage_id=1\n"
    "\tnode1 -- node4\n"
    "\tnode4 -- node2\n"
)


def _graph(text: str) -> Workload:
    return read_pipedream(parse(text.encode(), "graph.txt", "graph"))


def test_a_pipedream_graph_is_read() -> None:
    workload = _graph(GRAPH)
    assert workload.names[1] == "LSTM(8, -- 9)"
    assert workload.time_unit == "ms"
    assert workload.output_bytes is not None
    assert workload.output_bytes.tolist() == [0.0, 80.0, 32.0]
    assert workload.times["accelerator"].tolist() == [0.0, 8.538, 3.0]
    assert workload.extra["backward_time"].tolist() == [0.0, 5.348, 2.0]


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("forward_compute_time=1.000", "forward_compute_time=x", "line 3: node node2: forward"),
        ("forward_compute_time=1.000", "forward_compute_time=-1", "finite number"),
        ("parameter_size=256.000", "size=256", "parameter_size is missing"),
        ("node2 -- Linear", "node4 -- Linear", "node4 occurs twice"),
        ("\tnode4 -- node2", "\tnode4 -- node9", "unknown node"),
        ("\tnode4 -- node2", "\tnode4", "line 5: an edge"),
        ("\tnode4 -- node2", "\tnode4 -- node1", "close a cycle"),
        ("node2 -- Linear -- ", "node2 -- ", "line 3: a node is written"),
        ("[64.0; 16.0]", "[64.0; a]", "activation_size"),
    ],
)
def test_a_broken_pipedream_graph_is_one_line(old: str, new: str, words: str) -> None:
    with pytest.raises(InputError, match=r"graph\.txt: ") as caught:
        _graph(GRAPH.replace(old, new))
    assert words in str(caught.value)


@pytest.mark.parametrize("seed", range(25))
def test_our_own_files_keep_layers_and_plans(tmp_path: Path, seed: int) -> None:
    workload, cluster, problem = random_training_case(seed)
    save(workload, tmp_path / "workload.json")
    read = load(tmp_path / "workload.json")
    assert read.fingerprint == workload.fingerprint
    assert pickle.loads(pickle.dumps(workload)).fingerprint == workload.fingerprint
    plan = solve(workload, cluster, problem).plan
    if plan is None:
        return
    save(plan, tmp_path / "plan.json", workload)
    again = load_plan(tmp_path / "plan.json", read)
    assert again.problem == problem
    assert isinstance(plan.solution, StagePlacement)
    assert isinstance(again.solution, StagePlacement)
    assert again.solution.stages == plan.solution.stages
    verify(read, again)


def test_an_edge_listed_twice_has_no_clear_bytes(tmp_path: Path) -> None:
    save(random_training_case(3)[0], tmp_path / "workload.json")
    data = json.loads((tmp_path / "workload.json").read_text())
    data["edges"].append(data["edges"][0])
    data["layers"]["edge_bytes"].append(1.0)
    (tmp_path / "workload.json").write_text(json.dumps(data))
    with pytest.raises(InputError, match=r"edges: one is listed twice"):
        load(tmp_path / "workload.json")


def test_the_front_is_monotone_and_drawn() -> None:
    workload = _read(piper())
    front = pareto(workload, devices=[1, 2, 4], memory_bytes=[40.0, 100.0])
    assert len(front) == 6
    assert front.efficient.any()
    for _, line in front.groupby("memory_bytes"):
        times = line["objective"].tolist()
        assert times == sorted(times, reverse=True)
    assert (front.devices_used.dropna() <= front.devices[front.devices_used.notna()]).all()
    figure = plot_front(front)
    assert len(figure.axes[0].lines) >= 2
