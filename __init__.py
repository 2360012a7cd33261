"""Stagecut plans where the operators of a neural network run, and certifies how well.

Everything that documents and notebooks use is here, by task; a name is loaded when it is first
used, so that ``import stagecut`` costs nothing.

=================  ================================================================================
workloads, files   `Workload`, `load`, `save`, `dumps`, `from_networkx`, `from_pandas`,
                   `training_layers`, `tied_as`; of a model `profile`,
                   `counted_by_torch`, `layers_by_degree`
devices            `Cluster`, `DeviceKind`, `Link`, `PairLink`, `accelerators_and_cpus`,
                   `cluster_from_pandas`, `load_cluster`; `Topology`, `topology`; measured:
                   `measure`, `to_cluster`
problems           `Throughput`, `Latency`, `PipelineJob` with `LayerRule`,
                   `DeviceMapping`; of the first four `PlacementRules`, `load_rules`;
                   `Sharding` over a `DeviceMesh`, of a `TensorProgram` of
                   `Operator` with `Signature` and `Tensor`, from `tensor_program` (a model),
                   as a workload by `program_workload`
choices            of problems `Split`, `CpuSplit`, `Pipeline`, `PipelineSchedule`;
                   `InFlight`, `Recomputation`, `Optimizer`,
                   `Precision`;
                   `MappingObjective`, `MappingMode`, `Collective`; `ShardingObjective`;
                   of topologies `Routing`; of results `Status`, `Limit`; of profiles `Tied`; of
                   networks `Sharing`; of schedules `WeightVersions`; of measured clusters
                   `LinkDetail`. Their values as texts will do.
jobs               of training: `estimate` gives an `Estimate` of a `Layout`, in seconds and bytes
                   by term; of a `ModelDescription` from `model_description` (by name, or a
                   config.json), on a `TrainingCluster` from `training_cluster`
models             of PyTorch: `plan` makes a `PlannedModel`, whose stages are `StageModule`
solving            `solve`, `Limits`, `Workers`, `METHODS`, `Result`; `compare`, `pareto`,
                   `rank_schedules`; `explain` gives an `Explanation`; a formulation without
                   whole numbers: `relax` gives a `Relaxation`, and so does `relax_schedule`
plans              `Plan`, `load_plan`, `load_split`, `plan_from_split`; what they decide:
                   `Placement`, `PipelinePlacement`, `CallPlacement`, `StagePlacement` of `Stage`,
                   `ReplicaPlacement`, `TensorSharding`
verifying          `verify`, `check_bound`; `evaluate` gives a `Report` of `DeviceReport`,
                   `CallReport` or `StageReport`, a `MappingReport`, a `ShardingReport`;
                   `stage_reports`, `StageCosts`
schedules          `Schedule`, `SCHEDULES`, `make_schedule`, `best_schedule` (`BestSchedule`),
                   `read_csv`, `write_csv`
simulating         `simulate`, `Simulation`; without a plan `simulate_stages`, `StageGraph`,
                   `chain`; `HostMemory`, `Links`, `shared`
pictures           `draw_loads`, `draw_gantt`, `draw_graph`, `draw_mapping`, `draw_comparison`,
                   `draw_measurement`, `plot_front`, `plot_passes`, `plot_shares`,
                   `plot_traces`, `write_html`
running            `run`, `split_model`; with torch's schedules `stage_modules`,
                   `tied_gradients`, `clip_gradients`; of one's own `Loop`, `stage_chain`,
                   `training_pieces`, `guarded`; afterwards `merge_checkpoint`,
                   `load_recording`, `compare_run`, `calibrate`
version            `__version__`
errors             `StagecutError`: `InputError`, `InfeasibleError`, `VerificationError`
=================  ================================================================================

Examples
--------
>>> import stagecut
>>> cluster = stagecut.accelerators_and_cpus(2, memory_bytes=40 * 2**30)
>>> result = stagecut.solve("gpt2-xl", cluster, limits=stagecut.Limits(nodes=1), method="greedy")
>>> result.status
'feasible'
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .api.best_schedule import BestSchedule as BestSchedule
    from .api.best_schedule import best_schedule as best_schedule
    from .api.compare import compare as compare
    from .api.estimate import Estimate as Estimate
    from .api.estimate import estimate as estimate
    from .api.explain.explain import explain as explain
    from .api.explain.explanation import Explanation as Explanation
    from .api.pareto import pareto as pareto
    from .api.plan_model import plan as plan
    from .api.planned_model import PlannedModel as PlannedModel
    from .api.rank_schedules import rank_schedules as rank_schedules
    from .api.relax.relax import Relaxation as Relaxation
    from .api.relax.relax import relax as relax
    from .api.relax.relax_schedule import relax_schedule as relax_schedule
    from .api.run import run as run
    from .api.solve import solve as solve
    from .api.splits import plan_from_split as plan_from_split
    from .api.tensor_degrees import layers_by_degree as layers_by_degree
    from .instances import CallPlacement as CallPlacement
    from .instances import Cluster as Cluster
    from .instances import Collective as Collective
    from .instances import CpuSplit as CpuSplit
    from .instances import DeviceKind as DeviceKind
    from .instances import DeviceMapping as DeviceMapping
    from .instances import DeviceMesh as DeviceMesh
    from .instances import InfeasibleError as InfeasibleError
    from .instances import InFlight as InFlight
    from .instances import InputError as InputError
    from .instances import Latency as Latency
    from .instances import LayerRule as LayerRule
    from .instances import Limit as Limit
    from .instances import Link as Link
    from .instances import MappingMode as MappingMode
    from .instances import MappingObjective as MappingObjective
    from .instances import Operator as Operator
    from .instances import Optimizer as Optimizer
    from .instances import PairLink as PairLink
    from .instances import Pipeline as Pipeline
    from .instances import PipelineJob as PipelineJob
    from .instances import PipelinePlacement as PipelinePlacement
    from .instances import PipelineSchedule as PipelineSchedule
    from .instances import Placement as Placement
    from .instances import PlacementRules as PlacementRules
    from .instances import Plan as Plan
    from .instances import Precision as Precision
    from .instances import Recomputation as Recomputation
    from .instances import ReplicaPlacement as ReplicaPlacement
    from .instances import Routing as Routing
    from .instances import Sharding as Sharding
    from .instances import ShardingObjective as ShardingObjective
    from .instances import Signature as Signature
    from .instances import Split as Split
    from .instances import Stage as Stage
    from .instances import StageCosts as StageCosts
    from .instances import StagecutError as StagecutError
    from .instances import StagePlacement as StagePlacement
    from .instances import Status as Status
    from .instances import Tensor as Tensor
    from .instances import TensorProgram as TensorProgram
    from .instances import TensorSharding as TensorSharding
    from .instances import Throughput as Throughput
    from .instances import Tied as Tied
    from .instances import Topology as Topology
    from .instances import VerificationError as VerificationError
    from .instances import Workload as Workload
    from .instances import accelerators_and_cpus as accelerators_and_cpus
    from .instances import program_workload as program_workload
    from .instances import topology as topology
    from .instances.costs.clusters import training_cluster as training_cluster
    from .instances.costs.description import ModelDescription as ModelDescription
    from .instances.costs.hardware import TrainingCluster as TrainingCluster
    from .instances.costs.layout import Layout as Layout
    from .instances.costs.models import model_description as model_description
    from .instances.formats.conversions import cluster_from_pandas as cluster_from_pandas
    from .instances.formats.conversions import from_networkx as from_networkx
    from .instances.formats.conversions import from_pandas as from_pandas
    from .instances.formats.files import dumps as dumps
    from .instances.formats.files import load as load
    from .instances.formats.files import load_cluster as load_cluster
    from .instances.formats.files import load_plan as load_plan
    from .instances.formats.files import load_split as load_split
    from .instances.formats.files import save as save
    from .instances.formats.rules_files import load_rules as load_rules
    from .instances.model.tied_weights import tied_as as tied_as
    from .instances.model.training_layers import training_layers as training_layers
    from .instances.pytorch.counts import counted_by_torch as counted_by_torch
    from .instances.pytorch.profile import profile as profile
    from .instances.pytorch.tensors.program import tensor_program as tensor_program
    from .runtime import CallReport as CallReport
    from .runtime import DeviceReport as DeviceReport
    from .runtime import MappingReport as MappingReport
    from .runtime import Report as Report
    from .runtime import ShardingReport as ShardingReport
    from .runtime import StageReport as StageReport
    from .runtime import evaluate as evaluate
    from .runtime import verify as verify
    from .runtime.accuracy.calibrate import calibrate as calibrate
    from .runtime.accuracy.join import compare_run as compare_run
    from .runtime.execution.guard.failures import guarded as guarded
    from .runtime.execution.model_state import merge_checkpoint as merge_checkpoint
    from .runtime.execution.own_loop.loop import Loop as Loop
    from .runtime.execution.own_loop.loop import stage_chain as stage_chain
    from .runtime.execution.own_loop.training_pieces import training_pieces as training_pieces
    from .runtime.execution.prepare import split_model as split_model
    from .runtime.execution.recording_file import load_recording as load_recording
    from .runtime.execution.stage_modules import StageModule as StageModule
    from .runtime.execution.stage_modules import clip_gradients as clip_gradients
    from .runtime.execution.stage_modules import stage_modules as stage_modules
    from .runtime.execution.stage_modules import tied_gradients as tied_gradients
    from .runtime.measure.measurement import LinkDetail as LinkDetail
    from .runtime.measure.measurement import to_cluster as to_cluster
    from .runtime.measure.picture import draw_measurement as draw_measurement
    from .runtime.measure.timing import measure as measure
    from .runtime.pictures.charts import draw_comparison as draw_comparison
    from .runtime.pictures.charts import draw_loads as draw_loads
    from .runtime.pictures.charts import plot_front as plot_front
    from .runtime.pictures.charts import plot_traces as plot_traces
    from .runtime.pictures.gantt import draw_gantt as draw_gantt
    from .runtime.pictures.gantt import plot_passes as plot_passes
    from .runtime.pictures.graph import draw_graph as draw_graph
    from .runtime.pictures.html_page import write_html as write_html
    from .runtime.pictures.shares import plot_shares as plot_shares
    from .runtime.pictures.topology import draw_mapping as draw_mapping
    from .runtime.schedules import SCHEDULES as SCHEDULES
    from .runtime.schedules import Schedule as Schedule
    from .runtime.schedules import WeightVersions as WeightVersions
    from .runtime.schedules import make_schedule as make_schedule
    from .runtime.schedules import read_csv as read_csv
    from .runtime.schedules import write_csv as write_csv
    from .runtime.simulate.network import HostMemory as HostMemory
    from .runtime.simulate.network import Links as Links
    from .runtime.simulate.network import Sharing as Sharing
    from .runtime.simulate.network import shared as shared
    from .runtime.simulate.result import Simulation as Simulation
    from .runtime.simulate.simulator import simulate as simulate
    from .runtime.simulate.simulator import simulate_stages as simulate_stages
    from .runtime.simulate.stages import StageGraph as StageGraph
    from .runtime.simulate.stages import chain as chain
    from .runtime.verify.bounds.check import check_bound as check_bound
    from .runtime.verify.mapping import stage_reports as stage_reports
    from .solvers import METHODS as METHODS
    from .solvers import Limits as Limits
    from .solvers import Result as Result
    from .solvers import Workers as Workers

    __version__: str

#: Module → the names that it gives; the block above says the same to type checkers.
_MODULES = {
    "api.best_schedule": "BestSchedule best_schedule",
    "api.compare": "compare",
    "api.estimate": "Estimate estimate",
    "api.explain.explain": "explain",
    "api.explain.explanation": "Explanation",
    "api.pareto": "pareto",
    "api.plan_model": "plan",
    "api.planned_model": "PlannedModel",
    "api.rank_schedules": "rank_schedules",
    "api.relax.relax": "Relaxation relax",
    "api.relax.relax_schedule": "relax_schedule",
    "api.run": "run",
    "api.solve": "solve",
    "api.splits": "plan_from_split",
    "api.tensor_degrees": "layers_by_degree",
    "instances": (
        "CallPlacement Cluster Collective CpuSplit DeviceKind DeviceMapping DeviceMesh "
        "InFlight InfeasibleError InputError Latency LayerRule Limit Link MappingMode "
        "MappingObjective Operator Optimizer PairLink Pipeline PipelinePlacement PipelineSchedule "
        "Placement PlacementRules Plan Precision "
        "Recomputation ReplicaPlacement Routing Sharding ShardingObjective Signature Split Stage "
        "StageCosts StagePlacement StagecutError Status Tensor TensorProgram TensorSharding "
        "Throughput Tied Topology PipelineJob "
        "VerificationError Workload accelerators_and_cpus program_workload "
        "topology"
    ),
    "instances.costs.clusters": "training_cluster",
    "instances.costs.description": "ModelDescription",
    "instances.costs.hardware": "TrainingCluster",
    "instances.costs.models": "model_description",
    "instances.costs.layout": "Layout",
    "instances.formats.conversions": "cluster_from_pandas from_networkx from_pandas",
    "instances.formats.files": "dumps load load_cluster load_plan load_split save",
    "instances.formats.rules_files": "load_rules",
    "instances.model.tied_weights": "tied_as",
    "instances.model.training_layers": "training_layers",
    "instances.pytorch.counts": "counted_by_torch",
    "instances.pytorch.profile": "profile",
    "instances.pytorch.tensors.program": "tensor_program",
    "runtime": (
        "CallReport DeviceReport MappingReport Report ShardingReport StageReport evaluate verify"
    ),
    "runtime.accuracy.calibrate": "calibrate",
    "runtime.accuracy.join": "compare_run",
    "runtime.execution.guard.failures": "guarded",
    "runtime.execution.model_state": "merge_checkpoint",
    "runtime.execution.own_loop.loop": "Loop stage_chain",
    "runtime.execution.own_loop.training_pieces": "training_pieces",
    "runtime.execution.prepare": "split_model",
    "runtime.execution.recording_file": "load_recording",
    "runtime.execution.stage_modules": "StageModule clip_gradients stage_modules tied_gradients",
    "runtime.measure.measurement": "LinkDetail to_cluster",
    "runtime.measure.picture": "draw_measurement",
    "runtime.measure.timing": "measure",
    "runtime.pictures.charts": "draw_comparison draw_loads plot_front plot_traces",
    "runtime.pictures.gantt": "draw_gantt plot_passes",
    "runtime.pictures.graph": "draw_graph",
    "runtime.pictures.html_page": "write_html",
    "runtime.pictures.shares": "plot_shares",
    "runtime.pictures.topology": "draw_mapping",
    "runtime.schedules": "SCHEDULES Schedule WeightVersions make_schedule read_csv write_csv",
    "runtime.simulate.network": "HostMemory Links Sharing shared",
    "runtime.simulate.result": "Simulation",
    "runtime.simulate.simulator": "simulate simulate_stages",
    "runtime.simulate.stages": "StageGraph chain",
    "runtime.verify.bounds.check": "check_bound",
    "runtime.verify.mapping": "stage_reports",
    "solvers": "Limits METHODS Result Workers",
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names.split()}

__all__ = [*sorted(_MODULE_OF), "__version__"]  # noqa: PLE0604, RUF100


def __getattr__(name: str) -> object:
    """Load a name of the interface when it is first used."""
    if name == "__version__":
        from .api.versions import installed

        value: object = installed("stagecut")
    elif name in _MODULE_OF:
        value = getattr(import_module(f".{_MODULE_OF[name]}", __name__), name)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """Return the interface alone, without the packages behind it."""
    return sorted(__all__)
