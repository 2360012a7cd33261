"""`stagecut simulate` and `stagecut diff`, by their commands."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer
from pipelines import plan_of, random_plan
from typer.testing import CliRunner

from stagecut import InputError, save
from stagecut.commands.diff import diff
from stagecut.commands.simulate import simulate

app = typer.Typer()
app.command()(simulate)
app.command()(diff)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a workload and two plans for it."""
    folder = tmp_path_factory.mktemp("plans")
    found = random_plan(42, max_nodes=10)
    assert found is not None
    workload, plan = found
    device = plan.placement.copy()
    device[0] = (device[0] + 1) % plan.cluster.size
    save(workload, folder / "workload.json")
    save(plan, folder / "plan.json", workload)
    save(plan_of(workload, plan.cluster, device), folder / "other.json", workload)
    return folder


def _run(*arguments: str | Path):
    result = CliRunner().invoke(app, [str(a) for a in arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def test_json_has_what_is_asked_for(files: Path) -> None:
    result = _run(
        "simulate", files / "workload.json", files / "plan.json", "--schedule", "pipedream",
        "--microbatches", "6", "--json",
    )  # fmt: skip
    answer = json.loads(result.stdout)
    plan = json.loads((files / "plan.json").read_text())
    assert {"makespan", "time_per_sample", "bubble", "peak_memory"} <= answer.keys()
    assert answer["time_per_sample"] == pytest.approx(plan["objective"], rel=1e-9)
    assert answer["microbatches"] == 6
    assert len(answer["peak_memory"]) == len(answer["devices"])


def test_files_are_written(files: Path, tmp_path: Path) -> None:
    common = ["simulate", files / "workload.json", files / "plan.json"]
    result = _run(
        *common, "--trace", tmp_path / "t.json", "--plot", tmp_path / "t.svg", "--graph",
        tmp_path / "g.png", "--csv", tmp_path / "s.csv",
    )  # fmt: skip
    assert "makespan" in result.stdout
    assert json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    assert "</svg>" in (tmp_path / "t.svg").read_text()
    _run(*common, "--plot", tmp_path / "t.html")
    assert "</html>" in (tmp_path / "t.html").read_text()
    again = json.loads(_run(*common, "--schedule", tmp_path / "s.csv", "--json").stdout)
    first = json.loads(_run(*common, "--json").stdout)
    assert again["makespan"] == first["makespan"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--schedule", "none"], "no 'none'; use one of gpipe"),
        (["--schedule", "none.csv"], "no such file"),
        (["--microbatches", "0"], "at least 1"),
        (["--network", "p2p"], "give --bandwidth"),
        (["--network", "wifi"], "is not one of host, p2p, bus"),
        (["--weight-share", "2"], "from 0 to 1"),
        (["--plot", "no/such/folder.svg"], "folder does not exist"),
    ],
)
def test_wrong_options_are_named(files: Path, options: list[str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        _run("simulate", files / "workload.json", files / "plan.json", *options)


def test_two_plans_side_by_side(files: Path) -> None:
    both = ["diff", files / "plan.json", files / "other.json"]
    assert "moved" in _run(*both).stdout
    answer = json.loads(_run(*both, "--json").stdout)
    assert answer["first"]["objective"] > 0
    same = json.loads(_run("diff", files / "plan.json", files / "plan.json", "--json").stdout)
    assert same["moved"] == []
