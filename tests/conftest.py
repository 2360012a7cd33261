"""Shared by all tests: where the published inputs are."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from project import ROOT

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
