"""Layouts for Accelerate and the Trainer of transformers, which divide states by FSDP2.

Names are those of accelerate 1.15 (commands/launch.py, parallelism_config.py) and of
`TrainingArguments` in transformers 5.24.
"""

from __future__ import annotations

import json
from typing import Any

from ...instances import InputError
from ...instances.costs.description import ModelDescription
from ...instances.costs.hardware import NumberFormat
from ...instances.costs.layout import ContextKind, Layout

#: Files, by what reads them.
LAUNCH_FILE, START_FILE, TRAINER_FILE = (
    "accelerate.json", "accelerate.sh", "training_arguments.json",
)  # fmt: skip
_CONTEXT = {ContextKind.ALL_GATHER: "allgather", ContextKind.ALL_TO_ALL: "alltoall"}


def accelerate_files(_model: ModelDescription, layout: Layout) -> dict[str, str]:
    """Return what ``accelerate launch --config_file`` and `HfArgumentParser` read, by file.

    The Trainer's file goes without the launcher's FSDP: start it by torchrun. Raises `InputError`
    if neither has a field for a part of the layout.
    """
    if layout.global_batch % (layout.microbatch * layout.data):
        raise InputError(
            f"global_batch: {layout.global_batch} is no multiple of microbatch {layout.microbatch} "
            f"x data {layout.data}, as accelerate wants it"
        )
    if not layout.zero and layout.tensor * layout.context > 1:
        raise InputError(
            "zero: 0 beside tensor or context parallelism; accelerate divides states there: 2 or 3"
        )
    if layout.zero and layout.shards % layout.context:
        raise InputError(
            f"shard_group: {layout.shards} is no multiple of context {layout.context}, over which "
            "accelerate divides states, too"
        )
    shards = max(1, layout.shards // layout.context)
    exact = layout.recipe.compute is NumberFormat.FP32
    precision = "no" if exact else layout.recipe.compute.value
    reshard = layout.zero == 3 and layout.reshard_after_forward
    again = bool(layout.recompute)
    launch: dict[str, Any] = {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": "FSDP" if layout.zero else "MULTI_GPU",
        "mixed_precision": precision,
        "num_machines": 1,
        "num_processes": layout.devices,
        "use_cpu": False,
    }
    if layout.zero:
        launch["fsdp_config"] = {
            "fsdp_version": 2,
            "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
            "fsdp_reshard_after_forward": reshard,
            "fsdp_activation_checkpointing": again,
            "fsdp_offload_params": False,
            "fsdp_state_dict_type": "SHARDED_STATE_DICT",
        }
        launch["parallelism_config"] = {
            "parallelism_config_dp_replicate_size": layout.data // shards,
            "parallelism_config_dp_shard_size": shards,
            "parallelism_config_tp_size": layout.tensor,
            "parallelism_config_cp_size": layout.context,
            "parallelism_config_cp_comm_strategy": _CONTEXT[layout.context_kind]
            if layout.context > 1
            else "allgather",
        }
    start = f"accelerate launch --config_file {LAUNCH_FILE}"
    accumulated = f"--gradient_accumulation_steps {layout.microbatches}"
    files = {
        LAUNCH_FILE: json.dumps(launch, indent=2) + "\n",
        START_FILE: f'{start} {accumulated} "$@"\n',
    }
    if (
        layout.zero and layout.devices == layout.shards and layout.context == 1
    ):  # the Trainer divides over all processes
        trainer = {
            "per_device_train_batch_size": layout.microbatch,
            "gradient_accumulation_steps": layout.microbatches,
            "bf16": layout.recipe.compute is NumberFormat.BF16,
            "fp16": layout.recipe.compute is NumberFormat.FP16,
            "fsdp": True,
            "fsdp_config": {
                "version": 2, "reshard_after_forward": reshard, "activation_checkpointing": again,
            },
        }  # fmt: skip
        files[TRAINER_FILE] = json.dumps(trainer, indent=2) + "\n"
    return files
