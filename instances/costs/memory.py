"""Peak memory of a training rank, in bytes by term.

A rank always holds parameters, gradients and optimizer state; their bytes follow from the recipe
and the ZeRO stage. Activations stay from a forward pass to its backward pass: the bytes of a block
(`activations.py`) times the passes in flight under the schedule (`passes_in_flight`). For short
times it also holds logits and their gradient, the gradients inside one block's backward pass, and
gathered units of sharded weights: `rank_memory` takes the moment with the largest sum. Megatron
allocates gradients once; in PyTorch they appear during the backward pass. Sources: Rajbhandari et
al. (ZeRO, SC 2020), Megatron's distributed optimizer, PyTorch's FSDP2; checked against torch's
memory tracker and published peaks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from ..model.schedule import interleaved_in_flight, v_in_flight
from .activations import Tokens, element_bytes, fused, kept, kept_by_module, largest_matrix, working
from .description import Block, ModelDescription
from .layout import V_SCHEDULES, JobSchedule, Layout, Software

#: Bytes of a device outside the allocator: the driver's context with its kernels (1,573 MiB on an
#: A100, by the BigScience workshop's log) and the channels of some five NCCL communicators.
CONTEXT_BYTES = 3.0e9
#: Bytes lost between blocks of the caching allocator, as a fraction of the bytes that an iteration
#: allocates and frees. A convention: published peaks of runs near the limit leave this much.
FRAGMENTATION = 0.04
#: Bytes that the allocator caches and returns when memory is short, as a fraction of the same
#: bytes, if its segments do not grow: in PyTorch's launchers, and in Megatron's before fused
#: attention. From torchtitan's runs of Llama 3 8B on 8 and 128 GPUs (16 to 26 % in all).
CACHED = 0.16
#: Fraction of a device's memory above which that allocator may free and request blocks in every
#: step. Of the layouts trained whole on one GPU (`benchmarks/results/gpu_layouts.csv`), one that
#: needs 0.95 of it took 14 % longer than one that needs 0.68; up to 0.83 no time was lost.
NEARLY_FULL = 0.9
#: Relative error of predicted peaks: the median over Megatron-Bridge's 15 published experiments
#: (`benchmarks/peers.py`).
PEAK_ERROR = 0.027


@dataclass(frozen=True)
class RankMemory:
    """Bytes of a rank at the moment when it holds most."""

    parameters: float = 0.0  # weights between iterations, or the rank's shard of them
    gradients: float = 0.0  # accumulated gradients
    optimizer: float = 0.0  # master weights and moments
    activations: float = 0.0  # activations kept for backward passes
    logits: float = 0.0  # logits, loss and their gradients
    workspace: float = 0.0  # gradients and recomputed activations inside one block's backward pass
    gathered: float = 0.0  # gathered weights of sharded units
    communication: float = 0.0  # buffers of collectives and messages
    fragmentation: float = 0.0  # unused bytes between blocks of the allocator
    cached: float = 0.0  # unused bytes that the allocator keeps and could give back
    context: float = 0.0  # bytes outside the allocator: driver, libraries

    @property
    def allocated(self) -> float:
        """Bytes that the framework's allocator counts as in use, as most sources publish."""
        return self.held - self.fragmentation - self.cached - self.context

    @property
    def reserved(self) -> float:
        """Bytes that the allocator holds: in use, lost to fragmentation, cached."""
        return self.held - self.context

    @property
    def needed(self) -> float:
        """Bytes that a device must have: all except cached ones."""
        return self.held - self.cached

    @property
    def held(self) -> float:
        """Sum of all terms: occupied bytes of the device."""
        return float(sum(vars(self).values()))


@dataclass(frozen=True)
class Moment:
    """Bytes of a rank at one moment of an iteration, without weights and optimizer state."""

    gradients: float = 0.0
    activations: float = 0.0
    logits: float = 0.0
    workspace: float = 0.0
    gathered: float = 0.0
    communication: float = 0.0

    @property
    def held(self) -> float:
        """Sum of these bytes."""
        return float(sum(vars(self).values()))


# Parameters.


@dataclass(frozen=True)
class Held:
    """Numbers of parameters on a rank: of routed experts, and shared ones (all others)."""

    shared: float
    routed: float

    def __add__(self, other: Held) -> Held:
        """Return the sums of the shared and of the routed parameters."""
        return Held(self.shared + other.shared, self.routed + other.routed)


