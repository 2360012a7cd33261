"""Plans and layouts for DeepSpeed: its JSON, and a `PipelineModule` cut as planned.

Names are those of deepspeedai/DeepSpeed at edaa722: deepspeed/runtime/config.py and constants.py,
zero/config.py, zero/offload_config.py, precision_config.py, tensor_parallel/config.py.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from itertools import accumulate, groupby
from typing import Any

from ...instances import InputError, Plan, Workload
from ...instances.common.escape import docstring
from ...instances.costs.description import ModelDescription
from ...instances.costs.hardware import NumberFormat
from ...instances.costs.layout import Dispatcher, Layout
from .stages import ModuleStages, feeds, first_number, layer_names, module_stages, modules_of

NAME = "deepspeed"
#: Schedules that DeepSpeed runs.
SCHEDULES = ("1f1b",)

_TEMPLATE = '''"""The planned pipeline for DeepSpeed: {words}.

    from {file} import LAYERS, pipeline
    model = pipeline([...], loss_fn=...)  # one layer (module or LayerSpec) per name in LAYERS
"""

from deepspeed.pipe import PipelineModule
from deepspeed.runtime.pipe.topology import PipeModelDataParallelTopology

# The modules of the model in the order in which they run.
LAYERS = (
{layers}
)
# Stage s has the layers from PARTS[s] up to, not including, PARTS[s + 1].
PARTS = {parts}
PIPELINE, DATA, TENSOR = {ranks}, {replicas}, {degree}
RECOMPUTES = {recomputes}
# gradient_accumulation_steps of the configuration; 0 where the plan does not say it.
MICROBATCHES = {microbatches}


class PlannedPipeline(PipelineModule):
    """DeepSpeed balances parameters or layers; this takes the stages as they are planned."""

    def _partition_layers(self, method="planned"):
        stage = self._topo.get_coord(self.global_rank).pipe
        self.parts = list(PARTS)
        self._set_bounds(start=PARTS[stage], stop=PARTS[stage + 1])


def pipeline(layers, **options):
    """Return the pipeline of `layers`, one for each name in LAYERS."""
    layers = list(layers)
    if len(layers) != len(LAYERS):
        raise ValueError(f"{{len(layers)}} layers; the plan has {{len(LAYERS)}}")
    options.setdefault("activation_checkpoint_interval", int(RECOMPUTES))
    topology = PipeModelDataParallelTopology(num_pp=PIPELINE, num_mp=TENSOR, num_dp=DATA)
    return PlannedPipeline(layers=layers, topology=topology, **options)
'''


def cut(workload: Workload, plan: Plan) -> ModuleStages:
    """Return the stages of the smallest layers that form a chain.

    Layers are the nodes' modules, else the items of lists, else these with all modules between two
    of them as one. Raises `InputError` if DeepSpeed cannot express the plan.
    """
    with suppress(InputError):  # layers around the nodes may form a chain if nodes do not
        stages = module_stages(workload, plan, NAME, str, schedules=SCHEDULES)
        if not _skip(workload, stages, str):
            return stages
    stages = module_stages(workload, plan, NAME, first_number, schedules=SCHEDULES)
    if not _skip(workload, stages, first_number):
        return stages
    together: dict[str, str] = {}
    for own in stages.modules:
        for numbered, run in groupby(own, lambda name: name.rpartition(".")[2].isdecimal()):
            names = list(run)
            together |= {name: name if numbered else " + ".join(names) for name in names}

    def unit_of(path: str) -> str:
        layer = first_number(path)
        return together.get(layer, layer)

    stages = module_stages(workload, plan, NAME, unit_of, schedules=SCHEDULES)
    if pair := _skip(workload, stages, unit_of):
        raise InputError(
            f"{NAME}: {pair[0]} feeds {pair[1]} past other modules; its layers take what the one "
            "before gives"
        )
    return stages


def _skip(
    workload: Workload, stages: ModuleStages, unit: Callable[[str], str]
) -> tuple[str, str] | None:
    """Return two modules that an edge joins past other modules; None if there are none."""
    place = {module: k for k, module in enumerate(stages.where)}
    pairs = sorted(feeds(workload, modules_of(workload, NAME, unit)))
    return next((p for p in pairs if place[p[1]] != place[p[0]] + 1), None)


def write(stages: ModuleStages) -> str:
    """Return the text of a Python module with the names of the layers and their division."""
    layers = [module for own in stages.modules for module in own]
    return _TEMPLATE.format(
        words=docstring(stages.in_words),
        file="this_file",
        layers="\n".join(f"    {module!r}," for module in layers),
        parts=(0, *accumulate(len(own) for own in stages.modules)),
        ranks=stages.ranks,
        replicas=stages.replicas,
        degree=stages.degree,
        recomputes=stages.recomputes,
        microbatches=stages.microbatches,
    )


#: DeepSpeed's names of dispatchers of tokens to experts.
_DISPATCHERS = {Dispatcher.ALL_TO_ALL: "comm", Dispatcher.HIERARCHICAL: "deepep"}
#: Names of the files, as in the launch line.
CONFIG_FILE, PIPELINE_FILE = "deepspeed.json", "planned_pipeline.py"


def deepspeed_files(model: ModelDescription, layout: Layout) -> dict[str, str]:
    """Return DeepSpeed's JSON and, of a pipeline, the module of its stages, by file.

    ``deepspeed train.py --deepspeed --deepspeed_config deepspeed.json`` takes the JSON; the module
    makes the model of your script: a `PipelineModule` of a layer for each of its ``LAYERS``. Raises
    `InputError` if DeepSpeed has no field for a part of the layout.
    """
    config: dict[str, Any] = {
        "train_batch_size": layout.global_batch,
        "train_micro_batch_size_per_gpu": layout.microbatch,
        "gradient_accumulation_steps": layout.microbatches,
        "zero_optimization": _zero(layout),
    }
    if layout.recipe.compute in (NumberFormat.BF16, NumberFormat.FP16):
        config[layout.recipe.compute.value] = {"enabled": True}
        if layout.zero and layout.recipe.gradient_bytes >= 4:
            config["data_types"] = {"grad_accum_dtype": "fp32"}
    # precision in which gradients are reduced: runtime/constants.py
    config["communication_data_type"] = (
        "fp32" if layout.recipe.reduce_bytes == 4 else layout.recipe.compute.value
    )
    if layout.tensor > 1:
        config["tensor_parallel"] = {"autotp_size": layout.tensor}
    if layout.context > 1:  # Ulysses: `initialize` makes its groups where both are given
        config |= {"data_parallel_size": layout.data, "sequence_parallel_size": layout.context}
    if layout.expert > 1:  # module_inject/auto_ep_config.py
        config["expert_parallel"] = {
            "enabled": True,
            "autoep_size": layout.expert,
            "comm_backend": _DISPATCHERS[layout.dispatcher],
        }
    if layout.recompute:
        config["activation_checkpointing"] = {
            "partition_activations": False,
            "cpu_checkpointing": bool(layout.offload_activations),
        }
    files = {CONFIG_FILE: json.dumps(config, indent=2) + "\n"}
    if layout.pipeline > 1:
        files[PIPELINE_FILE] = write(_stages(model, layout))
    return files


def _zero(layout: Layout) -> dict[str, Any]:
    """Return the fields of ZeRO and of offloading to host memory."""
    beside = layout.overlap.gradients and layout.pipeline == 1  # it has none in pipelines
    zero: dict[str, Any] = {"stage": layout.zero, "overlap_comm": beside}
    if layout.offload_optimizer:
        zero["offload_optimizer"] = {"device": "cpu", "ratio": layout.offload_optimizer}
    if layout.offload_weights:
        zero["offload_param"] = {"device": "cpu"}
    return zero


def _stages(model: ModelDescription, layout: Layout) -> ModuleStages:
    """Return the model's layers by stage, with embedding and head as layers of their own."""
    modules = layer_names(model, layout, "embedding", ("norm", "head"))
    return ModuleStages(
        modules=tuple(map(tuple, modules)),
        ranks=layout.pipeline,
        devices=(),
        replicas=layout.data,
        degree=layout.tensor,
        recomputes=bool(layout.recompute),
        schedule=layout.schedule.value,
        microbatches=layout.microbatches,
    )
