"""Sizes beyond the limits, outputs that are inputs, options that nobody reads: refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import sample_files
from typer.testing import CliRunner

import stagecut
from stagecut import Cluster, DeviceKind, InputError, Limits, Link, Workload
from stagecut.cli import app, run_command
from stagecut.commands.common.console import check_outputs, file_of
from stagecut.commands.common.pose import Statement, limits_of
from stagecut.instances import Latency, Layers, PipelineJob, topology
from stagecut.instances.formats.files import save
from stagecut.instances.topologies import save_topology
from stagecut.runtime.schedules import make_schedule
from stagecut.runtime.simulate.stages import chain
from stagecut.solvers import DEFAULT_LIMITS, METHODS


def small() -> Workload:
    """Return two nodes with a cluster."""
    return Workload(
        name="small",
        ids=(0, 1),
        edges=np.array([(0, 1)]),
        times={"accelerator": np.array([1.0, 2.0])},
        memory_bytes=np.ones(2),
        transfer=np.zeros(2),
        cluster=Cluster((DeviceKind("accelerator", 2),)),
    )


@pytest.mark.parametrize(
    "text",
    [
        "mesh2d:99999x99999", "ring:999999999", "mesh3d:99999x99999x99999", "fattree:99998",
        "dragonfly:9999x9999x9999", "dragonfly:8000x1x1", "dragonfly:1x8000x1", "islands:99999x9",
        "random_blk_1:999999", "random_blk_2:999999", "uniform_dist:999999", "uniform_dist:8192",
        "torus2d:65536x65536", "torus3d:4294967296x4294967296x1",
    ],
)  # fmt: skip
def test_topologies_beyond_the_limits_are_refused_at_once(text: str) -> None:
    with pytest.raises(InputError, match=r"at most|not a whole number"):
        topology(text)


def test_schedules_beyond_the_limit_are_refused_at_once() -> None:
    stages = chain([1.0, 1.0], [1.0, 1.0], device=[0, 1])
    for microbatches in (10**7, 10**21):
        with pytest.raises(InputError, match="more than 20000000 actions; take fewer"):
            make_schedule("1f1b", stages, microbatches)


@pytest.mark.parametrize("huge", [1e101, 1e308])
def test_numbers_that_would_overflow_are_refused_by_field(huge: float) -> None:
    good = small()
    for change, said in (
        ({"times": {"accelerator": np.array([1.0, huge])}}, "node 1: time on accelerator is"),
        ({"memory_bytes": np.array([huge, 1.0])}, "node 0: memory_bytes is"),
        ({"transfer": np.array([huge, 1.0])}, "node 0: transfer is"),
        ({"output_bytes": np.array([huge, 1.0])}, "node 0: output_bytes is"),
        ({"extra": {"flops": np.array([huge, 1.0])}}, 'node 0: extra "flops" is'),
    ):
        with pytest.raises(InputError, match=said):
            replace(good, **change)  # type: ignore[arg-type]
    for make, said in (
        (lambda: DeviceKind("a", 1, huge), "memory_bytes"),
        (lambda: DeviceKind("a", 1, slowdown=huge), "slowdown"),
        (lambda: DeviceKind("a", 1, slowdown=1 / huge), "slowdown"),
        (lambda: Link(huge, 1.0), "latency_s"),
        (lambda: Link(0.0, huge), "bytes_per_s"),
        (lambda: Link(0.0, 1 / huge), "bytes_per_s"),
        (lambda: PipelineJob(bandwidth=huge), "bandwidth"),
        (lambda: PipelineJob(microbatches=10**10), "microbatches"),
        (lambda: Latency(calls=10**4), "calls"),
        (lambda: _layers(time=huge), "time"),
        (lambda: _layers(bandwidth=huge), "bandwidth"),
        (lambda: _layers(microbatches=10**10), "microbatches"),
    ):
        with pytest.raises(InputError, match=said):
            make()
    top = replace(good, times={"accelerator": np.full(2, 1e100)}, transfer=np.full(2, 1e100))
    plan = stagecut.solve(top, method="greedy").plan  # warnings are errors here
    assert plan is not None
    assert np.isfinite(plan.objective)


def _layers(
    time: float = 1.0, bandwidth: float | None = None, microbatches: int | None = None
) -> Layers:
    one = np.ones(1)
    return Layers(
        node=np.zeros(1, np.int64), degree=np.ones(1, np.int64), label=("vanilla",),
        recomputes=np.zeros(1, np.bool_), time=one * time, weight_bytes=one,
        bytes_per_microbatch=one, fixed_bytes=one, edge_bytes=np.zeros(0), sync_bytes=({},),
        microbatches=microbatches, bandwidth=bandwidth,
    )  # fmt: skip


def test_no_output_is_an_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    made, plan = sample_files.workload(), sample_files.plan()
    save(made, "w.json")
    save(plan, "p.json", made)
    save(plan.cluster, "c.json")
    save_topology(topology("ring:2"), "t.json")
    (tmp_path / "link.json").symlink_to("w.json")
    (tmp_path / "m.py").write_text("")
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    for arguments in (
        ["solve", "w.json", "-o", "w.json"],
        ["solve", "w.json", "-o", f"../{tmp_path.name}/w.json"],
        ["solve", "w.json", "-o", "link.json"],
        ["solve", "w.json", "--cluster", "c.json", "-o", "c.json"],
        ["solve", "w.json", "--start", "p.json", "-o", "p.json"],
        ["simulate", "w.json", "p.json", "--trace", "p.json"],
        ["simulate", "w.json", "p.json", "--csv", "w.json"],
        ["report", "w.json", "p.json", "r.json", "--calibrate", "w.json"],
        [
            "solve",
            "w.json",
            "--problem",
            "mapping",
            "--cluster",
            "t.json",
            "--set",
            "stages=1",
            "-o",
            "t.json",
        ],
        ["compare", "w.json", "-o", "w.json"],
        ["export", "p.json", "--to", "csv", "--workload", "w.json", "-o", "p.json"],
        ["export", "p.json", "--to", "python", "--model", "m.py:make", "-o", "m.py"],
        ["export-model", "w.json", "-o", "w.json"],
        ["instances", "convert", "w.json", "w.json"],
        ["profile", "m.py:make", "-o", "m.py"],
    ):
        with pytest.raises(InputError, match="it is an input, and would be lost"):
            CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    with pytest.raises(InputError, match="two outputs go there"):
        check_outputs(Path("x.json"), Path("y.json"), Path(f"../{tmp_path.name}/x.json"))
    check_outputs(Path("/dev/null"), Path("/dev/null"), None, inputs=["/dev/null", "gpt2-xl", None])


def test_files_in_references() -> None:
    for reference, file in (
        ("my/model.py:make", "my/model.py"), ("model.py", "model.py"), ("ring:8", "ring"),
        ("nvidia:topo.txt", "topo.txt"), ("nvidia:topo.txt@routing=hops", "topo.txt"),
        ("net.json@exclude=1", "net.json"),
    ):  # fmt: skip
        assert file_of(reference) == file


def test_options_that_a_method_does_not_read_are_refused() -> None:
    workload = small()
    for method, known in METHODS["throughput"].items():
        if not known.reads:
            with pytest.raises(InputError, match=f"{method} takes nothing behind a colon"):
                stagecut.solve(workload, method=f"{method}:highs")
    for method in ("dp", "greedy"):
        with pytest.raises(InputError, match="takes nothing behind a colon"):
            stagecut.solve(workload, problem=Latency(), method=f"{method}:glpk")
    with pytest.raises(InputError, match="Pyomo knows no 'nonsense'"):
        stagecut.solve(workload, method="auto:nonsense")
    with pytest.raises(InputError, match="is given solver twice"):
        stagecut.solve(workload, method="milp:solver=highs:solver=glpk")
    for method in ("milp:highs", "milp:solver=highs"):
        assert stagecut.solve(workload, method=method).status == "optimal"


def test_an_option_of_the_training_program_has_known_values() -> None:
    from training_cases import random_training_case

    workload, cluster, problem = random_training_case(3)
    with pytest.raises(InputError, match='start: "some" is not one of none'):
        stagecut.solve(workload, cluster, problem, method="milp:start=some")


def test_wrong_usage_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, said in (
        (["solve"], "Missing"),
        (["solve", "w", "--no-such-option"], "No such option"),
        (["solve", "w", "--microbatches", "x"], "Invalid value"),
        (["nothing"], "No such command 'nothing'; see stagecut --help"),
        (["verify", "w", "p", "q"], "(q); see stagecut verify --help"),
    ):
        assert run_command(arguments) == 2
        lines = capsys.readouterr().err.splitlines()
        assert len(lines) == 1
        assert lines[0].startswith("error: ")
        assert said in lines[0]
    assert run_command(["--help"]) == 0


def test_the_command_line_has_the_limits_of_python(default_limits: dict[str, Limits]) -> None:
    """A gap that is given is exact; what a file says of limits is kept."""
    for problem in default_limits:
        assert limits_of(Statement(problem, {}, {})) == DEFAULT_LIMITS[problem]
        assert limits_of(Statement(problem, {}, {}), 5.0, 0.003) == Limits(5.0, 0.003)
        told = Statement(problem, {}, {"limits": {"seconds": 5, "gap": 0.1, "seed": 7}}, "p.toml")
        assert limits_of(told, 5.0) == Limits(5.0, 0.1, seed=7)
        with pytest.raises(InputError, match=r"--gap: 0\.2 contradicts 0\.1 of p\.toml"):
            limits_of(told, gap=0.2)
        wrong = Statement(problem, {}, {"limits": {"seconds": "x"}}, "p.toml")
        with pytest.raises(InputError, match=r'p\.toml: seconds is "x"; it must be a number'):
            limits_of(wrong)
