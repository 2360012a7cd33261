"""The files that nouns come in: a module per format, `files` for all of them."""

from __future__ import annotations

from ..common.lazy import loader, names_of

#: Module → the names that it gives.
_MODULES = {
    "conversions": "cluster_from_pandas",
    "files": "dumps load_split",
    "rules_files": "load_rules",
}
__getattr__ = loader(__name__, _MODULES)
__all__ = names_of(_MODULES)  # noqa: PLE0605, RUF100
