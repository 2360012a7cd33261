"""What `test_cli` shares with other tests."""

from __future__ import annotations

import io
import json
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest

from stagecut.api import cases as cases_module
from stagecut.api.cases import ComparisonCase
from stagecut.api.compare import Row
from stagecut.cli import run_command


def placement_file(folder: Path, name: str = "a small net.json", **changes: object) -> Path:
    """A chain of four nodes in placement JSON."""
    data: dict[str, object] = {
        "maxSizePerFPGA": 100.0,
        "maxFPGAs": 2,
        "maxCPUs": 1,
        "nodes": [
            {
                "id": v, "supportedOnFpga": 1, "cpuLatency": 20.0, "fpgaLatency": 2.0,
                "isBackwardNode": 0, "colorClass": v, "size": 30.0,
            }
            for v in range(4)
        ],
        "edges": [{"sourceId": v, "destId": v + 1, "cost": 0.5} for v in range(3)],
    }  # fmt: skip
    path = folder / name
    path.write_text(json.dumps(data | changes))
    return path


def run_here(command: Sequence[str], **_: object) -> subprocess.CompletedProcess[str]:
    """Run a command of ours in this process, in place of `subprocess.run`.

    A process of its own would take a second to import what it needs.
    """
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = run_command(list(command[command.index("stagecut") + 1 :]))
    return subprocess.CompletedProcess(command, code, out.getvalue(), err.getvalue())


class Here:
    """An executor without threads."""

    def unordered(
        self, function: Callable[[ComparisonCase], Row], arguments: Sequence[ComparisonCase]
    ) -> Iterator[tuple[ComparisonCase, Row]]:
        return ((argument, function(argument)) for argument in arguments)

    def close(self) -> None:
        """Nothing is open."""


def compare_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the cases of comparisons in this process."""
    monkeypatch.setattr(cases_module.subprocess, "run", run_here)
    monkeypatch.setattr(cases_module, "executor_of", lambda *_: Here())
