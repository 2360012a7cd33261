"""Damage to files of every format, and what reading them may come to."""

from __future__ import annotations

import copy
import json
import random
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from shutil import copyfile
from tempfile import TemporaryDirectory
from typing import Any, Literal

import numpy as np
from conformance import task
from sample_files import cluster, placement, plan, workload
from tied_chain import chain

import stagecut
from stagecut import tied_as
from stagecut.api.case_record import line, read_record
from stagecut.api.cases import Case
from stagecut.api.records import Record, read_records, write_records
from stagecut.instances import (
    DeviceMapping,
    Iteration,
    Latency,
    Plan,
    Sharding,
    Training,
    Workload,
    topology,
)
from stagecut.instances.common.errors import StagecutError
from stagecut.instances.formats.files import dumps, load, load_cluster, load_plan, load_split
from stagecut.instances.formats.outline import read_outline
from stagecut.instances.formats.source import read_source
from stagecut.instances.formats.writing import layout
from stagecut.instances.topologies.nvidia import read_nvidia
from stagecut.instances.topologies.topology_json import load_topology, write_topology
from stagecut.runtime.execution.recording_file import load_recording, write_recording
from stagecut.runtime.schedules import read_csv, write_csv

#: What became of a damaged file: an error of one line, or a value that is saved and read again
#: as the same.
Outcome = Literal["refused", "harmless"]
ODD: list[Any] = [
    None, True, False, 0, 1, -1, 2.5, -0.0, 1e-320, 1e308, 10**30, 10**400, float("nan"),
    float("inf"), float("-inf"), "", "x", "\n", "inf", "nan", [], [[]], {}, {"id": 4}, [1, 2],
    "é" * 500, 2**31, 2**63, -(2**63), "\u2028", "0", [None] * 3, {"a": {"b": {}}},
]  # fmt: skip


@dataclass(frozen=True)
class Sample:
    """A good file.

    Parameters
    ----------
    text
        Its content.
    read
        Reads a path and returns what it says, as the text of a file of ours if there is one.
    reread
        Reads that file; None if there is none.
    """

    text: str
    read: Callable[[Path], str]
    reread: Callable[[Path], str] | None = None


def samples(folder: Path) -> dict[str, Sample]:
    """Return a good file of each format; what they need besides lies in `folder`."""

    def written(text: str, read: Callable[[Path], str]) -> Sample:
        return Sample(text, read, read)

    def plan_sample(made: Plan, of: Workload) -> Sample:
        return written(dumps(made, of), lambda path: dumps(load_plan(path, of), of))

    def workload_of(path: Path) -> str:
        # named after the file, where the format has no name
        return dumps(replace(load(path), name="w"))

    def topology_of(path: Path) -> str:
        return layout(write_topology(replace(load_topology(path), name="t")))

    own = workload()
    (folder / "small.json").write_text(json.dumps(placement()))
    small = load(folder / "small.json")
    layered = _layered()
    sharded = task("sharding", [1.0, 2.0])
    made = {
        "program": written(dumps(sharded.workload), lambda path: dumps(load(path))),
        "workload": written(dumps(own), lambda path: dumps(load(path))),
        "tied workload": written(dumps(chain()), lambda path: dumps(load(path))),
        "tied workload, other form": Sample(
            dumps(chain()), lambda path: dumps(tied_as(load(path), "colour"))
        ),
        "layers": written(dumps(layered), lambda path: dumps(load(path))),
        "cluster": written(dumps(_linked()), lambda path: dumps(load_cluster(path))),
        "placement": written(json.dumps(placement()), workload_of),
        "piper": written(json.dumps(_piper()), workload_of),
        "pipedream": written(_pipedream(), workload_of),
        "split": Sample(
            json.dumps(_split()), lambda path: str(load_split(path, small).device.tolist())
        ),
        "plan": plan_sample(plan(), own),
        "outline": Sample(dumps(plan(), own), lambda path: repr(read_outline(path))),
        "topology": written(layout(write_topology(topology("fattree:2"))), topology_of),
        "nvidia": Sample(
            _NVIDIA,
            lambda path: layout(write_topology(replace(read_nvidia(path), name="t"))),
            topology_of,
        ),
        "recording": written(
            json.dumps(_recording()), lambda path: layout(write_recording(load_recording(path)))
        ),
        "schedule": written(
            "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n",
            lambda path: write_csv(read_csv(read_source(path).text, name=str(path))),
        ),
        "compare record": _record(),
        "records": _records(),
    }
    for problem, of in (
        (Latency(calls=2), own),
        (Iteration(3), own),
        (Training(microbatches=4, bandwidth=1e3), layered),
        (DeviceMapping(topology("mesh2d:2x2"), 2, 2), weighted()),
        (sharded.problem, sharded.workload),
    ):
        where = None if isinstance(problem, DeviceMapping | Sharding) else of.cluster
        result = stagecut.solve(of, where, problem)
        assert result.plan is not None
        made[f"{problem.name} plan"] = plan_sample(result.plan, of)
    return made


