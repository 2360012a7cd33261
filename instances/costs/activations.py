"""Bytes of a block's activations for one microbatch: kept by module, in use, and moved.

Which tensors are kept for the backward pass depends on the software. Megatron's fused layers keep
only the local shard of a gathered input and gather it again, keep only the input and output of a
gated activation, and keep the inputs of 8-bit products in 8 bits. PyTorch's modules keep every
operand of a product, and gathered inputs whole. Sources: Korthikanti et al. (2022), table 2 and
appendix B; the code of Megatron-Core and PyTorch; checked against torch's memory tracker.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from .description import Attention, Block, Experts, FeedForward, Norm
from .experts import routed_rows
from .hardware import NumberFormat
from .layout import ContextKind, Layout, Recompute, Software


@dataclass(frozen=True)
class Tokens:
    """Tokens of one microbatch on a rank, by region."""

    inner: float  # inside tensor-parallel regions
    outer: float  # outside them: divided by sequence parallelism
    # tokens kept of a gathered input: `outer` if it is gathered again for the backward pass, else
    # `inner`
    gathered: float

    @classmethod
    def of(cls, layout: Layout) -> Tokens:
        """Return the tokens of one microbatch on a rank under a layout."""
        inner = layout.tokens
        outer = inner / layout.tensor if layout.sequence_parallel else inner
        return cls(inner, outer, outer if fused(layout) else inner)


_PYTORCH = (Software.FSDP, Software.TORCHTITAN, Software.STAGECUT)


def fused(layout: Layout) -> bool:
    """Whether layers are Megatron's fused ones rather than PyTorch's modules."""
    return layout.software not in _PYTORCH


def input_bytes(layout: Layout) -> float:
    """Bytes per element of the inputs that linear layers keep for the backward pass."""
    narrow = layout.recipe.compute not in WIDE and fused(layout)
    return 1.0 if narrow else element_bytes(layout)


def element_bytes(layout: Layout) -> float:
    """Bytes per element of activations outside 8- and 4-bit products."""
    return 4.0 if layout.recipe.compute in (NumberFormat.FP32, NumberFormat.TF32) else 2.0


#: Number formats of at least 16 bits.
WIDE = (NumberFormat.FP32, NumberFormat.TF32, NumberFormat.FP16, NumberFormat.BF16)


# What a block keeps.


def masks_window(attention: Attention, layout: Layout) -> bool:
    """Whether a window is a mask over all scores, as in PyTorch's attention, which computes all."""
    windowed = attention.window is not None and attention.window < layout.sequence
    return windowed and layout.software is Software.STAGECUT


def gathers_keys(layout: Layout) -> bool:
    """Whether a rank keeps the keys and values of whole sequences, of which it has a part."""
    gathered = layout.context > 1 and layout.context_kind is ContextKind.ALL_GATHER
    return gathered and layout.software is Software.STAGECUT


def copies_heads(attention: Attention, layout: Layout) -> bool:
    """Whether shared keys and values are copied for every query head.

    On GPUs, PyTorch's kernels that keep no scores take shared heads in 16 bits without a mask
    alone. Around a ring, copies are not kept.
    """
    if layout.context > 1 and layout.context_kind is ContextKind.RING:
        return False
    masked = masks_window(attention, layout) or (gathers_keys(layout) and attention.causal)
    return layout.software is Software.STAGECUT and (masked or element_bytes(layout) > 2)


def mask_bytes(attention: Attention, layout: Layout) -> float:
    """Bytes of the addend of scores that hides keys, one for all layers."""
    if masks_window(attention, layout):
        return element_bytes(layout) * layout.sequence**2
    if gathers_keys(layout) and attention.causal:  # each half sees no keys behind it
        part = layout.sequence / (2 * layout.context)
        return element_bytes(layout) * part * part * (2 * layout.context + 1)
    return 0.0


