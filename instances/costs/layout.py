"""Layouts: the division of a training iteration over devices, with batch, schedule and precision.

`Layout` has a field per decision; `check_layout` refuses one that contradicts itself, the model or
the cluster; `describe` writes it in one line.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby

from ..common.choices import Choice, choose
from ..common.errors import InputError, quote
from ..common.units import MOST_COUNT, check_count, divisors, show_count
from ..model.schedule import V_CHUNKS
from .description import Attention, ModelDescription
from .hardware import NumberFormat, TrainingCluster

#: Largest degree that an error message suggests.
MOST_LISTED = 64


class JobSchedule(Choice):
    """Order of forward and backward passes of a pipeline."""

    ONE_F_ONE_B = "1f1b"
    GPIPE = "gpipe"
    INTERLEAVED = "interleaved"
    ZB_H1 = "zb-h1"
    ZB_H2 = "zb-h2"
    ZB_V = "zb-v"
    DUALPIPE_V = "dualpipe-v"


#: Schedules with two stages per rank, placed in a V: `instances.model.schedule`.
V_SCHEDULES = frozenset({JobSchedule.ZB_V, JobSchedule.DUALPIPE_V})


class ContextKind(Choice):
    """Exchange of keys and values in context parallelism.

    A ring; an all-gather before attention (Llama 3); or an all-to-all to whole heads (Ulysses).
    """

    RING = "ring"
    ALL_GATHER = "all-gather"
    ALL_TO_ALL = "all-to-all"


class Recompute(Choice):
    """Module whose activations the backward pass computes again.

    The names are those of Megatron-Core. `FULL` is the whole block; `OPERATORS` is torchtitan's
    policy by operator, which keeps the outputs of attention and of every second matrix product.
    """

    FULL = "full"
    CORE_ATTENTION = "core_attn"
    MLA_UP_PROJECTION = "mla_up_proj"
    LAYERNORM = "layernorm"
    MLP = "mlp"
    MOE = "moe"
    MOE_ACTIVATION = "moe_act"
    SHARED_EXPERTS = "shared_experts"
    OPERATORS = "op"


#: Recomputation of whole layers.
FULL = frozenset({Recompute.FULL})


class Dispatcher(Choice):
    """Dispatch of tokens to the devices of their experts.

    All-to-all: a copy for every chosen expert. Hierarchical: one copy for each device and each
    node, which copies it further (DeepEP, HybridEP).
    """

    ALL_TO_ALL = "all-to-all"
    HIERARCHICAL = "hierarchical"


class Graphs(Choice):
    """Kernels that recorded graphs (CUDA graphs) launch in place of the host.

    None; those of modules with fixed shapes, which are all but the routed experts; or those of the
    whole iteration.
    """

    NONE = "none"
    MODULES = "modules"
    ITERATION = "iteration"


class OptimizerRecipe(Choice):
    """Optimizer: Adam keeps two moments of each weight, Muon one of most matrices."""

    ADAM = "adam"
    MUON = "muon"


class Software(Choice):
    """Software family whose kernels and overlap a calibration describes."""

    MEGATRON = "megatron"
    MEGATRON_DEEPSPEED = "megatron-deepspeed"
    FSDP = "fsdp"
    TORCHTITAN = "torchtitan"
    #: This project's own runtime: PyTorch's modules and operations one by one.
    STAGECUT = "stagecut"
    OTHER = "other"


@dataclass(frozen=True)
class Recipe:
    """Precision of matrix products, and bytes per parameter of weights, gradients and optimizer."""

    name: str  # name in options and reports
    compute: NumberFormat  # precision of the linear layers' products
    # bytes of a weight that the model computes with, held between iterations
    weight_bytes: float = 2.0
    gradient_bytes: float = 4.0  # bytes of an accumulated gradient
    # bytes of the copy of a weight that the optimizer updates; 0: it updates the weight itself
    master_bytes: float = 4.0
    moment_bytes: float = 8.0  # bytes of all moments of a weight together
    # bytes of a weight in the all-gather of a sharded optimizer or of sharded weights
    gather_bytes: float = 2.0
    reduce_bytes: float = 4.0  # bytes of a gradient in its reduction over data-parallel ranks
    bucket_bytes: float = 0.0  # total bytes of the flat buffers for gathering and reducing
    optimizer: OptimizerRecipe = OptimizerRecipe.ADAM

    def __post_init__(self) -> None:
        """Take texts for choices."""
        choose(self, compute=NumberFormat, optimizer=OptimizerRecipe)


#: Megatron's 16-bit floats with gradients and optimizer in 32 bits.
MEGATRON_BF16 = Recipe("megatron-bf16", NumberFormat.BF16)

#: Recipes by name.
RECIPES: dict[str, Recipe] = {
    recipe.name: recipe
    for recipe in (
        MEGATRON_BF16,
        Recipe("megatron-fp16", NumberFormat.FP16, gradient_bytes=2, reduce_bytes=2),
        Recipe("megatron-fp8", NumberFormat.FP8, gather_bytes=2),
        Recipe("megatron-fp8-block", NumberFormat.FP8_BLOCK),
        Recipe("megatron-mxfp8", NumberFormat.MXFP8),
        Recipe("megatron-nvfp4", NumberFormat.NVFP4),
        # Weights, gradients and moments in 32 bits, gathered and computed with in 16.
        Recipe("fsdp-bf16", NumberFormat.BF16, weight_bytes=4, master_bytes=0),
        Recipe("fsdp-fp8", NumberFormat.FP8, weight_bytes=4, master_bytes=0),
        # All in 16 bits except the optimizer's copy of the weights and moments (DeepSpeed ZeRO).
        Recipe("zero-fp16", NumberFormat.FP16, gradient_bytes=2, reduce_bytes=2),
        Recipe("zero-bf16", NumberFormat.BF16, gradient_bytes=2, reduce_bytes=2),
        # DeepSpeed's optimizers: the first keeps 32-bit gradients of its shard for the step, the
        # second accumulates all gradients in 32 bits in addition to those in 16 bits.
        # Both reduce gradients in two buffers of 5e8 elements.
        Recipe(
            "deepspeed-fp16",
            NumberFormat.FP16,
            gradient_bytes=2,
            moment_bytes=12,
            reduce_bytes=2,
            bucket_bytes=2e9,
        ),
        Recipe("deepspeed-bf16", NumberFormat.BF16, gradient_bytes=6, bucket_bytes=4e9),
        Recipe("fp32", NumberFormat.FP32, weight_bytes=4, master_bytes=0, gather_bytes=4),
    )
}


@dataclass(frozen=True)
class Overlap:
    """Communication that runs beside computation, by purpose."""

    gradients: bool = True  # reduction of gradients, beside the backward pass
    parameters: bool = True  # gathering of weights, beside the forward pass
    # tensor-parallel collectives, beside the products that they feed (async TP, user buffers)
    tensor: bool = False
    # dispatch and combine of experts, beside another microbatch's computation
    experts: bool = False
    messages: bool = True  # pipeline messages, beside the passes of other microbatches
    # a pipeline rank's next iteration, beside the rest of this one on other ranks: no rank waits
    # for the norm of all gradients, or the step is taken first and validated afterwards
    iterations: bool = False


#: Fields of a layout that are fractions kept in host memory, and the contents that they refer to.
OFFLOAD = {
    "offload_activations": "activations", "offload_weights": "weights",
    "offload_optimizer": "optimizer state",
}  # fmt: skip


@dataclass(frozen=True)
class Layout:
    """Division of a training iteration over devices, with its batch, schedule and precision.

    ``tensor · context · pipeline · data`` devices take part. Within each pipeline rank, routed
    experts divide the same devices as ``expert_tensor · expert · expert_data``.

    Parameters
    ----------
    tensor
        Devices that share each layer's matrices.
    sequence_parallel
        Whether these devices divide the sequence outside matrix products.
    context, context_kind
        Devices that share a sequence, and their exchange of keys and values.
    pipeline
        Pipeline ranks.
    chunks
        Model stages on each pipeline rank (interleaved schedules, V schedules).
    data
        Replicas, each with its own part of the batch.
    expert, expert_tensor
        Devices that share a layer's routed experts, and devices that share one expert's matrices.
    dispatcher
        Dispatch of tokens to the devices of their experts.
    expert_capacity
        Tokens that an expert takes before it drops more, in multiples of a balanced load; 0: no
        token is dropped.
    zero
        State that data-parallel ranks divide: 0 none, 1 optimizer, 2 also gradients, 3 also
        weights.
    shard_group
        Number of ranks that divide it, a divisor of data times context; 0: all of these.
    reshard_after_forward
        With `zero` 3, whether gathered weights are freed between forward and backward pass.
    microbatch, global_batch
        Sequences per pass, and per iteration over all replicas.
    sequence
        Tokens per sequence.
    schedule
        Order of passes.
    recompute
        Modules whose activations are computed again.
    recompute_layers
        Number of layers, the first ones of a model stage, in which this happens: one number for
        all stages, or one for each; None: all layers.
    stage_layers
        Number of layers of each model stage, in the model's order (``pipeline · chunks`` numbers
        that sum to the model's layers); empty: equal numbers, with the remainder in the first
        stages.
    mtp_stage
        Model stage of the multi-token-prediction blocks, counted from the end if negative.
    recipe
        Precision and bytes per parameter, or the name of a recipe.
    software
        Software whose kernels and overlap are priced.
    fused_attention
        Whether attention is one kernel (flash); otherwise its scores are stored in memory.
    fused_norms
        Whether a root-mean-square norm is one kernel; otherwise 32-bit copies of its input stay.
    overlap
        Communication that runs beside computation.
    offload_activations, offload_weights, offload_optimizer
        Fractions kept in host memory.
    compiled
        Whether pointwise operations are fused by a compiler.
    graphs
        Kernels that a recorded graph launches in place of the host.
    order
        Axes in the order of ranks, the fastest-varying first.

    Examples
    --------
    >>> import stagecut
    >>> layout = stagecut.Layout(tensor=8, pipeline=4, data=2, microbatch=1, global_batch=64)
    >>> layout.devices, layout.microbatches
    (64, 32)
    """

    tensor: int = 1
    sequence_parallel: bool = False
    context: int = 1
    context_kind: ContextKind = ContextKind.RING
    pipeline: int = 1
    chunks: int = 1
    data: int = 1
    expert: int = 1
    expert_tensor: int = 1
    dispatcher: Dispatcher = Dispatcher.ALL_TO_ALL
    expert_capacity: float = 0.0
    zero: int = 0
    shard_group: int = 0
    reshard_after_forward: bool = True
    microbatch: int = 1
    global_batch: int = 1
    sequence: int = 2048
    schedule: JobSchedule = JobSchedule.ONE_F_ONE_B
    recompute: frozenset[Recompute] = field(default_factory=frozenset)
    recompute_layers: int | tuple[int, ...] | None = None
    stage_layers: tuple[int, ...] = ()
    mtp_stage: int = -1
    recipe: Recipe = MEGATRON_BF16
    software: Software = Software.MEGATRON
    fused_attention: bool = True
    fused_norms: bool = True
    overlap: Overlap = Overlap()
    offload_activations: float = 0.0
    offload_weights: float = 0.0
    offload_optimizer: float = 0.0
    compiled: bool = False
    graphs: Graphs = Graphs.NONE
    order: tuple[str, ...] = ("tensor", "context", "data", "pipeline")

    def __post_init__(self) -> None:
        """Take texts for choices, and any collection of them for `recompute`."""
        choose(self, context_kind=ContextKind, schedule=JobSchedule, software=Software)
        choose(self, dispatcher=Dispatcher, graphs=Graphs)
        if isinstance(self.recipe, str):
            if self.recipe not in RECIPES:
                raise InputError(f"recipe: {quote(self.recipe)} is not one of {', '.join(RECIPES)}")
            object.__setattr__(self, "recipe", RECIPES[self.recipe])
        named = (self.recompute,) if isinstance(self.recompute, str) else self.recompute
        modules = frozenset(Recompute.of("recompute", module) for module in named)
        object.__setattr__(self, "recompute", modules)

    @property
    def devices(self) -> int:
        """Number of devices that take part."""
        return self.tensor * self.context * self.pipeline * self.data

    @property
    def microbatches(self) -> int:
        """Number of microbatches of one replica per iteration, rounded up."""
        return -(-self.global_batch // (self.microbatch * self.data))

    @property
    def stages(self) -> int:
        """Number of model stages: pipeline ranks times chunks."""
        return self.pipeline * self.chunks

    @property
    def stage_ranks(self) -> tuple[int, ...]:
        """Pipeline rank of each model stage: cyclic by chunk, or in a V."""
        ranks = range(self.pipeline)
        if self.schedule in V_SCHEDULES:
            return (*ranks, *reversed(ranks))[: self.stages]
        return tuple(ranks) * self.chunks

    def rank_stages(self, rank: int) -> tuple[int, ...]:
        """Model stages on pipeline rank `rank`, by chunk."""
        if self.schedule in V_SCHEDULES:
            return rank, self.stages - 1 - rank
        return tuple(range(rank, self.stages, self.pipeline))

    def layers_of_stages(self, layers: int) -> tuple[int, ...]:
        """Count the layers of each model stage of a model of `layers` layers."""
        if self.stage_layers:
            return self.stage_layers
        each, more = divmod(layers, self.stages)
        return tuple(each + (1 if stage < more else 0) for stage in range(self.stages))

    def recomputed_layers(self, stage: int, layers: int) -> int:
        """Count the recomputed layers of a model stage that has `layers` layers."""
        if not self.recompute:
            return 0
        if self.recompute_layers is None:
            return layers
        if isinstance(self.recompute_layers, int):
            return min(layers, self.recompute_layers)
        return min(layers, self.recompute_layers[stage])

    @property
    def expert_data(self) -> int:
        """Number of replicas of each routed expert."""
        return self.tensor * self.context * self.data // (self.expert * self.expert_tensor)

    @property
    def replicas(self) -> int:
        """Number of ranks that hold the same weights: data times context degree."""
        return self.data * self.context

    @property
    def shards(self) -> int:
        """Number of ranks that divide optimizer, gradients or weights, by `zero`."""
        return (self.shard_group or self.replicas) if self.zero else 1

    @property
    def tokens(self) -> float:
        """Tokens of one microbatch on one rank, inside tensor-parallel regions."""
        return self.microbatch * self.sequence / self.context


def axis_stride(layout: Layout, axis: str) -> int:
    """Return the difference between the ranks of two neighbours on an axis."""
    stride = 1
    for inner in layout.order:
        if inner == axis:
            break
        stride *= getattr(layout, inner)
    return stride


def check_layout(model: ModelDescription, layout: Layout, cluster: TrainingCluster) -> None:
    """Refuse a layout that contradicts itself, the model or the cluster.

    The InputError names the remedy.
    """
    check_degrees(layout)
    _check_devices(layout, cluster)
    check_positions(model, layout)
    check_heads(model, layout)
    check_profiled(model, layout)
    check_experts(model, layout)
    check_axes(layout)
    check_stages(model, layout)
    check_batch(layout)
    check_precision(layout, cluster)


def check_degrees(layout: Layout) -> None:
    """Refuse degrees below 1, unknown ZeRO stages, and fractions outside [0, 1]."""
    counts = (
        "tensor", "context", "pipeline", "chunks", "data", "expert", "expert_tensor", "microbatch",
        "global_batch", "sequence",
    )  # fmt: skip
    for name in counts:
        check_count(name, getattr(layout, name))
    again = layout.recompute_layers
    given = () if again is None else (again,) if isinstance(again, int) else tuple(again)
    for name, values in (("shard_group", (layout.shard_group,)), ("recompute_layers", given)):
        for value in values:
            if not isinstance(value, int) or not 0 <= value <= MOST_COUNT:
                raise InputError(f"{name}: {quote(value)}; it must be a whole number, 0 or above")
    if isinstance(again, tuple) and len(again) != layout.stages:
        raise InputError(
            f"recompute_layers: {len(again)} counts for {layout.stages} stages; give one, or "
            f"{layout.stages}"
        )
    if layout.zero not in (0, 1, 2, 3):
        raise InputError(f"zero: {quote(layout.zero)}; it must be 0, 1, 2 or 3")
    for name in OFFLOAD:
        if not 0 <= getattr(layout, name) <= 1:
            raise InputError(f"{name}: {getattr(layout, name):g}; it must be from 0 to 1")
    if not 0 <= layout.expert_capacity <= MOST_COUNT:
        raise InputError(f"expert_capacity: {layout.expert_capacity:g}; it must be 0 or above")


def check_axes(layout: Layout) -> None:
    """Refuse orders without an axis, and groups that do not divide the ranks of their axes."""
    if sorted(layout.order) != sorted(Layout.order):
        axes = ", ".join(Layout.order)
        raise InputError(f"order: {quote(', '.join(layout.order))}; name each of {axes} once")
    if layout.shard_group and (
        layout.shard_group > layout.replicas or layout.replicas % layout.shard_group
    ):
        raise InputError(
            f"shard_group: {layout.shard_group} does not divide the {layout.replicas} ranks of "
            "data x context that hold the same weights"
        )
    stage = layout.tensor * layout.replicas
    if stage % (layout.expert * layout.expert_tensor):
        raise InputError(
            f"expert: {layout.expert} x expert_tensor {layout.expert_tensor} does not divide the "
            f"{stage} devices of a pipeline rank (tensor x context x data)"
        )


def _check_devices(layout: Layout, cluster: TrainingCluster) -> None:
    """Refuse degrees whose product is not the number of devices."""
    product = (
        f"tensor {layout.tensor} x context {layout.context} x pipeline {layout.pipeline} x data "
        f"{layout.data}"
    )
    if layout.devices != cluster.devices:
        raise InputError(
            f"layout: {product} = {show_count(layout.devices, 'device')}, and the cluster has "
            f"{cluster.devices}; change a degree"
        )


def _attentions(model: ModelDescription) -> Iterator[Attention]:
    for block in model.layer_types:
        yield from (each for each in (block.attention, block.cross_attention) if each is not None)


def _undivided(model: ModelDescription, tensor: int) -> str:
    """Return the reason why a tensor degree cannot divide a model; empty if it can."""
    for attention in _attentions(model):
        if attention.heads % tensor:
            return f"{tensor} does not divide {attention.heads} heads of {model.name}"
        kv_heads = attention.kv_heads
        if kv_heads % tensor and tensor % kv_heads:
            return (
                f"{tensor} and {kv_heads} key and value heads of {model.name}: one must divide "
                "the other"
            )
    for block in model.layer_types:
        if block.feed_forward and block.feed_forward.width % tensor:
            width = block.feed_forward.width
            return f"{tensor} does not divide the feed-forward width {width} of {model.name}"
    return ""


def check_positions(model: ModelDescription, layout: Layout) -> None:
    """Refuse sequences longer than the model's learned positions."""
    if 0 < model.positions < layout.sequence:
        raise InputError(
            f"sequence: {layout.sequence}; {model.name} has {model.positions} learned positions; "
            f"take at most {model.positions}, or a description with more of them"
        )