def block_held(block: Block, hidden: int, layout: Layout) -> Held:
    """Count a block's parameters on one rank; tensor parallelism divides matrices, not norms."""
    if block.profiled is not None:
        return Held(block.profiled.weights * block.profiled.at(layout.tensor).held, 0.0)
    t = layout.tensor
    whole = block.parameters(hidden)
    routed = block.routed_parameters(hidden)
    divided = 0.0
    for attention in (block.attention, block.cross_attention):
        if attention is not None:
            all_of_it = attention.parameters(hidden)
            if attention.latent:
                down = hidden * (attention.q_rank + attention.kv_rank + attention.rope_dim)
                divided += all_of_it - down - attention.q_rank - attention.kv_rank
            else:
                divided += all_of_it - (2 * attention.head_dim if attention.qk_norm else 0)
                # Each tensor rank has at least one key and value head.
                copies = max(1.0, t / attention.kv_heads) - 1
                width = attention.key_width + attention.value_width
                divided += copies * attention.kv_heads * width * hidden
    if block.feed_forward is not None:
        divided += block.feed_forward.parameters(hidden)
    if block.experts is not None and block.experts.shared is not None:
        divided += block.experts.shared.parameters(hidden)
    same = max(0.0, whole - routed - divided)
    return Held(divided / t + same, routed / (layout.expert * layout.expert_tensor))


@dataclass(frozen=True)
class Sizes:
    """Sizes of a layer type on one rank: bytes per microbatch, and numbers of parameters."""

    kept: float  # kept, whole: activation bytes kept with recomputation, and without it
    whole: float
    working: float  # bytes in use inside its backward pass
    held: Held  # numbers of parameters
    matrix: float  # number of weights of its largest matrix
    gated: bool  # whether its feed-forward layer or its experts are gated

    @classmethod
    def of(cls, block: Block, hidden: int, layout: Layout) -> Sizes:
        """Return the sizes of a block under a layout."""
        layer = block.feed_forward or block.experts
        modules = kept_by_module(block, hidden, layout)
        left, whole = kept(block, hidden, layout, modules), sum(modules.values())
        return cls(
            left,
            whole,
            # Offloaded activations are back on the device during the backward pass.
            working(block, hidden, layout, whole - (1.0 - layout.offload_activations) * left),
            block_held(block, hidden, layout),
            largest_matrix(block, hidden, layout),
            layer is not None and layer.gated,
        )


@dataclass(frozen=True)
class RankStages:
    """A model divided by a layout: sizes of layer types, and layer types of each model stage."""

    # sizes, plain: sizes of each layer type with recomputation, and without it
    sizes: tuple[Sizes, ...]
    plain: tuple[Sizes, ...]
    stages: tuple[tuple[int, ...], ...]  # indices of the layer types of each model stage
    mtp: tuple[int, ...]  # indices of the layer types of multi-token prediction

    @classmethod
    def of(cls, model: ModelDescription, layout: Layout) -> RankStages:
        """Divide a model's layers, encoder first, over the model stages."""
        types, stages, first = model.types_of_layers, [], 0
        for count in layout.layers_of_stages(model.layers):
            stages.append(types[first : first + count])
            first += count
        sizes = tuple(Sizes.of(block, model.hidden, layout) for block in model.layer_types)
        plain = sizes
        if layout.recompute and layout.recompute_layers is not None:
            without = replace(layout, recompute=frozenset(), recompute_layers=None)
            plain = tuple(Sizes.of(block, model.hidden, without) for block in model.layer_types)
        return cls(sizes, plain, tuple(stages), types[model.layers :])

    def of_rank(self, layout: Layout, rank: int) -> list[Sizes]:
        """Return the sizes of each layer on a pipeline rank, stage by stage."""
        found = []
        for stage in layout.rank_stages(rank):
            kinds = self.stages[stage]
            again = layout.recomputed_layers(stage, len(kinds))
            found += [self.sizes[kind] for kind in kinds[:again]]
            found += [self.plain[kind] for kind in kinds[again:]]
        return found


def stage_held(
    model: ModelDescription,
    layout: Layout,
    stage: int,
    kinds: Iterable[int],
    blocks: Sequence[Held],
) -> Held:
    """Count the parameters of a model stage with layers of types `kinds`, on one rank.

    `blocks` has the parameters of a layer by type, as from `block_held`.
    """
    own, shared = list(kinds), ends_held(model, layout, stage)
    if model.mtp and stage == layout.mtp_stage % layout.stages:
        own += [model.layer_types.index(block) for block in model.mtp]
        shared += len(model.mtp) * (2 * model.hidden / layout.tensor + 3) * model.hidden
        if layout.stages > 1 and stage != 0:  # with a copy of the embedding
            shared += model.vocabulary / layout.tensor * model.hidden
    shared += sum(blocks[kind].shared for kind in own)
    return Held(shared, sum(blocks[kind].routed for kind in own))


