"""Our own JSON: what is written comes back exactly, whole or not at all, as the schemas say."""

from __future__ import annotations

import errno
import json
import math
import os
import pickle
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
import sample_files
from cases import random_case

from stagecut import Cluster, InputError, Plan, Throughput, Workload, accelerators_and_cpus, load
from stagecut import verify as verify_plan
from stagecut.instances import Placement, price
from stagecut.instances.formats.files import dumps, load_cluster, load_plan, save
from stagecut.instances.formats.schemas import FOLDER, dumps_schema, schemas
from stagecut.instances.formats.writing import check_target, write_whole
from stagecut.runtime import evaluate


def same(a: Any, b: Any) -> bool:
    """Whether two values are equal, arrays item by item and bit by bit."""
    if isinstance(a, np.ndarray):
        return a.dtype == b.dtype and a.tobytes() == b.tobytes()
    if hasattr(a, "keys"):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    return bool(a == b)


@pytest.mark.parametrize("seed", range(40))
def test_workloads_come_back_exactly(seed: int, tmp_path: Path) -> None:
    workload = random_case(seed)[0] if seed else sample_files.workload()
    path = tmp_path / "w"
    save(workload, path)
    back = load(path)
    for field in fields(Workload):
        assert same(getattr(workload, field.name), getattr(back, field.name)), field.name
    assert back.fingerprint == workload.fingerprint
    assert dumps(back) == dumps(workload)


@pytest.mark.parametrize("seed", range(20))
def test_clusters_come_back_exactly(seed: int, tmp_path: Path) -> None:
    cluster = random_case(seed, max_kinds=3)[1] if seed else sample_files.cluster()
    save(cluster, tmp_path / "c")
    back = load_cluster(tmp_path / "c")
    assert back == cluster
    assert back.fingerprint == cluster.fingerprint


def test_plans_come_back_exactly(tmp_path: Path) -> None:
    plan, workload = sample_files.plan(), sample_files.workload()
    save(plan, tmp_path / "p", workload)
    back = load_plan(tmp_path / "p", workload, plan.cluster)
    for field in fields(Plan):
        if field.name != "solution":
            assert same(getattr(plan, field.name), getattr(back, field.name)), field.name
    assert same(plan.placement, back.placement)
    verify_plan(workload, back)


@pytest.mark.parametrize("seed", range(20))
def test_plans_of_random_workloads_come_back_and_verify(seed: int, tmp_path: Path) -> None:
    workload, cluster = random_case(seed, max_kinds=2)
    problem = Throughput(cpu_split="free")
    supported = np.isfinite(price(workload, cluster).compute[price(workload, cluster).kind_of])
    if not supported.any(axis=0).all():
        pytest.skip("a node that no device supports")
    draw = np.random.default_rng(seed).random(supported.shape) * supported
    device = draw.argmax(axis=0)
    report = evaluate(workload, cluster, problem, Placement(device))
    plan = Plan(
        workload.name, workload.fingerprint, cluster, problem, Placement(device),
        report.objective, -math.inf, "test", workload.time_unit,
    )  # fmt: skip
    save(plan, tmp_path / "p", workload)
    back = load_plan(tmp_path / "p", workload)
    assert same(plan.placement, back.placement)
    assert back.objective == plan.objective
    assert back.bound == -math.inf
    assert evaluate(workload, back.cluster, back.problem, back.solution) == report


def test_plans_are_refused_against_anything_else(tmp_path: Path) -> None:
    plan, workload = sample_files.plan(), sample_files.workload()
    save(plan, tmp_path / "p", workload)
    other = replace(workload, memory_bytes=workload.memory_bytes + 1)
    with pytest.raises(InputError, match=r"p: the plan was made for \"sämple\" \(fingerprint"):
        load_plan(tmp_path / "p", other)
    with pytest.raises(InputError, match="p: the plan was made for another cluster"):
        load_plan(tmp_path / "p", workload, accelerators_and_cpus(2, 1))
    with pytest.raises(InputError, match="plan again"):
        save(plan, tmp_path / "q", other)
    with pytest.raises(InputError, match="give the workload"):
        save(plan, tmp_path / "q")
    save(workload, tmp_path / "w")
    with pytest.raises(InputError, match='a file with format "stagecut-plan" is needed here'):
        load_plan(tmp_path / "w", workload)
    renamed = replace(workload, name="another name", names=("a", "b", "c", "d"))
    assert load_plan(tmp_path / "p", renamed).objective == plan.objective


def test_files_are_strict_json_for_people() -> None:
    for value in (sample_files.workload(), sample_files.cluster(), sample_files.plan()):
        text = dumps(value, sample_files.workload())
        json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
        assert text.endswith("}\n")
    lines = dumps(sample_files.workload()).splitlines()
    assert sum(line.startswith('    {"id": ') for line in lines) == 4