def attention_kept(attention: Attention, layout: Layout) -> Iterator[tuple[str, float]]:
    """Yield the bytes that an attention keeps for its backward pass, by module."""
    at, each, t = Tokens.of(layout), element_bytes(layout), layout.tensor
    heads = attention.heads / t
    kv_heads = max(attention.kv_heads / t, 1.0)
    if attention.latent or copies_heads(attention, layout):
        kv_heads = heads
    tokens = at.inner
    seen = tokens * (layout.context if gathers_keys(layout) else 1)
    query = each * tokens * heads * attention.key_width
    key = each * seen * kv_heads * attention.key_width
    value = each * seen * kv_heads * attention.value_width
    if attention.latent:
        # The compressed vectors, before and after their norms; every tensor rank computes them.
        ranks = 2 * (attention.q_rank + attention.kv_rank) + attention.rope_dim
        yield "attention", each * at.outer * ranks
        yield "mla_up_proj", query + key + value
        if not fused(layout):
            # Rotary parts are concatenated into new tensors, and the originals stay as well.
            yield "mla_up_proj", value
    else:
        yield "attention", query + key + value
    if attention.qk_norm:
        yield "attention", query + key
    if layout.fused_attention:
        yield "core_attn", 4.0 * tokens * heads  # log of the sums of exponentials
    else:
        scores = tokens * heads * layout.sequence
        # The output of the softmax, its dropout mask and the output of the dropout.
        yield "core_attn", scores * (2 * each + 1 if layout.software is Software.MEGATRON else each)
    narrow = input_bytes(layout)
    output = tokens * heads * attention.value_width
    yield "attention", each * output
    if narrow < each:
        yield "attention", narrow * output


def feed_forward_kept(layer: FeedForward, layout: Layout, tokens: float, tensor: int) -> float:
    """Bytes that a feed-forward layer keeps for the backward pass of `tokens`, without its norm."""
    each, narrow = element_bytes(layout), input_bytes(layout)
    width = layer.width / tensor
    if layer.gated:
        # Both projections; without a fused kernel, the activation of the gate as well.
        between = 2 if fused(layout) or layout.compiled else 3
    else:
        between = 1
    out = 0 if layout.compiled and not fused(layout) else narrow
    return tokens * width * (between * each + out)


def experts_kept(experts: Experts, hidden: int, layout: Layout) -> Iterator[tuple[str, float]]:
    """Yield the bytes that a mixture of experts keeps for its backward pass, by module."""
    at, each, narrow = Tokens.of(layout), element_bytes(layout), input_bytes(layout)
    rows = routed_rows(experts, layout)
    width = experts.width / layout.expert_tensor
    own = at.inner / layout.tensor if layout.sequence_parallel else at.inner
    # Scores and probabilities in 32 bits; the positions of each token's copies.
    yield "moe", own * (8.0 * experts.experts + 16.0 * experts.top_k)
    yield "moe", narrow * rows * hidden
    yield "moe", each * rows * width * (2 if experts.gated else 1)
    yield "moe_act", narrow * rows * width
    if not fused(layout):
        if experts.gated:
            yield "moe_act", each * rows * width
        # The output of the experts is kept, since it is multiplied by the probabilities.
        yield "moe", each * rows * hidden
    if experts.shared is not None:
        kept = feed_forward_kept(experts.shared, layout, at.inner, layout.tensor)
        yield "shared_experts", kept


