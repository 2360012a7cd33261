"""Plans and layouts for Megatron-LM and Megatron-Bridge, the two ways to configure Megatron-Core.

Plans become arguments of the pipeline layout, layouts all arguments of ``pretrain_gpt.py`` that
divide a job; those of the model, its data and its optimizer's rates are the user's. Names are those
of NVIDIA/Megatron-LM at d98e8a6; docstrings and comments say which of its files has them.
Megatron-Bridge has Megatron-Core's names as fields (docs/megatron-lm-to-megatron-bridge.md of
NVIDIA-NeMo/Megatron-Bridge), which are set from the arguments.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from ...instances import InputError, Plan, Workload
from ...instances.common.escape import docstring, one_line, shell
from ...instances.common.units import show_count
from ...instances.costs.description import ModelDescription
from ...instances.costs.hardware import NumberFormat
from ...instances.costs.layout import (
    ContextKind,
    Dispatcher,
    Graphs,
    Layout,
    OptimizerRecipe,
    Recompute,
)
from ...instances.job.launchers import layers_away
from .stages import ModuleStages, degrees_in_words, first_number, module_stages, stack

NAME = "megatron"
#: Schedules that Megatron runs.
SCHEDULES = ("1f1b", "interleaved")

#: Embedding, decoder layer, layer of multi-token prediction, and head with the loss.
_EMBEDDING, _LAYER, _AHEAD, _LOSS = "E", "t", "m", "L"
#: Names of the modules that predict tokens after the next one.
_AHEAD_PART = re.compile(r"mtp(_|$)|multi_token").match

#: Arguments by name: a switch is True, several words are a list.
Arguments = dict[str, object]
_ALL_AGAIN: Arguments = {
    "recompute-granularity": "full", "recompute-method": "uniform", "recompute-num-layers": 1,
}  # fmt: skip


def cut(workload: Workload, plan: Plan) -> ModuleStages:
    """Return the stages of layers, with the embedding on the first and the loss on the last.

    Raises `InputError` if Megatron-LM cannot express the plan.
    """
    stages = module_stages(workload, plan, NAME, unit, rounds=True, schedules=SCHEDULES)
    counts = _counts(stages)
    for what, column in (("before the first layer", 0), ("after the last layer", 2)):
        places = [s for s, count in enumerate(counts) if count[column]]
        if len(places) > 1:
            raise InputError(
                f"{NAME}: what comes {what} is on stages {places[0]} and {places[-1]}; it keeps "
                "it on one"
            )
    _check_ahead(stages, counts)
    return stages


def write(stages: ModuleStages) -> str:
    """Return arguments for a shell: source the file, then pass ``"${MEGATRON_ARGS[@]}"``."""
    counts = _counts(stages)
    first, last = _ends(counts)
    ahead = [_ahead(own) for own in stages.modules]
    layout = _layout([layers for _, layers, _ in counts], ahead, first, last)
    arguments: Arguments = {
        "num-layers": sum(layers for _, layers, _ in counts),
        "tensor-model-parallel-size": stages.degree,
        "pipeline-model-parallel-size": stages.ranks,
        "pipeline-model-parallel-layout": layout,
    }
    if any(ahead):
        arguments["mtp-num-layers"] = sum(ahead)
    said = [f"{stages.in_words}; the data-parallel degree follows from the number of ranks."]
    if stages.microbatches:  # of one sample each, unless both sizes are multiplied
        count = show_count(stages.microbatches, "microbatch")
        said.append(f"{count}; of n samples: n times both sizes.")
        arguments["micro-batch-size"] = 1
        arguments["global-batch-size"] = stages.microbatches * stages.replicas
    if stages.recomputes:
        arguments |= _ALL_AGAIN
    return _shell(said, stages.ranks * stages.replicas * stages.degree, arguments)


def _ends(counts: Sequence[tuple[int, int, int]]) -> tuple[int, int]:
    """Return the stages of embedding and loss: where such modules are, else first and last."""
    first = next((s for s, count in enumerate(counts) if count[0]), 0)
    last = next((s for s, count in enumerate(counts) if count[2]), len(counts) - 1)
    return first, last


def _counts(stages: ModuleStages) -> list[tuple[int, int, int]]:
    """Return each stage's modules before, in and after the decoder, without prediction heads."""
    kept = tuple(tuple(x for x in own if not is_ahead(x)) for own in stages.modules)
    return stack(replace(stages, modules=kept), NAME)[1]


