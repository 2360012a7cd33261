"""Compiling ahead: each case is run, and a failure is told."""

from __future__ import annotations

import pytest
from project import ROOT

from stagecut.cli import run_command
from stagecut.commands import warm as ahead


def test_each_case_is_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT / ".dev"))
    cases = [("solve", "missing.json"), ("instances", "show", "gpt2-xl")]
    assert sorted(ahead.run_cases(cases)) == [0, 2]
    monkeypatch.setattr(ahead, "CASES", [("solve", "missing.json")])
    assert run_command(["warm"]) == 2
