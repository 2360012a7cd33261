"""Units of time, and what nodes are called by."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

NodeId = int | str

#: Seconds per unit of time; a file that names no unit cannot be priced over links in bytes/s.
TIME_UNITS: Mapping[str, float] = MappingProxyType({"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9})
UNSPECIFIED = "unspecified"

#: What the outermost module's own operators are called in workloads made from models.
ROOT_MODULE = "model"
