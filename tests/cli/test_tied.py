"""`instances convert --tied`: what becomes of weights that several nodes use."""

from __future__ import annotations

from pathlib import Path

import pytest

import stagecut
from stagecut.cli import run_command
from stagecut.commands.common.pose import ProblemOptions, build, state
from stagecut.instances import tied_as

OPTIONS = ["--accelerators", "2", "--cpus", "0", "--split", "contiguous", "--method", "greedy"]


@pytest.mark.parametrize("tied", ["copies", "colour"])
def test_a_plan_goes_from_command_to_command(
    tmp_path: Path, tied: str, capsys: pytest.CaptureFixture[str]
) -> None:
    given, workload, plan = (str(tmp_path / name) for name in ("given.json", "w.json", "p.json"))
    stagecut.save(tied_as(stagecut.load("bert-large-training"), "colour"), given)
    assert run_command(["instances", "convert", given, workload, "--tied", tied]) == 0
    assert run_command(["solve", workload, *OPTIONS, "-o", plan]) == 0
    said = capsys.readouterr().out
    assert ("closes a cycle" in said) == (tied == "colour")
    for command in ("verify", "simulate"):
        assert run_command([command, workload, plan]) == 0
    capsys.readouterr()
    again = ["solve", given, *OPTIONS, "--start", plan]
    assert run_command(again) == (0 if tied == "colour" else 2)  # the file has the colour
    if tied == "copies":
        assert "plan again" in capsys.readouterr().err
        assert run_command(["solve", workload, *OPTIONS, "--start", plan]) == 0


@pytest.mark.parametrize("number", ["abc", "[1, 2]"])
def test_microbatches_that_are_no_number_are_refused(
    number: str, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["bert-large-training", "--problem", "pipeline", "--set", f"microbatches={number}"]
    assert run_command(["solve", *asked]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert said.endswith("it must be a whole number\n")


def test_a_workload_without_ties_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["instances", "convert", "unet", str(tmp_path / "w.json"), "--tied", "copies"]
    assert run_command(words) == 0
    assert "--tied: unet names no tied weights" in capsys.readouterr().err


def test_commands_exchange_the_gradients_of_an_iteration_once() -> None:
    """`solve`, `compare`, `explain` and `export-model` pose their problems so."""
    loaded, requested = stagecut.load("bert-large-training"), ProblemOptions(microbatches=4)
    posed, problem, _ = build(state(requested, loaded, ()), requested, loaded)
    assert isinstance(problem, stagecut.PipelineJob)
    assert posed.fingerprint == tied_as(loaded, "copies", 4).fingerprint
    assert posed.fingerprint != loaded.fingerprint