def _check_ahead(stages: ModuleStages, counts: Sequence[tuple[int, int, int]]) -> None:
    """Raise InputError if multi-token prediction is on a stage where Megatron-LM has none."""
    places = [s for s, own in enumerate(stages.modules) if _ahead(own)]
    if not places:
        return
    if len(places) > 1:
        raise InputError(
            f"{NAME}: multi-token prediction is on stages {places[0]} and {places[-1]}; it keeps "
            "it on one"
        )
    (s,) = places
    if any(layers for _, layers, _ in counts[s + 1 :]) or s > _ends(counts)[1]:
        raise InputError(
            f"{NAME}: multi-token prediction is on stage {s}; it runs after all layers and not "
            "after the head's stage"
        )
    if stages.ranks > 1 and s % stages.ranks == 0:
        raise InputError(
            f"{NAME}: multi-token prediction is on stage {s}, of the first rank; it wants it on "
            "another"
        )


def unit(path: str) -> str:
    """Return the layer of a path; of multi-token prediction without numbers all of it."""
    layer = first_number(path)
    if not is_ahead(layer) or layer.rpartition(".")[2].isdecimal():
        return layer
    parts = layer.split(".")
    return ".".join(parts[: next(k for k, part in enumerate(parts) if _AHEAD_PART(part)) + 1])


def _ahead(own: Sequence[str]) -> int:
    """Return the number of layers of multi-token prediction among modules."""
    found = [x for x in own if is_ahead(x)]
    return sum(x.rpartition(".")[2].isdecimal() for x in found) or bool(found)


def is_ahead(module: str) -> bool:
    """Return whether a module predicts tokens after the next one."""
    return any(map(_AHEAD_PART, module.split(".")))


def _layout(layers: Sequence[int], ahead: Sequence[int], first: int, last: int) -> str:
    """Return the layout string from layers and prediction layers by stage, and stages of the ends.

    Its letters are explained in docs/user-guide/features/pipeline_parallel_layout.md.
    """
    return "|".join(
        _EMBEDDING * (s == first)
        + repeated(_LAYER, count)
        + repeated(_AHEAD, ahead[s])
        + _LOSS * (s == last)
        for s, count in enumerate(layers)
    )


def repeated(letter: str, layers: int) -> str:
    """Return a letter of the layout for so many layers."""
    return letter * layers if layers < 3 else f"{letter}*{layers}"


def _shell(comments: Sequence[str], world: int, arguments: Arguments) -> str:
    """Return the text of a shell script: comments, number of ranks, arguments."""
    lines = [f"# {one_line(text)}" for text in comments]
    lines += [f"WORLD_SIZE={world}", "MEGATRON_ARGS=("]
    for name, value in arguments.items():
        values = [] if value is True else value if isinstance(value, list) else [value]
        lines.append(" ".join([f"    --{name}", *(shell(str(word)) for word in values)]))
    return "\n".join([*lines, ")"]) + "\n"


_CONTEXT = {
    ContextKind.RING: "p2p",
    ContextKind.ALL_GATHER: "allgather",
    ContextKind.ALL_TO_ALL: "a2a",
}
_PRECISION: dict[NumberFormat, Arguments] = {
    NumberFormat.BF16: {"bf16": True},
    NumberFormat.FP16: {"fp16": True},
    NumberFormat.FP8: {"bf16": True, "fp8-format": "hybrid", "fp8-recipe": "delayed"},
    NumberFormat.FP8_BLOCK: {"bf16": True, "fp8-format": "e4m3", "fp8-recipe": "blockwise"},
    NumberFormat.MXFP8: {"bf16": True, "fp8-format": "e4m3", "fp8-recipe": "mxfp8"},
    NumberFormat.NVFP4: {"bf16": True, "fp4-format": "e2m1", "fp4-recipe": "nvfp4"},
}
_SHARDING = {2: "optim_grads", 3: "optim_grads_params"}


