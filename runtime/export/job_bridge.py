"""Layouts for Megatron-Bridge: a Python module that puts a layout into a recipe's configuration.

Bridge has Megatron-Core's names as fields (docs/megatron-lm-to-megatron-bridge.md of
NVIDIA-NeMo/Megatron-Bridge), so what Megatron-LM is told by arguments is set field by field here.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from ...instances import InputError
from ...instances.common.escape import docstring
from ...instances.costs.description import ModelDescription
from ...instances.costs.hardware import NumberFormat
from ...instances.costs.layout import Layout
from .job_megatron import megatron_arguments

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