def rank_held(model: ModelDescription, layout: Layout, rank: int, stages: RankStages) -> Held:
    """Parameters of all model stages on a pipeline rank."""
    blocks = [size.held for size in stages.sizes]
    own = layout.rank_stages(rank)
    each = (stage_held(model, layout, stage, stages.stages[stage], blocks) for stage in own)
    return sum(each, Held(0.0, 0.0))


def ends_held(model: ModelDescription, layout: Layout, stage: int) -> float:
    """Count the parameters of embedding and head on one rank of a model stage."""
    t, amount = layout.tensor, 0.0
    if stage == 0:
        tables = model.vocabulary * model.hidden
        amount += tables / t + model.embedding_parameters - tables
    if stage == layout.stages - 1:
        logits = model.vocabulary * model.hidden if model.head else 0
        own = 0 if model.tied and layout.stages == 1 else logits
        amount += own / t + model.head_parameters - (0 if model.tied else logits)
    return amount


# Passes in flight.


def passes_in_flight(layout: Layout, rank: int) -> list[Mapping[int, int]]:
    """Return the microbatches in flight by model stage, at the moments when a rank may hold most.

    Under 1F1B, rank r of P keeps min(M, P − r) of M microbatches. Under zero bubble, gradients of
    weights lag, so that every rank keeps as many as the first. A rank with several chunks has
    several such moments, since which is the largest depends on the bytes of its chunks.
    """
    p, m, schedule = layout.pipeline, layout.microbatches, layout.schedule
    own = layout.rank_stages(rank)
    if p == 1:
        return [dict.fromkeys(own, 1)]
    if layout.chunks == 1:
        most = {JobSchedule.GPIPE: m, JobSchedule.ZB_H1: p, JobSchedule.ZB_H2: 2 * p - 1}
        return [dict.fromkeys(own, min(m, most.get(schedule, p - rank)))]
    if schedule in V_SCHEDULES:
        moments: Iterable[tuple[int, ...]] = v_in_flight(schedule, p, rank, m)
    else:
        moments = interleaved_in_flight(p, layout.chunks, rank, m)
    return [dict(zip(own, held, strict=True)) for held in moments]


# The rank.


def stage_kept(model: ModelDescription, layout: Layout, stage: int, stages: RankStages) -> float:
    """Bytes of activations that a model stage keeps for the backward pass of one microbatch."""
    kinds = stages.stages[stage]
    again = layout.recomputed_layers(stage, len(kinds))
    amount = sum(stages.sizes[kind].kept for kind in kinds[:again])
    amount += sum(stages.sizes[kind].whole for kind in kinds[again:])
    amount *= 1.0 - layout.offload_activations
    at, each = Tokens.of(layout), element_bytes(layout)
    if stage == 0:
        amount += 8.0 * at.inner
        if model.blocks and model.blocks[0].dropout:
            amount += at.outer * model.hidden
    if model.mtp and stage == layout.mtp_stage % layout.stages:
        amount += sum(stages.sizes[kind].kept for kind in stages.mtp)
        amount += len(model.mtp) * 4 * each * at.outer * model.hidden
    if layout.stages > 1:
        amount += kept_output(layout, model.hidden)
    if stage == layout.stages - 1 and (model.head or model.classes):
        # Input and output of the final norm.
        amount += each * (at.outer + at.gathered) * model.hidden
    return amount


def kept_output(layout: Layout, hidden: int) -> float:
    """Bytes of a stage's output that pipelines of PyTorch and DeepSpeed keep for a microbatch."""
    if fused(layout) and layout.software is not Software.MEGATRON_DEEPSPEED:
        return 0.0
    return element_bytes(layout) * Tokens.of(layout).outer * hidden


def loss_bytes(model: ModelDescription, layout: Layout) -> float:
    """Bytes of logits, loss and gradient on the last stage.

    PyTorch has three 32-bit tensors: log-probabilities, their gradient, and the gradient of the
    logits; four if tensor ranks divide the vocabulary. Megatron's cross-entropy keeps 16-bit logits
    and one 32-bit tensor, which becomes the gradient in place. MosaicML's kernel (that of
    flash-attention) reads 16-bit logits and writes their gradient.
    """
    if not model.head:
        return 0.0
    logits = layout.tokens * model.vocabulary / layout.tensor
    if layout.software is Software.FSDP:
        return 4.0 * logits
    if not fused(layout):
        tensors = 4 if layout.tensor > 1 else 3
        return 4.0 * tensors * logits
    return 8.0 * logits * (1 + len(model.mtp))


