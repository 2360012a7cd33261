"""The simulator: a plan over time, on devices and links."""

from __future__ import annotations

from ...instances.common.lazy import loader, names_of

#: Module → the names that it gives.
_MODULES = {
    "network": "HostMemory Links Sharing shared",
    "result": "Simulation",
    "simulator": "simulate_stages",
    "stages": "StageGraph chain",
}
__getattr__ = loader(__name__, _MODULES)
__all__ = names_of(_MODULES)  # noqa: PLE0605, RUF100
