"""The page of benchmarks is what its tables make it, and decisions are short and found."""

from __future__ import annotations

import csv
import re
import subprocess
import sys
from datetime import date
from pathlib import Path
from types import ModuleType

import pytest
from project import ROOT

sys.path.append(str(ROOT / "benchmarks"))
import ablations
import constants
import page
import papers
import results

TABLES = sorted(path.stem for path in results.RESULTS.glob("*.csv"))
DECISIONS = ROOT / "docs" / "decisions"
#: What each page of a decision says.
PARTS = ("Asked", "Decided")


@pytest.mark.parametrize("made", [page, papers, constants])
def test_the_pages_are_made_of_their_tables(made: ModuleType) -> None:
    assert made.page() == made.PAGE.read_text(encoding="utf-8"), "run make benchmarks-page"


def test_every_table_is_on_a_page() -> None:
    texts = [made.PAGE.read_text(encoding="utf-8") for made in (page, papers)]
    named = set(re.findall(r"`([\w-]+)\.csv`", "".join(texts)))
    ablations = {name for name in TABLES if name.startswith("ablation-")}
    assert named == set(TABLES) - ablations


@pytest.mark.parametrize("problem", ablations.PROBLEMS)
def test_what_an_ablation_leaves_out_is_there(problem: str) -> None:
    """A function that has another name now would be found only when the table is made anew."""
    if problem == "sharding":
        pytest.importorskip("torch")
    _, parts = ablations.PROBLEMS[problem]()
    sites = [site for part in parts.values() for site in (*part.sites, *part.entries)]
    assert sites
    assert not [(home, name) for home, name in sites if not hasattr(home, name)]


@pytest.mark.parametrize("change", constants.CHANGES)
def test_constants_are_changed_in_their_sources_and_no_others(change: str) -> None:
    every = [each for package in constants.PACKAGES for each in constants.constants(package)]
    assert len({each.key for each in every}) == len(every) > 250
    assert set(constants.PROTECTS) <= {each.key for each in every}
    chosen = [each for each in every if each.changed(change) is not None][::2]
    sources = constants.changed_sources(chosen, change)
    after = {
        each.key: each.value
        for file in {each.file for each in every}
        for each in constants.in_source(file, sources.get(file) or file.read_bytes())
    }
    assert after == {each.key: each.value for each in every} | {
        each.key: each.changed(change) for each in chosen
    }


@pytest.mark.parametrize("name", [name for name in TABLES if not name.startswith("ablation-")])
def test_every_row_has_its_origin(name: str) -> None:
    with (results.RESULTS / f"{name}.csv").open(encoding="utf-8", newline="") as file:
        header, *rows = csv.reader(file)
    assert tuple(header[-len(results.ORIGIN) :]) == results.ORIGIN
    assert rows
    for row in rows:
        origin = dict(zip(results.ORIGIN, row[-len(results.ORIGIN) :], strict=True))
        assert re.fullmatch(r"[0-9a-f]{7,}(-dirty)?", origin["revision"])
        assert date.fromisoformat(origin["date"])
        assert "cores" in origin["machine"]
        assert origin["versions"].startswith("Python 3.")


def test_results_are_read_from_a_printed_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    printed = (
        "text\n\n| a | b |\n|---|--:|\n| x | 1 |\n| y |  |\n\n| b | a |\n|---|---|\n| z | 2 |\n"
    )
    assert results.markdown(printed) == [["x", "1"], ["y", ""], ["z", "2"]]
    monkeypatch.setattr(results, "RESULTS", tmp_path)
    monkeypatch.setattr(results, "origin", lambda seed: dict.fromkeys(results.ORIGIN, seed))
    results.write("new", [{"a": "x", "b": "1"}], "7")
    results.write("new", [{"a": "y", "b": ""}], "8", add=True)
    assert [(row["a"], row["b"], row["seed"]) for row in results.read("new")] == [
        ("x", "1", "7"),
        ("y", "", "8"),
    ]


def test_a_table_of_other_columns_is_refused() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "benchmarks" / "results.py", "training"],
        input="| a |\n|---|\n| 1 |\n",
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    assert "training.csv has 9 columns" in done.stderr


def test_decisions_are_short_and_in_the_index_and_the_navigation() -> None:
    pages = sorted(path.name for path in DECISIONS.glob("*.md"))
    index = (DECISIONS / "index.md").read_text(encoding="utf-8")
    site = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    for name in pages:
        assert f"decisions/{name}" in site
        if name != "index.md":
            assert f"({name})" in index
            lines = (DECISIONS / name).read_text(encoding="utf-8").splitlines()
            tables = (
                [line for line in lines if line.startswith("|")]
                if name == constants.PAGE.name
                else []
            )
            assert len(lines) - len(tables) <= 60
            assert lines[0].endswith("?")
            assert all(any(line.startswith(f"**{part}.**") for line in lines) for part in PARTS)
