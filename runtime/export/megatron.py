"""Plans and layouts for Megatron-LM and Megatron-Bridge, the two ways to configure Megatron-Core.

Plans are arguments of the pipeline layout, layouts those of ``pretrain_gpt.py`` that say how a job
is divided. Names are those of NVIDIA/Megatron-LM at d98e8a6; those of the model, its data and its
optimizer's rates are the user's. The file beside each argument is where it is from. Bridge has
Megatron-Core's names as fields (docs/megatron-lm-to-megatron-bridge.md of
NVIDIA-NeMo/Megatron-Bridge), so what Megatron-LM is told by arguments is set field by field.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import replace

from ...instances import InputError, Plan, Workload
from ...instances.common.escape import docstring, one_line, shell
from ...instances.common.quantities import show_count
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
from .stages import ModuleStages, first_number, module_stages, stack

NAME = "megatron"
#: Those that it runs.
SCHEDULES = ("1f1b", "interleaved")

#: Embedding, decoder layer, layer of multi-token prediction, and head with the loss.
_EMBEDDING, _LAYER, _AHEAD, _LOSS = "E", "t", "m", "L"
#: Names of the modules that predict tokens after the next one.
_AHEAD_PART = re.compile(r"mtp(_|$)|multi_token").match


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
    layout = "|".join(
        _EMBEDDING * (s == first)
        + repeated(_LAYER, layers)
        + repeated(_AHEAD, ahead[s])
        + _LOSS * (s == last)
        for s, (_, layers, _) in enumerate(counts)
    )
    world = stages.ranks * stages.replicas * stages.degree
    arguments = [
        f"--num-layers {sum(layers for _, layers, _ in counts)}",
        f"--tensor-model-parallel-size {stages.degree}",
        f"--pipeline-model-parallel-size {stages.ranks}",
        f"--pipeline-model-parallel-layout {shell(layout)}",
    ]
    if any(ahead):
        arguments.append(f"--mtp-num-layers {sum(ahead)}")
    if stages.microbatches:  # of one sample each, unless both sizes are multiplied
        batch = stages.microbatches * stages.replicas
        arguments.append(f"--micro-batch-size 1 --global-batch-size {batch}")
    if stages.recomputes:
        arguments.append(
            "--recompute-granularity full --recompute-method uniform --recompute-num-layers 1"
        )
    lines = [
        f"# {one_line(stages.in_words)}; the data-parallel degree follows from the number of ranks."
    ]
    if stages.microbatches:
        lines.append(
            f"# {show_count(stages.microbatches, 'microbatch')}; of n samples: n times both sizes."
        )
    lines += [f"WORLD_SIZE={world}", "MEGATRON_ARGS=("]
    lines += [f"    {argument}" for argument in arguments]
    return "\n".join([*lines, ")"]) + "\n"


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
    """Check that multi-token prediction is where Megatron-LM takes it."""
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
    """Return the layer, and of multi-token prediction without numbers the whole of it."""
    layer = first_number(path)
    if not is_ahead(layer) or layer.rpartition(".")[2].isdecimal():
        return layer
    parts = layer.split(".")
    return ".".join(parts[: next(k for k, part in enumerate(parts) if _AHEAD_PART(part)) + 1])


def _ahead(own: Sequence[str]) -> int:
    """Return how many layers of multi-token prediction are among modules."""
    found = [x for x in own if is_ahead(x)]
    return sum(x.rpartition(".")[2].isdecimal() for x in found) or bool(found)


def is_ahead(module: str) -> bool:
    """Return whether a module predicts tokens after the next one."""
    return any(map(_AHEAD_PART, module.split(".")))


def repeated(letter: str, layers: int) -> str:
    """Return a letter of the layout so many times, in short."""
    return letter * layers if layers < 3 else f"{letter}*{layers}"


_CONTEXT = {
    ContextKind.RING: "p2p",
    ContextKind.ALL_GATHER: "allgather",
    ContextKind.ALL_TO_ALL: "a2a",
}
_PRECISION = {
    NumberFormat.BF16: "--bf16",
    NumberFormat.FP16: "--fp16",
    NumberFormat.FP8: "--bf16 --fp8-format hybrid --fp8-recipe delayed",
    NumberFormat.FP8_BLOCK: "--bf16 --fp8-format e4m3 --fp8-recipe blockwise",
    NumberFormat.MXFP8: "--bf16 --fp8-format e4m3 --fp8-recipe mxfp8",
    NumberFormat.NVFP4: "--bf16 --fp4-format e2m1 --fp4-recipe nvfp4",
}
_SHARDING = {2: "optim_grads", 3: "optim_grads_params"}
_RANKS: dict[tuple[str, ...], str] = {
    ("tensor", "context", "data", "pipeline"): "",
    ("tensor", "context", "pipeline", "data"): "--use-tp-pp-dp-mapping",
}


def megatron_arguments(model: ModelDescription, layout: Layout) -> str:
    """Return arguments for a shell: source the file, then pass ``"${MEGATRON_ARGS[@]}"``.

    Raises `InputError` if Megatron-LM has no argument for a part of the layout.
    """
    groups = [
        _parallelism(model, layout), _batch(layout), _states(model, layout),
        _recomputation(model, layout),
        _precision(layout), _overlap(layout),
    ]  # fmt: skip
    lines = [
        f"# {one_line(model.name)}: tensor {layout.tensor} x context {layout.context} x pipeline "
        f"{layout.pipeline} x data {layout.data}, {show_count(layout.microbatches, 'microbatch')}.",
        f"WORLD_SIZE={layout.devices}",
        "MEGATRON_ARGS=(",
        *(f"    {argument}" for group in groups for argument in group if argument),
        ")",
    ]
    return "\n".join(lines) + "\n"


def _parallelism(model: ModelDescription, layout: Layout) -> Sequence[str]:
    """Return degrees and stages: megatron/core/model_parallel_config.py, training/arguments.py."""
    if model.encoder:
        raise InputError(f"{model.name}: its encoder is no stage of megatron's pipeline layout")
    found = [
        f"--num-layers {len(model.blocks)}",
        f"--tensor-model-parallel-size {layout.tensor}",
        f"--pipeline-model-parallel-size {layout.pipeline}",
        _RANKS[layout.order],
    ]
    if layout.tensor > 1 and layout.sequence_parallel:
        found.append("--sequence-parallel")
    if layout.context > 1:
        found.append(f"--context-parallel-size {layout.context}")
        found.append(f"--cp-comm-type {_CONTEXT[layout.context_kind]}")
    if any(block.experts for block in model.blocks):
        found.append("--moe-grouped-gemm")
        found.append(f"--expert-model-parallel-size {layout.expert}")
        found.append(f"--expert-tensor-parallel-size {layout.expert_tensor}")
        found.append(  # core/transformer/transformer_config.py
            "--moe-token-dispatcher-type alltoall"
            if layout.dispatcher is Dispatcher.ALL_TO_ALL
            else "--moe-token-dispatcher-type flex --moe-flex-dispatcher-backend deepep"
        )
        if layout.expert_capacity:
            found.append(f"--moe-expert-capacity-factor {layout.expert_capacity:g}")
    if model.mtp:
        found.append(f"--mtp-num-layers {len(model.mtp)}")
    if layout.pipeline > 1:
        found.append(_stages(model, layout))
    return found


def _stages(model: ModelDescription, layout: Layout) -> str:
    """Return the layers of the model stages, as a layout string where they differ.

    Its letters are explained in docs/user-guide/features/pipeline_parallel_layout.md.
    """
    counts = layout.layers_of_stages(len(model.blocks))
    ahead = layout.mtp_stage % layout.stages
    if len(set(counts)) == 1 and (not model.mtp or ahead == layout.stages - 1):
        if layout.chunks == 1:
            return ""
        return f"--num-virtual-stages-per-pipeline-rank {layout.chunks}"
    parts = [
        "E" * (stage == 0)
        + repeated("t", layers)
        + repeated("m", len(model.mtp) * (stage == ahead))
        + "L" * (stage == layout.stages - 1)
        for stage, layers in enumerate(counts)
    ]
    return f"--pipeline-model-parallel-layout {shell('|'.join(parts))}"


def _batch(layout: Layout) -> Sequence[str]:
    """Return sequences per pass and iteration: training/config/training_config.py."""
    return (
        f"--seq-length {layout.sequence}",
        f"--micro-batch-size {layout.microbatch} --global-batch-size {layout.global_batch}",
    )


def _states(model: ModelDescription, layout: Layout) -> Sequence[str]:
    """Return what data-parallel ranks divide: training/arguments.py, core/optimizer.

    ZeRO 2 and 3 are Megatron-FSDP, whose checkpoints have a format of their own.
    """
    found = []
    if layout.zero == 1:
        found.append("--use-distributed-optimizer")
    if layout.zero >= 2:
        found.append("--use-megatron-fsdp --use-distributed-optimizer --ckpt-format fsdp_dtensor")
        found.append(f"--data-parallel-sharding-strategy {_SHARDING[layout.zero]}")
    if layout.zero and layout.shards < layout.replicas:
        copies = layout.replicas // layout.shards
        found.append(f"--num-distributed-optimizer-instances {copies}")
    if layout.recipe.optimizer is OptimizerRecipe.MUON:
        found.append("--optimizer muon")
    if layout.offload_optimizer:
        found.append(
            "--use-precision-aware-optimizer --optimizer-cpu-offload --optimizer-offload-fraction "
            f"{layout.offload_optimizer:g}"
        )
    if layout.offload_activations:
        count = layers_away(layout.offload_activations, model.layers)
        found.append(f"--cpu-offloading-num-layers {count}")
    return found


def _recomputation(model: ModelDescription, layout: Layout) -> Sequence[str]:
    """Return what is computed again: ``recompute_*`` of core/transformer/transformer_config.py.

    Megatron has one number of layers for all model stages, of which a smaller stage has all.
    """
    layers = layout.layers_of_stages(len(model.blocks))
    counts = [layout.recomputed_layers(stage, count) for stage, count in enumerate(layers)]
    most = max(counts)
    if not most:
        return ()
    if Recompute.FULL not in layout.recompute:
        modules = " ".join(sorted(module.value for module in layout.recompute))
        return (f"--recompute-granularity selective --recompute-modules {modules}",)
    if counts == list(layers):
        how = "--recompute-method uniform --recompute-num-layers 1"
    elif counts == [min(count, most) for count in layers]:
        how = f"--recompute-method block --recompute-num-layers {most}"
    else:
        raise InputError(
            f"recompute_layers: {', '.join(map(str, counts))}; megatron has one number for all "
            "model stages"
        )
    return (f"--recompute-granularity full {how}",)


def _precision(layout: Layout) -> Sequence[str]:
    """Return the recipe: ``fp8*`` and ``fp4*`` of transformer_config.py, training/arguments.py."""
    recipe = layout.recipe
    found = [_PRECISION.get(recipe.compute, "")]
    if recipe.compute is NumberFormat.FP16 and recipe.gradient_bytes == 4:
        found.append("--accumulate-allreduce-grads-in-fp32")
    if recipe.compute is not NumberFormat.FP32 and recipe.reduce_bytes == 2:
        found.append("--grad-reduce-in-bf16" if recipe.compute is not NumberFormat.FP16 else "")
    if recipe.gather_bytes == 1:
        found.append("--fp8-param-gather")
    return found


def _overlap(layout: Layout) -> Sequence[str]:
    """Return what runs beside computation, and recorded graphs: training/arguments.py."""
    beside, found = layout.overlap, []
    if beside.gradients:
        found.append("--overlap-grad-reduce")
        if beside.parameters and layout.zero:
            found.append("--overlap-param-gather")
    if beside.tensor and layout.tensor > 1:
        if not layout.sequence_parallel:
            raise InputError("overlap.tensor: megatron has it with sequence_parallel alone")
        found.append("--tp-comm-overlap")
    if beside.experts and layout.expert > 1:
        if layout.pipeline > 1 and layout.chunks == 1:
            raise InputError("overlap.experts: megatron has it in interleaved pipelines alone")
        found.append("--overlap-moe-expert-parallel-comm")
    if not beside.messages and layout.pipeline > 1:
        found.append("--no-overlap-p2p-communication")
    if layout.graphs is Graphs.MODULES:
        found.append("--cuda-graph-impl transformer_engine")
    if layout.graphs is Graphs.ITERATION:
        found.append("--cuda-graph-impl full_iteration --no-check-for-nan-in-loss-and-grad")
    return found


#: Fields by arguments; ``int``, ``float``, ``str`` or ``list`` are the type of what follows, and
#: other values are set as they are.
_FIELDS: dict[str, tuple[tuple[str, ...], object]] = {
    "num-layers": (("model.num_layers",), int),
    "tensor-model-parallel-size": (("model.tensor_model_parallel_size",), int),
    "pipeline-model-parallel-size": (("model.pipeline_model_parallel_size",), int),
    "num-virtual-stages-per-pipeline-rank": (("model.virtual_pipeline_model_parallel_size",), int),
    "pipeline-model-parallel-layout": (("model.pipeline_model_parallel_layout",), str),
    "sequence-parallel": (("model.sequence_parallel",), True),
    "context-parallel-size": (("model.context_parallel_size",), int),
    "cp-comm-type": (("model.cp_comm_type",), str),
    "expert-model-parallel-size": (("model.expert_model_parallel_size",), int),
    "expert-tensor-parallel-size": (("model.expert_tensor_parallel_size",), int),
    "moe-grouped-gemm": (("model.moe_grouped_gemm",), True),
    "moe-token-dispatcher-type": (("model.moe_token_dispatcher_type",), str),
    "moe-flex-dispatcher-backend": (("model.moe_flex_dispatcher_backend",), str),
    "moe-expert-capacity-factor": (("model.moe_expert_capacity_factor",), float),
    "mtp-num-layers": (("model.mtp_num_layers",), int),
    "use-tp-pp-dp-mapping": (("dist.use_tp_pp_dp_mapping",), True),
    "seq-length": (("model.seq_length", "dataset.sequence_length"), int),
    "micro-batch-size": (("train.micro_batch_size",), int),
    "global-batch-size": (("train.global_batch_size",), int),
    "use-distributed-optimizer": (
        ("ddp.use_distributed_optimizer", "optimizer.use_distributed_optimizer"), True,
    ),
    "use-megatron-fsdp": (("ddp.use_megatron_fsdp", "dist.use_megatron_fsdp"), True),
    "ckpt-format": (("checkpoint.ckpt_format",), str),
    "data-parallel-sharding-strategy": (("ddp.data_parallel_sharding_strategy",), str),
    "num-distributed-optimizer-instances": (("ddp.num_distributed_optimizer_instances",), int),
    "optimizer": (("optimizer.optimizer",), str),
    "use-precision-aware-optimizer": (("optimizer.use_precision_aware_optimizer",), True),
    "optimizer-cpu-offload": (("optimizer.optimizer_cpu_offload",), True),
    "optimizer-offload-fraction": (("optimizer.optimizer_offload_fraction",), float),
    "cpu-offloading-num-layers": (("model.cpu_offloading_num_layers",), int),
    "recompute-granularity": (("model.recompute_granularity",), str),
    "recompute-method": (("model.recompute_method",), str),
    "recompute-num-layers": (("model.recompute_num_layers",), int),
    "recompute-modules": (("model.recompute_modules",), list),
    "accumulate-allreduce-grads-in-fp32": (("ddp.grad_reduce_in_fp32",), True),
    "grad-reduce-in-bf16": (("ddp.grad_reduce_in_fp32",), False),
    "fp8-param-gather": (("ddp.fp8_param_gather",), True),
    "overlap-grad-reduce": (("ddp.overlap_grad_reduce",), True),
    "overlap-param-gather": (("ddp.overlap_param_gather",), True),
    "tp-comm-overlap": (("model.tp_comm_overlap",), True),
    "overlap-moe-expert-parallel-comm": (("model.overlap_moe_expert_parallel_comm",), True),
    "no-overlap-p2p-communication": (("model.overlap_p2p_comm",), False),
    "cuda-graph-impl": (("model.cuda_graph_impl",), str),
    "no-check-for-nan-in-loss-and-grad": (
        ("ddp.check_for_nan_in_grad", "rerun_state_machine.check_for_nan_in_loss"), False,
    ),
}  # fmt: skip
#: Arguments of a precision, which `MIXED_PRECISION` names as a whole.
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
    """Return the module, by file; an `InputError` if Megatron-Core lacks a field of the layout."""
    lines = [f"config.{name} = {value!r}" for name, value in bridge_fields(model, layout)]
    words = (
        f"{model.name}, tensor {layout.tensor} x context {layout.context} x pipeline "
        f"{layout.pipeline} x data {layout.data}"
    )
    text = _TEMPLATE.format(
        words=docstring(words), file="planned", devices=layout.devices,
        lines="\n".join(f"    {line}" for line in lines),
    )  # fmt: skip
    return {"planned.py": text}


def bridge_fields(model: ModelDescription, layout: Layout) -> Iterator[tuple[str, object]]:
    """Yield names below the configuration and their values."""
    words = shlex.split(megatron_arguments(model, layout), comments=True)
    inside = words[words.index("MEGATRON_ARGS=(") + 1 : -1]
    begins = [k for k, word in enumerate(inside) if word.startswith("--")]
    for begin, end in zip(begins, [*begins[1:], len(inside)], strict=True):
        name, values = inside[begin].removeprefix("--"), inside[begin + 1 : end]
        if name in _OF_PRECISION:
            continue
        fields, kind = _FIELDS[name]
        value: object = kind
        if isinstance(kind, type):
            value = values if kind is list else kind(values[0])
        yield from ((field, value) for field in fields)
        if name == "cpu-offloading-num-layers":  # a switch of its own, which the argument sets
            yield "model.cpu_offloading", True
    precision = layout.recipe.compute
    if precision in MIXED_PRECISION:
        yield "mixed_precision", MIXED_PRECISION[precision]
    elif precision is not NumberFormat.FP32:
        raise InputError(f"recipe: products in {precision}; bridge has no recipe for them")
