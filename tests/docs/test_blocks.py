"""Every code block of every page is executed, or says why not."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from pages import DATA, PROGRAMS, blocks, run
from project import ROOT

#: Pages whose blocks others execute, and look at what they print.
ELSEWHERE = {
    "explain.md": "test_docs.py",
    "plan.md": "test_docs.py, slow",
    "from_model_to_pipeline.md": "test_tutorial.py, slow",
    "gallery.md": "test_site.py: the site is built of what they make",
}
PAGES = {
    path.name: path
    for path in (*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md")))
    if blocks(path.read_text())
}
OWN = sorted(PAGES.keys() - ELSEWHERE)

#: The same, each to be run if it has changed, and the README always.
WHEN_CHANGED = [
    pytest.param(name, marks=pytest.mark.page(f"docs/{name}") if name != "README.md" else ())
    for name in OWN
]

#: The model of a reader.
MODEL = """
import torch


def make(batch=8):
    torch.manual_seed(0)
    layers = [torch.nn.Linear(32, 32) for _ in range(4)]
    return torch.nn.Sequential(*layers), torch.randn(batch, 32)
"""


@pytest.mark.parametrize("name", PAGES)
def test_every_block_says_what_it_is(name: str) -> None:
    found = blocks(PAGES[name].read_text())
    assert len(found) == PAGES[name].read_text().count("\n```") // 2
    for block in found:
        assert block.language in (*PROGRAMS, *DATA, "json"), f"{name}:{block.line}: no language"
        for note in ("not run", "slow"):
            assert len(block.notes.get(note, "a reason")) > 7, f"{name}:{block.line}: no reason"


@pytest.mark.parametrize("name", WHEN_CHANGED)
def test_the_blocks_of_a_page_run(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _run(name, tmp_path, monkeypatch, slow=False)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [n for n in OWN if any("slow" in b.notes for b in blocks(PAGES[n].read_text()))]
)
def test_the_slow_blocks_of_a_page_run(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _run(name, tmp_path, monkeypatch, slow=True)


def _run(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch, *, slow: bool) -> None:
    text = PAGES[name].read_text()
    if "torch" in text:
        pytest.importorskip("torch", reason="the extra `runtime` is not installed")
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(folder)
    (folder / "my_model.py").write_text(MODEL)
    shutil.copytree(ROOT / "docs" / "recorded", folder / "recorded")
    run(blocks(text), folder, slow=slow)
