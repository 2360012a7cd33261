"""`import stagecut` gives everything, and loads nothing before it is used."""

from __future__ import annotations

import ast
import doctest
import inspect
import json
import re
import subprocess
import sys
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import pytest
from project import ROOT

import stagecut
import stagecut.instances

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
    assert len(set(stagecut.__all__)) == len(stagecut.__all__) <= 66
    documented = stagecut.__doc__ or ""
    assert [name for name in stagecut.__all__ if f"`{name}`" not in documented] == []
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = stagecut.nonsense  # type: ignore[attr-defined]


#: Packages below that have public names, too; the package's text names each.
ROOMS = (
    "instances", "instances.formats", "instances.costs", "runtime", "runtime.schedules",
    "runtime.simulate", "runtime.pictures", "runtime.measure", "runtime.execution", "api",
)  # fmt: skip


def names_below() -> dict[str, str]:
    """Return the room of each public name that the package itself does not give."""
    rooms = {room: import_module(f"stagecut.{room}").__all__ for room in ROOMS}
    rooms["runtime.schedules"] = [
        "SCHEDULES",
        "Schedule",
        "WeightVersions",
        "read_csv",
        "write_csv",
    ]
    return {name: room for room, names in rooms.items() for name in names}


def needs_torch(name: str) -> bool:
    module = stagecut._MODULE_OF.get(name) or names_below().get(name, "")
    return any(part in module for part in ("pytorch", "execution", "measure", "plan_model"))


def public(name: str) -> Any:
    """Return what a public name stands for; without torch, the module of one that needs it."""
    if needs_torch(name) and find_spec("torch") is None:
        return name
    if name in stagecut.__all__:
        return getattr(stagecut, name)
    return getattr(import_module(f"stagecut.{names_below()[name]}"), name)


def test_every_name_is_there_once() -> None:
    below = names_below()
    assert [name for name in (*stagecut.__all__, *below) if public(name) is None] == []
    for name in set(below) & set(stagecut.__all__):
        assert getattr(import_module(f"stagecut.{below[name]}"), name) is getattr(stagecut, name)


def test_import_stagecut_reaches_the_packages_below() -> None:
    code = "import stagecut; print(stagecut.runtime.simulate.chain([1.0, 2.0]).devices)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        check=True, capture_output=True, text=True, env={"PYTHONPATH": str(ROOT / ".dev")},
    )  # fmt: skip
    assert done.stdout.startswith("(")
    for room in ROOMS:
        assert room in (stagecut.__doc__ or ""), room
        with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
            _ = import_module(f"stagecut.{room}").nonsense


#: Constants and type aliases, which have no docstrings.
UNDOCUMENTED = {
    "ACCELERATOR", "CPU", "METHODS", "NodeId", "Problem", "SCHEDULES", "Solution", "TIME_UNITS",
    "__version__",
}  # fmt: skip


def test_every_docstring_has_what_it_must_have() -> None:
    for name in sorted({*stagecut.__all__, *names_below()} - UNDOCUMENTED):
        if find_spec("torch") is not None or not needs_torch(name):
            has_what_it_must_have(name)


def has_what_it_must_have(name: str) -> None:
    """Assert that a docstring has an example; of functions what they return and raise."""
    value = inspect.unwrap(public(name))
    text = inspect.getdoc(value) or ""
    head, *parts = re.split(r"^(\w+)\n-+\n", text, flags=re.MULTILINE)
    sections = dict(zip(parts[::2], parts[1::2], strict=True))
    assert head.strip(), name
    assert doctest.DocTestParser().get_examples(sections["Examples"]), name
    assert "+SKIP" not in text, name
    if inspect.isfunction(value):
        (tree,) = ast.parse(inspect.getsource(value)).body
        signature = inspect.signature(value)
        described = re.findall(r"^\w[\w, ]*$", sections.get("Parameters", ""), re.MULTILINE)
        assert set(signature.parameters) == set(", ".join(described).split(", ")) - {""}, name
        assert ("Returns" in sections) == (signature.return_annotation != "None"), name
        assert "Raises" in sections or not any(isinstance(n, ast.Raise) for n in ast.walk(tree)), (
            name
        )


def test_its_example_runs() -> None:
    assert doctest.testmod(stagecut).failed == 0
