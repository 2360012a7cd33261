"""File formats: a module for each, and `files`, which finds the format of a file."""

from __future__ import annotations

from ..common.lazy import loader, names_of

#: Module → the names that it gives.
_MODULES = {
    "files": "dumps load_split",
}
__getattr__ = loader(__name__, _MODULES)
__all__ = names_of(_MODULES)  # noqa: PLE0605, RUF100