def megatron_files(model: ModelDescription, layout: Layout) -> dict[str, str]:
    """Return arguments for a shell: source the file, then pass ``"${MEGATRON_ARGS[@]}"``.

    Raises `InputError` if Megatron-LM has no argument for a part of the layout.
    """
    words = f"{degrees_in_words(model, layout)}, {show_count(layout.microbatches, 'microbatch')}."
    return {"megatron.sh": _shell([words], layout.devices, megatron_arguments(model, layout))}


def megatron_arguments(model: ModelDescription, layout: Layout) -> Arguments:
    """Return the arguments of a layout; raises `InputError` if a part of it has none."""
    return {
        **_parallelism(model, layout), **_states(model, layout),
        **_recomputation(model, layout), **_precision(layout), **_overlap(layout),
    }  # fmt: skip


def _parallelism(model: ModelDescription, layout: Layout) -> Arguments:
    """Return degrees, stages and batch: core/model_parallel_config.py, training/arguments.py."""
    if model.encoder:
        raise InputError(
            f"{model.name} has an encoder, and Megatron's arguments are written for decoders alone"
        )
    found: Arguments = {
        "num-layers": len(model.blocks),
        "tensor-model-parallel-size": layout.tensor,
        "pipeline-model-parallel-size": layout.pipeline,
    }
    if layout.order != Layout.order:
        found["use-tp-pp-dp-mapping"] = True
    if layout.tensor > 1 and layout.sequence_parallel:
        found["sequence-parallel"] = True
    if layout.context > 1:
        found["context-parallel-size"] = layout.context
        found["cp-comm-type"] = _CONTEXT[layout.context_kind]
    if any(block.experts for block in model.blocks):
        found["moe-grouped-gemm"] = True
        found["expert-model-parallel-size"] = layout.expert
        found["expert-tensor-parallel-size"] = layout.expert_tensor
        if layout.dispatcher is Dispatcher.ALL_TO_ALL:  # core/transformer/transformer_config.py
            found["moe-token-dispatcher-type"] = "alltoall"
        else:
            found["moe-token-dispatcher-type"] = "flex"
            found["moe-flex-dispatcher-backend"] = "deepep"
        if layout.expert_capacity:
            found["moe-expert-capacity-factor"] = layout.expert_capacity
    if model.mtp:
        found["mtp-num-layers"] = len(model.mtp)
    if layout.pipeline > 1:
        found |= _stages(model, layout)
    return found | {  # training/config/training_config.py
        "seq-length": layout.sequence,
        "micro-batch-size": layout.microbatch,
        "global-batch-size": layout.global_batch,
    }


def _stages(model: ModelDescription, layout: Layout) -> Arguments:
    """Return the layers of the model stages, as a layout string where they differ."""
    counts = layout.layers_of_stages(len(model.blocks))
    ahead = layout.mtp_stage % layout.stages
    if len(set(counts)) == 1 and (not model.mtp or ahead == layout.stages - 1):
        if layout.chunks == 1:
            return {}
        return {"num-virtual-stages-per-pipeline-rank": layout.chunks}
    ends = [len(model.mtp) * (stage == ahead) for stage in range(layout.stages)]
    text = _layout(counts, ends, 0, layout.stages - 1)
    return {"pipeline-model-parallel-layout": text}


def _states(model: ModelDescription, layout: Layout) -> Arguments:
    """Return arguments of sharding and offloading: training/arguments.py, core/optimizer.

    ZeRO 2 and 3 are Megatron-FSDP, whose checkpoints have a format of their own.
    """
    found: Arguments = {}
    if layout.zero >= 2:
        found["use-megatron-fsdp"] = True
        found["ckpt-format"] = "fsdp_dtensor"
        found["data-parallel-sharding-strategy"] = _SHARDING[layout.zero]
    if layout.zero:
        found["use-distributed-optimizer"] = True
        if layout.shards < layout.replicas:
            copies = layout.replicas // layout.shards
            found["num-distributed-optimizer-instances"] = copies
    if layout.recipe.optimizer is OptimizerRecipe.MUON:
        found["optimizer"] = "muon"
    if layout.offload_optimizer:
        found["use-precision-aware-optimizer"] = found["optimizer-cpu-offload"] = True
        found["optimizer-offload-fraction"] = layout.offload_optimizer
    if layout.offload_activations:
        count = layers_away(layout.offload_activations, model.layers)
        found["cpu-offloading-num-layers"] = count
    return found