def check_heads(model: ModelDescription, layout: Layout) -> None:
    """Refuse tensor and context degrees that do not divide heads, widths or sequence."""
    if reason := _undivided(model, layout.tensor):
        allowed = [d for d in range(1, MOST_LISTED + 1) if not _undivided(model, d)]
        raise InputError(f"tensor: {reason}; {_take(allowed)}")
    for attention in _attentions(model):
        each = attention.heads // layout.tensor
        if layout.context_kind is ContextKind.ALL_TO_ALL and each % layout.context:
            raise InputError(
                f"context: {layout.context} does not divide {each} heads per tensor-parallel rank, "
                "as exchanging heads asks; take another degree, or a ring"
            )
    if layout.context > layout.sequence:
        raise InputError(
            f"context: {layout.context} devices for {layout.sequence} tokens; take fewer"
        )


def check_profiled(model: ModelDescription, layout: Layout) -> None:
    """Refuse degrees, batches and recomputed modules that a profile of a model does not cover."""
    layers = [block.profiled for block in model.layer_types if block.profiled is not None]
    for layer in layers:
        layer.at(layout.tensor)
    if not layers:
        return
    for name in ("microbatch", "sequence", "context"):
        if getattr(layout, name) != 1:
            raise InputError(
                f"{name}: {getattr(layout, name)}; the batch that {model.name} was profiled with "
                "counts as 1; profile it with another"
            )
    if layout.recompute - {Recompute.FULL}:
        raise InputError(f"recompute: of {model.name} whole layers alone; take full or none")


