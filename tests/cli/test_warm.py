"""Compiling ahead: each case is run, and a failure is told."""

from __future__ import annotations

import pytest
from project import ROOT

from stagecut.api import warm as ahead
from stagecut.cli import run_command


def test_each_case_is_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT / ".dev"))
    assert sorted(ahead.warm([("solve", "missing.json"), ("instances", "show", "gpt2-xl")])) == [
        0,
        2,
    ]
    monkeypatch.setattr(ahead, "CASES", [("solve", "missing.json")])
    assert run_command(["warm"]) == 2
