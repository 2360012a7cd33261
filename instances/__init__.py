"""The nouns: workloads, clusters, plans, and the files they come in."""

from .common.choices import (
    Collective,
    CpuSplit,
    Limit,
    MappingMode,
    MappingObjective,
    Optimizer,
    Pipeline,
    PipelineSchedule,
    Precision,
    Recomputation,
    Routing,
    Split,
    Status,
    Tied,
    TrainingObjective,
    TrainingSchedule,
)
from .common.errors import InfeasibleError, InputError, StagecutError, VerificationError
from .common.units import TIME_UNITS, NodeId
from .model.cluster import ACCELERATOR, CPU, Cluster, Device, DeviceKind, accelerators_and_cpus
from .model.costs import Costs, price, without_links
from .model.iteration import Iteration
from .model.layers import Layers
from .model.network.links import Link, PairLink
from .model.placement_rules import PlacementRules
from .model.plan import Plan, gap_between
from .model.problem import DeviceMapping, Latency, Problem, Throughput
from .model.solution import (
    CallPlacement,
    PipelinePlacement,
    Placement,
    ReplicaPlacement,
    Solution,
    Stage,
    StagePlacement,
    in_stages,
)
from .model.stage_costs import StageCosts, stage_costs
from .model.training import LayerRule, Training
from .model.training_layers import layers_of
from .model.workload import Workload
from .topologies import Topology, topology

__all__ = [
    "ACCELERATOR",
    "CPU",
    "TIME_UNITS",
    "CallPlacement",
    "Cluster",
    "Collective",
    "Costs",
    "CpuSplit",
    "Device",
    "DeviceKind",
    "DeviceMapping",
    "InfeasibleError",
    "InputError",
    "Iteration",
    "Latency",
    "LayerRule",
    "Layers",
    "Limit",
    "Link",
    "MappingMode",
    "MappingObjective",
    "NodeId",
    "Optimizer",
    "PairLink",
    "Pipeline",
    "PipelinePlacement",
    "PipelineSchedule",
    "Placement",
    "PlacementRules",
    "Plan",
    "Precision",
    "Problem",
    "Recomputation",
    "ReplicaPlacement",
    "Routing",
    "Solution",
    "Split",
    "Stage",
    "StageCosts",
    "StagePlacement",
    "StagecutError",
    "Status",
    "Throughput",
    "Tied",
    "Topology",
    "Training",
    "TrainingObjective",
    "TrainingSchedule",
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
