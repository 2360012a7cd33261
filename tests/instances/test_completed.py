"""Every kind of file is planned for every problem that its content has a meaning for.

The matrix is that of docs/files.md, cell by cell: a small file of each kind is planned, and its
plan verified against the file.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from project import ROOT

import stagecut
from stagecut import InputError, PipelineJob, Throughput, Workload, cli
from stagecut.instances.model.completed import assumed, complete, filled
from stagecut.instances.model.workload import kept_bytes

LAYERS = 4
DEVICES = ["--accelerators", "2", "--cpus", "0", "--gap", "0.5"]
BATCH = ["--problem", "pipeline", "--microbatches", "4"]
PROBLEMS = {
    "throughput": ["--problem", "throughput", *DEVICES],
    "latency": ["--problem", "latency", *DEVICES],
    "iteration": [*BATCH, "--schedule", "1f1b", *DEVICES],
    "stream": [*BATCH, "--schedule", "stream", *DEVICES],
    "mapping": [
        "--problem", "mapping", "--cluster", "islands:2x2", "--set", "stages=2", "--set",
        "replicas=2", "--gap", "0.5",
    ],
    "sharding": ["--problem", "sharding", "--mesh", "2@10us:25GB/s", "--gap", "0.5"],
}  # fmt: skip


def placement(*, training: bool) -> str:
    nodes = [
        {
            "id": v, "supportedOnFpga": 1, "cpuLatency": 9.0, "fpgaLatency": 2.0 + v % LAYERS,
            "isBackwardNode": int(v >= LAYERS), "colorClass": min(v, 2 * LAYERS - 1 - v),
            "size": 1e6,
        }
        for v in range(LAYERS * (1 + training))
    ]  # fmt: skip
    ends = zip(range(len(nodes) - 1), range(1, len(nodes)), strict=True)
    edges = [{"sourceId": u, "destId": v, "cost": 0.5} for u, v in ends]
    limits = {"maxSizePerFPGA": 1e9, "maxFPGAs": 2, "maxCPUs": 0}
    return json.dumps({**limits, "nodes": nodes, "edges": edges})


def piper() -> str:
    configuration = {
        "id": "vanilla", "timePerSample": 3.0, "parameterSize": 1e6, "memoryUsageA": 1e5,
        "memoryUsageB": 2e6, "syncTimeFw": {}, "syncTimeBw": {},
    }  # fmt: skip
    nodes = [{"id": v, "name": f"n{v}", "TMPCs": {"1": [configuration]}} for v in range(LAYERS)]
    edges = [{"sourceId": v, "destId": v + 1, "communicationCost": 1e6} for v in range(LAYERS - 1)]
    limits = {"maxDevices": 2, "maxMemoryPerDevice": 1e9, "bandwidth": 1e7, "mbsInBatch": 4}
    return json.dumps({**limits, "nodes": nodes, "edges": edges})


def pipedream() -> str:
    line = (
        "node{} -- Linear -- forward_compute_time=1.5, backward_compute_time=3.0, "
        "activation_size=1000000.0, parameter_size=2000000.0\n"
    )
    nodes = "".join(line.format(v) for v in range(LAYERS))
    return nodes + "".join(f"\tnode{v} -- node{v + 1}\n" for v in range(LAYERS - 1))


def own(*, training: bool) -> Workload:
    n = LAYERS * (1 + training)
    forward = np.arange(n) < LAYERS
    return Workload(
        name="chain",
        ids=tuple(f"n{v}" for v in range(n)),
        edges=np.array([(v, v + 1) for v in range(n - 1)]),
        times={"accelerator": np.full(n, 2.0)},
        memory_bytes=np.full(n, 1e6),
        transfer=None,
        output_bytes=np.full(n, 1e5),
        backward=~forward,
        colours=np.minimum(np.arange(n), 2 * LAYERS - 1 - np.arange(n)),
        time_unit="ms",
        extra={"weight_bytes": forward * 5e5, "activation_bytes": forward * 5e5},
    )


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A file of every kind, by the words of docs/files.md."""
    folder = tmp_path_factory.mktemp("files")
    texts = {
        "placement JSON, inference": placement(training=False),
        "placement JSON, training": placement(training=True),
        "Piper JSON": piper(),
        "PipeDream graph": pipedream(),
    }
    graph = own(training=True)
    saved = {
        "own JSON, inference": own(training=False),
        "own JSON, training": graph,
        "own JSON, layers": stagecut.training_layers(graph),
    }
    found = {}
    for number, (kind, text) in enumerate(texts.items()):
        found[kind] = folder / f"{number}.txt"
        found[kind].write_text(text)
    for number, (kind, workload) in enumerate(saved.items()):
        found[kind] = folder / f"own{number}.json"
        stagecut.save(workload, found[kind])
    found["own JSON, tensors"] = ROOT / "notebooks" / "programs" / "two_layers.json"
    return found