def _recomputation(model: ModelDescription, layout: Layout) -> Arguments:
    """Return arguments of recomputation: ``recompute_*`` of core/transformer/transformer_config.py.

    Megatron has one number of layers for all model stages; a smaller stage recomputes all of its.
    """
    layers = layout.layers_of_stages(len(model.blocks))
    counts = [layout.recomputed_layers(stage, count) for stage, count in enumerate(layers)]
    most = max(counts)
    if not most:
        return {}
    if Recompute.FULL not in layout.recompute:
        modules = sorted(module.value for module in layout.recompute)
        return {"recompute-granularity": "selective", "recompute-modules": modules}
    if counts == list(layers):
        return _ALL_AGAIN
    if counts == [min(count, most) for count in layers]:
        return {**_ALL_AGAIN, "recompute-method": "block", "recompute-num-layers": most}
    raise InputError(
        f"recompute_layers: {', '.join(map(str, counts))}; megatron has one number for all "
        "model stages"
    )


def _precision(layout: Layout) -> Arguments:
    """Return the recipe: ``fp8*`` and ``fp4*`` of transformer_config.py, training/arguments.py."""
    recipe, half = layout.recipe, layout.recipe.compute is NumberFormat.FP16
    found = dict(_PRECISION.get(recipe.compute, {}))
    if half and recipe.gradient_bytes == 4:
        found["accumulate-allreduce-grads-in-fp32"] = True
    if not half and recipe.compute is not NumberFormat.FP32 and recipe.reduce_bytes == 2:
        found["grad-reduce-in-bf16"] = True
    if recipe.gather_bytes == 1:
        found["fp8-param-gather"] = True
    return found


def _overlap(layout: Layout) -> Arguments:
    """Return arguments of overlap and of CUDA graphs: training/arguments.py."""
    beside = layout.overlap
    if beside.tensor and layout.tensor > 1 and not layout.sequence_parallel:
        raise InputError("overlap.tensor: megatron has it with sequence_parallel alone")
    if beside.experts and layout.expert > 1 and layout.pipeline > 1 and layout.chunks == 1:
        raise InputError("overlap.experts: megatron has it in interleaved pipelines alone")
    switches = {
        "overlap-grad-reduce": beside.gradients,
        "overlap-param-gather": beside.gradients and beside.parameters and layout.zero,
        "tp-comm-overlap": beside.tensor and layout.tensor > 1,
        "overlap-moe-expert-parallel-comm": beside.experts and layout.expert > 1,
        "no-overlap-p2p-communication": not beside.messages and layout.pipeline > 1,
    }
    found: Arguments = {name: True for name, on in switches.items() if on}
    if layout.graphs is Graphs.MODULES:
        found["cuda-graph-impl"] = "transformer_engine"
    if layout.graphs is Graphs.ITERATION:
        found["cuda-graph-impl"] = "full_iteration"
        found["no-check-for-nan-in-loss-and-grad"] = True
    return found


