"""Stagecut plans where the operators of a neural network run, and certifies how well."""

from .api import solve
from .instances import (
    Cluster,
    DeviceKind,
    InfeasibleError,
    InputError,
    Latency,
    Link,
    Plan,
    StagecutError,
    Throughput,
    VerificationError,
    Workload,
    accelerators_and_cpus,
)
from .instances.files import load
from .runtime import verify
from .solvers import Limits, Result

__all__ = [
    "Cluster",
    "DeviceKind",
    "InfeasibleError",
    "InputError",
    "Latency",
    "Limits",
    "Link",
    "Plan",
    "Result",
    "StagecutError",
    "Throughput",
    "VerificationError",
    "Workload",
    "accelerators_and_cpus",
    "load",
    "solve",
    "verify",
]
