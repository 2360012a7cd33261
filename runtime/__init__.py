"""What happens when a plan runs: verified, simulated, executed."""

from .report import DeviceReport, Report, StageReport
from .verify import evaluate, verify

__all__ = ["DeviceReport", "Report", "StageReport", "evaluate", "verify"]