def damaged(text: str, rng: random.Random) -> bytes:
    """Return a file's content, damaged: its bytes, its end, or values in its JSON."""
    try:
        data = json.loads(text)
    except ValueError:
        data = None
    way = rng.randrange(10)
    if way == 0:
        return text.encode()[: rng.randrange(len(text))]
    if way < 4 or data is None:
        return damaged_bytes(text.encode(), rng)
    for _ in range(rng.randint(1, 3)):
        damage_tree(data, rng)
    if way == 4:
        return (b"[" * rng.randint(1, 100_000))[: rng.choice([60, 2000, 100_000])] + text.encode()
    if way == 5:  # a key twice
        key = rng.choice(list(data)) if isinstance(data, dict) and data else "a"
        return (f'{{"{key}": {json.dumps(rng.choice(ODD))},' + json.dumps(data)[1:]).encode()
    return json.dumps(data, ensure_ascii=rng.random() < 0.5).encode(errors="replace")


def outcome(sample: Sample, content: bytes, folder: Path) -> Outcome:
    """Return what becomes of a damaged file.

    Raises
    ------
    AssertionError
        If its error is not one printable line of bearable length, or what it says changes when it
        is saved and read again.
    Exception
        Whatever else happens, warnings included: a defect.
    """
    path = folder / "damaged"
    path.write_bytes(content)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            said = sample.read(path)
        except StagecutError as error:
            line = str(error)
            assert line.isprintable(), line
            assert len(line) < 600, line
            assert str(path) in line, line
            return "refused"
    again = folder / "again"
    if sample.reread is not None:
        again.write_text(said)
        assert sample.reread(again) == said, said
    return "harmless"


def damaged_bytes(content: bytes, rng: random.Random) -> bytes:
    """Return the bytes with one to four changes."""
    changed = bytearray(content)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(changed)) if changed else 0
        match rng.randrange(5):
            case 0:
                changed[at : at + 1] = bytes([rng.randrange(256)])
            case 1:
                del changed[at : at + rng.randint(1, 30)]
            case 2:
                changed[at:at] = rng.choice([b"0", b"-", b"}", b"]", b'"', b",", b"\\", b"e9"])
            case 3:
                other = rng.randrange(len(changed)) if changed else 0
                changed[at:at] = changed[other : other + rng.randint(1, 60)]
            case _:
                changed[at : at + 1] = rng.choice([b"9", b"1e", b"\xff", b" ", b"\n", b"null"])
    return bytes(changed)


def damage_tree(data: Any, rng: random.Random) -> None:
    """Delete, repeat or replace one value somewhere in JSON data."""
    places = [(box, key) for box in boxes(data) for key in keys(box)]
    if not places:
        return
    box, key = rng.choice(places)
    match rng.randrange(4):
        case 0:
            del box[key]
        case 1 if isinstance(box, list):
            box.append(copy.deepcopy(box[key]))
        case 2:
            other, at = rng.choice(places)
            box[key] = copy.deepcopy(other[at])
        case _:
            box[key] = copy.deepcopy(rng.choice(ODD))


def boxes(data: Any) -> list[Any]:
    """Return every list and object in `data`, itself included."""
    found = [data] if isinstance(data, dict | list) else []
    inner = data.values() if isinstance(data, dict) else data if found else []
    return found + [box for item in inner for box in boxes(item)]


def keys(box: Any) -> list[Any]:
    """Return what items of a list or object are called by."""
    return list(box) if isinstance(box, dict) else list(range(len(box)))


