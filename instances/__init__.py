"""Data: workloads, clusters, problems and plans, and their file formats."""

from .common.choices import (
    Collective,
    CpuSplit,
    InFlight,
    Limit,
    MappingMode,
    MappingObjective,
    Optimizer,
    Pipeline,
    PipelineSchedule,
    Precision,
    Recomputation,
    Role,
    Routing,
    ShardingObjective,
    Split,
    Status,
    Tied,
)
from .common.errors import InfeasibleError, InputError, StagecutError, VerificationError
from .common.units import TIME_UNITS, NodeId
from .model.cluster import ACCELERATOR, CPU, Cluster, Device, DeviceKind, accelerators_and_cpus
from .model.completed import Assumptions, complete
from .model.costs import Costs, price, without_links
from .model.layers import Layers
from .model.network.links import Link, PairLink
from .model.pipeline_job import LayerRule, PipelineJob, is_iteration, is_stream
from .model.placement_rules import PlacementRules
from .model.plan import Plan, Planned, gap_between, plan_of
from .model.problem import DeviceMapping, Latency, Problem, Throughput
from .model.sharding.problem import (
    DeviceMesh,
    PrimitiveLink,
    Sharding,
    program_of,
    program_workload,
)
from .model.sharding.program import Operator, Signature, Tensor, TensorProgram
from .model.solution import (
    CallPlacement,
    PipelinePlacement,
    Placement,
    ReplicaPlacement,
    Solution,
    Stage,
    StagePlacement,
    TensorSharding,
    in_stages,
)
from .model.stage_costs import StageCosts, stage_costs
from .model.tied_weights import tied_as
from .model.training_layers import layers_of
from .model.workload import Workload
from .topologies import Topology, topology

__all__ = [
    "ACCELERATOR",
    "CPU",
    "TIME_UNITS",
    "Assumptions",
    "CallPlacement",
    "Cluster",
    "Collective",
    "Costs",
    "CpuSplit",
    "Device",
    "DeviceKind",
    "DeviceMapping",
    "DeviceMesh",
    "InFlight",
    "InfeasibleError",
    "InputError",
    "Latency",
    "LayerRule",
    "Layers",
    "Limit",
    "Link",
    "MappingMode",
    "MappingObjective",
    "NodeId",
    "Operator",
    "Optimizer",
    "PairLink",
    "Pipeline",
    "PipelineJob",
    "PipelinePlacement",
    "PipelineSchedule",
    "Placement",
    "PlacementRules",
    "Plan",
    "Planned",
    "Precision",
    "PrimitiveLink",
    "Problem",
    "Recomputation",
    "ReplicaPlacement",
    "Role",
    "Routing",
    "Sharding",
    "ShardingObjective",
    "Signature",
    "Solution",
    "Split",
    "Stage",
    "StageCosts",
    "StagePlacement",
    "StagecutError",
    "Status",
    "Tensor",
    "TensorProgram",
    "TensorSharding",
    "Throughput",
    "Tied",
    "Topology",
    "VerificationError",
    "Workload",
    "accelerators_and_cpus",
    "complete",
    "gap_between",
    "in_stages",
    "is_iteration",
    "is_stream",
    "layers_of",
    "plan_of",
    "price",
    "program_of",
    "program_workload",
    "stage_costs",
    "tied_as",
    "topology",
    "without_links",
]
