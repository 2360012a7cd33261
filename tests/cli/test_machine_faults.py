"""What is wrong with the machine, not with what was asked, ends in one line too."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from project import ROOT

from stagecut.cli import run_command


def command(*arguments: str, before: str = "", **streams: object) -> subprocess.CompletedProcess:  # type: ignore[type-arg]
    """Run a command in a process of its own, after closing what `before` says."""
    program = f"import os, sys\n{before}\nfrom stagecut.cli import main\nmain()"
    return subprocess.run(
        [sys.executable, "-c", program, *arguments],
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT / ".dev")},
        **streams,  # type: ignore[call-overload]
    )


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the system has no /dev/full")
@pytest.mark.parametrize(
    "arguments",
    [
        ("instances", "list"),
        ("solve", "gpt2-xl", "--split", "contiguous", "--method", "greedy", "--json"),
    ],
)
def test_a_full_disk_behind_standard_output_is_one_line(arguments: tuple[str, ...]) -> None:
    with Path("/dev/full").open("w") as full:
        done = command(*arguments, stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 2
    assert done.stderr == "error: No space left on device\n"


@pytest.mark.parametrize("descriptor", [0, 1, 2])
@pytest.mark.parametrize(("workload", "code"), [("gpt2-xl", 0), ("missing", 2)])
def test_streams_may_be_closed(descriptor: int, workload: str, code: int) -> None:
    """As under some schedulers of jobs."""
    name = ("stdin", "stdout", "stderr")[descriptor]
    before = f"os.close({descriptor}); sys.{name} = None"
    done = command("instances", "show", workload, before=before, capture_output=True, text=True)
    assert done.returncode == code
    assert "Traceback" not in done.stderr


def test_no_folder_for_temporary_files_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def none() -> None:
        raise FileNotFoundError(2, "No usable temporary directory found")

    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.setattr("tempfile._get_default_tempdir", none)
    assert run_command(["compare", "gpt2-xl", "--split", "contiguous", "--methods", "dp"]) == 2
    assert capsys.readouterr().err == "error: No usable temporary directory found\n"
