"""Whatever fails on a rank: all ranks end, and the first error is shown once, in one line."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="the extra `runtime` is not installed")

from ranks import launched  # noqa: E402
from run_workers import train, train_beside_a_group  # noqa: E402

CASES = [
    ("kill", "1f1b", "rank 1 is gone: killed"),
    ("memory", "2bw", "rank 1: out of memory: .*"),
    ("late", "pipedream", r"rank 1 is late: busy for 4 s at run_workers\.py:\d+"),
    ("start", "1f1b", "rank 1 of 2 did not start within 4 s"),
    ("plan", "1f1b", "rank 1 runs another plan than rank 0"),
    ("model", "pipedream", "rank 1 runs another weights than rank 0"),
]
#: The same under other schedules.
MORE = [
    ("kill", "pipedream", "rank 1 is gone: killed"),
    ("memory", "1f1b", "rank 1: out of memory: .*"),
    ("late", "1f1b", r"rank 1 is late: busy for 4 s at run_workers\.py:\d+"),
]


@pytest.mark.parametrize(
    ("fault", "schedule", "message"),
    [*CASES, *(pytest.param(*case, marks=pytest.mark.slow) for case in MORE)],
)
def test_all_ranks_end(fault: str, schedule: str, message: str, tmp_path: Path) -> None:
    said = tmp_path / "said"
    patient = fault not in ("late", "start")
    options = {"steps": 8, "timeout_s": 60.0 if patient else 4.0}
    if schedule == "2bw":  # wants as many microbatches as the plan has pieces
        options["microbatches"] = 4
    _, codes = launched(2, train, 0, fault, schedule, options, str(said))
    assert 0 not in codes
    (line,) = said.read_text().splitlines()
    assert re.match(message, line), line


def test_the_rank_that_keeps_the_store_may_be_killed(tmp_path: Path) -> None:
    said = tmp_path / "said"
    options = {"steps": 8, "timeout_s": 60.0}
    _, codes = launched(2, train, 0, "kill first", "1f1b", options, str(said), store=False)
    assert 0 not in codes
    (line,) = said.read_text().splitlines()
    assert line.startswith("rank 0 is gone")


def test_a_group_that_is_there_is_refused_and_may_be_left_before(tmp_path: Path) -> None:
    options = {"steps": 1, "timeout_s": 60.0}
    results, codes = launched(2, train_beside_a_group, options, str(tmp_path / "said"))
    assert codes == [0, 0], (tmp_path / "said").read_text()
    for refusal, (steps, _) in results:
        assert "a process group is there already" in refusal
        assert len(steps) == 1