def rank_memory(
    model: ModelDescription, layout: Layout, rank: int = 0, stages: RankStages | None = None
) -> RankMemory:
    """Return the bytes of a pipeline rank at the moment when it holds most.

    `stages` is the model divided by the layout, if the caller has it.
    """
    stages = stages or RankStages.of(model, layout)
    recipe = layout.recipe
    own = layout.rank_stages(rank)
    held = rank_held(model, layout, rank, stages)
    shards = layout.shards
    routed_shards = max(1, min(shards, layout.expert_data)) if layout.zero else 1

    def divided(bytes_each: float, at_least: int) -> float:
        """Return the bytes of a state that data-parallel ranks divide from ZeRO `at_least` on."""
        if layout.zero < at_least:
            return bytes_each * (held.shared + held.routed)
        return bytes_each * (held.shared / shards + held.routed / routed_shards)

    # FSDP2 divides the weights that the optimizer updates, whatever the ZeRO stage.
    parameters = divided(recipe.weight_bytes, 3 if fused(layout) else 1)
    parameters *= 1 - layout.offload_weights
    gradients = divided(recipe.gradient_bytes, 2)
    if stays_gathered(layout):  # accumulated whole, and divided at the end
        gradients += recipe.reduce_bytes * (held.shared + held.routed)
    state = recipe.master_bytes + recipe.moment_bytes
    optimizer = divided(state, 1) * (1 - layout.offload_optimizer)
    kept = {stage: stage_kept(model, layout, stage, stages) for stage in own}
    held_at = [
        (sum(count * kept[stage] for stage, count in moment.items()), moment.get(layout.stages - 1))
        for moment in passes_in_flight(layout, rank)
    ]
    activations = max(amount for amount, _ in held_at)
    layers = stages.of_rank(layout, rank)
    at, each = Tokens.of(layout), element_bytes(layout)
    always = recipe.bucket_bytes
    if layout.pipeline > 1:  # a received tensor, and one to be sent
        always += 2 * each * at.outer * model.hidden
    # Gradients exist before the backward pass if they are allocated once or accumulated.
    lazily = not fused(layout) and layout.microbatches == 1
    before = Moment(gathered=gathered_always(model, layout, rank, held), communication=always)
    if not lazily:
        before = replace(before, gradients=gradients)
    # The loss is there from a forward pass of the last stage to the backward pass behind it.
    logits = loss_bytes(model, layout)
    moments = [replace(before, activations=some, logits=logits) for some, last in held_at if last]
    if (fused(layout) and layout.zero < 3) or not layers:
        heaviest = max((layer.working for layer in layers), default=0.0)
        moments.append(replace(before, activations=activations, workspace=heaviest))
    else:
        moments += backward_moments(model, layout, layers, activations, before, lazily)
    if computes_with_copies(layout) and layout.replicas == 1:
        # Without replicas a rank is one unit of FSDP2, which casts all gradients at once.
        both = recipe.gather_bytes + recipe.gradient_bytes
        moments.append(replace(before, gradients=both * (held.shared + held.routed)))
    most = max(moments, key=lambda one: one.held + FRAGMENTATION * (one.held - one.gradients))
    moving = most.held - most.gradients
    modern = fused(layout) and layout.fused_attention
    return RankMemory(
        parameters,
        optimizer=optimizer,
        **vars(most),
        fragmentation=FRAGMENTATION * moving,
        cached=0.0 if modern else CACHED * moving,
        context=CONTEXT_BYTES,
    )


def stays_gathered(layout: Layout) -> bool:
    """Whether sharded weights stay gathered over an iteration's microbatches.

    In a pipeline PyTorch neither frees gathered weights between passes nor divides gradients
    before the last pass, since either would happen for each microbatch.
    """
    return layout.zero == 3 and layout.shards > 1 and layout.pipeline > 1 and not fused(layout)


def computes_with_copies(layout: Layout) -> bool:
    """Whether passes compute with copies of the weights in fewer bytes, as under FSDP2."""
    return not fused(layout) and layout.recipe.gather_bytes < layout.recipe.weight_bytes


