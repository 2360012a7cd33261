"""What the documentation shows works as written."""

from __future__ import annotations

import doctest
import os
import re
import shlex
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
from project import MODULES, ROOT, needs_torch


def test_the_example_of_the_readme_runs_and_is_short() -> None:
    (example,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert len(example.strip().splitlines()) <= 12
    exec(compile(example, "README.md", "exec"), {})


def test_the_examples_of_the_page_on_iterations_run(tmp_path: Path) -> None:
    """Its commands, where Stagecut is installed, and its Python."""
    page = (ROOT / "docs" / "iteration.md").read_text()
    (commands,) = re.findall(r"```sh\n(.*?)```", page, re.DOTALL)
    (example,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    env = {**os.environ, "PYTHONPATH": str(ROOT / ".dev")}
    for command in commands.strip().splitlines():
        words = [sys.executable, "-m", *shlex.split(command)]
        done = subprocess.run(words, cwd=tmp_path, env=env, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    assert (tmp_path / "timeline.svg").exists()
    exec(compile(example, "docs/iteration.md", "exec"), {})


def test_the_examples_of_the_page_on_sharding_run(tmp_path: Path) -> None:
    """Its Python, and its commands on that model."""
    pytest.importorskip("torch", reason="the extra `runtime` is not installed")
    page = (ROOT / "docs" / "sharding.md").read_text()
    (commands,) = re.findall(r"```sh\n(.*?)```", page, re.DOTALL)
    (example,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    (tmp_path / "model.py").write_text(example.partition("model, inputs = make()")[0])
    env = {**os.environ, "PYTHONPATH": str(ROOT / ".dev")}
    for command in commands.strip().splitlines():
        words = [sys.executable, "-m", *shlex.split(command)]
        done = subprocess.run(words, cwd=tmp_path, env=env, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    assert (tmp_path / "placements.py").exists()
    exec(compile(example, "docs/sharding.md", "exec"), {})


@pytest.mark.parametrize("module", MODULES, ids=str)
def test_examples_in_docstrings(
    module: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files that they write go into a folder of their own."""
    if needs_torch(module):
        pytest.importorskip("torch", reason="the extra `runtime` is not installed")
    monkeypatch.chdir(tmp_path)
    parts = module.with_suffix("").parts
    name = ".".join(("stagecut", *parts)).removesuffix(".__init__")
    result = doctest.testmod(import_module(name))
    assert result.failed == 0


def test_every_link_inside_the_documentation_leads_somewhere() -> None:
    for page in (*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")):
        for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text()):
            if "://" not in target:
                assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_the_glossary_has_every_term_once_in_order() -> None:
    text = (ROOT / "docs/glossary.md").read_text()
    terms = [term.casefold() for term in re.findall(r"^\*\*(.+?)\.\*\*", text, re.MULTILINE)]
    assert len(terms) > 60
    assert terms == sorted(set(terms))
