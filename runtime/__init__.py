"""What happens when a plan runs: verified, simulated, executed."""

from .verify.report import CallReport, DeviceReport, MappingReport, Report, StageReport
from .verify.verify import evaluate, verify

__all__ = [
    "CallReport",
    "DeviceReport",
    "MappingReport",
    "Report",
    "StageReport",
    "evaluate",
    "verify",
]
