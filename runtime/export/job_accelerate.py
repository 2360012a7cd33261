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
#: How parts of keys and values go round: `set_rotate_method` of torch, whose all-to-all is a ring.
_CONTEXT = {ContextKind.ALL_GATHER: "allgather", ContextKind.RING: "alltoall"}
#: Starts a script; ``--gradient_accumulation_steps`` of the command would be DeepSpeed's alone.
_START = """\
# Sequences in a batch of your data loader: {microbatch}. On each of several nodes: set NODES,
# NODE_RANK, MASTER_ADDR and MASTER_PORT.
export ACCELERATE_GRADIENT_ACCUMULATION_STEPS={microbatches}
accelerate launch --config_file {file} --num_machines "${{NODES:-1}}" \\
    --machine_rank "${{NODE_RANK:-0}}" --main_process_ip "${{MASTER_ADDR:-127.0.0.1}}" \\
    --main_process_port "${{MASTER_PORT:-29500}}" "$@"
"""


def accelerate_files(_model: ModelDescription, layout: Layout) -> dict[str, str]:
    """Return what ``accelerate launch --config_file`` and `HfArgumentParser` read, by file.

    The Trainer's file goes without the launcher's FSDP: start it by torchrun. Raises `InputError`
    if neither has a field for a part of the layout.
    """
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
            "parallelism_config_cp_comm_strategy": _CONTEXT.get(layout.context_kind, "allgather"),
        }
    start = _START.format(
        microbatch=layout.microbatch, microbatches=layout.microbatches, file=LAUNCH_FILE
    )
    files = {LAUNCH_FILE: json.dumps(launch, indent=2) + "\n", START_FILE: start}
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
