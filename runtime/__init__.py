"""What happens when a plan runs: verified, simulated, executed."""

from .report import DeviceReport, Report
from .verify import evaluate, verify

__all__ = ["DeviceReport", "Report", "evaluate", "verify"]
