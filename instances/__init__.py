"""The nouns: workloads, clusters, plans, and the files they come in."""

from .cluster import ACCELERATOR, CPU, Cluster, Device, DeviceKind, accelerators_and_cpus
from .costs import Costs, price, without_links
from .errors import InfeasibleError, InputError, StagecutError, VerificationError
from .layers import Layers, layers_of
from .links import Link, PairLink
from .plan import Limit, Plan, Status, gap_between
from .problem import Latency, LayerRule, Mapping, Problem, Throughput, Training
from .solution import Calls, Mapped, Placement, Solution, Stage, Stages, in_stages
from .stage_costs import StageCosts, stage_costs
from .topologies import Topology, topology
from .units import TIME_UNITS, NodeId
from .workload import Workload

__all__ = [
    "ACCELERATOR",
    "CPU",
    "TIME_UNITS",
    "Calls",
    "Cluster",
    "Costs",
    "Device",
    "DeviceKind",
    "InfeasibleError",
    "InputError",
    "Latency",
    "LayerRule",
    "Layers",
    "Limit",
    "Link",
    "Mapped",
    "Mapping",
    "NodeId",
    "PairLink",
    "Placement",
    "Plan",
    "Problem",
    "Solution",
    "Stage",
    "StageCosts",
    "StagecutError",
    "Stages",
    "Status",
    "Throughput",
    "Topology",
    "Training",
    "VerificationError",
    "Workload",
    "accelerators_and_cpus",
    "gap_between",
    "in_stages",
    "layers_of",
    "price",
    "stage_costs",
    "topology",
    "without_links",
]
