"""Bytes that a rank holds for training, term by term, and where in an iteration most is held.

What is held all the time is parameters, gradients and optimizer state, by the recipe's bytes per
parameter and by what data-parallel ranks divide. Activations are kept from a forward pass to its
backward pass: bytes of a block by module (`kept_by_module`), less what is recomputed, times the
passes in flight on the rank by its schedule (`passes_in_flight`). On top of both come, for moments,
the loss (logits and their gradient), the gradients inside one block's backward pass, and, with
sharded weights, gathered units: `rank_memory` takes the fullest of these moments.

Two kinds of software keep different things. Megatron's fused layers keep the shards of a sequence
and gather them again, keep a gated activation's input and output only, linear layers' inputs in 8
bits where they multiply in 8 bits, and allocate gradients once. PyTorch's modules keep what their
operations need: gathered inputs whole, each operand of a product; gradients appear during the
backward pass. Sources: Korthikanti et al. (2022), tables 2 and appendix B; Rajbhandari et al.
(ZeRO, SC 2020); Megatron-Core's and PyTorch's modules; checked against torch's memory tracker.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from functools import lru_cache

from .description import Attention, Block, Experts, FeedForward, ModelDescription, Norm
from .experts import routed_rows
from .hardware import Precision
from .layout import Layout, Recompute, Software, TrainingSchedule

#: Bytes of a device outside the allocator: the driver's context with its kernels (1,573 MiB on an
#: A100, says the BigScience workshop's log) and the channels of some five NCCL communicators.
CONTEXT_BYTES = 3.0e9
#: Part of what is allocated and freed during an iteration that lies unused between blocks of the
#: caching allocator. A convention: published peaks of runs at the limit leave so much.
FRAGMENTATION = 0.04
#: Part of it that the allocator keeps for blocks of other sizes, and gives back when memory is
#: short, where its segments do not grow: in PyTorch's own launchers, and in Megatron's of before
#: fused attention. From torchtitan's runs of Llama 3 8B on 8 and 128 GPUs (16 to 26 % in all).
CACHED = 0.16


@dataclass(frozen=True)
class RankMemory:
    """Bytes of a rank at the moment when it holds most.

    Parameters
    ----------
    parameters
        Weights between iterations; its shard, where they are divided.
    gradients
        At that moment.
    optimizer
        Master weights and moments.
    activations
        Kept for backward passes.
    logits
        Logits, loss and their gradients.
    workspace
        Gradients and recomputed activations inside one block's backward pass.
    gathered
        Weights of units that are gathered.
    communication
        Buffers of collectives and messages.
    fragmentation
        What lies unused between blocks of the allocator.
    cached
        What the allocator keeps for later and could give back.
    context
        Outside the allocator: driver, libraries.
    """

    parameters: float = 0.0
    gradients: float = 0.0
    optimizer: float = 0.0
    activations: float = 0.0
    logits: float = 0.0
    workspace: float = 0.0
    gathered: float = 0.0
    communication: float = 0.0
    fragmentation: float = 0.0
    cached: float = 0.0
    context: float = 0.0

    @property
    def allocated(self) -> float:
        """Bytes that the framework's allocator counts as in use: what most sources publish."""
        return self.held - self.fragmentation - self.cached - self.context

    @property
    def reserved(self) -> float:
        """Bytes that the allocator has from the driver: in use, fragmentation, cached."""
        return self.held - self.context

    @property
    def needed(self) -> float:
        """Bytes that a device must have: all but what is cached."""
        return self.held - self.cached

    @property
    def held(self) -> float:
        """All bytes of the device that are taken."""
        return float(sum(getattr(self, term.name) for term in fields(self)))


@dataclass(frozen=True)
class Moment:
    """Bytes that a rank holds at one moment of an iteration beside weights and optimizer state."""

    gradients: float = 0.0
    activations: float = 0.0
    logits: float = 0.0
    workspace: float = 0.0
    gathered: float = 0.0
    communication: float = 0.0

    @property
    def held(self) -> float:
        """All of them."""
        return (
            self.gradients
            + self.activations
            + self.logits
            + self.workspace
            + self.gathered
            + self.communication
        )