def _take(degrees: list[int]) -> str:
    """Return the end of an error message, which names the allowed degrees."""
    return f"take one of {', '.join(map(str, degrees))}" if degrees[1:] else "take 1"


def check_experts(model: ModelDescription, layout: Layout) -> None:
    """Refuse expert degrees that do not divide experts or their matrices."""
    counts = {block.experts.experts for block in model.layer_types if block.experts is not None}
    if not counts and layout.expert * layout.expert_tensor > 1:
        raise InputError(f"expert: {layout.expert}, and {model.name} has no experts; take 1")
    for count in counts:
        if count % layout.expert:
            raise InputError(
                f"expert: {layout.expert} does not divide {count} experts of {model.name}; "
                f"{_take(divisors(count, MOST_LISTED))}"
            )
    for block in model.layer_types:
        if block.experts is not None and block.experts.width % layout.expert_tensor:
            raise InputError(
                f"expert_tensor: {layout.expert_tensor} does not divide an expert's width "
                f"{block.experts.width}; {_take(divisors(block.experts.width, MOST_LISTED))}"
            )


def check_stages(model: ModelDescription, layout: Layout) -> None:
    """Refuse stages without layers, and schedules that cannot run on these stages."""
    layers, stages = model.layers, layout.stages
    if layout.stage_layers:
        given = len(layout.stage_layers)
        if given != stages:
            raise InputError(
                f"stage_layers: {given} counts for pipeline {layout.pipeline} x chunks "
                f"{layout.chunks} = {stages} stages; give {stages}"
            )
        if sum(layout.stage_layers) != layers or min(layout.stage_layers) < 0:
            raise InputError(
                f"stage_layers: they add up to {sum(layout.stage_layers)}, and {model.name} has "
                f"{layers} layers"
            )
    elif stages > layers:
        raise InputError(
            f"pipeline: {layout.pipeline} x chunks {layout.chunks} = {stages} stages, and "
            f"{model.name} has {layers} layers; take fewer"
        )
    if model.mtp and not -stages <= layout.mtp_stage < stages:
        raise InputError(f"mtp_stage: {layout.mtp_stage}; there are {stages} stages")
    several = layout.schedule in (JobSchedule.INTERLEAVED, *V_SCHEDULES)
    if layout.chunks > 1 and not several:
        raise InputError(
            f"chunks: {layout.chunks} with schedule {layout.schedule}; take interleaved"
        )
    if several and layout.pipeline == 1:
        raise InputError(f"schedule: {layout.schedule} with one pipeline rank; take 1f1b")
    if layout.schedule in V_SCHEDULES and layout.chunks != V_CHUNKS:
        raise InputError(
            f"chunks: {layout.chunks} with schedule {layout.schedule}; take {V_CHUNKS}"
        )