def _record() -> Sample:
    """Return compare's record: what is left of it must be what was written."""
    rows = {}
    for k in range(4):
        case = Case(f"w{k}", f"w{k}.json", "f" * 8, "dp", ("--gap", "0.01"), 20.0)
        rows[case.key] = {
            "workload": case.name, "method": "dp", "status": "optimal", "limit": "none",
            "objective": 1.5 + k, "bound": 1.0 + k, "gap": 0.1, "seconds": 0.25, "verified": True,
            "trace": [[0.1, 2.0, None]], "found_by": "dp",
        }  # fmt: skip

    def read(path: Path) -> str:
        found, _ = read_record(path)
        assert all(rows.get(key) == row for key, row in found.items()), found
        return f"rows: {len(found)}"

    return Sample("".join(map(line, rows.items())), read)


def _records() -> Sample:
    row = (Record("a/w.json", f"K = {k}", 2.5, 2.0, "dp", False, "p.json", "p.json") for k in "48")

    def read(path: Path) -> str:
        with TemporaryDirectory(dir=path.parent) as folder:
            copyfile(path, Path(folder, "records.csv"))
            try:
                write_records(folder, read_records(folder))
            except StagecutError as error:
                raise StagecutError(str(error).replace(folder, str(path))) from None
            return Path(folder, "records.csv").read_text()

    with TemporaryDirectory() as folder:
        write_records(folder, list(row))
        return Sample(Path(folder, "records.csv").read_text(), read, read)


def _linked() -> stagecut.Cluster:
    from stagecut import PairLink

    both = cluster()
    link = stagecut.Link(1e-6, 3e11)
    return stagecut.Cluster(both.kinds, (PairLink(("fast", "fast"), link),))


def _layered() -> Workload:
    from training_cases import random_training_case

    for seed in range(100):
        made, where, _ = random_training_case(seed, max_nodes=4)
        if made.n >= 3 and len(made.edges) >= 2:
            return Workload(**{**vars_of(made), "cluster": where})
    raise AssertionError


def vars_of(value: Workload) -> dict[str, Any]:
    """Return the fields of a workload."""
    return {name: getattr(value, name) for name in value.__dataclass_fields__}


def weighted() -> Workload:
    """Return a workload that mappings can be found for."""
    return Workload(
        name="weighted",
        ids=(0, 1, 2),
        edges=np.array([(0, 1), (1, 2)]),
        times={"accelerator": np.array([1.0, 2.0, 3.0])},
        memory_bytes=np.ones(3),
        transfer=None,
        output_bytes=np.full(3, 1e6),
        extra={"weight_bytes": np.full(3, 1e6)},
        time_unit="ms",
    )


def _piper() -> dict[str, Any]:
    from training_files_cases import piper

    return piper()


def _split() -> dict[str, Any]:
    return {"fpgas": [{"nodes": [4, 0]}, {"nodes": []}], "cpus": [{"nodes": [2, 3]}]}


def _pipedream() -> str:
    rows = ((0.0, 0.0, "0.0", 0.0), (3.5, 7.0, "[1.0; 2.0]", 7168.0), (0.5, 1.0, "8.5e8", 0.0))
    lines = [
        f"node{k} -- Layer({k}, 64) -- forward_compute_time={forward}, backward_compute_time="
        f"{backward}, activation_size={size}, parameter_size={weights} -- stage_id={k // 2}"
        for k, (forward, backward, size, weights) in enumerate(rows)
    ]
    return "\n".join([*lines, "\tnode0 -- node1", "\tnode1 -- node2"]) + "\n"


_NVIDIA = """\
        GPU0    GPU1    GPU2    mlx5_0  CPU Affinity
GPU0     X      NV4     SYS     PIX     0-31
GPU1    NV4      X      PHB     PXB     0-31
GPU2    SYS     PHB      X      NODE    0-31
"""


def _recording() -> dict[str, Any]:
    return {
        "format": "stagecut-recording", "version": 1, "workload_fingerprint": "ab",
        "placement": [0, 1], "schedule": "1f1b", "microbatches": 2,
        "ranks": [
            {
                "rank": r, "host": "h", "device": "cpu",
                "actions": [
                    {"step": 0, "action": f"{r}{what}{m}", "start_s": t, "end_s": t + 0.5}
                    for t, (what, m) in enumerate((w, m) for w in "FB" for m in range(2))
                ],
            }
            for r in range(2)
        ],
    }  # fmt: skip