def gathers_once(layout: Layout) -> bool:
    """Whether a rank's weights are gathered, or copied, once for both passes (FSDP2, ZeRO < 3)."""
    there = layout.shards > 1 or computes_with_copies(layout)
    return there and not fused(layout) and layout.zero < 3


def gathered_always(model: ModelDescription, layout: Layout, rank: int, held: Held) -> float:
    """Return the bytes of permanently gathered weights: embedding and head, or all `held`."""
    sharded = layout.zero == 3 and layout.shards > 1
    stays = stays_gathered(layout) or (sharded and not layout.reshard_after_forward)
    if stays or gathers_once(layout):
        return layout.recipe.gather_bytes * unit_held(held, layout)
    if not sharded:
        return 0.0
    ends = sum(ends_held(model, layout, stage) for stage in layout.rank_stages(rank))
    return layout.recipe.gather_bytes * ends


def unit_held(held: Held, layout: Layout) -> float:
    """Count the weights of a layer that data-parallel ranks divide."""
    return held.shared + (held.routed if layout.expert_data > 1 else 0.0)


def backward_moments(
    model: ModelDescription,
    layout: Layout,
    layers: list[Sizes],
    activations: float,
    before: Moment,
    lazily: bool,
) -> Iterator[Moment]:
    """Yield the moments of a backward pass in PyTorch's modules, layer by layer from the last.

    `lazily`: gradients appear only during the pass. With sharded weights the next unit is gathered
    ahead, gradients stay whole in 16 bits until the end of the layer, and their copy in the
    reduction's precision is freed at the end of the next layer.
    """
    recipe, each = layout.recipe, element_bytes(layout)
    sharded = layout.zero == 3 and layout.shards > 1 and not stays_gathered(layout)
    shards = layout.shards
    passed_on = each * Tokens.of(layout).outer * model.hidden
    made, left, sent = 0.0, activations, 0.0
    if lazily and model.head and layout.stages == 1:
        made = each * model.vocabulary / layout.tensor * model.hidden  # the head's gradient, whole
    for n, layer in enumerate(reversed(layers)):
        unit = unit_held(layer.held, layout) if sharded else 0.0
        ahead = unit if n + 1 < len(layers) else 0.0
        gathered = before.gathered + recipe.gather_bytes * (unit + ahead)
        matrix = each * layer.matrix
        yield Moment(
            before.gradients + made + (matrix if lazily and layer.gated else 0.0),
            left,
            0.0,
            # PyTorch computes a gradient into a new tensor, then adds it to the accumulated one.
            layer.working + (0.0 if lazily or fused(layout) else matrix),
            gathered,
            before.communication + sent,
        )
        left -= layer.kept * (1.0 - layout.offload_activations)
        if sharded:
            sent = recipe.reduce_bytes * unit
            yield Moment(
                before.gradients + made + each * unit,
                left,
                0.0,
                passed_on,
                gathered - recipe.gather_bytes * unit,  # freed before gradients are sent
                before.communication + sent,
            )
        if lazily:
            made += recipe.gradient_bytes * (layer.held.shared + layer.held.routed) / shards


def peak_memory(model: ModelDescription, layout: Layout) -> RankMemory:
    """Return the bytes of the pipeline rank that needs most."""
    return fullest_rank(model, layout, (0.0,) * layout.pipeline)[0]


def fullest_rank(
    model: ModelDescription, layout: Layout, limits: Sequence[float]
) -> tuple[RankMemory, float]:
    """Return the bytes of the pipeline rank with the least free memory, and its free bytes.

    `limits` are the bytes that each rank may use; free bytes are negative if it needs more. Among
    ranks with equal limits, layers and recomputation, and without embedding, head and multi-token
    prediction, only the first is computed: it has the most passes in flight.
    """
    stages = RankStages.of(model, layout)
    special = {0, layout.stages - 1} | ({layout.mtp_stage % layout.stages} if model.mtp else set())
    ranks, seen = [], set()
    for rank in range(layout.pipeline):
        own = layout.rank_stages(rank)
        kinds = tuple(
            (stages.stages[stage], layout.recomputed_layers(stage, len(stages.stages[stage])))
            for stage in own
        )
        alike = kinds, limits[rank]
        if special & set(own):
            ranks.append(rank)
        elif alike not in seen:
            seen.add(alike)
            ranks.append(rank)
    every = ((rank_memory(model, layout, rank, stages), limits[rank]) for rank in ranks)
    found = ((memory, limit - memory.needed) for memory, limit in every)
    return min(found, key=lambda one: one[1])