def check_batch(layout: Layout) -> None:
    """Refuse batches that replicas and microbatches do not divide."""
    once = layout.microbatch * layout.data
    if layout.global_batch % once:
        raise InputError(
            f"global_batch: {layout.global_batch} is not divided by microbatch {layout.microbatch} "
            f"x data {layout.data} = {once}; take a multiple of {once}"
        )
    if layout.schedule is JobSchedule.INTERLEAVED and layout.microbatches % layout.pipeline:
        raise InputError(
            f"global_batch: {show_count(layout.microbatches, 'microbatch')} per replica; an "
            f"interleaved schedule takes a multiple of the {layout.pipeline} pipeline ranks"
        )
    if layout.schedule is JobSchedule.DUALPIPE_V and layout.microbatches < layout.stages:
        raise InputError(
            f"global_batch: {show_count(layout.microbatches, 'microbatch')} per replica; the "
            f"schedule {layout.schedule} takes at least as many as model stages, {layout.stages}"
        )


def check_precision(layout: Layout, cluster: TrainingCluster) -> None:
    """Refuse a precision in which some device cannot compute."""
    for nodes in cluster.nodes:
        if layout.recipe.compute not in nodes.accelerator.peak:
            known, family = ", ".join(nodes.accelerator.peak), layout.recipe.name.partition("-")[0]
            others = [one for one in RECIPES.values() if one.compute in nodes.accelerator.peak]
            alike = [one.name for one in others if one.name.startswith(f"{family}-")]
            raise InputError(
                f"recipe: {layout.recipe.name} computes in {layout.recipe.compute}, which "
                f"{nodes.accelerator.name} does not; it has {known}: take "
                f"{' or '.join(alike or [one.name for one in others])}"
            )


