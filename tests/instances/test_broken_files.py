"""Every broken file gives one line with file, field, id and remedy; no traceback, ever."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable
from pathlib import Path

import pytest
import sample_files
from broken_files_cases import Damage, Json, drop, put
from damage import damage_tree, damaged_bytes

from stagecut import Cluster, InputError, Plan, Workload, load
from stagecut.instances import Placement
from stagecut.instances.formats.files import load_cluster, load_plan, load_split
from stagecut.instances.formats.placement_json import read_placement
from stagecut.instances.formats.source import parse

PLACEMENT: list[tuple[Damage, str]] = [
    (drop("nodes"), "nodes is missing; add it"),
    (drop("edges"), "edges is missing; add it"),
    (drop("maxFPGAs"), "maxFPGAs is missing; add it"),
    (put("nodes", to=[]), "nodes is empty; a workload needs at least one node"),
    (put("nodes", to={}), "nodes is {…}; it must be a list […]"),
    (put("nodes", 1, to=5), "nodes[1] is 5; it must be an object {…}"),
    (put("edges", to=None), "edges is null; it must be a list […]"),
    (put("maxSizePerFPGA", to=-1), "maxSizePerFPGA is -1; it must be at least 0"),
    (put("maxSizePerFPGA", to="16GB"), 'maxSizePerFPGA is "16GB"; it must be a number'),
    (put("maxFPGAs", to=-3), "maxFPGAs is -3; it must be at least 0"),
    (put("maxFPGAs", to=2.5), "maxFPGAs is 2.5; it must be a whole number"),
    (put("maxFPGAs", to=10**12), "count is 1000000000000; at most 100000"),
    (put("maxCPUs", to=True), "maxCPUs is true; it must be a whole number"),
    (lambda d: d.update(maxFPGAs=0, maxCPUs=0), "no devices; give at least one"),
    (drop("nodes", 0, "id"), "nodes[0]: id is missing; add it"),
    (put("nodes", 0, "id", to="4"), 'id is "4"; it must be a whole number'),
    (put("nodes", 0, "id", to=1.5), "nodes[0]: id is 1.5; it must be a whole number"),
    (put("nodes", 1, "id", to=4), "node 4: its id occurs twice; ids must differ"),
    (drop("nodes", 1, "cpuLatency"), "node 0: cpuLatency is missing; add it"),
    (put("nodes", 1, "cpuLatency", to="fast"), 'node 0: cpuLatency is "fast"; it must be a number'),
    (put("nodes", 1, "cpuLatency", to=True), "node 0: cpuLatency is true; it must be a number"),
    (put("nodes", 1, "cpuLatency", to=-1), "node 0: cpuLatency is -1; it must be at least 0"),
    (put("nodes", 1, "cpuLatency", to=float("nan")), "node 0: cpuLatency is NaN; it must be"),
    (put("nodes", 1, "cpuLatency", to=10**400), "node 0: cpuLatency: Number out of range"),
    (put("nodes", 1, "fpgaLatency", to=float("inf")), "node 0: fpgaLatency is Infinity"),
    (put("nodes", 1, "fpgaLatency", to=10**400), "node 0: fpgaLatency: Number out of range"),
    (put("nodes", 1, "fpgaLatency", to="x"), 'node 0: fpgaLatency is "x"; it must be a number'),
    (drop("nodes", 1, "fpgaLatency"), "node 0: fpgaLatency is missing; add it, or set supported"),
    (drop("nodes", 1, "supportedOnFpga"), "node 0: supportedOnFpga is missing"),
    (
        put("nodes", 1, "supportedOnFpga", to=2),
        "node 0: supportedOnFpga is 2; it must be one of true",
    ),
    (put("nodes", 1, "supportedOnFpga", to="yes"), 'supportedOnFpga is "yes"; it must be true or'),
    (
        put("nodes", 1, "isBackwardNode", to=-1),
        "node 0: isBackwardNode is -1; it must be one of true",
    ),
    (put("nodes", 1, "colorClass", to="red"), 'node 0: colorClass is "red"; it must be a whole'),
    (put("nodes", 1, "size", to=-8), "node 0: size is -8; it must be at least 0"),
    (put("edges", 3, "destId", to=99), "edge 0 → 99: unknown destId 99 (nodes run 0 to 7); add"),
    (put("edges", 3, "sourceId", to=99), "edge 99 → 2: unknown sourceId 99 (nodes run 0 to 7)"),
    (put("edges", 3, "destId", to=0), "edge 0 → 0: a node cannot feed itself; remove the edge"),
    (put("edges", 4, "destId", to=4), "the edges close a cycle:"),
    (put("edges", 3, "cost", to=-0.5), "edge 0 → 2: cost is -0.5; it must be at least 0"),
    (put("edges", 3, "cost", to=None), "edge 0 → 2: cost is null; it must be a number"),
    (drop("edges", 3, "cost"), "edge 0 → 2: cost is missing; add it"),
    (put("edges", 3, "size", to="1 MB"), 'edge 0 → 2: size is "1 MB"; it must be a number'),
    (
        put("edges", 1, "cost", to=0.26),
        "edge 4 → 2: cost is 0.26, but that of its edge to 0 is 0.25; all edges out of a node",
    ),
    (drop("edges", 3, "destId"), "edges[3]: destId is missing; add it"),
]


@pytest.mark.parametrize(("damage", "message"), PLACEMENT)
def test_broken_placement_json(damage: Damage, message: str, tmp_path: Path) -> None:
    data = sample_files.placement()
    damage(data)
    check(tmp_path, json.dumps(data).encode(), message, load)


WORKLOAD: list[tuple[Damage, str]] = [
    (put("version", to=2), "version is 2, written by a newer Stagecut; this one reads up to"),
    (put("version", to="1"), 'version is "1"; it must be 1'),
    (drop("version"), "version is null; it must be 1"),
    (put("format", to="stagecut-x"), 'unknown format "stagecut-x"; known are'),
    (drop("format"), 'node in: id is "in"; it must be a whole number'),
    (put("format", to="stagecut-plan"), "it is a plan, not a workload"),
    (put("format", to="stagecut-cluster"), "it is a cluster, not a workload"),
    (put("nodez", to=[]), 'unknown key "nodez"; remove it or correct its spelling'),
    (put("nodes", to=[]), "nodes is empty"),
    (put("nodes", 1, "colour", to="red"), 'node 7: unknown colour "red"; list it in colours'),
    (put("nodes", 1, "id", to="in"), "node in: its id occurs twice"),
    (put("nodes", 1, "id", to=1.5), "nodes[1]: id is 1.5; it must be a whole number or a text"),
    (put("nodes", 1, "times", "accelerator", to=-1), "node 7: time on accelerator is -1; it must"),
    (put("nodes", 1, "times", "gpu", to=1.0), "node 7: times has other kinds than that of node in"),
    (
        put("nodes", 1, "times", "cpu", to="x"),
        'node 7: times: cpu is "x"; it must be a number',
    ),
    (put("nodes", 1, "memory_bytes", to=-1), "node 7: memory_bytes is -1; it must be a number of"),
    (put("nodes", 1, "extra", to={"held_bytes": -1}), 'node 7: extra "held_bytes" is -1; it must'),
    (drop("nodes", 1, "transfer"), "node 7: transfer is missing, other nodes have it"),
    (put("edges", 0, to=["in", 8]), "edge in → 8: unknown node 8; add the node or remove the edge"),
    (put("edges", 0, to=["in"]), "edges[0]"),
    (put("edges", 0, to=[7, 7]), "edge 7 → 7: a node cannot feed itself"),
    (put("edges", 0, to=[2**70, "in"]), "the edges close a cycle: in → ä→b →"),
    (
        put("time_unit", to="min"),
        'time_unit is "min"; it must be one of ms, ns, s, unspecified, us',
    ),
    (put("colours", to=[5, 5, "shared"]), "colour label 5 occurs twice"),
    (put("cluster", 0, "count", to=-1), "fast: count is -1; it must be a whole number"),
    (put("cluster", 0, "slowdown", to=0), "fast: slowdown is 0; it must be above 0"),
    (put("cluster", 0, "link", "latency_s", to=-1), "fast: latency_s is -1; it must be at least 0"),
    (put("cluster", 2, "memory_bytes", to=5), "cpu: a host device shares host memory"),
]


@pytest.mark.parametrize(("damage", "message"), WORKLOAD)
def test_broken_workload_files(damage: Damage, message: str, tmp_path: Path) -> None:
    data = sample_files.document(sample_files.workload())
    damage(data)
    check(tmp_path, json.dumps(data).encode(), message, load)


CLUSTER: list[tuple[Damage, str]] = [
    (put("format", to="stagecut-workload"), 'its format is "stagecut-workload"; a file with'),
    (drop("format"), "it names no format"),
    (put("kinds", to=[]), "no devices; give at least one accelerator or CPU core"),
    (put("kinds", 1, "name", to="fast"), "two device kinds are called 'fast'; rename one"),
    (put("kinds", 1, "name", to="fast 0"), "device fast 0 occurs twice; all must differ"),
    (put("kinds", 1, "count", to=1.5), 'device kind "slow": count is 1.5; it must be a whole'),
    (put("kinds", 0, "link", to={"latency_s": 1}), "link: bytes_per_s is missing; add it"),
    (put("kinds", 0, "link", "bytes_per_s", to=0), "fast: bytes_per_s is 0; it must be above 0"),
]


@pytest.mark.parametrize(("damage", "message"), CLUSTER)
def test_broken_cluster_files(damage: Damage, message: str, tmp_path: Path) -> None:
    data = sample_files.document(sample_files.cluster())
    damage(data)
    check(tmp_path, json.dumps(data).encode(), message, load_cluster)


PLAN: list[tuple[Damage, str]] = [
    (put("solution", "devices", 0, "nodes", to=["in"]), "node 1180591620717411303424 is missing"),
    (put("solution", "devices", 0, "nodes", to=["in", 8]), "unknown node 8; plan again"),
    (put("solution", "devices", 0, "nodes", to=["in", "in"]), "node in is placed twice"),
    (put("solution", "devices", 0, "device", to=5), "device 5 is not one of the cluster's 0 to 4"),
    (put("solution", "devices", 0, "device", to=-1), "device -1 is not one of the cluster's"),
    (put("solution", "devices", 0, "name", to="x"), 'device 0 is called "x", in the cluster'),
    (put("solution", to={}), "solution: devices is missing; add it"),
    (put("workload", "fingerprint", to="abc"), 'the plan was made for "sämple" (fingerprint abc)'),
    (put("cluster", "kinds", 0, "count", to=3), "cluster: its kinds do not have its fingerprint"),
    (
        put("problem", "split", to="odd"),
        'problem: split is "odd"; it must be one of contiguous, per-device',
    ),
    (put("problem", "name", to="sorting"), 'problem: name is "sorting"; it must be one of'),
    (put("problem", "colour", to=1), 'problem: unknown key "colour"; remove it'),
    (
        put("problem", "placement_rules", "max_stage", to=1),
        'problem: placement_rules: unknown key "max_stage"; remove it',
    ),
    (drop("problem", "overlap"), "problem: overlap is missing; add it"),
    (put("gap", to=0.5), "gap is 0.5, but objective and bound give"),
    (put("objective", to=None), "objective is null; it must be a number"),
    (put("objective", to=float("inf")), "objective is Infinity; it must be a finite number"),
    (put("time_unit", to="s"), 'time_unit is "s", that of sämple is "ms"'),
]


@pytest.mark.parametrize(("damage", "message"), PLAN)
def test_tampered_plans_are_refused(damage: Damage, message: str, tmp_path: Path) -> None:
    data = sample_files.document(sample_files.plan())
    damage(data)
    made_for = sample_files.workload()
    check(tmp_path, json.dumps(data).encode(), message, lambda path: load_plan(path, made_for))


SPLIT: list[tuple[Damage, str]] = [
    (put("fpgas", 0, "nodes", to=[4, 0, 99]), "fpgas[0]: unknown node 99"),
    (put("fpgas", 1, "nodes", to=[4]), "fpgas[1]: node 4 is listed twice; remove one"),
    (put("fpgas", 1, "nodes", to=["4"]), "fpgas[1]: unknown node 4"),
    (put("fpgas", 0, "nodes", to=[4]), "node 0 is on no device, and no listed node has its colour"),
    (put("fpgas", 1, "nodes", to=[7]), "nodes 4 and 7 have colour 9 but are on accelerator 0 and"),
    (lambda d: d["cpus"].append({"nodes": [7]}), "cpus[1] holds nodes, but there are only 1"),
    (drop("fpgas"), "fpgas is missing; add it"),
    (put("fpgas", 0, "nodes", to=None), "fpgas[0]: nodes is null; it must be a list"),
    (lambda d: d.clear(), "it has neither fpgas nor cpus"),
]


def split() -> Json:
    """Return a split of `sample_files.placement()` that leaves a coloured backward node out."""
    return {
        "maxLoad": -1,
        "fpgas": [{"load": -1, "nodes": [4, 0]}, {"nodes": []}, {"nodes": []}],
        "cpus": [{"nodes": [2, 3]}],
    }


@pytest.mark.parametrize(("damage", "message"), SPLIT)
def test_broken_split_files(damage: Damage, message: str, tmp_path: Path) -> None:
    path = tmp_path / "small"
    path.write_text(json.dumps(sample_files.placement()))
    made_for, data = load(path), split()
    damage(data)
    check(tmp_path, json.dumps(data).encode(), message, lambda p: load_split(p, made_for))


GOOD = json.dumps(sample_files.placement()).encode()
BYTES: list[tuple[bytes, str]] = [
    (b"", "the file is empty"),
    (b" \n\t", "the file is empty"),
    (b"hello, world", "not JSON at line 1 column 1"),
    (GOOD[:-1], "its JSON ends too early"),
    (GOOD[: len(GOOD) // 2], "its JSON ends too early"),
    (GOOD + b"}", "not JSON at line 1"),
    (GOOD.replace(b",", b"", 1), "not JSON at line 1"),
    (GOOD.decode().encode("utf-16"), "its text is UTF-16 or UTF-32; save it as UTF-8"),
    (GOOD.decode().encode("utf-16-be"), "it is binary, or text in UTF-16"),
    (b"\x80\x81\x82", "byte 0 is not UTF-8 text; save it as UTF-8"),
    (b"\x1f\x8b\x08 some", "it is a gzip file, not text; unpack it"),
    (b"\x00\x01\x02\x03", "it is binary"),
    (b"[" * 100_000, "nested deeper than 50 levels"),
    (b"[" * 60 + b"]" * 60, "nested deeper than 50 levels"),
    (b"[1, 2]", "its content is of no known format"),
    (b"null", "its content is of no known format"),
    (b'"text"', "its content is of no known format"),
    (b"{}", "its content is of no known format"),
    (json.dumps(split()).encode(), "it is a split of a workload, not a workload"),
    (GOOD.replace(b'"id": 0', b'"id": 0, "id": 0'), 'node 0: key "id" occurs twice'),
    (GOOD.replace(b'"id": 0', b'"id": ' + b"9" * 5000), "more than 4300 digits"),
    (GOOD.replace(b'"a"', b'"\\ud800"'), "half of a UTF-16 surrogate pair"),
]


@pytest.mark.parametrize(("content", "message"), BYTES)
def test_what_is_no_file_of_ours(content: bytes, message: str, tmp_path: Path) -> None:
    check(tmp_path, content, message, load)


def test_paths_that_lead_nowhere(tmp_path: Path) -> None:
    for path, message in (
        (tmp_path / "missing.json", "no such file; check the path"),
        (tmp_path, "it is a folder; name a file in it"),
        (str(tmp_path / ("x" * 300)), "cannot be read"),
        ("a\0b/c", "cannot be read"),
    ):
        with pytest.raises(InputError) as caught:
            load(path)
        assert message in one_line(caught.value)


def check(
    folder: Path,
    content: bytes,
    message: str,
    read: Callable[[Path], Workload | Cluster | Plan | Placement],
) -> None:
    """Assert that reading `content` gives one line that begins with the file and says `message`."""
    path = folder / "broken.json"
    path.write_bytes(content)
    with pytest.raises(InputError) as caught:
        read(path)
    line = one_line(caught.value)
    assert line.startswith(f"{path}: ")
    assert line.count(str(path)) == 1
    assert message in line


def one_line(error: InputError) -> str:
    """Return the message, after a check that it is one printable line of bearable length."""
    line = str(error)
    assert line.isprintable()
    assert len(line.encode()) < 600
    return line


SMALL = read_placement(parse(GOOD, "small.json", "small"))
SAMPLES: dict[str, tuple[Json, Callable[[Path], object]]] = {
    "placement": (sample_files.placement(), load),
    "workload": (sample_files.document(sample_files.workload()), load),
    "cluster": (sample_files.document(sample_files.cluster()), load_cluster),
    "plan": (
        sample_files.document(sample_files.plan()),
        lambda path: load_plan(path, sample_files.workload()),
    ),
    "split": (split(), lambda path: load_split(path, SMALL)),
}


@pytest.mark.parametrize("name", SAMPLES)
def test_mutated_bytes_load_or_say_why_not(name: str, tmp_path: Path) -> None:
    data, read = SAMPLES[name]
    content = json.dumps(data, ensure_ascii=False).encode()
    for seed in range(150):
        survives(read, tmp_path, damaged_bytes(content, random.Random(f"bytes {name} {seed}")))


@pytest.mark.parametrize("name", SAMPLES)
def test_mutated_trees_load_or_say_why_not(name: str, tmp_path: Path) -> None:
    data, read = SAMPLES[name]
    for seed in range(250):
        rng = random.Random(f"tree {name} {seed}")
        damaged = copy.deepcopy(data)
        for _ in range(rng.randint(1, 3)):
            damage_tree(damaged, rng)
        survives(read, tmp_path, json.dumps(damaged).encode())


def survives(read: Callable[[Path], object], folder: Path, content: bytes) -> None:
    """Assert that `content` loads, or is refused in one line that names the file."""
    path = folder / "mutated"
    path.write_bytes(content)
    said = f"{path}: "
    try:
        read(path)
    except InputError as error:
        said = one_line(error)
    assert said.startswith(f"{path}: "), content
    assert said.count(str(path)) == 1, content
