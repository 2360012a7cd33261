"""Verification, simulation and execution of plans."""

from __future__ import annotations

from ..instances.common.lazy import loader, names_of
from .verify.report import CallReport, DeviceReport, MappingReport, Report, StageReport
from .verify.sharding import ShardingReport
from .verify.verify import evaluate, verify

#: Module → the names that it gives when they are first used.
_MODULES = {
    "accuracy.comparison": "calibrate compare_run",
    "verify.mapping": "stage_reports",
}
__getattr__ = loader(__name__, _MODULES)

__all__ = [  # noqa: PLE0604, RUF100
    *names_of(_MODULES),
    "CallReport",
    "DeviceReport",
    "MappingReport",
    "Report",
    "ShardingReport",
    "StageReport",
    "evaluate",
    "verify",
]
