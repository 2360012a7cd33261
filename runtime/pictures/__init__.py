"""Pictures, pages and traces of plans and simulations."""

from __future__ import annotations

from ...instances.common.lazy import loader, names_of

#: Module → the names that it gives.
_MODULES = {
    "gantt": "plot_passes",
}
__getattr__ = loader(__name__, _MODULES)
__all__ = names_of(_MODULES)  # noqa: PLE0605, RUF100
