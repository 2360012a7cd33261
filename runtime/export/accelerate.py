"""Plans and layouts for Accelerate: a device map of modules; FSDP2, also for the Trainer.

Names are those of accelerate 1.15 (commands/launch.py, parallelism_config.py) and of
`TrainingArguments` in transformers 5.24.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from ...instances import InputError, Plan, ReplicaPlacement, StagePlacement, Workload
from ...instances.costs.description import ModelDescription
from ...instances.costs.hardware import NumberFormat
from ...instances.costs.layout import ContextKind, Layout
from .stages import ModuleStages, modules_of

NAME = "accelerate"


def cut(workload: Workload, plan: Plan) -> ModuleStages:
    """Return the modules of each device, devices in the order of their first module.

    A device may have modules that do not follow each other: a device map needs no pipeline. Names
    are those of `device_map`: accelerators 0, 1, …, and ``cpu``. Raises `InputError` if there are
    replicas or tensor-parallel groups, or a module is on two devices.
    """
    plan.check_made_for(workload)
    solution = plan.solution
    if (
        isinstance(solution, StagePlacement)
        and any(s.replicas * s.degree > 1 for s in solution.stages)
    ) or (isinstance(solution, ReplicaPlacement) and solution.slots.shape[1] > 1):
        raise InputError(f"{NAME}: the plan has replicas; a device map holds one copy of a model")
    names = _names(plan)
    where: dict[str, str] = {}
    for v, module in modules_of(workload, NAME, str).items():
        device = names[int(plan.placement[v])]
        if where.setdefault(module, device) != device:
            raise InputError(
                f"{NAME}: module {module} is split between devices {where[module]} and {device}; "
                f"it keeps it whole: plan with --for {NAME}"
            )
    devices = tuple(dict.fromkeys(where.values()))
    modules = tuple(tuple(m for m, own in where.items() if own == d) for d in devices)
    return ModuleStages(modules, len(devices), devices)


def write(stages: ModuleStages) -> str:
    """Return JSON: ``dispatch_model(model, device_map=json.load(open(FILE)))``."""
    values = {
        module: device if device == "cpu" else int(device)
        for device, own in zip(stages.devices, stages.modules, strict=True)
        for module in own
    }
    return json.dumps(values, indent=2) + "\n"


def _names(plan: Plan) -> list[str]:
    hosts = np.array([plan.cluster.kinds[d.kind].host for d in plan.cluster.devices])
    numbers = np.cumsum(~hosts) - 1
    return ["cpu" if host else str(k) for host, k in zip(hosts, numbers, strict=True)]


#: Names of the files for Accelerate, for a shell, and for the Trainer.
LAUNCH_FILE, START_FILE, TRAINER_FILE = (
    "accelerate.json", "accelerate.sh", "training_arguments.json",
)  # fmt: skip
#: Exchanges of keys and values by names of torch's `set_rotate_method`: its all-to-all is a ring.
_CONTEXT = {ContextKind.ALL_GATHER: "allgather", ContextKind.RING: "alltoall"}
#: Shell script of a start; ``--gradient_accumulation_steps`` of the command would be DeepSpeed's.
_START = """\
# Sequences in a batch of your data loader: {microbatch}. On each of several nodes: set NODES,
# NODE_RANK, MASTER_ADDR and MASTER_PORT.
export ACCELERATE_GRADIENT_ACCUMULATION_STEPS={microbatches}
accelerate launch --config_file {file} --num_machines "${{NODES:-1}}" \\
    --machine_rank "${{NODE_RANK:-0}}" --main_process_ip "${{MASTER_ADDR:-127.0.0.1}}" \\
    --main_process_port "${{MASTER_PORT:-29500}}" "$@"
"""


def accelerate_files(_model: ModelDescription, layout: Layout) -> dict[str, str]:
    """Return files for ``accelerate launch --config_file`` and `HfArgumentParser`, by name.

    The Trainer's file is for torchrun, without the launcher's FSDP. Raises `InputError` if neither
    has a field for a part of the layout.
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
    # the Trainer divides states over all processes
    if layout.zero and layout.devices == layout.shards and layout.context == 1:
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
