"""Layouts for DeepSpeed: its JSON, and a `PipelineModule` of the stages where there is a pipeline.

Names are those of deepspeedai/DeepSpeed at edaa722: deepspeed/runtime/config.py and constants.py,
zero/config.py, zero/offload_config.py, precision_config.py, tensor_parallel/config.py.
"""

from __future__ import annotations

import json
from typing import Any

from ...instances.costs.description import ModelDescription
from ...instances.costs.hardware import NumberFormat
from ...instances.costs.layout import Dispatcher, Layout
from . import deepspeed
from .stages import ModuleStages

_DISPATCHERS = {Dispatcher.ALL_TO_ALL: "comm", Dispatcher.HIERARCHICAL: "deepep"}
#: Files, as the launch line names them.
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
    # what gradients are reduced in: communication_data_type of runtime/constants.py
    config["communication_data_type"] = (
        "fp32" if layout.recipe.reduce_bytes == 4 else (layout.recipe.compute.value)
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
        files[PIPELINE_FILE] = deepspeed.write(_stages(model, layout))
    return files


def _zero(layout: Layout) -> dict[str, Any]:
    """Return what data-parallel ranks divide, and what lies in host memory."""
    beside = layout.overlap.gradients and layout.pipeline == 1  # it has none in pipelines
    zero: dict[str, Any] = {"stage": layout.zero, "overlap_comm": beside}
    if layout.offload_optimizer:
        zero["offload_optimizer"] = {"device": "cpu", "ratio": layout.offload_optimizer}
    if layout.offload_weights:
        zero["offload_param"] = {"device": "cpu"}
    return zero


def _stages(model: ModelDescription, layout: Layout) -> ModuleStages:
    """Return the model's layers by stage, with embedding and head as layers of their own."""
    counts = layout.layers_of_stages(len(model.blocks))
    modules = []
    for stage, count in enumerate(counts):
        begin = sum(counts[:stage])
        own = [f"layers.{layer}" for layer in range(begin, begin + count)]
        own = ["embedding", *own] if stage == 0 else own
        if stage == layout.mtp_stage % layout.stages:
            own += [f"mtp.{k}" for k in range(len(model.mtp))]
        modules.append((*own, "norm", "head") if stage == layout.stages - 1 else tuple(own))
    return ModuleStages(
        modules=tuple(modules),
        ranks=layout.pipeline,
        devices=(),
        replicas=layout.data,
        degree=layout.tensor,
        recomputes=bool(layout.recompute),
        schedule=layout.schedule.value,
        microbatches=layout.microbatches,
    )
