"""Programs in Pyomo written to files, for any other solver."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import pyomo.environ as pyo

from ...instances import InputError

FORMATS = (".mps", ".lp")


def write_model(state: Callable[[], pyo.ConcreteModel], path: str | Path) -> None:
    """Write a program as MPS or LP by the file's ending; whole or not at all.

    Parameters
    ----------
    state
        States the program, once the ending is known to be right.

    Raises
    ------
    InputError
        If the ending is another, or the file cannot be written.
    """
    path = Path(path)
    if path.suffix.lower() not in FORMATS:
        raise InputError(f"{path}: unknown ending {path.suffix!r}; use .mps or .lp")
    model = state()
    try:
        with TemporaryDirectory(dir=path.parent, prefix=".stagecut-") as folder:
            whole = Path(folder) / f"model{path.suffix.lower()}"
            model.write(str(whole), io_options={"symbolic_solver_labels": True})
            whole.replace(path)
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {error.strerror}") from error
