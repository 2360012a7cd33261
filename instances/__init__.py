"""The nouns: workloads, clusters, plans, and the files they come in."""

from .cluster import ACCELERATOR, CPU, Cluster, Device, DeviceKind, Link, accelerators_and_cpus
from .costs import Costs, price
from .errors import InfeasibleError, InputError, StagecutError, VerificationError
from .plan import Limit, Plan, Status, gap_between
from .problem import Latency, Problem, Throughput
from .solution import Calls, Placement, Solution
from .units import NodeId
from .workload import Workload

__all__ = [
    "ACCELERATOR",
    "CPU",
    "Calls",
    "Cluster",
    "Costs",
    "Device",
    "DeviceKind",
    "InfeasibleError",
    "InputError",
    "Latency",
    "Limit",
    "Link",
    "NodeId",
    "Placement",
    "Plan",
    "Problem",
    "Solution",
    "StagecutError",
    "Status",
    "Throughput",
    "VerificationError",
    "Workload",
    "accelerators_and_cpus",
    "gap_between",
    "price",
]
