"""`--tied`: what becomes of weights that several nodes use."""

from __future__ import annotations

from pathlib import Path

import pytest

import stagecut
from stagecut import tied_as
from stagecut.cli import run_command

OPTIONS = ["--accelerators", "2", "--cpus", "0", "--split", "contiguous", "--method", "greedy"]


@pytest.mark.parametrize("tied", ["copies", "colour"])
def test_a_plan_goes_from_command_to_command(
    tmp_path: Path, tied: str, capsys: pytest.CaptureFixture[str]
) -> None:
    workload, plan = tmp_path / "w.json", tmp_path / "p.json"
    stagecut.save(tied_as(stagecut.load("bert-large-training"), "colour"), workload)
    solve = ["solve", str(workload), *OPTIONS, "--tied", tied, "-o", str(plan)]
    assert run_command(solve) == 0
    said = capsys.readouterr().out
    assert ("closes a cycle" in said) == (tied == "colour")
    for command in ("verify", "simulate"):
        assert run_command([command, str(workload), str(plan)]) == 0
    capsys.readouterr()
    again = ["solve", str(workload), *OPTIONS, "--start", str(plan)]
    assert run_command(again) == (0 if tied == "colour" else 2)  # the file has the colour
    if tied == "copies":
        assert "plan again" in capsys.readouterr().err
        assert run_command([*again, "--tied", "copies"]) == 0


def test_a_workload_without_ties_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["solve", "unet", *OPTIONS, "--tied", "copies"]) == 0
    assert "--tied: unet names no tied weights" in capsys.readouterr().err
