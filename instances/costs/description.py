"""Model descriptions: the blocks of a transformer in order, by the shapes that determine costs.

A description has shapes only, no weights and no names of tensors. This module counts parameters and
the operations of a forward pass; `layers.py` derives times under a layout, `activations.py` bytes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated

import msgspec

from ..common.choices import Choice, choose
from ..common.errors import InputError
from ..common.units import LARGEST
from ..model.summary import Summarised
from .hardware import Count, Size

#: Fields of plan files: a number of weights, which may exceed any shape, and a measured value.
Weights = Annotated[int, msgspec.Meta(ge=0, le=1 << 53)]
Amount = Annotated[float, msgspec.Meta(ge=0, le=LARGEST)]


class Norm(Choice):
    """Normalization of a block's inputs: mean and variance with a bias, or root mean square."""

    LAYER = "layer"
    RMS = "rms"


@dataclass(frozen=True)
class Attention:
    """Shapes of one attention: multi-head, grouped-query, or multi-head latent (with `kv_rank`)."""

    heads: Count  # query heads
    kv_heads: Count  # key and value heads; as many as `heads` in multi-head and latent attention
    # width of a query or key head; in latent attention, without its rotary part
    head_dim: Count
    value_dim: Size = 0  # width of a value head; 0: that of a key head
    window: Count | None = None  # positions that a token sees (sliding window); None: all
    causal: bool = True  # whether a token sees only positions before it
    # q_rank, kv_rank, rope_dim: of latent attention, the ranks of the query and of the joint
    # key-value projection, and the width of the rotary part. `q_rank` 0: queries are projected
    # directly.
    q_rank: Size = 0
    kv_rank: Size = 0
    rope_dim: Size = 0
    bias: bool = False  # whether the query, key and value projections have biases
    output_bias: bool = False  # whether the output projection has one
    qk_norm: bool = False  # whether queries and keys are normalized by head
    sinks: bool = False  # whether each head has a learned logit that takes part in its softmax

    @property
    def latent(self) -> bool:
        """Whether keys and values are projected from one compressed vector (MLA)."""
        return self.kv_rank > 0

    @property
    def key_width(self) -> int:
        """Elements of one head's query or key, rotary part included."""
        return self.head_dim + (self.rope_dim if self.latent else 0)

    @property
    def value_width(self) -> int:
        """Elements of one head's value."""
        return self.value_dim or self.head_dim

    def visible(self, length: int) -> float:
        """Positions that a token of a sequence of `length` sees, on average over the sequence."""
        window = min(self.window or length, length)
        both_sides = window * (2 - window / length)
        return both_sides / 2 if self.causal else both_sides

    def parameters(self, hidden: int) -> int:
        """Count the weights of the projections, for a model of width `hidden`."""
        q_out = self.heads * self.key_width
        output = self.heads * self.value_width * hidden + (hidden if self.output_bias else 0)
        if self.latent:
            q = (
                hidden * self.q_rank + self.q_rank * q_out + self.q_rank
                if self.q_rank
                else hidden * q_out
            )
            kv = hidden * (self.kv_rank + self.rope_dim) + self.kv_rank
            kv += self.kv_rank * self.heads * (self.head_dim + self.value_width)
            return q + kv + output
        kv_out = self.kv_heads * (self.head_dim + self.value_width)
        by_head = (2 * self.head_dim if self.qk_norm else 0) + (self.heads if self.sinks else 0)
        return (hidden + (1 if self.bias else 0)) * (q_out + kv_out) + by_head + output


@dataclass(frozen=True)
class FeedForward:
    """Shapes of a feed-forward layer: two matrices, or three if gated (SwiGLU, GeGLU)."""

    width: Count  # width between its matrices, in elements
    gated: bool = True  # whether a second projection gates the first
    bias: bool = False  # whether its matrices have biases

    def parameters(self, hidden: int) -> int:
        """Count its weights, for a model of width `hidden`."""
        into = 2 if self.gated else 1
        biases = into * self.width + hidden if self.bias else 0
        return (into + 1) * hidden * self.width + biases


@dataclass(frozen=True)
class Experts:
    """Shapes of a mixture of experts: a router and feed-forward layers; a token uses a few."""

    experts: Count  # routed experts
    top_k: Count  # experts that process a token
    width: Count  # width between the matrices of one expert, in elements
    gated: bool = True  # whether experts are gated
    bias: bool = False  # whether their matrices have biases
    # width between the matrices of all shared experts together, which process every token
    shared_width: Size = 0
    # whether one more projection of a token weights the output of the shared experts
    shared_gate: bool = False
    # whether the router adds a number per expert, learned or set to balance them
    router_bias: bool = False

    def __post_init__(self) -> None:
        """Refuse a `top_k` above the number of experts."""
        if self.top_k > self.experts:
            raise InputError(f"experts: {self.top_k} of a token, and there are {self.experts}")

    @property
    def expert(self) -> FeedForward:
        """One routed expert."""
        return FeedForward(self.width, self.gated, self.bias)

    @property
    def shared(self) -> FeedForward | None:
        """The shared experts as one feed-forward layer."""
        if not self.shared_width:
            return None
        return FeedForward(self.shared_width, self.gated, self.bias)

    def routed_parameters(self, hidden: int) -> int:
        """Count the weights of the routed experts, for a model of width `hidden`."""
        return self.experts * self.expert.parameters(hidden)

    def parameters(self, hidden: int) -> int:
        """Count all weights, router and shared experts included."""
        shared = self.shared.parameters(hidden) if self.shared else 0
        router = (hidden + (1 if self.router_bias else 0)) * self.experts
        gate = hidden if self.shared_gate else 0
        return self.routed_parameters(hidden) + shared + router + gate


