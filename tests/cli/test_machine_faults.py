"""What is wrong with the machine, not with what was asked, ends in one line too."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from project import ROOT
from sample_files import placement

from stagecut import Limits
from stagecut.cli import run_command
from stagecut.instances.formats import source, writing
from stagecut.solvers import Search
from stagecut.solvers.core.session import interrupts


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


@pytest.mark.parametrize(
    ("descriptor", "workload", "code"),
    [
        (0, "gpt2-xl", 0),
        (1, "gpt2-xl", 0),
        (2, "missing", 2),
        pytest.param(0, "missing", 2, marks=pytest.mark.slow),
        pytest.param(1, "missing", 2, marks=pytest.mark.slow),
        pytest.param(2, "gpt2-xl", 0, marks=pytest.mark.slow),
    ],
)
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


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the system has no /dev/full")
def test_both_streams_may_be_full() -> None:
    with Path("/dev/full").open("w") as full:
        assert command("instances", "list", stdout=full, stderr=full).returncode == 2


def test_too_little_memory_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def none(*_arguments: object) -> None:
        raise MemoryError

    monkeypatch.setattr("stagecut.commands.instances.load", none)
    assert run_command(["instances", "show", "gpt2-xl"]) == 2
    assert capsys.readouterr().err.startswith("error: there is not enough memory; give the process")


def test_a_pipe_with_another_end_is_read_and_written(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    content = b"x" * 3_000_000
    writer = threading.Thread(target=writing.write_whole, args=(pipe, content))
    writer.start()
    assert source.read_bytes(pipe) == content
    writer.join()


def test_a_file_name_that_is_not_utf8_loses_no_plan(tmp_path: Path) -> None:
    name = os.fsdecode(b"net\xff.json")
    (tmp_path / name).write_text(json.dumps(placement()))
    plan = tmp_path / "plan.json"
    asked = ["solve", str(tmp_path / name), "--method", "greedy", "-o", str(plan)]
    assert run_command(asked) == 0
    assert json.loads(plan.read_text())["workload"]["name"] == "net\ufffd"


def test_an_interrupt_that_is_ignored_stays_so() -> None:
    search = Search(Limits(), lambda _: 1.0)
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with interrupts(search.interrupt):
            signal.raise_signal(signal.SIGINT)
            assert not search.should_stop()
    finally:
        signal.signal(signal.SIGINT, before)


#: A module that is imported before the command line, and is interrupted then.
INTERRUPTED = "import signal\nsignal.raise_signal(signal.SIGINT)\nraise AssertionError\n"


@pytest.mark.parametrize("module", ["typer", "stagecut.commands.instances"])
def test_ctrl_c_while_it_is_imported_is_one_line(module: str) -> None:
    """Before the command line is there, and when it imports a command."""
    program = (
        "import importlib.abc, importlib.util, runpy, signal, sys\n"
        # a shell's background jobs ignore it
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "class Interrupted(importlib.abc.MetaPathFinder, importlib.abc.Loader):\n"
        "    def find_spec(self, name, path, target=None):\n"
        f"        if name == {module!r}: return importlib.util.spec_from_loader(name, self)\n"
        "    def exec_module(self, module):\n"
        f"        exec({INTERRUPTED!r})\n"
        "sys.meta_path.insert(0, Interrupted())\n"
        "sys.argv[1:] = ['instances', 'list']\n"
        "runpy.run_module('stagecut', run_name='__main__')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT / ".dev")},
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "interrupted\n")


@pytest.mark.parametrize("name", ["plan.png", "plan.SVG"])
def test_a_plan_is_not_written_under_the_name_of_a_picture(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command(["solve", "gpt2-xl", "--method", "greedy", "-o", str(tmp_path / name)]) == 2
    assert "this file is no picture" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
