"""`import stagecut` gives everything, and loads nothing before it is used."""

from __future__ import annotations

import ast
import doctest
import json
import subprocess
import sys

import pytest
from project import ROOT

import stagecut

HEAVY = ("pandas", "networkx", "numba", "scipy", "pyomo", "highspy", "matplotlib", "torch", "numpy")


def test_importing_it_loads_no_library() -> None:
    code = (
        f"import json, sys, stagecut; print(json.dumps([m for m in {HEAVY} if m in sys.modules]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        check=True, capture_output=True, text=True, env={"PYTHONPATH": str(ROOT / ".dev")},
    )  # fmt: skip
    assert json.loads(done.stdout) == []


def test_type_checkers_see_what_is_loaded_lazily() -> None:
    (block,) = (
        node
        for node in ast.parse((ROOT / "__init__.py").read_text()).body
        if isinstance(node, ast.If)
    )
    stated = {
        (alias.asname, node.module)
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if alias.name == alias.asname  # which re-exports it
    }
    assert stated == set(stagecut._MODULE_OF.items())


def test_it_shows_the_interface_alone() -> None:
    assert dir(stagecut) == sorted(stagecut.__all__)
    assert len(set(stagecut.__all__)) == len(stagecut.__all__) > 80
    documented = stagecut.__doc__ or ""
    assert [name for name in stagecut.__all__ if f"`{name}`" not in documented] == []
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = stagecut.nonsense  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", stagecut.__all__)
def test_every_name_is_there(name: str) -> None:
    if any(
        part in stagecut._MODULE_OF.get(name, "") for part in ("pytorch", "execution", "measure")
    ):
        pytest.importorskip("torch")
    assert getattr(stagecut, name) is not None


def test_its_example_runs() -> None:
    assert doctest.testmod(stagecut).failed == 0
