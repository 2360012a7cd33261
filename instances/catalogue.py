"""The workloads that are shipped, by name."""

from __future__ import annotations

from collections.abc import Callable

from .workload import Workload


def shipped() -> dict[str, Callable[[], Workload]]:
    """Return what builds each shipped workload, by name."""
    return {}
