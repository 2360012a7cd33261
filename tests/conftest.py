"""Shared by all tests: where the published inputs are, and searches that run to their end."""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest
from project import ROOT

from stagecut import Limits
from stagecut.solvers import DEFAULT_LIMITS
from stagecut.solvers.core.portfolio import portfolio

BENCHMARKS = Path(
    os.environ.get("STAGECUT_BENCHMARKS", ROOT.parent / "shared" / "benchmarks")
).resolve()


@pytest.fixture(scope="session")
def benchmarks() -> Path:
    """Folder of the published inputs; skipped without it, except in CI, where it must be."""
    if not BENCHMARKS.is_dir():
        if os.environ.get("CI"):
            pytest.fail(f"{BENCHMARKS} is missing: CI needs the published inputs")
        pytest.skip(f"published inputs not found at {BENCHMARKS}; set STAGECUT_BENCHMARKS")
    return BENCHMARKS


@pytest.fixture(scope="session", autouse=True)
def default_limits() -> Iterator[dict[str, Limits]]:
    """Let tests search to the end where they give no limits; yields the limits of users."""
    of_users = dict(DEFAULT_LIMITS)
    with pytest.MonkeyPatch.context() as patch:
        for problem in of_users:
            patch.setitem(DEFAULT_LIMITS, problem, Limits())
        yield of_users


@pytest.fixture(scope="session", autouse=True)
def _one_process() -> Iterator[None]:
    """Let tests search in one process, however long they take; those of workers say otherwise."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(portfolio, "START_AFTER_S", math.inf)
        yield


@pytest.fixture(autouse=True)
def _time_begins_now(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands count their time from the start of the process, which is here that of all tests."""
    import_module("stagecut.commands.common.clock")  # what is imported later takes its time
    for name, module in list(sys.modules.items()):
        if name.startswith("stagecut.commands.") and hasattr(module, "STARTED"):
            monkeypatch.setattr(module, "STARTED", time.monotonic())