def matrix() -> dict[tuple[str, str], str]:
    """Return the cells of the table in docs/files.md by kind of file and problem."""
    text = (ROOT / "docs" / "files.md").read_text()
    rows = [
        line for line in text.splitlines() if re.match(r"\| (placement|Piper|PipeDr|own)", line)
    ]
    cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]
    return {
        (kind, problem): cell
        for kind, *own in cells
        if len(own) == len(PROBLEMS)
        for problem, cell in zip(PROBLEMS, own, strict=True)
    }


@pytest.mark.parametrize(("kind", "problem"), sorted(matrix()))
def test_a_cell_is_as_the_page_says(
    kind: str, problem: str, files: dict[str, Path], tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """Planned and verified with what is assumed named, or refused in one line."""
    said, plan = matrix()[kind, problem], str(tmp_path / "plan.json")
    code = cli.run_command(["solve", str(files[kind]), *PROBLEMS[problem], "--json", "-o", plan])
    out, err = capsys.readouterr()
    if said == "–":
        assert (code, err.count("\n")) == (2, 1)
        return
    assert code == 0, err
    notes = " ".join(note for note in json.loads(out)["notes"] if note.startswith("assumed"))
    words = {"U": "times are in ms", "B": "25 GB/s", "W": "weights are", "F": "forward pass takes"}
    assert {letter for letter, word in words.items() if word in notes} == set(said) & set(words)
    assert cli.run_command(["verify", str(files[kind]), plan]) == 0, capsys.readouterr().err


def test_the_page_has_all_kinds(files: dict[str, Path]) -> None:
    assert {kind for kind, _ in matrix()} == set(files)


def test_passes_and_layers_undo_each_other(files: dict[str, Path]) -> None:
    graph = stagecut.load(files["own JSON, training"])
    layers = complete(graph, PipelineJob(4, "stream"))
    again = complete(layers, PipelineJob(4, "1f1b"))
    assert again.backward.sum() == (~again.backward).sum() == LAYERS
    assert again.times["accelerator"].tolist() == graph.times["accelerator"].tolist()
    assert again.memory_bytes.sum() == graph.memory_bytes.sum()
    assert assumed(layers) == ["links move 25 GB/s: the file names no bandwidth"]


def test_what_is_there_stays_as_it_is() -> None:
    workload = stagecut.load("gpt2-xl")
    assert complete(workload, Throughput()) is workload


def test_assumptions_of_the_users_own_are_written(files: dict[str, Path], tmp_path: Path) -> None:
    source, out = files["placement JSON, training"], str(tmp_path / "own.json")
    said = ["--time-unit", "us", "--bandwidth", "1GB/s", "--weight-share", "0.25"]
    assert cli.run_command(["instances", "convert", str(source), out, *said]) == 0
    made, given = stagecut.load(out), stagecut.load(source)
    assert made.time_unit == "us"
    assert made.output_bytes is not None
    assert given.transfer is not None
    assert made.output_bytes == pytest.approx(given.transfer * 1e-6 * 1e9)
    assert made.extra["weight_bytes"][:LAYERS] == pytest.approx(0.25e6)
    assert made.extra["activation_bytes"][:LAYERS] == pytest.approx(0.75e6)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"time_unit": "h"}, "time_unit"),
        ({"bandwidth": 0.0}, "bandwidth"),
        ({"bandwidth": float("nan")}, "bandwidth"),
        ({"weight_share": 1.5}, "weight_share"),
    ],
)
def test_wrong_assumptions_are_refused(fields: dict[str, object], said: str) -> None:
    with pytest.raises(InputError, match=said):
        filled(stagecut.load("gpt2-xl"), **fields)  # type: ignore[arg-type]


def test_unknown_bytes_of_a_node_are_taken_as_in_a_workload_without_them() -> None:
    workload = replace(own(training=True), extra={})
    n = workload.n
    some = np.where(np.arange(n) == 1, np.nan, 1.0)
    told = replace(workload, extra={"weight_bytes": some, "activation_bytes": some})
    for known, without in zip(kept_bytes(told), kept_bytes(workload), strict=True):
        assert known[1] == without[1]
        assert np.isfinite(known).all()


def test_backward_nodes_of_one_colour_share_a_layer() -> None:
    nodes = np.ones(4)
    workload = Workload(
        name="orphans",
        ids=("a", "b", "b.backward", "a.backward"),
        edges=np.array([(0, 1), (0, 3), (1, 2)]),
        times={"accelerator": nodes},
        memory_bytes=nodes,
        transfer=None,
        output_bytes=nodes,
        backward=np.array([False, False, True, True]),
        colours=np.array([-1, -1, 0, 0]),
        extra={"weight_bytes": nodes, "activation_bytes": 0 * nodes},
    )
    assert sorted(stagecut.training_layers(workload).times["accelerator"].tolist()) == [1.0, 3.0]