@dataclass(frozen=True)
class Tokens:
    """Tokens of one microbatch on a rank, by region.

    Parameters
    ----------
    inner
        Inside tensor-parallel regions.
    outer
        Outside them: divided by sequence parallelism.
    gathered
        Of what is kept of gathered inputs: `outer` where they are gathered again, else `inner`.
    """

    inner: float
    outer: float
    gathered: float

    @classmethod
    def of(cls, layout: Layout) -> Tokens:
        """Tokens under a layout."""
        inner = layout.tokens
        outer = inner / layout.tensor if layout.sequence_parallel else inner
        return cls(inner, outer, outer if fused(layout) else inner)


def fused(layout: Layout) -> bool:
    """Whether layers are Megatron's fused ones rather than PyTorch's modules."""
    return layout.software in (Software.MEGATRON, Software.OTHER)


def input_bytes(layout: Layout) -> float:
    """Bytes of an element of what linear layers keep of their inputs."""
    narrow = layout.recipe.compute not in _WIDE and fused(layout)
    return 1.0 if narrow else element_bytes(layout)


def element_bytes(layout: Layout) -> float:
    """Bytes of an element of activations."""
    return 4.0 if layout.recipe.compute in (Precision.FP32, Precision.TF32) else 2.0


_WIDE = (Precision.FP32, Precision.TF32, Precision.FP16, Precision.BF16)


# What a block keeps.


def attention_kept(
    attention: Attention, layout: Layout, keys: float = 0.0
) -> Iterator[tuple[str, float]]:
    """Yield module and bytes of what an attention keeps behind its norm.

    Parameters
    ----------
    keys
        Tokens that keys and values are made from, in cross-attention; 0: the same.
    """
    at, each, t = Tokens.of(layout), element_bytes(layout), layout.tensor
    heads = attention.heads / t
    kv_heads = heads if attention.latent else max(attention.kv_heads / t, 1.0)
    tokens = at.inner
    query = each * tokens * heads * attention.key_width
    key = each * (keys or tokens) * kv_heads * attention.key_width
    value = each * (keys or tokens) * kv_heads * attention.value_width
    if attention.latent:
        # The compressed vectors, before and behind their norms; made on every tensor rank.
        ranks = 2 * (attention.q_rank + attention.kv_rank) + attention.rope_dim
        yield "attention", each * at.outer * ranks
        yield "mla_up_proj", query + key + value
        if not fused(layout):
            # Rotary parts are joined into new tensors: what they are made from is a second copy.
            yield "mla_up_proj", value
    else:
        yield "attention", query + key + value
    if attention.qk_norm:
        yield "attention", query + key
    if layout.fused_attention:
        yield "core_attn", 4.0 * tokens * heads  # log of the sums of exponentials
    else:
        seen = keys or layout.sequence
        scores = tokens * heads * seen
        # Softmax, its dropout mask and what it leaves.
        yield "core_attn", scores * (2 * each + 1 if layout.software is Software.MEGATRON else each)
    narrow = input_bytes(layout)
    output = tokens * heads * attention.value_width
    yield "attention", each * output
    if narrow < each:
        yield "attention", narrow * output


def feed_forward_kept(layer: FeedForward, layout: Layout, tokens: float, tensor: int) -> float:
    """Bytes that a feed-forward layer keeps behind its norm, for so many tokens."""
    each, narrow = element_bytes(layout), input_bytes(layout)
    width = layer.width / tensor
    if layer.gated:
        # Gate and other half; a framework without a fused kernel keeps the gate's activation, too.
        between = 2 if fused(layout) or layout.compiled else 3
    else:
        between = 1
    out = 0 if layout.compiled and not fused(layout) else narrow
    return tokens * width * (between * each + out)


