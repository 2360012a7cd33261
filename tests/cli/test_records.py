"""Records: what they say is computed anew, and only what is better comes in."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
from project import ROOT

import stagecut
from stagecut import cli
from stagecut.api.records import SHIPPED, check_record, read_records, submit_record, write_records
from stagecut.instances import InputError, VerificationError

INSTANCE = "gpt2.json"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with an instance, and records without any."""
    workload = stagecut.load("gpt2-xl")
    (tmp_path / "instances").mkdir()
    (tmp_path / "records").mkdir()
    stagecut.save(workload, tmp_path / "instances" / INSTANCE)
    write_records(tmp_path / "records", [])
    return tmp_path


def plan_by(folder: Path, method: str, split: str = "contiguous") -> Path:
    workload = stagecut.load(folder / "instances" / INSTANCE)
    cluster = stagecut.accelerators_and_cpus(3)
    limits = stagecut.Limits(nodes=50)
    result = stagecut.solve(
        workload, cluster, stagecut.Throughput(split=split), method=method, limits=limits
    )
    assert result.plan is not None
    path = folder / f"{method}-{split}.json"
    stagecut.save(result.plan, path, workload)
    return path


def submit(folder: Path, plan: Path, **names: str) -> str:
    return submit_record(plan, folder / "records", folder / "instances", **names)[1]


def test_a_better_plan_comes_in_and_a_worse_one_does_not(folder: Path) -> None:
    single, best = plan_by(folder, "single"), plan_by(folder, "dp")
    with pytest.raises(InputError, match="no record is for this"):
        submit(folder, best)
    assert submit(folder, single, instance=INSTANCE, asked="max-load") == "new"
    (worse,) = read_records(folder / "records")
    assert "objective" in submit(folder, best)
    assert submit(folder, best) == "nothing"
    assert submit(folder, single) == "nothing"
    (record,) = read_records(folder / "records")
    assert record.objective < worse.objective
    assert record.gap == 0
    check_record(record, folder / "records", folder / "instances")


def test_another_question_is_another_record(folder: Path) -> None:
    assert submit(folder, plan_by(folder, "dp"), instance=INSTANCE, asked="contiguous") == "new"
    other = plan_by(folder, "greedy", "noncontiguous")
    with pytest.raises(InputError, match="--asked"):
        submit(folder, other)
    assert submit(folder, other, asked="non-contiguous") == "new"
    assert len(read_records(folder / "records")) == 2


def test_a_plan_that_is_not_what_it_says_is_refused(folder: Path) -> None:
    plan = plan_by(folder, "dp")
    submit(folder, plan, instance=INSTANCE, asked="max-load")
    said = json.loads(plan.read_text())
    said["objective"] *= 0.9
    said["bound"] = said["objective"]
    plan.write_text(json.dumps(said))
    with pytest.raises((InputError, VerificationError)):
        submit(folder, plan)


def test_a_record_that_was_changed_is_found_out(folder: Path) -> None:
    submit(folder, plan_by(folder, "greedy"), instance=INSTANCE, asked="max-load")
    (record,) = read_records(folder / "records")
    table = folder / "records" / "records.csv"
    table.write_text(table.read_text().replace(repr(record.objective), "1.5"))
    (changed,) = read_records(folder / "records")
    with pytest.raises(VerificationError, match="as the record says"):
        check_record(changed, folder / "records", folder / "instances")


def test_damaged_tables_are_refused_in_one_line(folder: Path) -> None:
    table = folder / "records" / "records.csv"
    submit(folder, plan_by(folder, "greedy"), instance=INSTANCE, asked="max-load")
    whole = table.read_text()
    for damaged in ("", "a,b\n1,2\n", whole.replace(",no,", ",maybe,"), whole + "x,y\n"):
        table.write_text(damaged)
        with pytest.raises(InputError, match=r"records\.csv"):
            read_records(folder / "records")


def test_the_records_of_a_suite_are_as_they_say(benchmarks: Path) -> None:
    """All of them: `stagecut records check`."""
    records = [r for r in read_records(SHIPPED) if "throughput/LayerGraphs" in r.instance]
    records = [record for record in records if (benchmarks / record.instance).is_file()]
    assert len(records) >= 12
    for record in records:
        check_record(record, SHIPPED, benchmarks)


def test_every_published_instance_has_a_record() -> None:
    published = ROOT / "instances" / "generate" / "published.csv"
    with published.open(encoding="utf-8") as lines:
        paths = {row["path"] for row in csv.DictReader(lines) if "human-experts" not in row["path"]}
    assert paths == {record.instance for record in read_records(ROOT / "records")}


def test_every_instance_of_the_benchmarks_has_a_record(benchmarks: Path) -> None:
    """But for the splits by hand, which are answers."""
    suites = ("pipedream", "piper", "placement/latency", "placement/throughput")
    found = {
        path.relative_to(benchmarks).as_posix()
        for suite in suites
        for path in (benchmarks / suite).rglob("*.*")
        if path.suffix in (".json", ".txt")
    }
    assert found
    assert found <= {record.instance for record in read_records(ROOT / "records")}


def test_records_are_listed_and_checked_from_any_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without instances in the cache the command that fetches them is named."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("STAGECUT_BENCHMARKS", str(tmp_path / "none"))
    assert cli.run_command(["records", "list", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["records"]) == len(read_records(SHIPPED))
    assert cli.run_command(["records", "check"]) == 2
    assert "stagecut instances fetch" in capsys.readouterr().err
