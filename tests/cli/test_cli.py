"""The command line: tables, JSON, exit codes, interrupts."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import chdir, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import highspy
import numpy as np
import pytest
from brute_sharding import random_program
from cli_cases import placement_file
from conformance import chain
from mapping_joint_cases import network
from project import ROOT
from training_cases import random_training_case

from stagecut.cli import run_command
from stagecut.instances.formats.files import save

ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT / ".dev"), "COLUMNS": "120"}


def stagecut(*words: object, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run the command line in this process."""
    out, said = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(said), chdir(cwd or Path()):
        code = run_command([*map(str, words)])
    return subprocess.CompletedProcess(words, code, out.getvalue(), said.getvalue())


def own_process(*words: object, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run the command line in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "stagecut", *map(str, words)],
        capture_output=True, text=True, env=ENVIRONMENT, cwd=cwd, timeout=300,
    )  # fmt: skip


def answer(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    """The one JSON object that a command printed."""
    value = json.loads(done.stdout)
    assert isinstance(value, dict)
    assert done.stdout.count("\n") == 1
    return value


def test_solve_prints_a_table_and_writes_a_plan_that_verifies(tmp_path: Path) -> None:
    path = placement_file(tmp_path)
    done = own_process("solve", path, "-o", tmp_path / "plan.json", "--plot", tmp_path / "plan.png")
    assert done.returncode == 0, done.stderr
    for word in ("accelerator 0", "objective", "bound", "gap", "method", "time"):
        assert word in done.stdout
    assert done.stderr == ""  # not a terminal: no progress
    assert (tmp_path / "plan.png").read_bytes().startswith(b"\x89PNG")
    checked = stagecut("verify", path, tmp_path / "plan.json")
    assert checked.returncode == 0, checked.stderr
    assert "verified: objective 4.5" in checked.stdout


def test_json_is_one_object_with_the_promised_keys(tmp_path: Path) -> None:
    value = answer(stagecut("solve", placement_file(tmp_path), "--json"))
    assert value["workload"] == "a small net"
    assert value["objective"] == 4.5
    assert value["bound"] <= 4.5
    assert value["gap"] <= 0.01
    assert value["status"] in ("optimal", "feasible")
    assert value["limit"] == "none"
    assert value["verified"] is True
    assert value["seconds"] > 0
    assert isinstance(value["method"], str)
    kinds = [device["kind"] for device in value["devices"]]
    assert kinds == ["accelerator", "accelerator", "cpu"]
    assert sorted(v for device in value["devices"] for v in device["nodes"]) == [0, 1, 2, 3]
    assert max(device["load"] for device in value["devices"]) == 4.5
    assert all(device["memory"] <= 100 for device in value["devices"][:2])


def test_options_override_the_file(tmp_path: Path) -> None:
    path = placement_file(tmp_path)
    value = answer(stagecut("solve", path, "--accelerators", 4, "--memory", "30B", "--json"))
    assert value["objective"] == 3.0
    assert len(value["devices"]) == 5
    value = answer(stagecut("solve", path, "--accelerators", 1, "--cpus", 0,
                            "--memory", "1kB", "--json"))  # fmt: skip
    assert value["objective"] == 8.0


def test_infeasible_memory_exits_3_with_the_bytes(tmp_path: Path) -> None:
    path = placement_file(tmp_path)
    done = stagecut("solve", path, "--cpus", 0, "--memory", "20B")
    assert done.returncode == 3
    assert "infeasible" in done.stderr
    assert "30" in done.stderr
    assert "Traceback" not in done.stderr
    done = stagecut("solve", path, "--cpus", 0, "--memory", "20B", "--json")
    assert done.returncode == 3
    assert answer(done)["status"] == "infeasible"
    assert answer(done)["objective"] is None


def test_a_method_that_finds_no_plan_blames_no_limit(tmp_path: Path) -> None:
    """Nothing holds all nodes, though two devices do."""
    nodes = [
        {"id": v, "times": {"accelerator": 1.0}, "memory_bytes": size, "transfer": 0.0}
        for v, size in enumerate((2.0, 2.0, 3.0, 3.0))
    ]
    workload = {
        "format": "stagecut-workload", "version": 1, "name": "tight", "time_unit": "ms",
        "nodes": nodes, "edges": [[v, v + 1] for v in range(3)],
    }  # fmt: skip
    (tmp_path / "w.json").write_text(json.dumps(workload))
    words = ("solve", "w.json", "--accelerators", 2, "--memory", "5B", "--method", "single")
    done = stagecut(*words, cwd=tmp_path)
    assert done.returncode == 4, done.stdout + done.stderr
    assert "no plan found by single" in done.stderr
    assert "time" not in done.stderr


BAD = [
    (["solve", "no-such-file.json"], "no-such-file.json"),
    (["solve", "{file}", "--memory", "much"], "--memory"),
    (["solve", "{file}", "--memory", "-5"], "--memory"),
    (["solve", "{file}", "--accelerators", "-1"], "--accelerators"),
    (["solve", "{file}", "--accelerators", "0", "--cpus", "0"], "no devices"),
    (["solve", "{file}", "--split", "sideways"], "sideways"),
    (["solve", "{file}", "--method", "magic"], "magic"),
    (["solve", "{file}", "--gap", "2"], "gap"),
    (["solve", "{file}", "--time-limit", "0"], "time limit"),
    (["solve", "{file}", "--set", "pipeline=water"], "water"),
    (["solve", "{file}", "--problem", "fame"], "fame"),
    (["solve", "{file}", "-o", "no/such/folder/plan.json"], "folder"),
    (["solve", "{file}", "--start", "no-plan.json"], "no-plan.json"),
    (["solve", "{file}", "--cluster", "no-cluster.json"], "no-cluster.json"),
    (["solve", "{file}", "--method", "milp:nosuchsolver"], "nosuchsolver"),
    (["solve", "{file}", "--no-such-option"], "--no-such-option"),
    (["solve", "{file}", "--plot", "plan.doc"], ".png, .svg or .pdf"),
    (["verify", "{file}", "{file}"], "plan"),
    (["export-model", "{file}", "-o", "model.doc"], "model.doc"),
    (["instances", "show", "no-such-network"], "no-such-network"),
]


@pytest.mark.parametrize(("words", "named"), BAD, ids=lambda value: " ".join(value))
def test_bad_input_exits_2_in_one_line(
    words: list[str], named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    path = placement_file(tmp_path)
    monkeypatch.chdir(tmp_path)
    code = run_command([word.format(file=path) for word in words])
    is_one_line(code, capsys.readouterr().err, words, named)


@pytest.mark.parametrize(
    "command",
    [
        pytest.param(name, marks=() if name == "solve" else pytest.mark.slow)
        for name in dict.fromkeys(words[0] for words, _ in BAD)
    ],
)
def test_bad_input_exits_2_in_a_process_of_its_own(command: str, tmp_path: Path) -> None:
    words, named = next(bad for bad in BAD if bad[0][0] == command)
    path = placement_file(tmp_path)
    done = own_process(*(word.format(file=path) for word in words), cwd=tmp_path)
    is_one_line(done.returncode, done.stderr, words, named)


def is_one_line(code: int, said: str, words: list[str], named: str) -> None:
    """Assert that bad input was refused in one line that names it."""
    assert code == 2, said
    assert named in said
    assert "Traceback" not in said
    if not words[-1].startswith("--no-such"):
        assert len(said.strip().splitlines()) == 1


ODD = ["[/x] $a", "$_{ [red]b", "ünï ☃", 'a, "b"', ""]


def test_names_are_shown_as_they_are(tmp_path: Path) -> None:
    """Neither square brackets nor dollar signs in names mean anything to tables and pictures."""
    node = {"times": {"accelerator": 2.0}, "memory_bytes": 5.0, "transfer": 0.5}
    workload = {
        "format": "stagecut-workload", "version": 1, "name": "net [/oops] $x^{$", "time_unit": "ms",
        "colours": [], "nodes": [{"id": name, **node, "output_bytes": 0.0} for name in ODD],
        "edges": [ODD[:2], ODD[1:3]],
    }  # fmt: skip
    kind = {"name": "gpu[/a] $\\frac{1$", "count": 2, "memory_bytes": 50.0, "times": "accelerator"}
    cluster = {"format": "stagecut-cluster", "version": 1, "kinds": [kind]}
    (tmp_path / "w.json").write_text(json.dumps(workload))
    (tmp_path / "c.json").write_text(json.dumps(cluster))
    for words, shown in (
        ("solve w.json --cluster c.json -o p.json --plot p.png", "gpu[/a]"),
        ("verify w.json p.json", "gpu[/a] $\\frac{1$"),
        ("simulate w.json p.json --plot s.svg --graph g.svg", "net [/oops] $x^{$"),
        ("diff p.json p.json", "net [/oops] $x^{$"),
        ("instances show w.json", "net [/oops] $x^{$"),
        (
            "solve w.json --problem mapping --cluster ring:2 --set stages=2 --gap 0.1 --plot m.png",
            "net [/oops]",
        ),
    ):
        done = stagecut(*words.split(), cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert shown in done.stdout, words


def test_ctrl_c_returns_the_plan_found_so_far(benchmarks: Path) -> None:
    """However slow the machine is: it is interrupted later until there is a plan."""
    path = benchmarks / "placement/throughput/OperatorGraphs/bert_L-12_training.json"
    words = ["solve", path, "--method", "milp", "--json", "--time-limit", 300, "--gap", 0]
    for seconds in (3, 6, 12, 24, 48):
        running = subprocess.Popen(
            [sys.executable, "-m", "stagecut", *map(str, words)],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT,
            start_new_session=True,
        )  # fmt: skip
        time.sleep(seconds)
        running.send_signal(signal.SIGINT)
        out, err = running.communicate(timeout=60)
        if running.returncode not in (4, 130):  # 130: before it began
            break
    assert running.returncode == 0, err
    value = json.loads(out)
    assert value["limit"] == "interrupt"
    assert value["verified"] is True
    assert value["objective"] > 0


@pytest.mark.slow
def test_the_time_limit_counts_from_the_start_of_the_process(benchmarks: Path) -> None:
    path = benchmarks / "placement/throughput/OperatorGraphs/bert_L-12_training.json"
    done = own_process("solve", path, "--method", "milp", "--time-limit", 10, "--gap", 0, "--json")
    value = answer(done)
    assert value["limit"] == "time"
    assert value["objective"] > 0


def test_the_clock_begins_with_the_process() -> None:
    before = time.monotonic()
    code = "from stagecut.commands.common.clock import STARTED; print(STARTED)"
    words = [sys.executable, "-c", code]
    done = subprocess.run(words, capture_output=True, text=True, env=ENVIRONMENT, check=True)
    tick = 1.0 / os.sysconf("SC_CLK_TCK")
    assert before - tick <= float(done.stdout) < time.monotonic()


#: Problem and the program that is not its first → options of `solve` and `export-model`.
EXPORTED = {
    "throughput, by-device": ["--accelerators", 2],
    "latency, potentials": ["--accelerators", 1, "--cpus", 1],
    "pipeline, actions": ["--accelerators", 2, "--microbatches", 2, "--schedule", "gpipe"],
    "stream, slots": ["--accelerators", 3],
    "mapping, joint": ["--cluster", "islands:2x2", "--set", "stages=2,replicas=2,microbatches=2"],
    "sharding, flows": ["--mesh", "2@10us:25GB/s"],
}


def _exported(problem: str, path: Path) -> None:
    rng = np.random.default_rng(3)
    if problem == "stream":
        save(random_training_case(4, max_nodes=4)[0], path)
    elif problem == "mapping":
        save(network(rng, 4, backward=True), path)
    elif problem == "sharding":
        save(random_program(rng, most=5), path)
    else:
        save(chain([1.0, 2.0, 3.0]), path)


@pytest.mark.parametrize("what", EXPORTED)
def test_export_model_writes_programs_with_the_optimum_of_the_problem(
    what: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    problem, name = what.split(", ")
    path = tmp_path / "w.json"
    _exported(problem, path)
    asked = [path, "--problem", problem.replace("stream", "pipeline"), *EXPORTED[what]]
    words = [str(word) for word in asked]
    method = "joint" if problem == "mapping" else "auto"
    assert run_command(["solve", *words, "--method", method, "--gap", "1e-7", "--json"]) == 0
    objective = json.loads(capsys.readouterr().out)["objective"]
    for file, more in (("m.mps", []), ("m.lp", ["--formulation", name])):
        assert run_command(["export-model", *words, *more, "-o", str(tmp_path / file)]) == 0
        said = capsys.readouterr().out.splitlines()[-1]
        scale = float(said.partition("objective times ")[2].split()[0])
        highs = highspy.Highs()
        highs.setOptionValue("output_flag", False)
        highs.readModel(str(tmp_path / file))
        highs.run()
        value = highs.getInfo().objective_function_value * scale
        assert value == pytest.approx(objective, rel=1e-5), said
    assert said.startswith(f"formulation {name};")
    assert run_command(["export-model", *words, "--formulation", "x", "-o", str(path)[:-4]]) == 2
    assert name in capsys.readouterr().err


def test_export_model_of_an_iteration(tmp_path: Path) -> None:
    save(chain([1.0, 2.0, 3.0]), tmp_path / "w.json")
    model = tmp_path / "model.lp"
    asked = ["export-model", tmp_path / "w.json", "-o", model, "--microbatches", "4"]
    asked += ["--problem", "pipeline"]
    done = stagecut(*asked, "--accelerators", "2", "--schedule", "gpipe")
    assert done.returncode == 0, done.stderr
    assert "placed_once(0_2)" in model.read_text()
    done = stagecut(*asked, "--accelerators", "2", "--cpus", "1")
    assert done.returncode == 2
    assert "devices of one kind" in done.stderr


def test_instances_list_show_and_convert(tmp_path: Path) -> None:
    listed = answer(stagecut("instances", "list", "--json"))
    names = [entry["name"] for entry in listed["workloads"]]
    assert "gpt2-xl" in names
    shown = answer(stagecut("instances", "show", "gpt2-xl", "--json"))
    assert shown["nodes"] > 40
    done = stagecut("instances", "convert", "gpt2-xl", tmp_path / "my gpt.json")
    assert done.returncode == 0, done.stderr
    again = answer(stagecut("instances", "show", tmp_path / "my gpt.json", "--json"))
    assert again["nodes"] == shown["nodes"]
    assert again["memory_bytes"] == shown["memory_bytes"]


@pytest.mark.parametrize("option", ["overlap=true", "collective=cheapest"])
def test_what_the_busiest_link_leaves_out_is_refused(option: str) -> None:
    words = [
        "solve",
        "semantic-fpn-operators-training",
        "--problem",
        "mapping",
        "--cluster",
        "ring:4",
    ]
    done = stagecut(*words, "--set", "stages=2,objective=busiest-link", "--set", option)
    assert done.returncode == 2
    assert len(done.stderr.strip().splitlines()) == 1
    assert f"leave {option.partition('=')[0]} out" in done.stderr
