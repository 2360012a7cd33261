"""Options of placement rules: what they plan, what they refuse, and what files carry."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from cli_cases import placement_file

import stagecut
from stagecut import PlacementRules
from stagecut.cli import run_command
from stagecut.instances.formats.files import load_plan


def solved(folder: Path, *options: str) -> tuple[int, Path]:
    """Return the exit code of `solve` on a chain of four nodes and two devices, and its plan."""
    plan = folder / "plan.json"
    plan.unlink(missing_ok=True)
    net = placement_file(folder)
    words = ["solve", str(net), "--cpus", "0", "--split", "contiguous", *options]
    return run_command([*words, "-o", str(plan)]), plan


def rule(text: str) -> list[str]:
    """Return the options that set fields of placement rules."""
    return ["--set", f"placement_rules={{{text}}}"]


def devices(folder: Path, plan: Path) -> list[int]:
    return load_plan(plan, stagecut.load(placement_file(folder))).placement.tolist()


@pytest.mark.parametrize(
    ("options", "placed"),
    [
        (rule('pins=[["0",1],["3",-2]]'), [1, 1, 0, 0]),
        (rule('pins=[["[01]",1],["[23]",0]]'), [1, 1, 0, 0]),
        (rule('together=[["0","1","2"]],pins=[["0",0]],apart=[["0","3"]]'), [0, 0, 0, 1]),
        ([*rule('max_stages=1,pins=[["2",1]]'), "--memory", "1KiB"], [1, 1, 1, 1]),
    ],
)
def test_plans_keep_them_and_say_so(
    options: list[str], placed: list[int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, plan = solved(tmp_path, *options)
    assert code == 0, capsys.readouterr().err
    assert devices(tmp_path, plan) == placed
    assert run_command(["verify", str(placement_file(tmp_path)), str(plan)]) == 0


@pytest.mark.parametrize(
    ("options", "code", "said"),
    [
        (rule('pins=[["0"]]'), 2, "placement_rules: pins[0]"),
        (rule('pins=[["",0]]'), 2, 'pattern "": it must be a text, not empty'),
        (rule('pins=[["0","x"]]'), 2, 'pins[0][1] is "x"; it must be a whole number'),
        (rule('pinz=[["0",0]]'), 2, 'placement_rules: unknown field "pinz"; use one of pins'),
        (
            rule('pins=[["9",0]]'),
            2,
            'pin "9=0": no node of a small net has an id or name that matches',
        ),
        (rule('pins=[["0",2]]'), 2, 'pin "0=2": there are devices 0 to 1'),
        (rule("together=[[]]"), 2, "together, apart: a rule without patterns; remove it"),
        (rule("max_stages=0"), 2, "max_stages: 0; it must be a whole number of at least 1"),
        (rule('pins=[["0",0],["?",1]]'), 3, 'pin "0=0" and pin "?=1" contradict each other'),
        (rule('pins=[["0",0],["1",1],["2",0]]'), 3, "0 feeds 1 and 1 feeds 2, so pin"),
        (rule('apart=[["[012]"]]'), 3, "what is pinned or apart needs more than the 2 devices"),
    ],
)
def test_refusals_are_one_line(
    options: list[str], code: int, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert solved(tmp_path, *options)[0] == code
    printed = capsys.readouterr()
    assert said in " ".join((printed.out + printed.err).split())


def test_a_part_of_a_plan_is_fixed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, plan = solved(tmp_path, *rule('pins=[["0",1]]'))
    assert code == 0
    part = tmp_path / "part.json"
    document = json.loads(plan.read_text())
    for device in document["solution"]["devices"]:
        device["nodes"] = [node for node in device["nodes"] if node in (0, 3)]
    part.write_text(json.dumps(document))
    assert solved(tmp_path, *rule(f"fixed='{part}'"))[0] == 0
    assert devices(tmp_path, plan) == [1, 1, 0, 0]
    part.write_text(json.dumps({"fpgas": [{"nodes": [3]}, {"nodes": [0, 1, 2]}]}))
    assert solved(tmp_path, *rule(f"fixed='{part}'"))[0] == 0
    assert devices(tmp_path, plan) == [1, 1, 1, 0]
    part.write_text(json.dumps({"fpgas": [{"nodes": [17]}]}))
    assert solved(tmp_path, *rule(f"fixed='{part}'"))[0] == 2
    assert 'fixed "17=0": a small net has no node 17' in capsys.readouterr().err


def test_a_plan_of_stages_fixes_stages_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, plan = solved(tmp_path)
    assert code == 0
    part = plan.rename(tmp_path / "part.json")
    iteration = ["--problem", "pipeline", "--microbatches", "2"]
    assert solved(tmp_path, *iteration, *rule(f"fixed='{part}'"))[0] == 2
    assert "it is a plan for throughput, whose parts are no stages" in capsys.readouterr().err
    code, plan = solved(tmp_path, *iteration, *rule('pins=[["2",1]]'))
    assert code == 0
    part = plan.rename(tmp_path / "part.json")
    assert solved(tmp_path, *iteration, *rule(f"fixed='{part}'"))[0] == 0
    assert devices(tmp_path, plan) == [0, 0, 1, 1]


def test_a_cluster_file_carries_rules(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cluster = tmp_path / "cluster.json"
    file: dict[str, Any] = json.loads(
        stagecut.instances.formats.dumps(stagecut.accelerators_and_cpus(2))
    )
    file["placement_rules"] = {"pins": [["0", 1]]}
    cluster.write_text(json.dumps(file))
    assert stagecut.instances.formats.files.load_rules(cluster) == PlacementRules(pins=(("0", 1),))
    code, plan = solved(tmp_path, "--cluster", str(cluster), *rule('apart=[["0","1"]]'))
    assert code == 0
    assert devices(tmp_path, plan) == [1, 0, 0, 0]
    file["placement_rules"] = {"pin": [["0", 1]]}
    cluster.write_text(json.dumps(file))
    assert solved(tmp_path, "--cluster", str(cluster))[0] == 2
    assert 'placement_rules: unknown key "pin"' in capsys.readouterr().err


def test_plans_carry_the_rules(tmp_path: Path) -> None:
    code, path = solved(tmp_path, *rule('pins=[["0",1]],apart=[["0","3"]],max_stages=2'))
    assert code == 0
    workload = stagecut.load(placement_file(tmp_path))
    plan = load_plan(path, workload)
    rules = PlacementRules(pins=(("0", 1),), apart=(("0", "3"),), max_stages=2)
    assert plan.problem.placement_rules == rules  # type: ignore[union-attr]


def test_the_program_of_a_problem_with_rules_is_written_if_it_is_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    net, model = str(placement_file(tmp_path)), tmp_path / "model.lp"
    words = ["export-model", net, "-o", str(model)]
    assert run_command([*words, "--cpus", "0", *rule('pins=[["0",0]],apart=[["0","3"]]')]) == 0
    assert model.exists()
    assert run_command([*words, "--cpus", "1", *rule('apart=[["0","3"]]')]) == 2
    assert "they are several programs" in capsys.readouterr().err
    rules = [
        "--problem",
        "pipeline",
        "--microbatches",
        "2",
        "--cpus",
        "0",
        *rule('pins=[["0",0]],apart=[["0","3"]]'),
    ]
    assert run_command([*words, *rules]) == 0
    assert "apart" in model.read_text()


def test_compare_hands_rules_to_every_method(tmp_path: Path) -> None:
    table = tmp_path / "t.csv"
    words = ["compare", str(placement_file(tmp_path)), "--methods", "greedy", "--cpus", "0"]
    assert run_command([*words, *rule('apart=[["0","1"]],pins=[["0",1]]'), "-o", str(table)]) == 0
    assert "placement_rules" in (tmp_path / "t.csv.jsonl").read_text()
