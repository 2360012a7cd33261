"""What lies in the working directory is data: no command runs it, whatever it is called."""

from __future__ import annotations

import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import portfolio_strategies as strategies
import pytest
from nonsense import commands, made_once
from pyomo.common import Executable

from stagecut import InputError
from stagecut.cli import run_command
from stagecut.commands import warm
from stagecut.instances.common.kernel import load_numba
from stagecut.solvers.core.other_solvers import check_solver
from stagecut.solvers.core.processes import Process, python_process

MODULES = (
    "pickle", "random", "queue", "json", "threading", "subprocess", "typing", "dataclasses",
    "logging", "socket", "sitecustomize", "usercustomize", "numpy", "scipy", "pandas", "numba",
    "highspy", "msgspec", "networkx", "rich", "typer", "torch", "onnx", "distributed", "pyomo",
)  # fmt: skip
PACKAGES = ("stagecut", "stagecut/solvers", "encodings", "importlib", "email")


@pytest.fixture
def hostile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Work in a folder of modules and programs that leave a file where they are run."""
    folder = tmp_path / "hostile"
    folder.mkdir()
    files = [folder / f"{name}.py" for name in MODULES]
    for name in PACKAGES:
        (folder / name).mkdir()
        files += [folder / name / "__init__.py", folder / name / "__main__.py"]
    for file in files:
        ran = folder / f"RAN {file.relative_to(folder).as_posix().replace('/', '.')}"
        file.write_text(f"open({str(ran)!r}, 'w').close()\nraise SystemExit(3)\n")
    for name in ("cbc", "glpsol", "scip", "dot", "python", "python3"):
        program = folder / name
        program.write_text(f"#!/bin/sh\ntouch '{folder}/RAN {name}'\necho 'version 9.9'\n")
        program.chmod(0o755)
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", [*sys.path, str(folder), ""])  # as `python -m` has it
    return folder


def ran(folder: Path) -> list[str]:
    """Return what was run."""
    return sorted(path.name for path in folder.glob("RAN*"))


def test_no_command_runs_what_lies_there(hostile: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The processes that `compare` and `warm` start do their work."""
    monkeypatch.setattr(warm, "CASES", [("instances", "list")])
    beside = hostile.parent
    with made_once():
        for command, arguments in (commands(beside) | {"warm": []}).items():
            code = run_command([*command.split(), *arguments])
            assert not ran(hostile), command
            assert code == 0 or command not in ("solve", "compare", "warm"), command
    assert "crashed" not in (beside / "t.csv").read_text()


def test_a_worker_runs_nothing_there(hostile: Path) -> None:
    worker = Process(strategies.sleeps, None)
    assert worker.receive() == worker.pid
    worker.close()
    with pytest.raises(EOFError):
        worker.receive()
    assert not ran(hostile)


def test_a_process_finds_nothing_there(hostile: Path) -> None:
    command, environment = python_process("-c", "import stagecut, sys; print(stagecut.__file__)")
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert str(hostile) not in done.stdout + environment["PYTHONPATH"]
    assert not ran(hostile)


@pytest.mark.parametrize("name", ["cbc", "glpk", "scip"])
def test_no_solver_is_taken_from_there(hostile: Path, name: str) -> None:
    Executable.rehash()  # it looked elsewhere before
    with suppress(InputError):  # it may be installed
        check_solver(name)
    assert not ran(hostile)


def test_compiled_code_is_not_taken_from_there(hostile: Path) -> None:
    (hostile / ".numba_config.yaml").write_text("cache_dir: elsewhere\ndisable_jit: 1\n")
    config = load_numba().core.config
    before = config.CACHE_DIR
    config.reload_config()
    assert before == config.CACHE_DIR != "elsewhere"


def test_an_installed_module_is_not_taken_from_there(hostile: Path) -> None:
    pytest.importorskip("torch")
    from stagecut.instances.pytorch.factory import make

    (hostile / "tomllib.py").write_text(f"open({str(hostile / 'RAN tomllib')!r}, 'w').close()\n")
    with pytest.raises(Exception, match="it has no 'make'"):
        make("tomllib:make")
    assert not ran(hostile)
