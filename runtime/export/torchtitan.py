"""Plans and layouts for torchtitan: a Python module that puts them into a `Trainer.Config`.

Names are those of torchtitan 0.3.0 (torchtitan/config/configs.py, trainer.py). Its dataclasses
have slots, so that a name that another version lacks is an error there, and not ignored.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ...instances import InputError, Plan, Workload
from ...instances.common.escape import docstring
from ...instances.common.units import show_count
from ...instances.costs.description import ModelDescription
from ...instances.costs.hardware import NumberFormat
from ...instances.costs.layout import ContextKind, Dispatcher, Graphs, Layout, Recompute
from ...instances.model.schedule import COMPUTES
from ..schedules import Schedule, make_schedule, write_csv
from ..simulate.stages import chain
from .stages import ModuleStages, degrees_in_words, layer_names, module_stages

NAME = "torchtitan"

#: Our schedules by the names of `torch.distributed.pipelining`.
SCHEDULES = {"1f1b": "1F1B", "gpipe": "GPipe", "interleaved": "Interleaved1F1B"}
#: Recomputation of all layers, by the names of torchtitan/distributed/activation_checkpoint.py.
FULL = "FullAC"

_TEMPLATE = '''"""The plan for torchtitan: {words}.

    from planned import planned
    def my_model_planned():
        return planned(my_model())  # my_model: a function that returns a Trainer.Config