#: Fields of the arguments whose field is not ``model.`` and their name.
_FIELDS: dict[str, tuple[str, ...]] = {
    "num-virtual-stages-per-pipeline-rank": ("model.virtual_pipeline_model_parallel_size",),
    "use-tp-pp-dp-mapping": ("dist.use_tp_pp_dp_mapping",),
    "seq-length": ("model.seq_length", "dataset.sequence_length"),
    "micro-batch-size": ("train.micro_batch_size",),
    "global-batch-size": ("train.global_batch_size",),
    "use-megatron-fsdp": ("ddp.use_megatron_fsdp", "dist.use_megatron_fsdp"),
    "ckpt-format": ("checkpoint.ckpt_format",),
    "data-parallel-sharding-strategy": ("ddp.data_parallel_sharding_strategy",),
    "use-distributed-optimizer": (
        "ddp.use_distributed_optimizer", "optimizer.use_distributed_optimizer",
    ),
    "num-distributed-optimizer-instances": ("ddp.num_distributed_optimizer_instances",),
    "optimizer": ("optimizer.optimizer",),
    "use-precision-aware-optimizer": ("optimizer.use_precision_aware_optimizer",),
    "optimizer-cpu-offload": ("optimizer.optimizer_cpu_offload",),
    "optimizer-offload-fraction": ("optimizer.optimizer_offload_fraction",),
    # a switch of its own, which the argument sets
    "cpu-offloading-num-layers": ("model.cpu_offloading_num_layers", "model.cpu_offloading"),
    "accumulate-allreduce-grads-in-fp32": ("ddp.grad_reduce_in_fp32",),
    "grad-reduce-in-bf16": ("ddp.grad_reduce_in_fp32",),
    "fp8-param-gather": ("ddp.fp8_param_gather",),
    "overlap-grad-reduce": ("ddp.overlap_grad_reduce",),
    "overlap-param-gather": ("ddp.overlap_param_gather",),
    "no-overlap-p2p-communication": ("model.overlap_p2p_comm",),
    "no-check-for-nan-in-loss-and-grad": (
        "ddp.check_for_nan_in_grad", "rerun_state_machine.check_for_nan_in_loss",
    ),
}  # fmt: skip
#: Switches that set their fields to False.
_OFF = (
    "grad-reduce-in-bf16", "no-overlap-p2p-communication", "no-check-for-nan-in-loss-and-grad",
)  # fmt: skip
#: Arguments that Bridge has as one of `MIXED_PRECISION`.
_OF_PRECISION = ("bf16", "fp16", "fp8-format", "fp8-recipe", "fp4-format", "fp4-recipe")
#: Recipes of src/megatron/bridge/training/mixed_precision.py.
MIXED_PRECISION = {
    NumberFormat.BF16: "bf16_mixed",
    NumberFormat.FP16: "fp16_mixed",
    NumberFormat.FP8: "bf16_with_fp8_delayed_scaling_mixed",
    NumberFormat.FP8_BLOCK: "bf16_with_fp8_subchannel_scaling_mixed",
    NumberFormat.MXFP8: "bf16_with_mxfp8_mixed",
    NumberFormat.NVFP4: "bf16_with_nvfp4_mixed",
}
_TEMPLATE = '''"""The planned layout for Megatron-Bridge: {words}.

    from {file} import planned
    pretrain(planned(my_recipe()), forward_step)  # my_recipe returns a ConfigContainer

Start {devices} processes with torchrun.
"""


def planned(config):
    """Put the layout into a ConfigContainer, and return it."""
{lines}
    return config
'''


def bridge_files(model: ModelDescription, layout: Layout) -> dict[str, str]:
    """Return the module, by file; raises `InputError` if Megatron-Core lacks a field."""
    lines = [f"    config.{name} = {value!r}" for name, value in bridge_fields(model, layout)]
    text = _TEMPLATE.format(
        words=docstring(degrees_in_words(model, layout)), file="planned", devices=layout.devices,
        lines="\n".join(lines),
    )  # fmt: skip
    return {"planned.py": text}


def bridge_fields(model: ModelDescription, layout: Layout) -> Iterator[tuple[str, object]]:
    """Yield names of fields of the configuration, and their values."""
    for name, value in megatron_arguments(model, layout).items():
        if name in _OF_PRECISION:
            continue
        if name in _OFF:
            value = False
        for field in _FIELDS.get(name, (f"model.{name.replace('-', '_')}",)):
            yield field, field == "model.cpu_offloading" or value
    precision = layout.recipe.compute
    if precision in MIXED_PRECISION:
        yield "mixed_precision", MIXED_PRECISION[precision]
    elif precision is not NumberFormat.FP32:
        raise InputError(f"recipe: products in {precision}; bridge has no recipe for them")
