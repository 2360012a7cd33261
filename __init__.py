"""Stagecut plans where the operators of a neural network run, and certifies how well.

The names that pages and notebooks use, by task. Each is loaded at its first use, so that
``import stagecut`` is fast.

=================  ================================================================================
workloads, files   `Workload`, `load`, `save`, `published_folder`, `from_networkx`,
                   `from_pandas`, `training_layers`; of a PyTorch model `profile`, `tensor_program`
devices            `Cluster`, `DeviceKind`, `Link`, `accelerators_and_cpus`, `load_cluster`;
                   `topology`; measured: `measure`
problems           `Throughput`, `PipelineJob`, `Latency`, `DeviceMapping`; of the first three
                   `PlacementRules`; `Sharding` over a `DeviceMesh`
jobs               of training: `TrainingJob` for `solve`, its plan by `load_job_plan`;
                   `estimate`, of a `Layout`, of the model of a `model_description`
                   (by name, or a config.json), on a `training_cluster`
models             of PyTorch: `plan` makes a planned model with its stages
solving            `solve`, `Limits`, `Workers`, `METHODS`, `Result`; `compare`, `pareto`,
                   `rank_schedules`; `explain`; models to read, change and solve:
                   `formulation`; without whole numbers: `relax`
plans              `Plan`, `load_plan`; `verify`, `evaluate`, `check_bound`
simulating         `simulate`; schedules: `make_schedule`, `best_schedule`
pictures           `draw_loads`, `draw_gantt`, `draw_graph`, `draw_mapping`, `draw_comparison`,
                   `plot_front`, `plot_shares`, `plot_traces`
running            `run`, `split_model`, `stage_modules`, `merge_checkpoint`
version            `__version__`
errors             `StagecutError`: `InputError`, `InfeasibleError`, `VerificationError`
=================  ================================================================================

The packages below have the rest: ``stagecut.instances`` has named options, placements and tensor
programs, ``instances.formats``, ``instances.costs``; ``stagecut.runtime`` has reports,
``runtime.schedules``, ``runtime.simulate`` (networks, stages without a plan), ``runtime.pictures``,
``runtime.measure`` and ``runtime.execution`` (executors); ``stagecut.api`` has the results of the
functions above. Their ``__all__`` lists the names, all of which ``import stagecut`` reaches.

Examples
--------
>>> import stagecut
>>> cluster = stagecut.accelerators_and_cpus(2, memory_bytes=40 * 2**30)
>>> result = stagecut.solve("gpt2-xl", cluster, limits=stagecut.Limits(nodes=1), method="greedy")
>>> result.status
'feasible'
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .api.best_schedule import best_schedule as best_schedule
    from .api.compare import compare as compare
    from .api.estimate import estimate as estimate
    from .api.explain import explain as explain
    from .api.formulation import formulation as formulation
    from .api.formulation import relax as relax
    from .api.plan_model import plan as plan
    from .api.run import run as run
    from .api.solve import solve as solve
    from .api.sweeps import pareto as pareto
    from .api.sweeps import rank_schedules as rank_schedules
    from .instances import Cluster as Cluster
    from .instances import DeviceKind as DeviceKind
    from .instances import DeviceMapping as DeviceMapping
    from .instances import DeviceMesh as DeviceMesh
    from .instances import InfeasibleError as InfeasibleError
    from .instances import InputError as InputError
    from .instances import Latency as Latency
    from .instances import Link as Link
    from .instances import PipelineJob as PipelineJob
    from .instances import PlacementRules as PlacementRules
    from .instances import Plan as Plan
    from .instances import Sharding as Sharding
    from .instances import StagecutError as StagecutError
    from .instances import Throughput as Throughput
    from .instances import VerificationError as VerificationError
    from .instances import Workload as Workload
    from .instances import accelerators_and_cpus as accelerators_and_cpus
    from .instances import topology as topology
    from .instances.costs.clusters import training_cluster as training_cluster
    from .instances.costs.layout import Layout as Layout
    from .instances.costs.models import model_description as model_description
    from .instances.formats.conversions import from_networkx as from_networkx
    from .instances.formats.conversions import from_pandas as from_pandas
    from .instances.formats.files import load as load
    from .instances.formats.files import load_cluster as load_cluster
    from .instances.formats.files import load_plan as load_plan
    from .instances.formats.files import save as save
    from .instances.generate.published import published_folder as published_folder
    from .instances.job.plan import load_job_plan as load_job_plan
    from .instances.job.problem import TrainingJob as TrainingJob
    from .instances.model.training_layers import training_layers as training_layers
    from .instances.pytorch.profile import profile as profile
    from .instances.pytorch.tensors import tensor_program as tensor_program
    from .runtime import evaluate as evaluate
    from .runtime import verify as verify
    from .runtime.execution.checkpoint import merge_checkpoint as merge_checkpoint
    from .runtime.execution.prepare import split_model as split_model
    from .runtime.execution.stage_modules import stage_modules as stage_modules
    from .runtime.measure.timing import measure as measure
    from .runtime.pictures.charts import draw_comparison as draw_comparison
    from .runtime.pictures.charts import draw_loads as draw_loads
    from .runtime.pictures.charts import plot_front as plot_front
    from .runtime.pictures.charts import plot_traces as plot_traces
    from .runtime.pictures.gantt import draw_gantt as draw_gantt
    from .runtime.pictures.graph import draw_graph as draw_graph
    from .runtime.pictures.graph import draw_mapping as draw_mapping
    from .runtime.pictures.graph import plot_shares as plot_shares
    from .runtime.schedules import make_schedule as make_schedule
    from .runtime.simulate.simulator import simulate as simulate
    from .runtime.verify.bounds.check import check_bound as check_bound
    from .solvers import METHODS as METHODS
    from .solvers import Limits as Limits
    from .solvers import Result as Result
    from .solvers import Workers as Workers

    __version__: str

#: Module → the names that it gives; the block above says the same to type checkers.
_MODULES = {
    "api.best_schedule": "best_schedule",
    "api.compare": "compare",
    "api.estimate": "estimate",
    "api.explain": "explain",
    "api.formulation": "formulation relax",
    "api.plan_model": "plan",
    "api.sweeps": "pareto rank_schedules",
    "api.run": "run",
    "api.solve": "solve",
    "instances": (
        "Cluster DeviceKind DeviceMapping DeviceMesh InfeasibleError InputError "
        "Latency Link PipelineJob PlacementRules Plan Sharding StagecutError Throughput "
        "VerificationError Workload accelerators_and_cpus topology"
    ),
    "instances.costs.clusters": "training_cluster",
    "instances.costs.layout": "Layout",
    "instances.generate.published": "published_folder",
    "instances.job.plan": "load_job_plan",
    "instances.job.problem": "TrainingJob",
    "instances.costs.models": "model_description",
    "instances.formats.conversions": "from_networkx from_pandas",
    "instances.formats.files": "load load_cluster load_plan save",
    "instances.model.training_layers": "training_layers",
    "instances.pytorch.profile": "profile",
    "instances.pytorch.tensors": "tensor_program",
    "runtime": "evaluate verify",
    "runtime.execution.checkpoint": "merge_checkpoint",
    "runtime.execution.prepare": "split_model",
    "runtime.execution.stage_modules": "stage_modules",
    "runtime.measure.timing": "measure",
    "runtime.pictures.charts": "draw_comparison draw_loads plot_front plot_traces",
    "runtime.pictures.gantt": "draw_gantt",
    "runtime.pictures.graph": "draw_graph draw_mapping plot_shares",
    "runtime.schedules": "make_schedule",
    "runtime.simulate.simulator": "simulate",
    "runtime.verify.bounds.check": "check_bound",
    "solvers": "Limits METHODS Result Workers",
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names.split()}

__all__ = [*sorted(_MODULE_OF), "__version__"]  # noqa: PLE0604, RUF100


def __getattr__(name: str) -> Any:
    """Load a name of the interface, or a package below, when it is first used."""
    if name == "__version__":
        from .api.versions import installed

        return installed("stagecut")
    from .instances.common.lazy import loader  # with NumPy

    return loader(__name__, _MODULES)(name)


def __dir__() -> list[str]:
    """Return the interface alone, without the packages behind it."""
    return sorted(__all__)