Start {devices} processes: torchrun ... -m torchtitan.train --module ... --config my_model_planned
"""

from torchtitan.distributed.activation_checkpoint import FullAC, SelectiveAC


def planned(config):
    """Put the plan into a Trainer.Config, and return it."""
{lines}
    return config
'''


def cut(workload: Workload, plan: Plan) -> ModuleStages:
    """Return the stages of children of the model, and of items of its lists.

    Raises `InputError` if it cannot express the plan.
    """
    return module_stages(workload, plan, NAME, unit, rounds=True, schedules=tuple(SCHEDULES))


def configured(words: str, devices: int, lines: Sequence[str]) -> str:
    """Return the text of a module whose function runs some lines on a configuration."""
    indented = "\n".join(f"    {line}" for line in lines)
    return _TEMPLATE.format(words=docstring(words), devices=devices, lines=indented)


def assigned(part: str, fields: Mapping[str, object]) -> list[str]:
    """Return assignments to a part of the configuration, with a line for each item of a list."""
    found = []
    for name, value in fields.items():
        text = repr(value)
        if isinstance(value, list):
            text = "\n".join(["[", *(f"        {item!r}," for item in value), "    ]"])
        found.append(f"config.{part}.{name} = {text}")
    return found


def recomputing(kind: str | None) -> str:
    """Return the assignment of a policy of recomputation."""
    return f"config.activation_checkpoint = {f'{kind}.Config()' if kind else None}"


def write(stages: ModuleStages) -> str:
    """Return the text of the module; `module_fqns_per_model_part` has the modules of each stage."""
    schedule = stages.schedule or ("1f1b" if stages.rounds == 1 else "interleaved")
    fields: dict[str, object] = {
        "pipeline_parallel_degree": stages.ranks,
        "pipeline_parallel_schedule": SCHEDULES[schedule],
        "data_parallel_replicate_degree": stages.replicas,
        "data_parallel_shard_degree": 1,
        "tensor_parallel_degree": stages.degree,
        "module_fqns_per_model_part": [list(own) for own in stages.modules],
    }
    lines = [f"# Stage s runs on pipeline rank s mod {stages.ranks}."]
    lines += assigned("parallelism", fields)
    if stages.microbatches:
        batch = stages.microbatches * stages.replicas
        lines += [
            f"# {show_count(stages.microbatches, 'microbatch')}; of n samples: n times these.",
            "config.parallelism.pipeline_parallel_microbatch_size = 1",
            *assigned(
                "training", {"local_batch_size": stages.microbatches, "global_batch_size": batch}
            ),
        ]
    lines.append(recomputing(FULL if stages.recomputes else None))
    return configured(stages.in_words, stages.ranks * stages.replicas * stages.degree, lines)


def unit(path: str) -> str:
    """Return the child of the model, or the item of its list, that a path goes through."""
    parts = path.split(".")
    return ".".join(parts[:2]) if len(parts) > 1 and parts[1].isdecimal() else parts[0]


#: Schedules of jobs by the names of torch.distributed.pipelining; others are a table of actions.
_NAMED = {**SCHEDULES, "zb-v": "ZBVZeroBubble", "dualpipe-v": "DualPipeV"}
#: Converters of linear layers: torchtitan/models/*/config_registry.py.
_CONVERTERS = {
    NumberFormat.FP8: "Float8LinearConverter",
    NumberFormat.MXFP8: "MXFP8LinearConverter",
    NumberFormat.NVFP4: "NVFP4LinearConverter",
}
#: File of a schedule that has no name in torchtitan.
SCHEDULE_FILE = "schedule.csv"


def torchtitan_files(model: ModelDescription, layout: Layout) -> dict[str, str]:
    """Return the module, and the table of a schedule without a name in torchtitan, by file.

    Raises `InputError` if torchtitan has no field for a part of the layout.
    """
    fields, files = _parallelism(model, layout)
    lines = [*assigned("parallelism", fields), *assigned("training", _training(layout))]
    kind = FULL if Recompute.FULL in layout.recompute else "SelectiveAC"
    lines.append(recomputing(kind if layout.recompute else None))
    lines.append(f"config.compile.enable = {layout.compiled}")
    if layout.compiled and layout.overlap.tensor:
        lines.append("config.compile.enable_async_tensor_parallel = True")
    if layout.context > 1 and layout.context_kind is ContextKind.RING:
        lines += [
            "from torch.distributed.tensor.experimental._attention import set_rotate_method",
            'set_rotate_method("alltoall")  # a ring; it gathers otherwise, and for flex attention',
        ]
    if layout.recipe.compute in _CONVERTERS:
        name = _CONVERTERS[layout.recipe.compute]
        lines.append(f"# Products in {layout.recipe.compute.value}: give model_registry")
        lines.append(f"# converters=[{name}.Config(...)] (torchtitan.components.quantization).")
    if layout.expert > 1 and layout.dispatcher is Dispatcher.HIERARCHICAL:
        lines.append('# Tokens by DeepEP: give model_registry moe_comm_backend="deepep".')
    if model.mtp:
        if layout.pipeline > 1:  # as `TrainingJob.pipelines` says to the planner
            raise InputError(
                f"pipeline: {layout.pipeline}, and {model.name} predicts tokens ahead, for which "
                "torchtitan has no pipeline: plan with --set pipeline=1, or a model without it"
            )
        lines.append(f"# Tokens ahead: give model_registry num_mtp_layers={len(model.mtp)}.")
    words = degrees_in_words(model, layout)
    return {"planned.py": configured(words, layout.devices, lines), **files}


def _parallelism(
    model: ModelDescription, layout: Layout
) -> tuple[Mapping[str, object], dict[str, str]]:
    """Return the fields of `ParallelismConfig`, and a table of the schedule by its file.

    FSDP divides over ``data_parallel_shard_degree`` times the context-parallel ranks.
    """
    if layout.zero and layout.shards % layout.context:
        raise InputError(
            f"shard_group: {layout.shards} is no multiple of context {layout.context}, over which "
            "torchtitan divides states, too"
        )
    shards = layout.shards // layout.context if layout.zero else 1
    keeps = layout.zero < 3 or not layout.reshard_after_forward
    fields: dict[str, object] = {
        "data_parallel_replicate_degree": layout.data // shards,
        "data_parallel_shard_degree": shards,
        "fsdp_reshard_after_forward": "never" if keeps else "always",
        "tensor_parallel_degree": layout.tensor,
        "enable_sequence_parallel": layout.sequence_parallel,
        "context_parallel_degree": layout.context,
        "expert_parallel_degree": layout.expert,
        "pipeline_parallel_degree": layout.pipeline,
    }
    if layout.pipeline == 1:
        return fields, {}
    parts = layer_names(model, layout, "tok_embeddings", ("norm", "lm_head"))
    fields["module_fqns_per_model_part"] = parts
    fields["pipeline_parallel_microbatch_size"] = layout.microbatch
    if layout.schedule.value in _NAMED:
        fields["pipeline_parallel_schedule"] = _NAMED[layout.schedule.value]
        return fields, {}
    # any schedule of several stages: the table decides, but torch looks the name up
    fields["pipeline_parallel_schedule"] = "PipelineScheduleMulti"
    fields["pipeline_parallel_schedule_csv"] = SCHEDULE_FILE
    return fields, schedule_files(model, layout)


def schedule_files(_model: ModelDescription, layout: Layout) -> dict[str, str]:
    """Return the table of a pipeline's passes, a row per rank, by file."""
    if layout.pipeline == 1:
        raise InputError("pipeline: 1; there is no schedule to write: plan with --set pipeline=2")
    stages = chain([1.0] * layout.stages, [2.0] * layout.stages, device=layout.stage_ranks)
    made = make_schedule(layout.schedule.value, stages, layout.microbatches)
    rows = tuple(table[np.isin(table[:, 1], COMPUTES)] for table in made.actions)
    return {SCHEDULE_FILE: write_csv(Schedule(made.name, made.microbatches, rows))}


def _training(layout: Layout) -> Mapping[str, object]:
    """Return the fields of `TrainingConfig`; a local batch is split into pipeline microbatches."""
    local = layout.global_batch // layout.data if layout.pipeline > 1 else layout.microbatch
    kept = (layout.recipe.weight_bytes, layout.recipe.master_bytes)
    exact = layout.recipe.compute in (NumberFormat.FP32, NumberFormat.TF32)
    recorded = layout.graphs is Graphs.ITERATION
    if recorded and layout.pipeline > 1:
        raise InputError(
            f"graphs: {layout.graphs} in a pipeline; torchtitan records no graphs there: plan with "
            "--set graphs=none"
        )
    return {
        "local_batch_size": local,
        "global_batch_size": layout.global_batch,
        "seq_len": layout.sequence,
        "dtype": "float32" if 4 in kept else "bfloat16",
        "mixed_precision_param": "float32" if exact else "bfloat16",
        # it records the passes of an iteration unless told not to, and refuses to in a pipeline
        "disable_cuda_graphs": not recorded,
    }
