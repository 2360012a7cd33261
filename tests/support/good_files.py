"""A good file of every format."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from shutil import copyfile
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from conformance import task
from damage import Sample
from sample_files import cluster, placement, plan, workload
from tied_chain import chain

import stagecut
from stagecut import Throughput
from stagecut.api.cases import read_record, record_lines
from stagecut.api.records import InstanceRecord, read_records, write_records
from stagecut.instances import (
    DeviceMapping,
    Latency,
    PipelineJob,
    Plan,
    Sharding,
    Workload,
    tied_as,
    topology,
)
from stagecut.instances.common.errors import StagecutError
from stagecut.instances.formats.files import (
    dumps,
    load,
    load_cluster,
    load_fixed,
    load_plan,
    load_rules,
    load_split,
)
from stagecut.instances.formats.outline import read_outline
from stagecut.instances.formats.source import read_source
from stagecut.instances.formats.writing import json_text
from stagecut.instances.model.schedule import given_order
from stagecut.instances.topologies import load_topology, read_nvidia, write_topology
from stagecut.runtime.execution.recording_file import (
    load_recording,
    load_sharded_recording,
    save_recording,
)
from stagecut.runtime.schedules import read_csv, write_csv


def samples(folder: Path) -> dict[str, Sample]:
    """Return a good file of each format; what they need besides lies in `folder`."""

    def written(text: str, read: Callable[[Path], str]) -> Sample:
        return Sample(text.encode(), read, read)

    def once(text: str, read: Callable[[Path], str]) -> Sample:
        return Sample(text.encode(), read)

    def plan_sample(made: Plan, of: Workload) -> Sample:
        return written(dumps(made, of), lambda path: dumps(load_plan(path, of), of))

    def workload_of(path: Path) -> str:
        # named after the file, where the format has no name
        return dumps(replace(load(path), name="w"))

    def topology_of(path: Path) -> str:
        return json_text(write_topology(replace(load_topology(path), name="t")))

    own = workload()
    (folder / "small.json").write_text(json.dumps(placement()))
    small = load(folder / "small.json")
    layered = _layered()
    (folder / "piper.json").write_text(json.dumps(_piper()))
    sharded_layers = _with_shardings(load(folder / "piper.json"))
    sharded = task("sharding", [1.0, 2.0])
    made = {
        "program": written(dumps(sharded.workload), lambda path: dumps(load(path))),
        "workload": written(dumps(own), lambda path: dumps(load(path))),
        "tied workload": written(dumps(chain()), lambda path: dumps(load(path))),
        "tied workload, other form": once(dumps(chain()), lambda path: dumps(_other_form(path))),
        "layers": written(dumps(layered), lambda path: dumps(load(path))),
        "sharded layers": written(dumps(sharded_layers), lambda path: dumps(load(path))),
        "cluster": written(dumps(_linked()), lambda path: dumps(load_cluster(path))),
        "placement": written(json.dumps(placement()), workload_of),
        "piper": written(json.dumps(_piper()), workload_of),
        "pipedream": written(_pipedream(), workload_of),
        "split": once(
            json.dumps(_split()), lambda path: str(load_split(path, small).device.tolist())
        ),
        "plan": plan_sample(plan(), own),
        "outline": once(dumps(plan(), own), lambda path: repr(read_outline(path))),
        "fixed nodes": once(
            dumps(plan(), own), lambda path: repr(load_fixed(path, Throughput(), cluster()))
        ),
        "placement rules": once(_ruled(), lambda path: repr(load_rules(path))),
        "topology": written(json_text(write_topology(topology("fattree:2"))), topology_of),
        "nvidia": Sample(
            _NVIDIA.encode(),
            lambda path: json_text(write_topology(replace(read_nvidia(path), name="t"))),
            topology_of,
        ),
        "recording": _recording_sample(json.dumps(_recording()), load_recording, save_recording),
        "schedule": written(
            "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n",
            lambda path: write_csv(read_csv(read_source(path).text, name=str(path))),
        ),
        "given schedule": once(
            "0F0,0F1,,0B0,0B1\n,1F0,1F1,1B0,1B1\n",
            lambda path: repr(given_order(read_source(path).text.splitlines(), str(path)).texts),
        ),
        "sharded recording": _sharded_recording(),
        "compare record": _record(),
        "records": _records(),
    }
    for problem, of in (
        (Latency(calls=2), own),
        (PipelineJob(3), own),
        (PipelineJob(2, "given", actions=("0F0,0F1,0B0,0B1", "1F0,1F1,1B0,1B1")), own),
        (PipelineJob(microbatches=4, bandwidth=1e3), layered),
        (PipelineJob(degrees=(2,)), sharded_layers),
        (DeviceMapping(topology("mesh2d:2x2"), 2, 2), weighted()),
        (sharded.problem, sharded.workload),
    ):
        where = None if isinstance(problem, DeviceMapping | Sharding) else of.cluster
        result = stagecut.solve(of, where, problem)
        assert result.plan is not None
        word = "other " if f"{problem.name} plan" in made else ""
        made[f"{word}{problem.name} plan"] = plan_sample(result.plan, of)
    return made


def _with_shardings(of: Workload) -> Workload:
    assert of.layers is not None
    shards = ("b->b" if degree > 1 else "" for degree in of.layers.degree)
    return replace(of, layers=replace(of.layers, sharding=tuple(shards)))


def _other_form(path: Path) -> Workload:
    loaded = load(path)
    try:
        return tied_as(loaded, "colour")
    except StagecutError as error:
        raise StagecutError(f"{path}: {error}") from None


def _ruled() -> str:
    rules = {
        "pins": [["embed*", 0]], "together": [["a*", "b"]], "apart": [["c", "d*"]],
    }  # fmt: skip
    return json.dumps({**json.loads(dumps(cluster())), "placement_rules": rules})


def _recording_sample(text: str, load: Any, save: Any) -> Sample:
    def rewritten(path: Path) -> str:
        with TemporaryDirectory() as folder:
            save(load(path), Path(folder, "r"))
            return Path(folder, "r").read_text()

    return Sample(text.encode(), rewritten, rewritten)


def _sharded_recording() -> Sample:
    rows = [[0, "matmul", "forward", False, -1, 0.0, 0.5, 0.0]]
    rows += [[0, "y", "all-reduce", True, 0, 0.5, 0.75, 1024.0]]
    data = {
        "format": "stagecut-sharded-recording", "version": 1, "workload_fingerprint": "ab",
        "plan": "cd", "mesh": [2], "step_s": [0.75],
        "ranks": [{"rank": r, "host": "h", "events": rows} for r in range(2)],
    }  # fmt: skip
    return _recording_sample(json.dumps(data), load_sharded_recording, save_recording)


def _record() -> Sample:
    """Return compare's record: what is left of it must be what was written."""
    rows = {}
    for k in range(4):
        rows[f"case {k}"] = {
            "workload": f"w{k}", "problem": "p", "method": "dp", "status": "optimal",
            "limit": "none",
            "objective": 1.5 + k, "bound": 1.0 + k, "gap": 0.1, "seconds": 0.25, "verified": True,
            "trace": [[0.1, 2.0, None]], "found_by": "dp",
        }  # fmt: skip

    def read(path: Path) -> str:
        found, _ = read_record(path)
        assert all(rows.get(key) == row for key, row in found.items()), found
        return f"rows: {len(found)}"

    return Sample(record_lines(rows), read)


def _records() -> Sample:
    row = (
        InstanceRecord("a/w.json", f"K = {k}", 2.5, 2.0, "dp", False, "p.json", "p.json")
        for k in "48"
    )

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
        return Sample(Path(folder, "records.csv").read_bytes(), read, read)


def _linked() -> stagecut.Cluster:
    from stagecut.instances import PairLink

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
