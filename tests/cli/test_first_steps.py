"""What a user meets first: names to type, sizes without units, pictures of plans."""

from __future__ import annotations

import os
import subprocess
import sys
from io import StringIO
from pathlib import Path

import pytest
from project import ROOT

from stagecut.cli import run_command
from stagecut.commands.common.console import _Plain, new_table
from stagecut.instances.generate.catalogue import CATALOGUE

JOB = ["--cluster", "h100:8", "--global-batch", "64"]


def test_names_that_are_typed_are_listed_whole_on_narrow_terminals() -> None:
    env = {**os.environ, "PYTHONPATH": str(ROOT / ".dev"), "COLUMNS": "80"}
    words = [sys.executable, "-m", "stagecut", "instances", "list"]
    done = subprocess.run(words, env=env, capture_output=True, text=True)
    assert all(name in done.stdout for name in CATALOGUE)


def test_memory_without_a_unit_is_asked_about(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["solve", "gpt2-xl", "--accelerators", "2", "--cpus", "0", "--memory", "10"]
    assert run_command(words) == 3
    said = capsys.readouterr().err
    assert "--memory: 10 B on each device; for GiB write 16GiB" in said
    assert "MiB more than" in said or "GiB more than" in said


def test_accelerators_that_are_too_small_together_are_told(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run_command(["solve", "gpt2-xl", "--accelerators", "2", "--memory", "10"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "the devices of the fastest kind together do not have the memory for all of it" in said


def test_loads_are_drawn_for_every_problem(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    start = ["solve", "gpt2-xl", "--accelerators", "2", "--cpus", "0"]
    for options in (
        ["--problem", "pipeline", "--microbatches", "4"],
        ["--problem", "latency"],
    ):
        picture = tmp_path / f"{options[-1]}.png"
        assert run_command([*start, *options, "--plot", str(picture)]) == 0
        assert picture.stat().st_size > 1000
    ranked = ["solve", "gpt2-xl-training", "--microbatches", "4", "--schedule", "all"]
    assert run_command([*ranked, "--plot", str(tmp_path / "x.png")]) == 2
    assert "--plot: not with --schedule all" in capsys.readouterr().err


@pytest.mark.parametrize("columns", ["40", "0"])
def test_tables_keep_their_numbers_on_any_terminal(columns: str) -> None:
    env = {**os.environ, "PYTHONPATH": str(ROOT / ".dev"), "COLUMNS": columns}
    words = ["estimate", "llama3-8b", "--cluster", "h100:8", "--global-batch", "64"]
    command = [sys.executable, "-m", "stagecut", *words]
    said = subprocess.run(command, env=env, capture_output=True, text=True).stdout
    assert "…" not in said
    assert "gradients and weights of replicas" in said
    assert "an iteration" in said


@pytest.mark.parametrize("width", [20, 66, 76, 120])
def test_no_word_of_a_narrow_table_is_cut(width: int) -> None:
    console = _Plain(width=width, file=StringIO())
    table = new_table("", "choice", ("s", "most by"))
    for column in table.columns[::2]:
        column.no_wrap = False
    table.add_row("a b c d e " * 9, "65.64", "weights-and-all-of-those-gradients of it")
    console.print(table)
    said = console.file.getvalue()
    assert "weights-and-all-of-those-gradients" in said
    assert "65.64" in said
    assert max(map(len, said.splitlines())) <= max(width, 49)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["solve", "config.json"], "it is a model's config.json, planned as a training job"),
        (["verify", "missing.json"], "missing.json: no such file"),
        (["run", "config.json"], 'a file with format "stagecut-plan" is needed here'),
        (["estimate", ".", *JOB], "the folder has no config.json; name its file"),
        (["estimate", "gpt2", *JOB, "--sequence", "9999999999"], "it must be at most 1000000000"),
    ],
)
def test_wrong_files_and_counts_are_told_what_they_are(
    words: list[str],
    expected: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = tmp_path / "empty"
    folder.mkdir()
    monkeypatch.chdir(folder if "estimate" in words else tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    assert run_command(words) == 2
    assert expected in capsys.readouterr().err


def test_training_without_anything_to_train_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torch", reason="the extra `runtime` is not installed")
    model = tmp_path / "frozen.py"
    model.write_text(
        "import torch\n\ndef make():\n"
        "    return torch.nn.Linear(4, 4).requires_grad_(False), torch.randn(2, 4)\n"
    )
    words = ["profile", f"{model}:make", "--train", "--estimate", "h100"]
    assert run_command([*words, "-o", str(tmp_path / "w.json")]) == 0
    assert "warning: there is no backward pass" in " ".join(capsys.readouterr().out.split())