def experts_kept(experts: Experts, hidden: int, layout: Layout) -> Iterator[tuple[str, float]]:
    """Yield module and bytes of what a mixture of experts keeps behind its norm."""
    at, each, narrow = Tokens.of(layout), element_bytes(layout), input_bytes(layout)
    rows = routed_rows(experts, layout)
    width = experts.width / layout.expert_tensor
    own = at.inner / layout.tensor if layout.sequence_parallel else at.inner
    # Scores and probabilities in 32 bits; places of each token's copies.
    yield "moe", own * (8.0 * experts.experts + 16.0 * experts.top_k)
    yield "moe", narrow * rows * hidden
    yield "moe", each * rows * width * (2 if experts.gated else 1)
    yield "moe_act", narrow * rows * width
    if not fused(layout):
        if experts.gated:
            yield "moe_act", each * rows * width
        # Each copy's result is multiplied by its probability behind the experts.
        yield "moe", each * rows * hidden
    if experts.shared is not None:
        kept = feed_forward_kept(experts.shared, layout, at.inner, layout.tensor)
        yield "shared_experts", kept


@lru_cache(maxsize=1 << 14)
def kept_by_module(
    block: Block, hidden: int, layout: Layout, encoded: float = 0.0
) -> Mapping[str, float]:
    """Bytes that a block keeps of one microbatch for its backward pass, by module.

    Modules are named as in `Recompute`; beside them ``input`` (the block's input, which stays with
    recomputation of the whole block), ``residual`` (between attention and feed-forward), and
    ``attention`` (queries, keys, values and output).
    """
    if block.profiled is not None:
        one = block.profiled.at(layout.tensor)
        return {"input": one.entering, "layer": max(0.0, one.kept - one.entering)}
    at, each, narrow = Tokens.of(layout), element_bytes(layout), input_bytes(layout)
    kept: dict[str, float] = {}

    def keep(module: str, amount: float) -> None:
        kept[module] = kept.get(module, 0.0) + amount

    statistics = 8.0 if block.norm is Norm.LAYER else 4.0
    if block.norm is Norm.RMS and not layout.fused_norms:
        # The input in 32 bits, and the same normalized; in 16 bits what the weight is applied to.
        statistics += (8.0 + each) * hidden
    halves = (
        (block.attention is not None)
        + (block.cross_attention is not None)
        + (block.feed_forward is not None or block.experts is not None)
    )
    for half in range(halves):
        keep("residual" if half else "input", each * at.outer * hidden)
        keep("layernorm", narrow * at.gathered * hidden + statistics * at.outer)
        if narrow < each and block.experts is not None and half == halves - 1:
            keep("layernorm", (each - narrow) * at.outer * hidden)
        if block.norms > 2:  # a norm behind, too, which keeps what it is given
            keep("layernorm", each * at.outer * hidden + statistics * at.outer)
        if block.dropout:
            keep("residual", at.outer * hidden)
    if block.attention is not None:
        for module, amount in attention_kept(block.attention, layout):
            keep(module, amount)
    if block.cross_attention is not None:
        for module, amount in attention_kept(block.cross_attention, layout, encoded):
            keep(module, amount)
    if block.feed_forward is not None:
        keep("mlp", feed_forward_kept(block.feed_forward, layout, at.inner, layout.tensor))
    if block.experts is not None:
        for module, amount in experts_kept(block.experts, hidden, layout):
            keep(module, amount)
    return kept


#: Modules inside a recomputed one.
INSIDE = {"moe": ("moe", "moe_act", "shared_experts")}


@lru_cache(maxsize=1 << 14)
def kept(block: Block, hidden: int, layout: Layout, *, recomputing: bool = True) -> float:
    """Bytes that a block keeps of one microbatch, less what it recomputes if `recomputing`."""
    modules = kept_by_module(block, hidden, layout)
    if not recomputing or not layout.recompute:
        return sum(modules.values())
    if Recompute.FULL in layout.recompute:
        return modules["input"]
    if Recompute.OPERATORS in layout.recompute:
        return operators_kept(block, hidden, layout)
    gone = {name for module in layout.recompute for name in INSIDE.get(module, (str(module),))}
    return sum(amount for module, amount in modules.items() if module not in gone)


