"""Every notebook runs from top to bottom in its small setting, and is shipped with outputs."""

from __future__ import annotations

import ast
import os
import re
import runpy
import sys
from importlib import import_module
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient
from project import ROOT

import stagecut

FOLDER = ROOT / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))


#: Those that read published files, and take shipped workloads in their place.
READ_PUBLISHED = ("compare_formulations", "latency", "training_plans")
CASES = [
    *((path, True) for path in NOTEBOOKS),
    *((FOLDER / f"{name}.ipynb", False) for name in READ_PUBLISHED),
]


@pytest.mark.filterwarnings("default")  # of Jupyter's own libraries
@pytest.mark.parametrize(
    ("path", "fetched"),
    [
        pytest.param(
            path,
            fetched,
            marks=pytest.mark.page(f"notebooks/{path.name}", "notebooks/programs"),
            id=path.stem + ("" if fetched else "-nothing-fetched"),
        )
        for path, fetched in CASES
    ],
)
def test_it_runs_in_its_small_setting(
    path: Path, fetched: bool, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    published = request.getfixturevalue("benchmarks" if fetched else "tmp_path")
    monkeypatch.setenv("STAGECUT_SMALL", "1")
    monkeypatch.setenv("STAGECUT_BENCHMARKS", str(published))
    monkeypatch.setenv("PYTHONPATH", str(FOLDER.parent / ".dev"))
    notebook = nbformat.read(path, as_version=4)
    resources = {"metadata": {"path": str(FOLDER)}}
    NotebookClient(notebook, timeout=600, resources=resources).execute(env=dict(os.environ))


def test_the_programs_of_the_notebooks_are_those_that_are_traced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    make = FOLDER / "programs" / "make.py"
    monkeypatch.setattr(sys, "argv", [str(make), str(tmp_path)])
    runpy.run_path(str(make), run_name="__main__")
    shipped = sorted(make.parent.glob("*.json"))
    assert [file.name for file in shipped] == sorted(file.name for file in tmp_path.iterdir())
    for file in shipped:
        assert stagecut.load(file).fingerprint == stagecut.load(tmp_path / file.name).fingerprint


#: Packages below, whose names the documents give.
ROOMS = ("api", "instances", "runtime", "solvers")


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_uses_the_public_interface_alone(path: Path) -> None:
    """Every import of ours, and every `stagecut.NAME`, is a public name or of a package below."""
    wrong = []
    for cell in nbformat.read(path, as_version=4).cells:
        for node in ast.walk(ast.parse(cell.source)) if cell.cell_type == "code" else ():
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
                wrong += [name for name in names if name.startswith("stagecut.")]
            elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("stagecut"):
                known = getattr(import_module(node.module or ""), "__all__", [])
                wrong += [f"{node.module}.{a.name}" for a in node.names if a.name not in known]
            elif isinstance(node, ast.Attribute) and ast.unparse(node.value) == "stagecut":
                wrong += [ast.unparse(node)] * (node.attr not in (*stagecut.__all__, *ROOMS))
    assert not wrong


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_is_shipped_with_outputs_and_without_errors(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert code
    assert all(cell.execution_count for cell in code)
    outputs = [output for cell in code for output in cell.outputs]
    assert outputs
    assert not [output for output in outputs if output.output_type == "error"]
    assert not [output for output in outputs if "/work/" in str(output)]
    printed = [output.text for output in outputs if output.output_type == "stream"]
    assert not [text for text in printed if "Highs" in text or "WARNING" in text]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_ends_with_an_exercise_and_computes_its_conclusions(path: Path) -> None:
    """An exercise, where to begin, and a solution; no number below «Conclusions» was typed."""
    cells = nbformat.read(path, as_version=4).cells
    *_, task, begin, heading, solution = cells
    assert task.source.startswith("## Exercise")
    assert heading.source == "### A solution"
    assert (begin.cell_type, solution.cell_type) == ("code", "code")
    said = [cell.source for cell in cells if re.search("^## Conclusion", cell.source, re.MULTILINE)]
    assert all("Markdown(" in source for source in said)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_needs_no_torch(path: Path) -> None:
    sources = [cell.source for cell in nbformat.read(path, as_version=4).cells]
    assert not [source for source in sources if re.search("import torch|from torch", source)]
