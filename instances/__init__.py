"""Data: workloads, clusters, problems and plans, and their file formats."""

# Named options, which are not listed below: their texts will do.
from .common.choices import Collective as Collective
from .common.choices import CpuSplit as CpuSplit
from .common.choices import InFlight as InFlight
from .common.choices import Limit as Limit
from .common.choices import MappingMode as MappingMode
from .common.choices import MappingObjective as MappingObjective
from .common.choices import Optimizer as Optimizer
from .common.choices import Pipeline as Pipeline
from .common.choices import PipelineSchedule as PipelineSchedule
from .common.choices import Precision as Precision
from .common.choices import Recomputation as Recomputation
from .common.choices import Role as Role
from .common.choices import Routing as Routing
from .common.choices import ShardingObjective as ShardingObjective
from .common.choices import Split as Split
from .common.choices import Status as Status
from .common.choices import Tied as Tied
from .common.errors import (
    InfeasibleError,
    InputError,
    StagecutError,
    UncheckedError,
    VerificationError,
)
from .common.units import TIME_UNITS, NodeId
from .model.cluster import (
    ACCELERATOR,
    CPU,
    Cluster,
    Device,
    DeviceKind,
    Link,
    PairLink,
    accelerators_and_cpus,
)
from .model.completed import complete
from .model.costs import Costs, price
from .model.costs import without_links as without_links
from .model.layers import Layers
from .model.pipeline_job import LayerRule, PipelineJob
from .model.pipeline_job import is_iteration as is_iteration
from .model.pipeline_job import is_stream as is_stream
from .model.placement_rules import PlacementRules
from .model.plan import Plan, Planned
from .model.plan import gap_between as gap_between
from .model.plan import plan_of as plan_of
from .model.problem import DeviceMapping, Latency, Problem, Throughput
from .model.sharding import DeviceMesh, PrimitiveLink, Sharding, program_workload
from .model.sharding import program_of as program_of
from .model.solution import (
    CallPlacement,
    PipelinePlacement,
    Placement,
    ReplicaPlacement,
    Solution,
    Stage,
    StagePlacement,
    TensorSharding,
)
from .model.solution import in_stages as in_stages
from .model.stage_costs import StageCosts
from .model.stage_costs import stage_costs as stage_costs
from .model.tensor_program import Operator, Signature, Tensor, TensorProgram
from .model.tied_weights import tied_as
from .model.topology import Topology
from .model.training_layers import layers_of as layers_of
from .model.workload import Workload
from .topologies import topology

__all__ = [
    "ACCELERATOR",
    "CPU",
    "TIME_UNITS",
    "CallPlacement",
    "Cluster",
    "Costs",
    "Device",
    "DeviceKind",
    "DeviceMapping",
    "DeviceMesh",
    "InfeasibleError",
    "InputError",
    "Latency",
    "LayerRule",
    "Layers",
    "Link",
    "NodeId",
    "Operator",
    "PairLink",
    "PipelineJob",
    "PipelinePlacement",
    "Placement",
    "PlacementRules",
    "Plan",
    "Planned",
    "PrimitiveLink",
    "Problem",
    "ReplicaPlacement",
    "Sharding",
    "Signature",
    "Solution",
    "Stage",
    "StageCosts",
    "StagePlacement",
    "StagecutError",
    "Tensor",
    "TensorProgram",
    "TensorSharding",
    "Throughput",
    "Topology",
    "UncheckedError",
    "VerificationError",
    "Workload",
    "accelerators_and_cpus",
    "complete",
    "price",
    "program_workload",
    "tied_as",
    "topology",
]
