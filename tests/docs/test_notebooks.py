"""Every notebook runs from top to bottom in its small setting, and is shipped with outputs."""

from __future__ import annotations

import ast
import os
from importlib import import_module
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient
from project import ROOT

import stagecut

FOLDER = ROOT / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))


@pytest.mark.filterwarnings("default")  # of Jupyter's own libraries
@pytest.mark.parametrize(
    "path",
    [
        pytest.param(path, marks=pytest.mark.page(f"notebooks/{path.name}"), id=path.stem)
        for path in NOTEBOOKS
    ],
)
def test_it_runs_in_its_small_setting(
    path: Path, benchmarks: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STAGECUT_SMALL", "1")
    monkeypatch.setenv("STAGECUT_BENCHMARKS", str(benchmarks))
    monkeypatch.setenv("PYTHONPATH", str(FOLDER.parent / ".dev"))
    notebook = nbformat.read(path, as_version=4)
    resources = {"metadata": {"path": str(FOLDER)}}
    NotebookClient(notebook, timeout=600, resources=resources).execute(env=dict(os.environ))


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
