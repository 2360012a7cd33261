"""Settings of launchers: the layouts of a training job that each launcher can run.

Each fact has its source: documentation or the check in the launcher's own code, by repository and
commit. Whether a layout fits the cluster or the memory is not asked here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from math import ceil, floor
from types import MappingProxyType

from ..common.choices import Choice
from ..common.errors import InputError, quote
from ..costs.description import ModelDescription
from ..costs.hardware import NumberFormat
from ..costs.layout import (
    FULL,
    OFFLOAD,
    ContextKind,
    Dispatcher,
    Graphs,
    JobSchedule,
    Layout,
    Recompute,
    Software,
)

_SIXTEEN = frozenset({NumberFormat.BF16, NumberFormat.FP16})
_PLAIN = frozenset({JobSchedule.ONE_F_ONE_B})
_USUAL = frozenset({Layout.order})


@dataclass(frozen=True)
class LauncherSettings:
    """Settings of a launcher: the choices of a layout that it can run."""

    software: Software  # software whose kernels and overlap it has
    recipe: str  # name of its default recipe (precision and bytes per parameter)
    formats: frozenset[NumberFormat]  # precisions of matrix products
    schedules: frozenset[JobSchedule]  # orders of passes
    zero: frozenset[int]  # zero, zero_in_pipeline: ZeRO stages without a pipeline, and with one
    zero_in_pipeline: frozenset[int]
    # ZeRO stages that may divide over fewer than all replicas (`Layout.shard_group`)
    sharded_groups: frozenset[int] = frozenset()
    # whether tensor-parallel ranks can divide the sequence outside matrix products
    sequence_parallel: bool = False
    # exchanges of keys and values between context-parallel ranks; empty: no context parallelism
    context: frozenset[ContextKind] = frozenset()
    # whether context parallelism excludes tensor and pipeline parallelism
    context_alone: bool = False
    # expert, expert_tensor, expert_beside_tensor: whether it can divide routed experts over
    # devices, the matrices of one expert, and experts together with tensor parallelism
    expert: bool = True
    expert_tensor: bool = False
    expert_beside_tensor: bool = True
    recompute: frozenset[Recompute] = FULL  # modules that it can recompute
    # recompute_some, recompute_by_stage: whether full recomputation can be limited to some layers
    # of a stage, and whether their number can differ between stages
    recompute_some: bool = False
    recompute_by_stage: bool = False
    # fields of `Layout` whose fractions it can keep in host memory
    offload: frozenset[str] = frozenset()
    # offload_by_layer: activations are offloaded by whole layers, without pipeline and
    # recomputation; offload_by_zero: all inputs of recomputation are offloaded or none, and
    # weights, or a fraction of the optimizer, only with ZeRO 3
    offload_by_layer: bool = False
    offload_by_zero: bool = False
    orders: frozenset[tuple[str, ...]] = _USUAL  # orders of axes, as in `Layout.order`
    # ways to send tokens to experts
    dispatchers: frozenset[Dispatcher] = frozenset({Dispatcher.ALL_TO_ALL})
    capacity: bool = False  # whether experts can drop tokens
    graphs: frozenset[Graphs] = frozenset({Graphs.NONE})  # kernels that recorded graphs can launch
    compiled: bool = True  # whether modules can be compiled (`torch.compile`)
    # mtp_in_pipeline, encoder_in_pipeline: whether it supports multi-token prediction in a
    # pipeline, and can divide a model with encoder and decoder into stages
    mtp_in_pipeline: bool = True
    encoder_in_pipeline: bool = False
    # whether only data-parallel ranks divide experts
    experts_in_data: bool = False
    # whether tensor or context parallelism requires ZeRO 1 or above
    always_sharded: bool = False
    # whether each of several tensor-parallel ranks can have a copy of a key and value head
    copies_key_heads: bool = True
    # even_vocabulary, windows_in_context: whether tensor-parallel ranks must have equally many
    # tokens of the vocabulary, and context-parallel ones can see sliding windows
    even_vocabulary: bool = False
    windows_in_context: bool = True


# NVIDIA/Megatron-LM@d98e8a6. Schedules: megatron/core/pipeline_parallel/schedules.py. ZeRO 1 is
# --use-distributed-optimizer, 2 and 3 are Megatron-FSDP's --data-parallel-sharding-strategy, over
# part of the replicas by --num-distributed-optimizer-instances
# (docs/user-guide/features/megatron_fsdp.md, which combines it with tensor, context and expert
# parallelism; its second version refuses pipelines, core/distributed/fsdp/mcore_fsdp_adapter.py).
# --cp-comm-type, --recompute-modules: core/transformer/transformer_config.py;
# --recompute-num-layers, --optimizer-cpu-offload, --cpu-offloading-num-layers (what it refuses:
# core/transformer/transformer_config.py): megatron/training/arguments.py. Fine-grained activation
# offloading works in pipelines, too, for a fraction of the inputs of some modules.
_MEGATRON = LauncherSettings(
    software=Software.MEGATRON,
    recipe="megatron-bf16",
    formats=frozenset(NumberFormat),
    schedules=_PLAIN | {JobSchedule.INTERLEAVED},
    zero=frozenset({0, 1, 2, 3}),
    zero_in_pipeline=frozenset({0, 1}),
    sharded_groups=frozenset({1, 2, 3}),
    sequence_parallel=True,
    context=frozenset(ContextKind),
    expert_tensor=True,
    recompute=frozenset(Recompute) - {Recompute.OPERATORS},
    recompute_some=True,
    offload=frozenset({"offload_activations", "offload_optimizer"}),
    offload_by_layer=True,
    orders=_USUAL | {("tensor", "context", "pipeline", "data")},
    dispatchers=frozenset(Dispatcher),
    capacity=True,
    graphs=frozenset(Graphs),
)

# pytorch/torchtitan@b5bcd76: torchtitan/config/configs.py (ParallelismConfig: FSDP or HSDP over
# what the other degrees leave, `fsdp_reshard_after_forward`, schedules of
# torch.distributed.pipelining by name, `expert_parallel_degree` with dp_shard · cp · tp = efsdp ·
# ep, hence no division of one expert), models/deepseek_v3/mtp.py ("MTP does not support pipeline
# parallelism yet") and distributed/activation_checkpoint.py (full, or
# selective by operator, of all layers). Orders of zero-bubble schedules run as a table of actions,
# `pipeline_parallel_schedule_csv`. Context parallelism is
# torch.distributed.tensor.experimental's: all-gather, or a ring by `set_rotate_method`. Key and
# value heads are not copied: its pull request 2577.
_TORCHTITAN = LauncherSettings(
    software=Software.TORCHTITAN,
    recipe="fsdp-bf16",
    formats=frozenset(NumberFormat)
    - {NumberFormat.FP16, NumberFormat.TF32, NumberFormat.FP8_BLOCK},
    schedules=frozenset(JobSchedule),
    zero=frozenset({0, 2, 3}),
    zero_in_pipeline=frozenset({0, 2, 3}),
    sharded_groups=frozenset({2, 3}),
    sequence_parallel=True,
    context=frozenset({ContextKind.RING, ContextKind.ALL_GATHER}),
    recompute=FULL | {Recompute.OPERATORS},
    mtp_in_pipeline=False,
    dispatchers=frozenset(Dispatcher),
    graphs=frozenset({Graphs.NONE, Graphs.ITERATION}),
    copies_key_heads=False,
)

# deepspeedai/DeepSpeed@edaa722: runtime/pipe/engine.py ("ZeRO-2 and ZeRO-3 are incompatible with
# pipeline parallelism") and runtime/pipe/schedule.py (`TrainSchedule` is 1F1B, a stage per rank);
# docs/_tutorials/autotp-training.md (tensor parallelism by all-reduce);
# docs/_pages/config-json.md (`mics_shard_size` divided ZeRO-3 over fewer ranks, and 0.19.8 refuses
# it as removed; `expert_tensor_parallel_size` must be 1; AutoEP is refused beside AutoTP; offload
# of optimizer and parameters). Sequence parallelism is Ulysses, docs/_tutorials/ds-sequence.md;
# Megatron-DeepSpeed's megatron/core/parallel_state.py refuses it beside tensor and pipeline
# parallelism.
_DEEPSPEED = LauncherSettings(
    software=Software.MEGATRON_DEEPSPEED,
    recipe="deepspeed-bf16",
    formats=_SIXTEEN | {NumberFormat.FP32},
    schedules=_PLAIN,
    zero=frozenset({0, 1, 2, 3}),
    zero_in_pipeline=frozenset({0, 1}),
    context=frozenset({ContextKind.ALL_TO_ALL}),
    context_alone=True,
    expert_beside_tensor=False,
    offload=frozenset(OFFLOAD),
    offload_by_zero=True,
    dispatchers=frozenset(Dispatcher),
)

# runtime/execution/job (docs/run.md, Training jobs): FSDP2, which in a pipeline of
# torch.distributed.pipelining divides gradients only at the end of a batch, so that ZeRO 2 and 3
# would keep more memory than they should; attention with gathered keys and values or exchanged
# heads, without a mask of its own; the user names the modules to recompute. DTensor divides key and
# value projections and the vocabulary evenly.
_STAGECUT = LauncherSettings(
    software=Software.STAGECUT,
    recipe="fsdp-bf16",
    formats=frozenset({NumberFormat.BF16, NumberFormat.FP32}),
    schedules=frozenset(JobSchedule),
    zero=frozenset({0, 1, 2, 3}),
    zero_in_pipeline=frozenset({0, 1}),
    sharded_groups=frozenset({1, 2, 3}),
    sequence_parallel=True,
    compiled=False,
    context=frozenset({ContextKind.ALL_GATHER, ContextKind.ALL_TO_ALL}),
    recompute=frozenset(Recompute)
    - {Recompute.CORE_ATTENTION, Recompute.MLA_UP_PROJECTION, Recompute.MOE_ACTIVATION},
    recompute_some=True,
    recompute_by_stage=True,
    copies_key_heads=False,
    even_vocabulary=True,
    windows_in_context=False,
)

# NVIDIA-NeMo/Megatron-Bridge runs Megatron-Core, with its names as fields
# (docs/megatron-lm-to-megatron-bridge.md): what Megatron-LM can run.

# huggingface/accelerate 1.15: parallelism_config.py (FSDP2 or HSDP, tensor parallelism by the
# model's own plan, context parallelism by torch's `context_parallel`, which gathers or goes round a
# ring; no pipeline in training, no expert parallelism; issue 48307 of huggingface/transformers: key
# and value heads are not copied), utils/dataclasses.py
# (`FullyShardedDataParallelPlugin`: weights are gathered until the backward pass, ZeRO 2, or not,
# ZeRO 3; checkpointing of all wrapped layers).
_ACCELERATE = LauncherSettings(
    software=Software.FSDP,
    recipe="fsdp-bf16",
    formats=_SIXTEEN | {NumberFormat.FP32},
    schedules=_PLAIN,
    zero=frozenset({0, 2, 3}),
    zero_in_pipeline=frozenset(),
    sharded_groups=frozenset({2, 3}),
    context=frozenset({ContextKind.RING, ContextKind.ALL_GATHER}),
    expert=False,
    always_sharded=True,
    copies_key_heads=False,
)

# AI-Hypercomputer/maxtext@000b810: src/maxtext/configs/base.yml. ZeRO 1 is
# `shard_optimizer_over_data`, 3 the FSDP axis; `tensor_sequence` divides the sequence outside of
# matrix products, too. Its pipeline is a loop of its own over repeats, of which no schedule here is
# a model; remat_policy is of all layers.
_MAXTEXT = LauncherSettings(
    software=Software.OTHER,
    recipe="fsdp-bf16",
    formats=frozenset({NumberFormat.BF16, NumberFormat.FP32}),
    schedules=_PLAIN,
    zero=frozenset({0, 1, 3}),
    zero_in_pipeline=frozenset(),
    sequence_parallel=True,
    context=frozenset({ContextKind.ALL_GATHER}),
    experts_in_data=True,
)

# Not a launcher: all schedules of this package, with Megatron's kernels.
_ANY = replace(
    _MEGATRON,
    schedules=frozenset(JobSchedule),
    zero_in_pipeline=frozenset({0, 1, 2}),
    recompute_by_stage=True,
    offload=frozenset(OFFLOAD),
    offload_by_layer=False,
    encoder_in_pipeline=True,
)

#: Launchers by name.
LAUNCHERS: Mapping[str, LauncherSettings] = MappingProxyType(
    {
        "megatron": _MEGATRON,
        "bridge": _MEGATRON,
        "torchtitan": _TORCHTITAN,
        "deepspeed": _DEEPSPEED,
        "accelerate": _ACCELERATE,
        "maxtext": _MAXTEXT,
        "stagecut": _STAGECUT,
        "any": _ANY,
    }
)


def runs(launcher: str, layout: Layout, model: ModelDescription | None = None) -> str | None:
    """Return why a launcher of `LAUNCHERS` cannot run a layout, in one line; None if it can.

    Without a `model`, its layers, heads and vocabulary are not checked. InputError if no launcher
    has that name.

    Examples
    --------
    >>> import stagecut
    >>> runs("deepspeed", stagecut.Layout(pipeline=4, zero=3, global_batch=8))
    'zero: 3 in a pipeline; deepspeed has 0, 1 there'
    """
    known = LAUNCHERS.get(launcher)
    if known is None:
        raise InputError(f"launcher: {quote(launcher)} is not one of {', '.join(LAUNCHERS)}")
    found = refusal(known, layout, None if model is None else model.layers)
    if found is not None:
        return f"{found[0]}; {launcher} has {found[1]}"
    return None if model is None else undivided(launcher, layout, model)


def undivided(launcher: str, layout: Layout, model: ModelDescription) -> str | None:
    """Return why a launcher cannot divide a model as a layout does, in one line; None if it can."""
    known, t = LAUNCHERS[launcher], layout.tensor
    if known.even_vocabulary and model.vocabulary % t:
        return (
            f"tensor: {t} does not divide the vocabulary of {model.vocabulary} of {model.name}; "
            f"{launcher} has even parts only"
        )
    for block in model.layer_types:
        for one in (block.attention, block.cross_attention):
            if one is not None and one.kv_heads % t and not known.copies_key_heads:
                return (
                    f"tensor: {t} does not divide the {one.kv_heads} key and value heads of "
                    f"{model.name}; {launcher} has at most {one.kv_heads}"
                )
            windows = one is not None and one.window is not None and one.window < layout.sequence
            if windows and layout.context > 1 and not known.windows_in_context:
                return (
                    f"context: {layout.context} with sliding windows of {model.name}; {launcher} "
                    "has 1 there"
                )
    return None


def layers_away(part: float, layers: int) -> int:
    """Count the layers to offload, rounded up, so that `part` of all activations is offloaded."""
    return ceil(part * layers - 1e-9)


#: A layout's setting that a launcher does not support, and those it supports; None: it runs all.
_Refusal = tuple[str, str] | None


def refusal(known: LauncherSettings, layout: Layout, layers: int | None = None) -> _Refusal:
    """Return the setting of a layout that a launcher lacks, and those it has, of `layers` layers.

    None if it has all; without `layers`, numbers of layers are not checked.
    """
    found = _passes(known, layout) or _division(known, layout)
    return found or _kept(known, layout, layers)


def _passes(known: LauncherSettings, layout: Layout) -> _Refusal:
    """Return an unsupported pipeline, precision, recording, compilation, order or schedule."""
    if layout.pipeline > 1 and not known.zero_in_pipeline:
        return f"pipeline: {layout.pipeline}", "1"
    if layout.recipe.compute not in known.formats:
        return f"recipe: products in {layout.recipe.compute}", _listed(known.formats)
    if layout.graphs not in known.graphs:
        return f"graphs: {layout.graphs}", _listed(known.graphs)
    if layout.compiled and not known.compiled:
        return "compiled: True", "False"
    if layout.order not in known.orders:
        return f"order: {', '.join(layout.order)}", " or ".join(map(", ".join, known.orders))
    if layout.pipeline > 1 and layout.schedule not in known.schedules:
        return f"schedule: {layout.schedule}", _listed(known.schedules)
    return None


def _division(known: LauncherSettings, layout: Layout) -> _Refusal:
    """Return an unsupported division of states, tensors, sequences or experts."""
    piped = layout.pipeline > 1
    stages = known.zero_in_pipeline if piped else known.zero
    if layout.zero not in stages:
        where, there = (" in a pipeline", " there") if piped else ("", "")
        return f"zero: {layout.zero}{where}", f"{_listed(stages)}{there}"
    if known.always_sharded and not layout.zero and layout.tensor * layout.context > 1:
        return "zero: 0 beside tensor or context parallelism", f"{_listed(stages - {0})} there"
    if layout.shards < layout.replicas and layout.zero and layout.zero not in known.sharded_groups:
        groups = _listed(known.sharded_groups)
        over = f"for ZeRO {groups} alone" if groups else "none"
        return f"shard_group: {layout.shard_group} with ZeRO {layout.zero}", f"such groups {over}"
    if layout.tensor > 1 and layout.sequence_parallel and not known.sequence_parallel:
        return "sequence_parallel: True", "tensor parallelism without it"
    if layout.context > 1:
        if layout.context_kind not in known.context:
            return f"context_kind: {layout.context_kind}", _listed(known.context) or "none"
        if known.context_alone and (layout.tensor > 1 or piped):
            return f"context: {layout.context}", "it without tensor and pipeline parallelism alone"
    # Where attention is causal, each context-parallel rank takes an early and a late part of the
    # sequence: megatron/training/arguments.py of Megatron-LM, and `seq_len_divisor` of torchtitan's
    # distributed/parallel_dims.py, by which tensor-parallel ranks divide each part.
    parts = layout.context * (1 if layout.context == 1 or known.context_alone else 2)
    parts *= layout.tensor if layout.sequence_parallel else 1
    if layout.sequence % parts:
        return f"sequence: {layout.sequence} tokens in {parts} parts", f"multiples of {parts}"
    if layout.expert > 1 and not known.expert:
        return f"expert: {layout.expert}", "no expert parallelism"
    if layout.expert > 1 and layout.dispatcher not in known.dispatchers:
        return f"dispatcher: {layout.dispatcher}", _listed(known.dispatchers)
    if layout.expert_capacity and not known.capacity:
        return f"expert_capacity: {layout.expert_capacity:g}", "experts that drop no token"
    if layout.expert_tensor > 1 and not known.expert_tensor:
        return f"expert_tensor: {layout.expert_tensor}", "1"
    if known.experts_in_data and layout.data % layout.expert:
        return f"expert: {layout.expert} with data {layout.data}", "experts over data ranks alone"
    if layout.expert > 1 and layout.tensor > 1:
        if not known.expert_beside_tensor:
            return f"expert: {layout.expert} beside tensor {layout.tensor}", "one of the two"
        # core/transformer/moe/moe_layer.py of Megatron-LM, and torchtitan's own dispatch.
        if not layout.sequence_parallel:
            return f"expert: {layout.expert} beside tensor {layout.tensor}", (
                "it with sequence parallelism alone"
            )
    return None


def _kept(known: LauncherSettings, layout: Layout, layers: int | None) -> _Refusal:
    """Return an unsupported setting of recomputation or host memory."""
    if more := layout.recompute - known.recompute:
        return f"recompute: {_listed(more)}", _listed(known.recompute)
    if Recompute.FULL in layout.recompute and len(layout.recompute) > 1:
        return f"recompute: {_listed(layout.recompute)}", "full, or modules"
    some = layout.recompute and layout.recompute_layers is not None
    if some and not (known.recompute_some and Recompute.FULL in layout.recompute):
        return f"recompute_layers: {layout.recompute_layers}", "all layers"
    counts = layout.recompute_layers
    if isinstance(counts, tuple) and not (known.recompute_by_stage or _one_number(layout, counts)):
        return f"recompute_layers: {list(counts)}", "one number for all stages"
    return _in_host_memory(known, layout, layers)


def _in_host_memory(known: LauncherSettings, layout: Layout, layers: int | None) -> _Refusal:
    """Return an unsupported fraction of activations, weights or optimizer in host memory."""
    for name in OFFLOAD:
        if getattr(layout, name) and name not in known.offload:
            return f"{name}: {getattr(layout, name):g}", "none of it in host memory"
    by_zero, zero = known.offload_by_zero, f"with ZeRO {layout.zero}"
    activations, weights = layout.offload_activations, layout.offload_weights
    if activations and known.offload_by_layer and (layout.pipeline > 1 or layout.recompute):
        return f"offload_activations: {activations:g} in a pipeline or with recomputation", "none"
    whole = activations == 1 if layers is None else layers_away(activations, layers) == layers
    if whole and activations and known.offload_by_layer:
        most = f": {floor(1e4 * (1 - 1 / layers)) / 1e4:g} or less" if layers else ""
        return f"offload_activations: {activations:g}", f"those of all layers but one there{most}"
    if activations and by_zero and (activations < 1 or not layout.recompute):
        return (
            f"offload_activations: {activations:g}",
            "all that recomputation begins with, or none",
        )
    if weights and by_zero and (weights < 1 or layout.zero < 3):
        return f"offload_weights: {weights:g} {zero}", "all of them there, with ZeRO 3"
    if part := layout.offload_optimizer:
        if not layout.zero and (by_zero or known.offload_by_layer):
            return f"offload_optimizer: {part:g} {zero}", "it there with ZeRO 1 and above"
        if by_zero and part < 1 and layout.zero < 3:
            return f"offload_optimizer: {part:g} {zero}", "a part of it there with ZeRO 3 alone"
    return None


def _one_number(layout: Layout, counts: tuple[int, ...]) -> bool:
    """Whether each stage recomputes the largest of `counts` layers, or all its layers if fewer."""
    layers = layout.stage_layers or (max(counts),) * len(counts)
    return all(
        count in (max(counts), own) and count <= own
        for count, own in zip(counts, layers, strict=True)
    )


def _listed(values: Iterable[Choice | int]) -> str:
    return ", ".join(sorted(map(str, values)))