def operators_kept(block: Block, hidden: int, layout: Layout) -> float:
    """Bytes kept by recomputation by operator: every second product's output, and attention's.

    Of a block with gated feed-forward these are queries, values, the attention's output, the gate
    and the block's output, beside its input: torchtitan's policy.
    """
    at, each, t = Tokens.of(layout), element_bytes(layout), layout.tensor
    amount = each * at.outer * hidden
    outputs: list[float] = []
    if block.attention is not None:
        attention = block.attention
        heads, kv_heads = attention.heads / t, max(attention.kv_heads / t, 1.0)
        outputs += [
            heads * attention.key_width,
            kv_heads * attention.key_width,
            kv_heads * attention.value_width,
            hidden,
        ]
        amount += at.inner * heads * (each * attention.value_width + 4.0)
    layer = block.feed_forward
    if layer is not None:
        outputs += [layer.width / t] * (2 if layer.gated else 1) + [hidden]
    return amount + each * at.inner * sum(outputs[::2])


@lru_cache(maxsize=1 << 14)
def working(block: Block, hidden: int, layout: Layout) -> float:
    """Bytes inside a block's backward pass beside what it kept: recomputed, and gradients.

    Of gradients the most are alive inside the feed-forward layer: of its activation, of the
    products in front of it and of the block's output; of kept activations the last is gone by then.
    """
    at, each = Tokens.of(layout), element_bytes(layout)
    again = kept(block, hidden, layout, recomputing=False) - kept(block, hidden, layout)
    widest = 0.0
    layer = block.feed_forward
    if layer is not None:
        width = at.inner * layer.width / layout.tensor
        widest = each * width * (2 if layer.gated else 1)
    if block.experts is not None:
        rows = routed_rows(block.experts, layout)
        width = rows * block.experts.width / layout.expert_tensor
        widest = max(widest, each * (width * (2 if block.experts.gated else 1) + rows * hidden))
    if block.attention is not None:
        attention = block.attention
        wide = attention.heads * attention.key_width / layout.tensor
        fused_sum = 4.0 * at.inner * wide if layout.fused_attention else 0.0
        scores = 0.0
        if not layout.fused_attention:
            scores = 2 * each * at.inner * layout.sequence * attention.heads / layout.tensor
        widest = max(widest, 3 * each * at.inner * wide + fused_sum, scores)
    gather = 0.0
    if layout.tensor > 1 and layout.sequence_parallel:
        gather = 2 * each * at.inner * hidden
    return again + widest + each * at.outer * hidden + gather


@lru_cache(maxsize=1 << 12)
def largest_matrix(block: Block, hidden: int, layout: Layout) -> float:
    """Weights of a block's largest matrix on one rank; of all experts' at once."""
    t, sizes = layout.tensor, [0.0]
    if block.attention is not None:
        sizes.append(block.attention.heads * block.attention.key_width * hidden / t)
    if block.feed_forward is not None:
        sizes.append(block.feed_forward.width * hidden / t)
    if block.experts is not None:
        whole = block.experts.experts * block.experts.width * hidden
        sizes.append(whole / (layout.expert * layout.expert_tensor))
    return max(sizes)


# Parameters.


@dataclass(frozen=True)
class Held:
    """Parameters on a rank: those that all data-parallel ranks hold, and routed experts'."""

    shared: float
    routed: float

    def __add__(self, other: Held) -> Held:
        """Sum of both."""
        return Held(self.shared + other.shared, self.routed + other.routed)


@lru_cache(maxsize=1 << 12)
def block_held(block: Block, hidden: int, layout: Layout) -> Held:
    """Parameters of a block on one rank: matrices divided by tensor parallelism, the rest not."""
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
                # Each tensor rank has a key and value head at least.
                copies = max(1.0, t / attention.kv_heads) - 1
                width = attention.key_width + attention.value_width
                divided += copies * attention.kv_heads * width * hidden
    if block.feed_forward is not None:
        divided += block.feed_forward.parameters(hidden)
    if block.experts is not None and block.experts.shared is not None:
        divided += block.experts.shared.parameters(hidden)
    same = max(0.0, whole - routed - divided)
    return Held(divided / t + same, routed / (layout.expert * layout.expert_tensor))


