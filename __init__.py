"""Stagecut plans where the operators of a neural network run, and certifies how well."""

from .api import solve
from .instances import (
    Cluster,
    DeviceKind,
    InfeasibleError,
    InputError,
    Latency,
    LayerRule,
    Link,
    PairLink,
    Plan,
    StagecutError,
    Throughput,
    Training,
    VerificationError,
    Workload,
    accelerators_and_cpus,
)
from .instances.conversions import cluster_from_pandas, from_networkx, from_pandas
from .instances.files import dumps, load, load_cluster, load_plan, load_split, save
from .pareto import pareto
from .running import run
from .runtime import verify
from .simulation import simulate
from .solvers import Limits, Result
from .splits import plan_from_split

__all__ = [
    "Cluster",
    "DeviceKind",
    "InfeasibleError",
    "InputError",
    "Latency",
    "LayerRule",
    "Limits",
    "Link",
    "PairLink",
    "Plan",
    "Result",
    "StagecutError",
    "Throughput",
    "Training",
    "VerificationError",
    "Workload",
    "accelerators_and_cpus",
    "cluster_from_pandas",
    "dumps",
    "from_networkx",
    "from_pandas",
    "load",
    "load_cluster",
    "load_plan",
    "load_split",
    "pareto",
    "plan_from_split",
    "run",
    "save",
    "simulate",
    "solve",
    "verify",
]
