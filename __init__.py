"""Stagecut plans where the operators of a neural network run, and certifies how well."""

from .api.pareto import pareto
from .api.run import run
from .api.simulate import simulate
from .api.solve import solve
from .api.splits import plan_from_split
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
from .instances.formats.conversions import cluster_from_pandas, from_networkx, from_pandas
from .instances.formats.files import dumps, load, load_cluster, load_plan, load_split, save
from .runtime import verify
from .solvers import Limits, Result

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