def kept_by_module(block: Block, hidden: int, layout: Layout) -> Mapping[str, float]:
    """Bytes that a block keeps for the backward pass of one microbatch, by module.

    Modules are named as in `Recompute`. There are also ``input`` (the block's input, which is kept
    even if the whole block is recomputed), ``residual`` (between attention and feed-forward), and
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
        # The input and the normalized input in 32 bits, and the latter again in 16 bits.
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
        if block.norms > 2:  # a norm after the part as well, which keeps its input
            keep("layernorm", each * at.outer * hidden + statistics * at.outer)
        if block.dropout:
            keep("residual", at.outer * hidden)
    for attention in (block.attention, block.cross_attention):
        for module, amount in attention_kept(attention, layout) if attention else ():
            keep(module, amount)
    if block.feed_forward is not None:
        keep("mlp", feed_forward_kept(block.feed_forward, layout, at.inner, layout.tensor))
    if block.experts is not None:
        for module, amount in experts_kept(block.experts, hidden, layout):
            keep(module, amount)
    return kept


#: Modules that recomputation of a module includes; by default only itself.
INSIDE = {"moe": ("moe", "moe_act", "shared_experts")}


def kept(
    block: Block, hidden: int, layout: Layout, modules: Mapping[str, float] | None = None
) -> float:
    """Bytes that a block keeps for the backward pass of one microbatch, under its recomputation.

    `modules` is the result of `kept_by_module` if the caller has it.
    """
    modules = modules or kept_by_module(block, hidden, layout)
    if not layout.recompute:
        return sum(modules.values())
    if Recompute.FULL in layout.recompute:
        return modules["input"]
    if Recompute.OPERATORS in layout.recompute:
        return operators_kept(block, hidden, layout)
    gone = {name for module in layout.recompute for name in INSIDE.get(module, (str(module),))}
    return sum(amount for module, amount in modules.items() if module not in gone)


def operators_kept(block: Block, hidden: int, layout: Layout) -> float:
    """Bytes kept under recomputation by operator (torchtitan's policy), for one microbatch.

    The policy keeps the block's input, the output of attention, and the output of every second
    matrix product: in a block with a gated feed-forward layer queries, values, the gate and the
    block's output.
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


def working(block: Block, hidden: int, layout: Layout, again: float) -> float:
    """Bytes in use inside a block's backward pass, in addition to the activations that it kept.

    These are `again`, the bytes of recomputed activations, the gradient of the block's output,
    buffers of gathered tensors, the mask of attention, and the gradients inside the part of the
    block (feed-forward layer, experts or attention) where they need most.
    """
    at, each = Tokens.of(layout), element_bytes(layout)
    widest = masks = 0.0
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
        masks = mask_bytes(attention, layout)
    gather = 0.0
    if layout.tensor > 1 and layout.sequence_parallel:
        # The gathered gradient of the block's output; Megatron gathers an input again as well.
        gather = (2 if fused(layout) else 1) * each * at.inner * hidden
    return again + widest + masks + each * at.outer * hidden + gather


def largest_matrix(block: Block, hidden: int, layout: Layout) -> float:
    """Count the weights of a block's largest matrix on one rank; experts count as one matrix."""
    t, sizes = layout.tensor, [0.0]
    if block.attention is not None:
        sizes.append(block.attention.heads * block.attention.key_width * hidden / t)
    if block.feed_forward is not None:
        sizes.append(block.feed_forward.width * hidden / t)
    if block.experts is not None:
        whole = block.experts.experts * block.experts.width * hidden
        sizes.append(whole / (layout.expert * layout.expert_tensor))
    return max(sizes)


# What its pointwise operations move.


def one_by_one(layout: Layout) -> bool:
    """Whether pointwise operations run as PyTorch's, a kernel for each, and none is fused.

    What these move is counted, and where their kernels reach less than the bandwidth, what others
    would move in that time (`benchmarks/results/gpu_kernels.csv`).
    """
    eager = layout.software in (Software.TORCHTITAN, Software.STAGECUT)
    return eager and not layout.compiled


def norm_bytes(layout: Layout, kind: Norm, moved: float) -> tuple[float, float]:
    """Return bytes of a norm of a tensor of so many in either pass."""
    if one_by_one(layout):
        return 3.2 * moved, 7.5 * moved
    return 2 * moved, (5 if kind is Norm.LAYER else 4) * moved


def activation_bytes(layout: Layout, gated: bool, moved: float) -> tuple[float, float, float]:
    """Return bytes of an activation between two matrices in either pass, and its kernels.

    `moved` are those of one tensor. One by one, a gate's activation is written and read again.
    """
    if gated and one_by_one(layout):
        return 5 * moved, 9 * moved, 2
    read = 2 if gated else 1
    return (read + 1) * moved, (2 * read + 1) * moved, 1


def loss_bytes(layout: Layout, logits: float) -> tuple[float, float]:
    """Return bytes of the cross-entropy of so many logits in either pass.

    32-bit logits: cast, maximum, difference, exponentials, sum, quotient, and the gradient; fused,
    as by Megatron since it has fused attention, they move a third of it.
    """
    if one_by_one(layout):
        return 25 * logits, 26 * logits
    megatron = layout.software is Software.MEGATRON and layout.fused_attention
    forward, backward = (12, 8) if layout.compiled or megatron else (34, 14)
    return forward * logits, backward * logits
