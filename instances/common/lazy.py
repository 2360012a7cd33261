"""Names of a package that are loaded from its modules when they are first used."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import Any


def loader(package: str, modules: Mapping[str, str]) -> Callable[[str], Any]:
    """Return the ``__getattr__`` of a package, which imports a module when a name is first used.

    `modules` gives the names of each module, separated by spaces; submodules are found, too.
    AttributeError for all other names, as Python requires.
    """
    module_of = {name: module for module, names in modules.items() for name in names.split()}

    def load(name: str) -> Any:
        if name in module_of:
            value = getattr(import_module(f".{module_of[name]}", package), name)
        elif not name.startswith("_") and find_spec(f".{name}", package) is not None:
            value = import_module(f".{name}", package)
        else:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        setattr(sys.modules[package], name, value)
        return value

    return load


def names_of(modules: Mapping[str, str]) -> list[str]:
    """Return the names that modules give, in alphabetical order."""
    return sorted(name for names in modules.values() for name in names.split())