@dataclass(frozen=True)
class Measured:
    """Measurements of a profiled layer at one tensor degree, for one microbatch as profiled."""

    degree: Count  # devices that share the layer
    # forward, backward: seconds of the passes, collectives between these devices included
    forward: Amount
    backward: Amount
    held: Amount  # fraction of its weights on one device
    # kept, entering: bytes on one device that are kept for the backward pass without recomputation,
    # and with recomputation of the layer
    kept: Amount
    entering: Amount


@dataclass(frozen=True)
class ProfiledLayer:
    """Measurements of a layer type of a profiled model, by tensor degree."""

    weights: Weights  # number of parameters
    flops: Amount  # operations of its forward pass for one microbatch as profiled
    measured: tuple[Measured, ...]  # by tensor degree

    def at(self, degree: int) -> Measured:
        """Return the measurements at a tensor degree; InputError if it was not profiled."""
        found = next((one for one in self.measured if one.degree == degree), None)
        if found is None:
            known = ", ".join(str(one.degree) for one in self.measured)
            raise InputError(
                f"tensor: {degree}; the model was profiled for {known}; profile it with "
                f"--layers --degrees {degree}"
            )
        return found


@dataclass(frozen=True)
class Block:
    """A layer type: attention and feed-forward or experts, each behind a norm and a residual."""

    attention: Attention | None = None  # self-attention; None: the block has none
    # attention to an encoder's output, in decoders of encoder-decoder models
    cross_attention: Attention | None = None
    feed_forward: FeedForward | None = None  # feed_forward, experts: one of the two at most
    experts: Experts | None = None
    norm: Norm = Norm.RMS  # kind of its norms
    # norms of the model's width: 2, or 4 if norms also follow attention and feed-forward layer
    norms: Size = 2
    dropout: bool = False  # whether dropout, which keeps masks, ends its parts
    # a layer of a profiled model, instead of all of the above
    profiled: ProfiledLayer | None = None

    def __post_init__(self) -> None:
        """Take texts for choices; refuse a block of nothing."""
        choose(self, norm=Norm)
        parts = (self.attention, self.cross_attention, self.feed_forward, self.experts)
        if self.profiled is None and not any(parts):
            raise InputError("a block has no attention, no feed-forward layer and no experts")

    def parameters(self, hidden: int) -> int:
        """Count its weights, for a model of width `hidden`."""
        if self.profiled is not None:
            return self.profiled.weights
        parts = (self.attention, self.cross_attention, self.feed_forward, self.experts)
        norms = self.norms * hidden * (2 if self.norm is Norm.LAYER else 1)
        return norms + sum(part.parameters(hidden) for part in parts if part is not None)

    def routed_parameters(self, hidden: int) -> int:
        """Count the weights of its routed experts, which expert parallelism divides."""
        return self.experts.routed_parameters(hidden) if self.experts else 0


