"""Measurements of links and devices: latency and bandwidth between ranks, matrix products."""

from __future__ import annotations

from ...instances.common.lazy import loader, names_of

#: Module → the names that it gives.
_MODULES = {
    "measurement": "LinkDetail to_cluster",
    "picture": "draw_measurement",
}
__getattr__ = loader(__name__, _MODULES)
__all__ = names_of(_MODULES)  # noqa: PLE0605, RUF100
