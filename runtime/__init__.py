"""What happens when a plan runs: verified, simulated, executed."""

from .verify.report import CallReport, DeviceReport, MappingReport, Report, StageReport
from .verify.sharding import ShardingReport
from .verify.verify import evaluate, verify

__all__ = [
    "CallReport",
    "DeviceReport",
    "MappingReport",
    "Report",
    "ShardingReport",
    "StageReport",
    "evaluate",
    "verify",
]