@lru_cache(maxsize=1 << 12)
def stage_held(model: ModelDescription, layout: Layout, stage: int) -> Held:
    """Parameters of a model stage on one rank."""
    total = Held(0.0, 0.0)
    for block in stage_blocks(model, layout)[stage]:
        total += block_held(block, model.hidden, layout)
    total += Held(ends_held(model, layout, stage), 0.0)
    if model.mtp and stage == layout.mtp_stage % layout.stages:
        own = (2 * model.hidden / layout.tensor + 3) * model.hidden
        for block in model.mtp:
            total += block_held(block, model.hidden, layout) + Held(own, 0.0)
        if layout.stages > 1 and stage != 0:  # with a copy of the embedding
            total += Held(model.vocabulary / layout.tensor * model.hidden, 0.0)
    return total


def ends_held(model: ModelDescription, layout: Layout, stage: int) -> float:
    """Parameters of embedding and head on one rank of a model stage."""
    t, amount = layout.tensor, 0.0
    if stage == 0:
        tables = model.vocabulary * model.hidden
        amount += tables / t + model.embedding_parameters - tables
    if stage == layout.stages - 1:
        logits = model.vocabulary * model.hidden if model.head else 0
        own = 0 if model.tied and layout.stages == 1 else logits
        amount += own / t + model.head_parameters - (0 if model.tied else logits)
    return amount


@lru_cache(maxsize=1 << 12)
def stage_blocks(model: ModelDescription, layout: Layout) -> tuple[tuple[Block, ...], ...]:
    """Blocks of each model stage, those of an encoder first."""
    blocks, stages, first = (*model.encoder, *model.blocks), [], 0
    for count in layout.layers_of_stages(len(blocks)):
        stages.append(blocks[first : first + count])
        first += count
    return tuple(stages)


def rank_blocks(model: ModelDescription, layout: Layout, rank: int) -> list[Block]:
    """Blocks of all model stages on a pipeline rank."""
    stages = stage_blocks(model, layout)
    return [block for stage in layout.rank_stages(rank) for block in stages[stage]]


# Passes in flight.


