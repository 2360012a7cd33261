"""Where the project is, and its modules."""

from __future__ import annotations

import ast
from collections.abc import Callable
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
ROOMS = ("instances", "formulations", "solvers", "runtime", "api", "commands")
MODULES = sorted(p.relative_to(ROOT) for room in ROOMS for p in (ROOT / room).rglob("*.py"))

#: Returns the folder of a name, made by a function if it is not there yet: `made_once` in conftest.
MadeOnce = Callable[[str, Callable[[Path], object]], Path]


@cache
def needs_torch(module: Path) -> bool:
    """Whether importing a module imports torch, by itself or by a module of ours."""
    package = ["stagecut", *module.parts[:-1]]
    for node in ast.parse((ROOT / module).read_text()).body:
        if isinstance(node, ast.Import):
            names = [alias.name.split(".") for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            base += (node.module or "").split(".")
            names = [base, *([*base, alias.name] for alias in node.names)]
        else:
            continue
        for name in names:
            parts = [part for part in name if part]
            if parts[0] == "torch":
                return True
            own = Path(*parts[1:]).with_suffix(".py") if parts[1:] else Path()
            if parts[0] == "stagecut" and own in MODULES and needs_torch(own):
                return True
    return False
