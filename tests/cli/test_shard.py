"""`stagecut shard`, and what other commands do with its plans."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from cli_cases import compare_here
from conformance import task
from trainer_config import trainer_config

import stagecut
from stagecut import DeviceMesh, Link, Sharding, compare, save, tensor_program
from stagecut.cli import run_command
from stagecut.instances import Operator, Signature, Tensor, TensorProgram, program_workload
from stagecut.instances.costs.calibration import calibration
from stagecut.instances.costs.clusters import training_cluster
from stagecut.instances.costs.collectives import Group, all_gather, mesh_links
from stagecut.instances.costs.layout import Software

GOOD = ("--problem", "sharding", "--mesh", "2@1us:1GB/s")


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A file of a small tensor program."""
    path = tmp_path_factory.mktemp("shard") / "program.json"
    save(task("sharding").workload, path)
    return str(path)


def said(capsys: pytest.CaptureFixture[str], code: int, *arguments: str) -> str:
    """Run a command, and return what it prints: on standard error if it fails."""
    assert run_command(arguments) == code
    out = capsys.readouterr()
    if code:
        assert out.out == ""
        assert out.err.count("\n") == 1, out.err
        return out.err
    return out.out


def test_a_sharding_is_planned_checked_simulated_drawn_and_exported(
    program: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan, other = str(tmp_path / "plan.json"), str(tmp_path / "other.json")
    picture = tmp_path / "graph.svg"
    text = said(capsys, 0, "solve", program, *GOOD, "--json", "-o", plan, "--plot", str(picture))
    answer = json.loads(text)
    assert answer["status"] == "optimal"
    assert answer["verified"]
    assert set(answer) >= {"conversions", "bytes", "compute", "mesh", "memory", "operators"}
    assert picture.exists()
    assert "proved bound" in said(capsys, 0, "verify", program, plan, "--bound")
    simulated = json.loads(said(capsys, 0, "simulate", program, plan, "--json"))
    assert simulated["makespan"] == pytest.approx(answer["objective"])
    said(capsys, 0, "solve", program, *GOOD, "--method", "replicate", "-o", other)
    assert "nodes moved" in said(capsys, 0, "diff", plan, other)
    for ending in ("py", "json"):
        written = tmp_path / f"placements.{ending}"
        exported = ("export", plan, "--to", "dtensor", "--workload", program, "-o", str(written))
        said(capsys, 0, *exported)
        assert written.read_text()
    compile((tmp_path / "placements.py").read_text(), "placements.py", "exec")
    counts = ("--start", other, "--set", "objective=distpar", "-o", str(tmp_path / "counts.json"))
    assert "elements and bytes" in said(capsys, 0, "solve", program, *GOOD, *counts)
    for judged in (("verify", program, counts[-1]), ("diff", counts[-1], counts[-1])):
        assert not re.search(r"\d s\b", said(capsys, 0, *judged))  # it is no time
    assert re.search(r"\d s\b", said(capsys, 0, "verify", program, other))


def test_the_speed_up_is_over_one_device_that_does_all(
    program: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One device has no conversions: its time is that of a sharding over a mesh of one."""
    tensors = (Tensor("x", (8, 4)), Tensor("y", (8, 4)))
    x = Operator("x", (), (0,), (Signature.of("->S0", 8), Signature.of("->B")), role="input")
    whole = Operator("double", (0,), (1,), (Signature.of("B->B"),), memory=1.0)
    small = tmp_path / "whole.json"
    save(program_workload(TensorProgram(tensors, (x, whole)), "whole", time_unit="s"), small)

    def answer(file: str | Path, mesh: str, *more: str) -> dict[str, Any]:
        arguments = ("solve", str(file), "--mesh", f"{mesh}@1us:1GB/s", "--json", *more)
        found: dict[str, Any] = json.loads(said(capsys, 0, *arguments))
        return found

    for file, speed_up in ((program, 2.0), (small, 1.0)):
        alone, found = answer(file, "1"), answer(file, "2")
        assert alone["one_device"] == pytest.approx(alone["objective"], rel=1e-9)
        assert (alone["speed_up"], alone["no_gain_because"]) == (1.0, "there is one device")
        assert found["one_device"] == pytest.approx(alone["objective"], rel=1e-9)
        assert found["speed_up"] == pytest.approx(speed_up, rel=1e-3)
        assert bool(found["no_gain_because"]) == (speed_up == 1)
    for more, why in (
        ((), "what the devices exchange costs at least what dividing the work saves"),
        (("--memory", "1TB"), "no sharding that fits into the memory is faster"),
        (("--set", 'fixed=[["double","B->B"]]'), "no sharding that keeps what is fixed is faster"),
    ):
        slow = ("solve", str(small), "--mesh", "2@1s:64B/s", *more)
        text = " ".join(said(capsys, 0, *slow).split())
        assert f"speed-up 0.33 × one device (1 s): slower than one device, {why}" in text
    assert "speed_up" not in answer(program, "2", "--set", "objective=distpar")


def test_a_program_has_no_default_problem_without_a_mesh(
    program: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(stagecut.InputError, match=r"give Sharding\(mesh\)"):
        stagecut.solve(program)
    assert "--mesh: sharding needs it" in said(capsys, 2, "solve", program)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--mesh", "2x0"), "--mesh"),
        (("--mesh", "3x"), "--mesh"),
        (("--mesh", "2x2x2x2@1us:1GB/s"), "mesh: 4 axes"),
        (("--mesh", "2"), "--mesh: a chain suggests no links"),
        (("--mesh", "2@fast"), "--mesh: 'fast' is no link"),
        (("--mesh", "2@.us:1GB"), "--mesh: '.us:1GB' is no link"),
        (("--mesh", "2@1us:1GB/s,1us:1GB/s"), "--mesh: 2 links for 1 axes"),
        ((*GOOD, "--set", 'fixed=[["v0"]]'), "fixed[0]"),
        ((*GOOD, "--set", 'fixed=[["nothing","S0"]]'), "fix: the program has no operator nothing"),
        (
            (*GOOD, "--set", 'fixed=[["v0","S7"]]'),
            'fix: v0 cannot have "S7" on this mesh; it can have',
        ),
        (("--mesh", "3@1us:1GB/s", "--set", 'fixed=[["v0","S0"]]'), "fix: v0 cannot have"),
        ((*GOOD, "--set", "beta=2.0"), "beta: it weighs elements"),
        ((*GOOD, "--accelerators", "2"), "--accelerators: sharding is planned for the devices of"),
        ((*GOOD, "--cluster", "c.json"), "--cluster: sharding is planned for the devices of"),
        ((*GOOD, "--set", "objective=distpar,beta=-1.0"), "beta: -1"),
        ((*GOOD, "--set", "objective=distpar,beta=nan"), "beta: nan"),
        ((*GOOD, "--set", "optimizer=as-given"), "optimizer"),
        ((*GOOD, "--method", "greedy"), "method: no 'greedy' for sharding"),
    ],
)
def test_bad_input_is_one_line(
    program: str, arguments: tuple[str, ...], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert words in said(capsys, 2, "solve", program, *arguments)


def test_a_mesh_that_divides_nothing_is_said(
    program: str, capsys: pytest.CaptureFixture[str]
) -> None:
    out = said(capsys, 0, "solve", program, "--mesh", "1009@1us:1GB/s")
    assert "nothing divides by the 1009 devices of axis 0" in out
    assert "nothing divides" not in said(capsys, 0, "solve", program, *GOOD)


def test_too_little_memory_says_how_much(program: str, capsys: pytest.CaptureFixture[str]) -> None:
    error = said(capsys, 3, "solve", program, *GOOD, "--memory", "10")
    assert "no sharding over 2 devices fits into 10 bytes" in error


def test_a_workload_without_tensors(capsys: pytest.CaptureFixture[str]) -> None:
    assert "no tensors" in said(capsys, 2, "solve", "gpt2-xl", *GOOD)


def test_a_plan_for_another_program_or_with_unknown_signatures(
    program: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other, plan = tmp_path / "other.json", tmp_path / "plan.json"
    save(task("sharding", [1.0, 2.0]).workload, other)
    said(capsys, 0, "solve", program, *GOOD, "-o", str(plan))
    assert "made for" in said(capsys, 2, "verify", str(other), str(plan))
    text = plan.read_text()
    plan.write_text(text.replace('"S0,S0->S0"', '"S9->S0"'))
    assert "no signature" in said(capsys, 2, "verify", program, str(plan))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"inputs": ["nothing"]}, "unknown tensor"),
        ({"signatures": ["S0,S0->S0", "B,B->B"]}, "give the extent"),
        ({"signatures": [{"text": "S0,S0->S0", "extent": 4}]}, "no signature of B alone"),
        ({"signatures": ["Q->B", "B,B->B"]}, "must be B, P, or S0"),
        ({"signatures": ["B,B"]}, "write inputs->outputs"),
        ({"signatures": ["B->B"]}, "is not for 2 inputs"),
        ({"compute": -1.0}, "compute must be from 0"),
        ({"outputs": ["t0"]}, "t0 is made already"),
        ({"role": "wizard"}, "role"),
    ],
)
def test_a_broken_program_is_refused_in_one_line(
    program: str,
    tmp_path: Path,
    change: dict[str, object],
    words: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    data = json.loads(Path(program).read_text())
    data["operators"][-1] |= change
    broken = tmp_path / "broken.json"
    broken.write_text(json.dumps(data))
    assert words in said(capsys, 2, "solve", str(broken), *GOOD)


def test_copies_and_parts_are_written_for_torchtitan_and_the_rest_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    torch = pytest.importorskip("torch", reason="the extra `runtime` is not installed")
    layers = torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 64)
    workload = tensor_program(
        torch.nn.Sequential(*layers), (torch.zeros(32, 64),), estimate="h100", name="net"
    )
    model, plan, written = (str(tmp_path / f) for f in ("net.json", "plan.json", "planned.py"))
    save(workload, model)
    exported = ("export", plan, "--to", "torchtitan", "--workload", model, "-o", written)
    for mesh, method, degrees in (
        ("4", "data-parallel", (4, 1)),
        ("4", "fully-sharded", (1, 4)),
        ("2x4", "data-parallel", (8, 1)),
    ):
        links = ",".join(["1us:1GB/s"] * (mesh.count("x") + 1))
        given = ("--mesh", f"{mesh}@{links}", "--method", method, "-o", plan)
        said(capsys, 0, "solve", model, *given)
        said(capsys, 0, *exported)
        config = trainer_config(Path(written).read_text())
        found = config.parallelism
        assert (
            found.data_parallel_replicate_degree, found.data_parallel_shard_degree,
        ) == degrees  # fmt: skip
        assert config.training.local_batch_size == 32 // (8 if "x" in mesh else 4)
    Path(written).unlink()
    for method in ("megatron", "replicate"):
        said(capsys, 0, "solve", model, *GOOD, "--method", method, "-o", plan)
        assert "torchtitan: along axis 0 of the mesh" in said(capsys, 2, *exported)
    other = ("export", plan, "--to", "megatron", "--workload", model, "-o", written)
    assert "the plan is a sharding, it has no stages" in said(capsys, 2, *other)
    assert not Path(written).exists()


def test_methods_of_shardings_are_compared() -> None:
    workload = task("sharding").workload
    problem = Sharding(DeviceMesh((2,), (Link(1e-6, 1e9),)))
    table = compare(workload, problem, ["auto", "data-parallel", "replicate"])
    assert table["verified"].all()
    assert table["objective"].idxmin() == 0
    wide = Sharding(DeviceMesh((2, 2), (Link(1e-6, 1e9),) * 2))
    both = compare(workload, [problem, wide], "replicate")
    assert list(both["problem"]) == ["sharding, mesh=2", "sharding, mesh=2x2"]


def test_the_command_compares_methods_and_meshes(
    program: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Several problems are several files."""
    compare_here(monkeypatch)
    table, asked = tmp_path / "table.csv", ["compare", program, "--memory", "1GB"]
    for name, mesh in (("narrow", "2"), ("one wide", "2x2")):
        file = tmp_path / f"{name}.toml"
        file.write_text(f'[sharding]\nmesh = "{mesh}@1us:1GB/s"\n')
        asked += ["--problem", str(file)]
    assert run_command((*asked, "--methods", "auto,replicate", "-o", str(table))) == 0
    rows = pd.read_csv(table)
    assert list(rows["problem"]) == ["narrow"] * 2 + ["one wide"] * 2
    assert list(rows["method"]) == ["auto", "replicate"] * 2
    assert rows["verified"].all()
    for first in (0, 2):
        assert rows["objective"][first] <= rows["objective"][first + 1]
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(": auto ")[0] for line in lines[:2]] == [
        "program, narrow",
        "program, one wide",
    ]
    twice = [*asked, "--problem", str(tmp_path / "narrow.toml")]
    assert "--problem: two have one name" in said(capsys, 2, *twice)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--mesh", "2,2"), "--mesh: '2,2' is no mesh"),
        (("--mesh", "2@1us:1GB/s", "--split", "contiguous"), "--split: it belongs to --problem"),
        (("--mesh", "2@1us:1GB/s", "--methods", "greedy"), "no 'greedy' for sharding"),
        (("--mesh", "2@1us:1GB/s,1us:1GB/s"), "--mesh: 2 links for 1 axes"),
        ((), "--mesh: sharding needs it"),
    ],
)
def test_what_cannot_be_compared_is_refused(
    program: str, arguments: tuple[str, ...], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert words in said(capsys, 2, "compare", program, *arguments)


def test_a_cluster_s_links_are_those_that_estimates_price_collectives_by(
    program: str, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster = training_cluster("h100:2x2")
    links = calibration(cluster.accelerator.family, Software.MEGATRON).links
    slow, fast = mesh_links((2, 2), cluster, links)
    assert fast.bytes_per_s > 5 * slow.bytes_per_s
    size = 1e8
    for stride, link in ((1, fast), (2, slow)):
        step = link.latency_s + size / 2 / link.bytes_per_s
        assert step == pytest.approx(all_gather(size, Group(2, stride), cluster, links))
    typed = ",".join(f"{1e6 * link.latency_s!r}us:{link.bytes_per_s!r}B/s" for link in (slow, fast))
    one, other = (
        json.loads(said(capsys, 0, "solve", program, "--mesh", f"2x2@{text}", "--json"))
        for text in ("h100:2x2", typed)
    )
    assert one["objective"] == pytest.approx(other["objective"])
    error = said(capsys, 2, "solve", program, "--mesh", "2@h100:8x2")
    assert "h100:8x2 has 16 devices, and the mesh 2" in error
