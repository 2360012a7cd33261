"""Layouts for Megatron-LM: the arguments of ``pretrain_gpt.py`` that say how a job is divided.

Names are those of NVIDIA/Megatron-LM at d98e8a6; those of the model, its data and its optimizer's
rates are the user's. The file beside each argument is where it is from.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...instances import InputError
from ...instances.common.escape import one_line, shell
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
from .megatron import repeated

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
        f"{layout.pipeline} x data {layout.data}, {layout.microbatches} microbatches.",
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