@lru_cache(maxsize=1 << 12)
def passes_in_flight(layout: Layout, rank: int) -> Mapping[int, int]:
    """Microbatches of each model stage whose activations a pipeline rank keeps, at the most.

    1F1B: as many as ranks from this one on. Interleaved: the passes of its warm-up and one more.
    Zero bubble: gradients of weights lag, so that every rank keeps as many as the first.
    """
    p, m, schedule = layout.pipeline, layout.microbatches, layout.schedule
    own = layout.rank_stages(rank)
    if p == 1:
        return dict.fromkeys(own, 1)
    if schedule is TrainingSchedule.GPIPE:
        return dict.fromkeys(own, m)
    if schedule is TrainingSchedule.ZB_H1:
        return dict.fromkeys(own, min(m, p))
    if schedule is TrainingSchedule.ZB_H2:
        return dict.fromkeys(own, min(m, 2 * p - 1))
    if layout.chunks == 1:
        return dict.fromkeys(own, min(m, p - rank))
    passes = min(2 * (p - rank - 1) + (layout.chunks - 1) * p + 1, m * layout.chunks)
    counts = dict.fromkeys(own, 0)
    for n in range(passes):
        counts[own[n // p % layout.chunks]] += 1
    return counts


# The rank.


def stage_kept(model: ModelDescription, layout: Layout, stage: int) -> float:
    """Bytes that a model stage keeps of one microbatch."""
    blocks = stage_blocks(model, layout)[stage]
    again = len(blocks) if layout.recompute_layers is None else layout.recompute_layers
    amount = sum(
        kept(block, model.hidden, layout, recomputing=n < again) for n, block in enumerate(blocks)
    )
    amount *= 1.0 - layout.offload_activations
    at, each = Tokens.of(layout), element_bytes(layout)
    if stage == 0:
        amount += 8.0 * at.inner
        if blocks and blocks[0].dropout:
            amount += at.outer * model.hidden
    if model.mtp and stage == layout.mtp_stage % layout.stages:
        amount += sum(kept(block, model.hidden, layout) for block in model.mtp)
        amount += len(model.mtp) * 4 * each * at.outer * model.hidden
    if layout.stages > 1 and not fused(layout):
        # The stage's output, which PyTorch's pipelines hold for the backward pass.
        amount += each * at.outer * model.hidden
    if stage == layout.stages - 1 and (model.head or model.classes):
        # Input and output of the final norm.
        amount += each * (at.outer + at.gathered) * model.hidden
    return amount


def loss_bytes(model: ModelDescription, layout: Layout) -> float:
    """Bytes of logits, loss and gradient on the last stage.

    In PyTorch three 32-bit tensors: log-probabilities, their gradient, and that of the logits; four
    where tensor ranks divide the vocabulary; 16 bits less to a compiler. Megatron's cross-entropy
    keeps 16-bit logits and one 32-bit tensor, of which it makes the gradient in place. MosaicML's
    kernel (flash-attention's) reads 16-bit logits and writes their gradient.
    """
    if not model.head:
        return 0.0
    logits = layout.tokens * model.vocabulary / layout.tensor
    if layout.software is Software.FSDP:
        return 4.0 * logits
    if not fused(layout):
        tensors = 4 if layout.tensor > 1 else 3
        return (4.0 * tensors - (2.0 if layout.compiled else 0.0)) * logits
    return 8.0 * logits * (1 + len(model.mtp))


def rank_memory(model: ModelDescription, layout: Layout, rank: int = 0) -> RankMemory:
    """Bytes of a pipeline rank at the moment when it holds most.

    Parameters
    ----------
    model, layout
        What runs, and how it is divided.
    rank
        Pipeline rank.
    """
    recipe = layout.recipe
    own = layout.rank_stages(rank)
    held = sum((stage_held(model, layout, stage) for stage in own), Held(0.0, 0.0))
    shards = layout.shards
    routed_shards = max(1, min(shards, layout.expert_data)) if layout.zero else 1

    def divided(bytes_each: float, at_least: int) -> float:
        """Bytes of a state that data-parallel ranks divide from this ZeRO stage on."""
        if layout.zero < at_least:
            return bytes_each * (held.shared + held.routed)
        return bytes_each * (held.shared / shards + held.routed / routed_shards)

    parameters = divided(recipe.weight_bytes, 3) * (1 - layout.offload_weights)
    gradients = divided(recipe.gradient_bytes, 2)
    if stays_gathered(layout):  # added up whole, and divided at the end
        gradients += recipe.reduce_bytes * (held.shared + held.routed)
    state = recipe.master_bytes + recipe.moment_bytes
    optimizer = divided(state, 1) * (1 - layout.offload_optimizer)
    in_flight = passes_in_flight(layout, rank)
    activations = sum(
        count * stage_kept(model, layout, stage) for stage, count in in_flight.items() if count
    )
    blocks = rank_blocks(model, layout, rank)
    logits = loss_bytes(model, layout) if layout.stages - 1 in own else 0.0
    at, each = Tokens.of(layout), element_bytes(layout)
    always = recipe.bucket_bytes
    if layout.pipeline > 1:  # received, and to be sent, in either direction
        always += 2 * each * at.outer * model.hidden
    # Gradients exist before the backward pass where they are allocated once or add up.
    lazily = not fused(layout) and layout.microbatches == 1
    before = Moment(gathered=gathered_ends(model, layout, rank), communication=always)
    if not lazily:
        before = replace(before, gradients=gradients)
    moments = [replace(before, activations=activations, logits=logits)]
    if fused(layout) or not blocks:
        heaviest = max((working(block, model.hidden, layout) for block in blocks), default=0.0)
        moments.append(replace(before, activations=activations, workspace=heaviest))
    else:
        moments += backward_moments(model, layout, blocks, activations, before, lazily)
    most = max(moments, key=lambda one: one.held)
    moving = most.held - most.gradients
    modern = fused(layout) and layout.fused_attention
    return RankMemory(
        parameters,
        most.gradients,
        optimizer,
        most.activations,
        most.logits,
        most.workspace,
        most.gathered,
        most.communication,
        FRAGMENTATION * moving,
        0.0 if modern else CACHED * moving,
        CONTEXT_BYTES,
    )


def stays_gathered(layout: Layout) -> bool:
    """Whether sharded weights stay gathered over an iteration's microbatches.

    In a pipeline PyTorch neither gives up gathered weights between passes nor divides gradients
    before the last one, since either would repeat with each microbatch.
    """
    return layout.zero == 3 and layout.shards > 1 and layout.pipeline > 1 and not fused(layout)


def gathered_ends(model: ModelDescription, layout: Layout, rank: int) -> float:
    """Bytes of gathered weights that stay: embedding and head, or all that stay gathered."""
    if layout.zero < 3 or layout.shards == 1:
        return 0.0
    own = layout.rank_stages(rank)
    weights = sum(ends_held(model, layout, stage) for stage in own)
    if stays_gathered(layout) or not layout.reshard_after_forward:
        weights += sum(
            unit_held(block, model.hidden, layout) for block in rank_blocks(model, layout, rank)
        )
    return layout.recipe.gather_bytes * weights


def unit_held(block: Block, hidden: int, layout: Layout) -> float:
    """Weights of a block that data-parallel ranks divide."""
    found = block_held(block, hidden, layout)
    return found.shared + (found.routed if layout.expert_data > 1 else 0.0)


def backward_moments(
    model: ModelDescription,
    layout: Layout,
    blocks: list[Block],
    activations: float,
    before: Moment,
    lazily: bool,
) -> Iterator[Moment]:
    """Yield moments of a backward pass of PyTorch's modules, block by block from the last one.

    Inside a block its gradients come into being. With sharded weights the next unit is gathered
    ahead, gradients stay whole in 16 bits until the end of the block, and their copy in the
    reduction's precision is given up at the end of the next block.
    """
    recipe, hidden = layout.recipe, model.hidden
    at, each = Tokens.of(layout), element_bytes(layout)
    sharded = layout.zero == 3 and layout.shards > 1 and not stays_gathered(layout)
    made, left, sent = 0.0, activations, 0.0
    if lazily and model.head and layout.stages == 1:
        made = each * model.vocabulary / layout.tensor * hidden  # the head's, whole
    for n, block in enumerate(reversed(blocks)):
        unit = unit_held(block, hidden, layout) if sharded else 0.0
        ahead = unit if n + 1 < len(blocks) else 0.0
        gathered = before.gathered + recipe.gather_bytes * (unit + ahead)
        matrix = each * largest_matrix(block, hidden, layout)
        layer = block.feed_forward or block.experts
        gated = layer is not None and layer.gated
        work = working(block, hidden, layout)
        if not lazily:
            work += matrix  # beside the one that it is added to
        yield Moment(
            before.gradients + made + (matrix if lazily and gated else 0.0),
            left,
            0.0,
            work,
            gathered,
            before.communication + sent,
        )
        left -= kept(block, hidden, layout)
        if sharded:
            sent = recipe.reduce_bytes * unit
            yield Moment(
                before.gradients + made + each * unit,
                left,
                0.0,
                each * at.outer * hidden,
                gathered,
                before.communication + sent,
            )
        if lazily:
            found = block_held(block, hidden, layout)
            shards = layout.shards if layout.zero >= 2 else 1
            made += recipe.gradient_bytes * (found.shared + found.routed) / shards


def peak_memory(model: ModelDescription, layout: Layout) -> RankMemory:
    """Bytes of the pipeline rank that holds most."""
    ranks = range(layout.pipeline)
    return max((rank_memory(model, layout, rank) for rank in ranks), key=lambda one: one.needed)
