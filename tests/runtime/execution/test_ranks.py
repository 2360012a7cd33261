"""Ranks that do not end are ended by the tests, and say what they were doing."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("torch", reason="the extra `runtime` is not installed")

import ranks
from run_workers import wait_for_ever


def test_ranks_that_do_not_end_show_their_stacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a clock of the test, which is read before a rank begins: the time is up once it waits."""
    begun = tmp_path / "begun"
    monkeypatch.setattr(
        ranks, "time",
        SimpleNamespace(monotonic=lambda: 2 * ranks.HANGS_S * begun.exists(), sleep=time.sleep),
    )  # fmt: skip
    monkeypatch.setattr(ranks.shutil, "which", lambda _: None)  # gdb takes seconds
    with pytest.raises(AssertionError, match="a rank does not end") as failed:
        ranks.launched(2, wait_for_ever, begun)
    text = str(failed.value)
    assert "rank 1, Python:" in text
    assert "in wait_for_ever" in text
    assert "(python" in text  # the threads' names