@dataclass(frozen=True, repr=False)
class ModelDescription(Summarised):
    """Shapes of a transformer: its blocks in order, with embedding and head.

    Parameters
    ----------
    name
        Name in commands and reports.
    hidden
        Width of the model.
    vocabulary
        Rows of the token embedding; 0: the model has none (vision).
    blocks
        Blocks of the decoder, or of the whole model if it has one stack.
    encoder
        Blocks of the encoder, in encoder-decoder models.
    encoder_sequence
        Positions of the encoder's input; 0: as many as the decoder has.
    tied
        Whether head and token embedding are one matrix.
    positions
        Rows of a learned position embedding; 0: none.
    token_types
        Rows of a learned embedding of token types (BERT).
    head
        Whether the model ends in logits over the vocabulary.
    mtp
        Blocks that predict further tokens (multi-token prediction), each with a projection of two
        hidden states and the model's head again.
    patch_inputs
        Input values of an image patch, which its embedding projects (vision).
    classes
        Outputs of a classifier (vision).
    final_norm
        Whether a norm precedes the head.
    more_embedding, more_head
        Other weights before the first and after the last block: norms of embeddings, class tokens,
        biases of relative positions; biases and transforms of heads.
    source
        Source of the shapes.

    Examples
    --------
    >>> import stagecut
    >>> model = stagecut.model_description("deepseek-v3")
    >>> model.layers, len(model.layer_types), model.parameters - model.mtp_parameters
    (61, 2, 671026419200)
    """

    name: str
    hidden: Count
    vocabulary: Size
    blocks: tuple[Block, ...]
    encoder: tuple[Block, ...] = ()
    encoder_sequence: Size = 0
    tied: bool = False
    positions: Size = 0
    token_types: Size = 0
    head: bool = True
    mtp: tuple[Block, ...] = ()
    patch_inputs: Size = 0
    classes: Size = 0
    final_norm: bool = True
    more_embedding: Weights = 0
    more_head: Weights = 0
    source: str = ""

    def summary(self) -> dict[str, object]:
        """Return name, parameters and shapes for display."""
        return {
            "name": self.name,
            "parameters": self.parameters,
            "layers": self.layers,
            "hidden": self.hidden,
            "vocabulary": self.vocabulary,
            "layer_types": len(self.layer_types),
        }

    @property
    def layers(self) -> int:
        """Number of blocks of encoder and decoder, without multi-token prediction."""
        return len(self.encoder) + len(self.blocks)

    @cached_property
    def layer_types(self) -> tuple[Block, ...]:
        """The distinct blocks, in order of their first appearance."""
        return tuple(dict.fromkeys((*self.encoder, *self.blocks, *self.mtp)))

    @cached_property
    def types_of_layers(self) -> tuple[int, ...]:
        """Index in `layer_types` of each block of encoder, decoder and multi-token prediction."""
        places = {block: place for place, block in enumerate(self.layer_types)}
        return tuple(places[block] for block in (*self.encoder, *self.blocks, *self.mtp))

    @cached_property
    def embedding_parameters(self) -> int:
        """Count the weights before the first block."""
        rows = self.vocabulary + self.positions + self.token_types
        patches = (self.patch_inputs + 1) * self.hidden if self.patch_inputs else 0
        return rows * self.hidden + patches + self.more_embedding

    @cached_property
    def head_parameters(self) -> int:
        """Count the weights of final norm and head; a tied head has none of its own."""
        norm = 0
        if self.final_norm and self.blocks:
            norm = self.hidden * (2 if self.blocks[-1].norm is Norm.LAYER else 1)
        logits = self.vocabulary * self.hidden if self.head and not self.tied else 0
        return norm + logits + (self.hidden + 1) * self.classes + self.more_head

    @cached_property
    def mtp_parameters(self) -> int:
        """Count the weights of multi-token prediction: blocks, projections and three norms each."""
        own = 2 * self.hidden * self.hidden + 3 * self.hidden
        return sum(block.parameters(self.hidden) + own for block in self.mtp)

    @cached_property
    def parameters(self) -> int:
        """Count all weights."""
        blocks = sum(block.parameters(self.hidden) for block in (*self.encoder, *self.blocks))
        return blocks + self.embedding_parameters + self.head_parameters + self.mtp_parameters


def forward_flops(model: ModelDescription, sequence: int) -> float:
    """Floating-point operations of the matrix products in one sequence's forward pass.

    A multiplication with its addition counts as two. A token is processed by the experts to which
    it is routed, and attends to all tokens of its sequence or window: the causal mask does not
    halve that. The head counts, embeddings and recomputation do not. This is the convention of
    Megatron and most publications; a training step has three times as many.
    """
    encoded = model.encoder_sequence or sequence
    hidden = model.hidden
    blocks = (*model.blocks, *model.mtp)
    count = sum(block_flops(block, hidden, sequence, encoded) for block in blocks)
    count += sum(block_flops(block, hidden, encoded, encoded) for block in model.encoder)
    logits = model.vocabulary if model.head else 0
    count += 2.0 * sequence * hidden * logits * (1 + len(model.mtp))
    count += 2.0 * sequence * 2 * hidden * hidden * len(model.mtp)
    patches = model.patch_inputs * hidden * sequence + hidden * model.classes
    return count + 2.0 * patches


def block_flops(block: Block, hidden: int, sequence: int, encoded: int) -> float:
    """Floating-point operations of one sequence's forward pass through a block.

    `encoded` is the number of positions of the encoder's output, for cross-attention.
    """
    if block.profiled is not None:
        return block.profiled.flops
    used = 0
    if block.feed_forward is not None:
        used += replace(block.feed_forward, bias=False).parameters(hidden)
    if block.experts is not None:
        experts = replace(block.experts, bias=False, router_bias=False)
        idle = experts.experts - experts.top_k
        used += experts.parameters(hidden) - idle * experts.expert.parameters(hidden)
    count = 2.0 * used * sequence
    for attention, others in ((block.attention, sequence), (block.cross_attention, encoded)):
        if attention is None:
            continue
        seen = min(attention.window or others, others)
        width = attention.key_width + attention.value_width
        count += 2.0 * sequence * seen * attention.heads * width
        projected = replace(attention, bias=False, output_bias=False, qk_norm=False, sinks=False)
        weights = projected.parameters(hidden) - projected.q_rank - projected.kv_rank
        if others == sequence:
            count += 2.0 * sequence * weights
        else:
            kv = attention.kv_heads * width * hidden
            count += 2.0 * (sequence * (weights - kv) + others * kv)
    return count
