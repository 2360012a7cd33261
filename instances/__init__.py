"""The nouns: workloads, clusters, plans, and the files they come in."""

from .cluster import ACCELERATOR, CPU, Cluster, Device, DeviceKind, Link, accelerators_and_cpus
from .costs import Costs, price
from .errors import InfeasibleError, InputError, StagecutError, VerificationError
from .plan import Limit, Plan, Status, gap_between
from .problem import Mapping, Problem, Throughput
from .solution import Mapped, Placement, Solution
from .stage_costs import StageCosts, stage_costs
from .topologies import Topology, topology
from .units import NodeId
from .workload import Workload

__all__ = [
    "ACCELERATOR",
    "CPU",
    "Cluster",
    "Costs",
    "Device",
    "DeviceKind",
    "InfeasibleError",
    "InputError",
    "Limit",
    "Link",
    "Mapped",
    "Mapping",
    "NodeId",
    "Placement",
    "Plan",
    "Problem",
    "Solution",
    "StageCosts",
    "StagecutError",
    "Status",
    "Throughput",
    "Topology",
    "VerificationError",
    "Workload",
    "accelerators_and_cpus",
    "gap_between",
    "price",
    "stage_costs",
    "topology",
]