@pytest.mark.parametrize("value", [sample_files.workload, sample_files.cluster, sample_files.plan])
def test_files_follow_their_published_schema(value: Any) -> None:
    data = sample_files.document(value())
    kind = data["format"].removeprefix("stagecut-")
    schema = json.loads((FOLDER / f"{kind}.schema.json").read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(schema)
    validator.validate(data)
    assert not validator.is_valid({**data, "version": data["version"] + 1})
    assert not validator.is_valid({**data, "unknown": 1})


def test_plans_follow_the_schema_of_their_problem() -> None:
    schema = json.loads((FOLDER / "plan.schema.json").read_text())
    validator = jsonschema.Draft202012Validator(schema)
    data = sample_files.document(sample_files.plan())
    assert not validator.is_valid({**data, "solution": {}})
    assert not validator.is_valid({**data, "problem": {**data["problem"], "split": "odd"}})


@pytest.mark.parametrize("name", schemas())
def test_the_published_schemas_are_up_to_date(name: str) -> None:
    wanted = dumps_schema(schemas()[name])
    assert (FOLDER / name).read_text() == wanted, "run python -m stagecut.instances.formats.schemas"


def test_values_survive_pickling() -> None:
    workload = sample_files.workload()
    back = pickle.loads(pickle.dumps(workload))
    assert all(same(getattr(workload, f.name), getattr(back, f.name)) for f in fields(Workload))
    plan = sample_files.plan()
    assert pickle.loads(pickle.dumps(plan)).objective == plan.objective


class TestWholeOrNotAtAll:
    """`write_whole`: readers see the old file or the new one, nothing between."""

    def test_it_replaces_and_leaves_nothing_behind(self, tmp_path: Path) -> None:
        path = tmp_path / "a"
        write_whole(path, "old")
        path.chmod(0o640)
        write_whole(path, b"new")
        assert path.read_bytes() == b"new"
        assert path.stat().st_mode & 0o777 == 0o640
        assert os.listdir(tmp_path) == ["a"]

    @pytest.mark.parametrize("step", ["fsync", "replace"])
    def test_a_full_disk_changes_nothing(
        self, step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path = tmp_path / "a"
        write_whole(path, "old")

        def full(*_: object) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(os, step, full)
        with pytest.raises(InputError, match="a: not written: the disk is full; free some space"):
            write_whole(path, "new")
        assert path.read_text() == "old"
        assert os.listdir(tmp_path) == ["a"]

    def test_ctrl_c_changes_nothing(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def stop(*_: object) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr(os, "fsync", stop)
        with pytest.raises(KeyboardInterrupt):
            write_whole(tmp_path / "a", "new")
        assert os.listdir(tmp_path) == []

    def test_what_cannot_be_written_says_why(self, tmp_path: Path) -> None:
        for path, message in (
            (tmp_path / "no" / "a", "the folder does not exist; make it first"),
            (tmp_path, "it is a folder; name a file in it"),
            (tmp_path / ("x" * 300), "the name is too long"),
        ):
            with pytest.raises(InputError, match=message):
                write_whole(path, "x")
        (tmp_path / "file").write_text("x")
        with pytest.raises(InputError, match="not a folder"):
            write_whole(tmp_path / "file" / "a", "x")
        assert os.listdir(tmp_path) == ["file"]

    @pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
    def test_no_permission(self, tmp_path: Path) -> None:
        tmp_path.chmod(0o500)
        for write in (check_target, lambda path: write_whole(path, "x")):  # before the work, too
            with pytest.raises(InputError, match="no permission to write there"):
                write(tmp_path / "a")

    def test_links_are_followed_and_devices_written_straight(self, tmp_path: Path) -> None:
        (tmp_path / "link").symlink_to(tmp_path / "target")
        for path in (tmp_path / "link", Path("/dev/null")):
            check_target(path)
        write_whole(tmp_path / "link", "x")
        assert (tmp_path / "link").is_symlink()
        assert (tmp_path / "target").read_text() == "x"
        write_whole("/dev/null", "x")
        assert not Path("/dev/null").is_file()


def test_fingerprints_stand_for_what_plans_depend_on() -> None:
    base = sample_files.workload()
    twin = replace(base, name="other", extra={}, provenance={}, cluster=None)
    assert twin.fingerprint == base.fingerprint
    recoloured = replace(base, colours=np.array([0, -1, -1, 0]), colour_labels=("x",))
    assert recoloured.fingerprint == base.fingerprint
    assert base.transfer is not None
    for change in (
        {"transfer": base.transfer + 1e-15},
        {"edges": base.edges[1:]},
        {"ids": ("in", 7, "ä→b", 1)},
        {"colours": np.array([2, 2, -1, 2])},
        {"backward": np.zeros(4, bool)},
        {"time_unit": "s"},
    ):
        assert replace(base, **change).fingerprint != base.fingerprint
    alike = Cluster(
        tuple(
            replace(k, memory_bytes=np.float64(k.memory_bytes))
            for k in sample_files.cluster().kinds
        )
    )
    assert alike.fingerprint == sample_files.cluster().fingerprint
