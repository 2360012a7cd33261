"""Problem files and `--set`: the fields of the problems in Python, and what contradicts them."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import jsonschema
import pytest
from cli_cases import placement_file
from conformance import task

from stagecut import Throughput, Workload, load, load_plan
from stagecut.cli import load_command, run_command
from stagecut.commands.common.pose import ProblemOptions, build, limits_of, state, workers_of
from stagecut.instances.formats.problem_toml import PROBLEMS
from stagecut.instances.formats.schemas import schemas
from stagecut.solvers import Limits, Workers

#: Most options of a command, and lines of its help.
MOST_OPTIONS, MOST_LINES = 20, 44

GOOD = {
    "throughput": 'split = "contiguous"\nplacement_rules = { pins = [["*", 0]], max_stages = 2 }',
    "pipeline": 'microbatches = 4\nschedule = "zb-h1"\nweight_share = 0.25',
    "latency": "calls = 2",
    "mapping": 'topology = "ring:4"\nstages = 2\nreplicas = 2\nmode = "p2p"',
    "sharding": 'objective = "distpar"\nbeta = 0.5\nfixed = [["v0", "S0,S0->S0"]]\n'
    'mesh = { shape = [2], links = ["1us:1GB/s"] }',
}


def file_of(folder: Path, name: str, text: str, others: str = "") -> Path:
    path = folder / "my problem file.toml"
    path.write_text(f"[{name}]\n{text}\n{others}")
    return path


def workload_of(folder: Path) -> Workload:
    return load(placement_file(folder))


@pytest.mark.parametrize("name", PROBLEMS)
def test_a_file_states_every_problem_as_its_schema_has_it(name: str, tmp_path: Path) -> None:
    others = "[limits]\nseconds = 7\nseed = 3\n[workers]\ncount = 1\ndeterministic = true"
    path = file_of(tmp_path, name, GOOD[name], others)
    jsonschema.validate(tomllib.loads(path.read_text()), schemas()["problem.schema.json"])
    asked = ProblemOptions(str(path))
    stated = state(asked, workload_of(tmp_path))
    _, problem, devices = build(stated, asked, workload_of(tmp_path))
    assert type(problem) is PROBLEMS[name]
    assert (devices is None) == (name in ("mapping", "sharding"))
    for key, value in tomllib.loads(GOOD[name]).items():
        if isinstance(value, str | int | float) and key != "topology":
            assert getattr(problem, key) == value
    limits = limits_of(stated)
    assert (limits.seconds, limits.seed) == (7, 3)
    assert workers_of(stated) == Workers(1, deterministic=True)
    assert limits_of(stated, gap=0.5) == Limits(7, 0.5, seed=3)


def test_options_and_settings_and_files_say_the_same(tmp_path: Path) -> None:
    path = file_of(tmp_path, "pipeline", 'microbatches = 4\nsplit = "contiguous"')
    ways = (
        ProblemOptions(str(path)),
        ProblemOptions(str(path), ["microbatches=4"], split="contiguous", microbatches=4),
        ProblemOptions("pipeline", ["microbatches=4,split=contiguous"]),
        ProblemOptions("pipeline", ["split=contiguous"], microbatches=4),
    )
    workload = workload_of(tmp_path)
    problems = [build(state(asked, workload), asked, workload)[1] for asked in ways]
    assert problems == [problems[0]] * len(ways)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            ["--split", "noncontiguous"],
            "--split: noncontiguous contradicts contiguous of my problem",
        ),
        (["--set", "split=per-device"], "--set split: per-device contradicts contiguous of my pro"),
        (["--microbatches", "4"], "--microbatches: it belongs to --problem pipeline or mapping"),
        (["--set", "placement_rules.max_stages=1"], "--set placement_rules.max_stages: 1 contradi"),
        (["--set", "overlap=true", "--set", "overlap=false"], "contradicts True of --set"),
        (["--time-limit", "3"], "--time-limit: 3.0 contradicts 20 of my problem file.toml"),
        (["--set", "limits.seconds=3"], "--set limits.seconds: 3 contradicts 20 of my problem"),
        (["--set", "limits=3"], "--set limits: it has fields; write limits.FIELD=VALUE"),
        (["--set", "limits.second=3"], 'unknown field "second"; use one of seconds, gap'),
        (["--set", "workers.count=0"], "workers: 0; it must be at least 1"),
        (["--set", "calls=2"], 'unknown field "calls"; use one of split, cpu_split'),
        (["--set", "overlap=1"], "overlap is 1; it must be"),
        (["--cluster", "torus2d:2x2"], "a topology, of --problem mapping; for throughput give"),
        (["--set", "overlap"], '"overlap" sets no field, or one twice; write FIELD=VALUE'),
        (["--problem", "latency", "--set", "calls=2.5"], "calls is 2.5; it must be a whole number"),
        (["--mesh", "2"], "--mesh: it belongs to --problem sharding, and the problem is throughpu"),
    ],
)
def test_what_contradicts_is_refused_in_one_line(
    options: list[str],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    text = 'split = "contiguous"\nplacement_rules = { max_stages = 2 }'
    path = file_of(tmp_path, "throughput", text, "[limits]\nseconds = 20")
    given = [] if "--problem" in options else ["--problem", path.name]
    for command in ("solve", "compare"):
        if command == "compare" and "workers.count=0" in options:
            continue  # it takes none
        assert run_command([command, str(placement_file(tmp_path)), *given, *options]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert said in line


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[throughput", "no TOML"),
        ("", "the file is empty; write it again"),
        ("[limits]\ngap = 0.1", "it must state one problem, and has none"),
        ("[latency]\n[throughput]", "it must state one problem, and has latency, throughput"),
        ("[speed]\n", 'unknown table "speed"; it must be one of throughput'),
        ("throughput = 3", "throughput is 3; it must be a table: [throughput]"),
        ("[throughput]\nspilt = 'contiguous'", 'unknown field "spilt"; use one of split'),
        ("[throughput]\nsplit = 'x'", 'split is "x"; it must be one of contiguous'),
        ("[throughput]\nsplit = 1979-05-27", "split"),
        ("[throughput]\nplacement_rules = 3", "placement_rules is 3; it must be"),
        ("[throughput]\nplacement_rules.pins = [['a', 'b']]", 'pins[0][1] is "b"; it must be'),
        ("[throughput]\nplacement_rules.fixed = 'gone.json'", "gone.json: no such file"),
        ("[pipeline]\nschedule = 'gpipe'", "microbatches: say how many an iteration has"),
        ("[pipeline]\nmicrobatches = 0", "microbatches: 0; it must be a whole number"),
        ("[pipeline]\nmicrobatches = 2\nschedule = 'gone.csv'", "gone.csv: no such file"),
        ("[mapping]\nstages = 2", "--cluster: mapping needs it; say its topology"),
        ("[mapping]\ntopology = 'ring:2'", "--set stages=…: mapping needs it; say its stages"),
        ("[mapping]\ntopology = 'rung:2'\nstages = 1", "rung"),
        ("[sharding]\nmesh = '2@fast'", "'fast' is no link"),
        ("a" + "[" * 5000, "no TOML"),
        ("\x00", ""),
    ],
)
def test_broken_files_are_refused_in_one_line(
    text: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "my problem.toml"
    path.write_text(text)
    for command in ("solve", "explain", "export-model"):
        words = [command, str(placement_file(tmp_path)), "--problem", str(path)]
        words += ["-o", str(tmp_path / "m.lp")] if command == "export-model" else []
        assert run_command(words) == 2
        (line,) = capsys.readouterr().err.splitlines()
        if command == "solve":
            assert said in line
            assert path.name in line or line.startswith(("error: --", "error: gone"))


def test_solve_takes_a_file_and_writes_a_plan_of_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also the nodes of another plan, whose file has a space in its name."""
    net, plan, part = str(placement_file(tmp_path)), tmp_path / "p.json", tmp_path / "a part.json"
    path = file_of(tmp_path, "throughput", 'split = "contiguous"', "[limits]\ngap = 0.0")
    words = ["solve", net, "--problem", str(path), "--cpus", "0", "--json"]
    assert run_command([*words, "-o", str(plan)]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["trace"][-1][1] == answer["objective"]
    workload = load(net)
    made = load_plan(plan, workload)
    assert made.problem == Throughput("contiguous")
    part.write_text(json.dumps({"fpgas": [{"nodes": [3]}, {"nodes": [0]}]}))
    rules = ["--set", f"placement_rules.fixed={part}", "-o", str(plan)]
    assert run_command([*words, *rules]) == 0
    assert load_plan(plan, workload).placement.tolist()[::3] == [1, 0]
    assert run_command([*words, "-o", str(path)]) == 2
    assert "it is an input, and would be lost" in capsys.readouterr().err


def test_a_file_without_an_end_of_the_search_is_for_one_process(tmp_path: Path, capsys) -> None:
    path = file_of(tmp_path, "throughput", "", "[workers]\ncount = 2")
    assert run_command(["compare", str(placement_file(tmp_path)), "--problem", str(path)]) == 2
    assert "workers: a case has one process; leave the table out" in capsys.readouterr().err


def test_a_program_is_sharded_unless_another_problem_is_named() -> None:
    workload = task("sharding").workload
    assert state(ProblemOptions(), workload).name == "sharding"
    assert state(ProblemOptions("latency"), workload).name == "latency"


def options_of(command: str) -> list[str]:
    found = load_command(command)
    inner = getattr(found, "commands", {"": found})
    return [
        parameter.opts[-1]
        for part in inner.values()
        for parameter in part.params
        if parameter.param_type_name == "option" and parameter.name != "help"
    ]


def test_no_command_has_more_options_than_a_screen_shows(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from stagecut.cli import _COMMANDS

    monkeypatch.setenv("COLUMNS", "100")
    assert not {"map", "shard"} & set(_COMMANDS)
    for command in _COMMANDS:
        found = load_command(command)
        if not hasattr(found, "commands"):
            assert len(options_of(command)) <= MOST_OPTIONS, command
            assert run_command([command, "--help"]) == 0
            assert len(capsys.readouterr().out.splitlines()) <= MOST_LINES, command
