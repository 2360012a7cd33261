"""`stagecut explain`, `--version` and what the shell completes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from project import ROOT
from typer.testing import CliRunner

import stagecut
from stagecut import cli


def run(*words: str) -> tuple[int, str]:
    done = CliRunner().invoke(cli.app, words)
    return done.exit_code, done.stdout


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A plan for gpt2-xl on four accelerators."""
    path = tmp_path_factory.mktemp("plans") / "plan.json"
    workload = stagecut.load("gpt2-xl")
    assert workload.cluster is not None
    cluster = workload.cluster.with_counts(4, 0)
    problem = stagecut.Throughput("contiguous")
    found = stagecut.solve(workload, cluster, problem, limits=stagecut.Limits(gap=0.01)).plan
    assert found is not None
    stagecut.save(found, path, workload)
    return str(path)


def test_it_explains_a_plan(plan: str, tmp_path: Path) -> None:
    picture = tmp_path / "loads.png"
    code, said = run(
        "explain", "gpt2-xl", plan, "--node", "block.15.mlp", "--most", "2", "--time-limit", "2",
        "--plot", str(picture),
    )  # fmt: skip
    assert code == 0
    for words in ("limits: in", "Transfers that cost most", "What would help", "one more a100-80gb",
                  "Node block.15.mlp is in a100-80gb", "written"):  # fmt: skip
        assert words in said
    assert picture.stat().st_size > 1000


def test_its_json_holds_the_same(plan: str) -> None:
    code, said = run("explain", "gpt2-xl", plan, "--time-limit", "0", "--json")
    found = json.loads(said)
    assert code == 0
    assert found["limiting"] in [load["name"] for load in found["loads"]]
    assert found["transfers"][0]["paid"] >= found["transfers"][-1]["paid"] > 0
    assert found["remedies"] == []
    assert found["node"] is None


def test_without_a_plan_it_says_what_would_do() -> None:
    code, said = run(
        "explain", "gpt2-xl", "--accelerators", "2", "--cpus", "0", "--memory", "2GiB",
        "--time-limit", "20",
    )  # fmt: skip
    assert code == 3
    assert "Infeasible" in said
    assert "4 × a100-80gb" in said or "3 × a100-80gb" in said


def test_options_of_the_plan_are_refused(plan: str) -> None:
    assert cli.run_command(["explain", "gpt2-xl", plan, "--memory", "2GiB"]) == 2
    assert cli.run_command(["explain", "gpt2-xl", plan, "--node", "nowhere"]) == 2


def test_version() -> None:
    assert run("--version") == (0, f"stagecut {stagecut.__version__}\n")


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("solve x --method g", ["greedy"]),
        ("solve gpt2-xl-operators-t", ["gpt2-xl-operators-training"]),
        ("solve x --cluster ring", ["ring:"]),
        ("compare x --methods auto,greed", ["auto,greedy"]),
        pytest.param("solve x --split non", ["noncontiguous"], marks=pytest.mark.slow),
        pytest.param("explain x --problem lat", ["latency"], marks=pytest.mark.slow),
        pytest.param("simulate x --schedule pip", ["pipedream"], marks=pytest.mark.slow),
    ],
)
def test_the_shell_completes_names(words: str, found: list[str]) -> None:
    env = {
        **os.environ,
        "PYTHONPATH": str(ROOT / ".dev"),
        "_STAGECUT_COMPLETE": "complete_bash",
        "COMP_WORDS": f"stagecut {words}",
        "COMP_CWORD": str(len(words.split())),
    }
    done = subprocess.run(
        [sys.executable, "-m", "stagecut"], env=env, capture_output=True, text=True
    )
    assert done.stdout.split() == found