def without_counts(model: ModelDescription, layout: Layout) -> Layout:
    """Return a layout without a count of recomputed layers if all layers or none are recomputed."""
    layers = layout.layers_of_stages(model.layers)
    counts = tuple(layout.recomputed_layers(stage, count) for stage, count in enumerate(layers))
    if counts == layers:
        return replace(layout, recompute_layers=None)
    if not any(counts) and not model.mtp:  # blocks of `mtp` are recomputed but never counted
        return replace(layout, recompute=frozenset(), recompute_layers=None)
    return layout


def describe(layout: Layout) -> str:
    """Return a layout in one line: degrees above one, batch, schedule, recomputation, stages.

    Numbers of layers of stages are given where they are unequal.

    Examples
    --------
    >>> describe(Layout(tensor=4, pipeline=4, data=8, microbatch=2, stage_layers=(3, 4, 4, 5)))
    'TP 4, PP 4, DP 8, microbatch 2, 1f1b, layers 3 4×2 5'
    """
    names = (("TP", layout.tensor), ("CP", layout.context), ("PP", layout.pipeline),
             ("DP", layout.data), ("EP", layout.expert), ("ETP", layout.expert_tensor))  # fmt: skip
    parts = [f"{name} {degree}" for name, degree in names if degree > 1]
    parts += [f"ZeRO {layout.zero}"] * (layout.zero > 0) + [f"microbatch {layout.microbatch}"]
    if layout.pipeline > 1:
        parts.append(str(layout.schedule) + (f" x {layout.chunks}" if layout.chunks > 1 else ""))
    counts = layout.recompute_layers
    some = counts is None or bool(sum(counts) if isinstance(counts, tuple) else counts)
    if layout.recompute and some:
        names_of = " + ".join(sorted(layout.recompute))
        if isinstance(counts, tuple):
            listed = _by_stage(counts)
            parts.append(f"{sum(counts)} layers recomputed" + (listed and f" ({listed})"))
        elif counts:
            each = " of each stage" if layout.stages > 1 else ""
            parts.append(f"{counts} layers{each} recomputed")
        else:
            parts.append(f"{names_of} recomputed")
    parts += [
        f"{100 * getattr(layout, name):g} % of {what} in host memory"
        for name, what in OFFLOAD.items()
        if getattr(layout, name)
    ]
    listed = _by_stage(layout.stage_layers)
    return ", ".join(parts + [f"layers {listed}"] * (listed != ""))


def _by_stage(counts: Sequence[int]) -> str:
    """Return numbers of stages, those in a row that are equal as one; empty if all are equal."""
    runs = [(count, len(list(alike))) for count, alike in groupby(counts)]
    texts = [f"{count}×{length}" if length > 1 else str(count) for count, length in runs]
    return " ".join(texts) if len(runs) > 1 else ""
