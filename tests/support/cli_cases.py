"""What `test_cli` shares with other tests."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from stagecut.api import cases as cases_module
from stagecut.api.compare import Case, Row, row_of


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


class Here:
    """An executor without threads."""

    def unordered(
        self, function: Callable[[Case], Row], arguments: Sequence[Case]
    ) -> Iterator[tuple[Case, Row]]:
        return ((argument, function(argument)) for argument in arguments)

    def close(self) -> None:
        """Nothing is open."""


def row_here(case: Case) -> Row:
    """Return a case's row, without its plan."""
    return {name: value for name, value in row_of(case).items() if name != "plan"}


def compare_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the cases of comparisons in this process."""
    monkeypatch.setattr(cases_module, "run_case", row_here)
    monkeypatch.setattr(cases_module, "executor_of", lambda *_: Here())
