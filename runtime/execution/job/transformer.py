"""Transformers in PyTorch by the shapes of a description, with modules that jobs divide.

Attention is multi-head, grouped-query or latent, with rotary or learned positions; feed-forward
layers are dense or mixtures of experts that drop no token. Dropout is left out: its random numbers
would depend on the layout. Parameters are made on the meta device, and filled by name on the ranks
that have them, with the same values under every layout.
"""

from __future__ import annotations

import fnmatch
import hashlib
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Partial

from ....instances import InputError
from ....instances.costs.description import (
    Attention,
    Block,
    Experts,
    FeedForward,
    ModelDescription,
    Norm,
)
from ....instances.costs.layout import Recompute
from ..attention import added_mask
from .parallelize import ParallelizePlan

#: Standard deviation of the initial matrices, GPT-2's.
DEVIATION = 0.02
#: Longest wave of rotary embeddings, in positions.
ROTARY_BASE = 10000.0


def transformer(model: ModelDescription) -> tuple[nn.Module, ParallelizePlan]:
    """Return a model of a description's shapes on the meta device, and how jobs divide it.

    Parameters
    ----------
    model
        A decoder: no encoder, image patches, token types, attention sinks, or prediction of
        further tokens.

    Returns
    -------
    torch.nn.Module
        ``model(tokens)`` returns logits; as many parameters as the description counts.
    ParallelizePlan
        For `run_job` and `parallelize`; its `initialize` fills parameters.

    Raises
    ------
    InputError
        If the description has a part that is not built here.

    Examples
    --------
    >>> import stagecut
    >>> description = stagecut.model_description("llama3.2-1b")
    >>> model, plan = transformer(description)
    >>> sum(p.numel() for p in model.parameters()) == description.parameters
    True
    """
    _check_built(model)
    with torch.device("meta"):
        made = Decoder(model)
    places = ("places",) if model.positions else ()
    names = [name for name, _ in made.named_modules()]

    def there(*patterns: str) -> tuple[str, ...]:
        return tuple(pattern for pattern in patterns if fnmatch.filter(names, pattern))

    return made, ParallelizePlan(
        before=("embedding", *places),
        after=("norm", "head") if model.final_norm else ("head",),
        colwise=there(
            *(f"layers.*.attention.{name}" for name in ("q", "k", "v", "kv")),
            *(f"layers.*.{part}.{n}" for part in ("mlp", "moe.shared") for n in ("gate", "up")),
            "head",
        ),
        rowwise=there(
            "layers.*.attention.out", "layers.*.mlp.down", "layers.*.moe.shared.down", "embedding",
        ),
        experts=("layers.*.moe.experts",),
        recomputed={
            Recompute.MLP: ("layers.*.mlp",),
            Recompute.MOE: ("layers.*.moe",),
            Recompute.SHARED_EXPERTS: ("layers.*.moe.shared",),
            Recompute.LAYERNORM: ("layers.*.attention_norm", "layers.*.mlp_norm"),
            Recompute.CORE_ATTENTION: ("layers.*.attention.core",),
        },
        initialize=fill,
    )  # fmt: skip


def fill(name: str, parameter: Tensor) -> None:
    """Fill a parameter with numbers that depend on its name and shape alone."""
    if name.endswith("bias"):
        nn.init.zeros_(parameter)
    elif parameter.ndim == 1:
        nn.init.ones_(parameter)
    else:
        seed = int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "little")
        draw = torch.Generator().manual_seed(seed)  # on the CPU: the same for every device
        parameter.copy_(torch.empty(parameter.shape).normal_(0, DEVIATION, generator=draw))


def _check_built(model: ModelDescription) -> None:
    """Refuse descriptions with parts that are not built here."""
    parts = {
        "an encoder": model.encoder,
        "image patches": model.patch_inputs or model.classes,
        "token types": model.token_types,
        "further embeddings or heads": model.more_embedding or model.more_head,
        "prediction of further tokens": model.mtp,
        "no head": not model.head or not model.vocabulary,
        "profiled layers": any(block.profiled for block in model.blocks),
        "cross-attention": any(block.cross_attention for block in model.blocks),
        "attention sinks": any(block.attention and block.attention.sinks for block in model.blocks),
    }
    found = [what for what, there in parts.items() if there]
    if found:
        raise InputError(
            f"{model.name}: it has {', '.join(found)}, which is not built here; give the model by "
            "--model"
        )


class Decoder(nn.Module):  # type: ignore[misc]  # torch does not say its type
    """Embedding, blocks, norm and head; tied if the description says so."""

    def __init__(self, model: ModelDescription) -> None:
        super().__init__()
        self.embedding = nn.Embedding(model.vocabulary, model.hidden)
        if model.positions:
            self.places = LearnedPositions(model.positions, model.hidden)
        rotary = not model.positions
        self.layers = nn.ModuleList(
            DecoderBlock(block, model.hidden, rotary) for block in model.blocks
        )
        if model.final_norm:
            self.norm = _norm(model.blocks[-1].norm, model.hidden)
        self.head = nn.Linear(model.hidden, model.vocabulary, bias=False)
        if model.tied:
            self.head.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        """Return logits, of the same modules in the same order as a job's stages."""
        x = tokens
        for module in self.children():
            for part in module if isinstance(module, nn.ModuleList) else (module,):
                x = part(x)
        return x


class LearnedPositions(nn.Module):  # type: ignore[misc]
    """A vector added to each token by its position."""

    positions: Tensor | None = None

    def __init__(self, count: int, hidden: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(count, hidden))

    def forward(self, x: Tensor) -> Tensor:
        """Return embeddings with their positions."""
        return x + F.embedding(_positions(self, x.shape[1], x.device), self.weight)


class DecoderBlock(nn.Module):  # type: ignore[misc]
    """Attention and feed-forward, each behind a norm and beside a residual."""

    def __init__(self, block: Block, hidden: int, rotary: bool) -> None:
        super().__init__()
        norms = {"attention_norm": block.attention, "mlp_norm": block.feed_forward or block.experts}
        if block.norms == 4:
            norms |= {"attention_post": block.attention, "mlp_post": norms["mlp_norm"]}
        for name, there in norms.items():
            self.add_module(name, _norm(block.norm, hidden) if there else nn.Identity())
        if block.attention is not None:
            if block.attention.latent:
                self.latent = Compression(block.attention, hidden)
            self.attention = SelfAttention(block.attention, hidden, rotary)
        if block.feed_forward is not None:
            self.mlp = GatedLayer(block.feed_forward, hidden)
        if block.experts is not None:
            self.moe = MixtureLayer(block.experts, hidden)
        self.parts = [name for name in ("attention", "mlp", "moe") if hasattr(self, name)]
        self.compressed, self.post = hasattr(self, "latent"), block.norms == 4

    def forward(self, x: Tensor) -> Tensor:
        """Return the hidden state behind this block."""
        for name in self.parts:
            norm = "attention" if name == "attention" else "mlp"
            y = self.get_submodule(f"{norm}_norm")(x)
            if name == "attention" and self.compressed:
                y = self.latent(y)
            y = self.get_submodule(name)(y)
            x = x + (self.get_submodule(f"{norm}_post")(y) if self.post else y)
        return x


class Compression(nn.Module):  # type: ignore[misc]
    """Latent queries and keys with values, and the rotary part of keys, side by side.

    It runs where the sequence is divided; what it returns is gathered for attention.
    """

    def __init__(self, attention: Attention, hidden: int) -> None:
        super().__init__()
        self.kv_rank, self.q_rank = attention.kv_rank, attention.q_rank
        if attention.q_rank:
            self.q_down = nn.Linear(hidden, attention.q_rank, bias=False)
            self.q_norm = nn.RMSNorm(attention.q_rank)
        self.kv_down = nn.Linear(hidden, attention.kv_rank + attention.rope_dim, bias=False)
        self.kv_norm = nn.RMSNorm(attention.kv_rank)

    def forward(self, x: Tensor) -> Tensor:
        """Return query, keys with values, and rotary part of keys along the last dimension."""
        q = self.q_norm(self.q_down(x)) if self.q_rank else x
        kv, rope = self.kv_down(x).tensor_split([self.kv_rank], -1)
        return torch.cat([q, self.kv_norm(kv), rope], -1)


class SelfAttention(nn.Module):  # type: ignore[misc]
    """Attention of as many heads as its projections return on this rank."""

    positions: Tensor | None = None

    def __init__(self, attention: Attention, hidden: int, rotary: bool) -> None:
        super().__init__()
        self.shapes, self.rotary = attention, rotary
        value = attention.value_width
        if attention.latent:
            self.widths = [attention.q_rank or hidden, attention.kv_rank, attention.rope_dim]
            self.q = nn.Linear(
                self.widths[0], attention.heads * attention.key_width, bias=attention.bias
            )
            self.kv = nn.Linear(
                attention.kv_rank, attention.heads * (attention.head_dim + value), bias=False
            )
        else:
            sizes = {"q": attention.heads * attention.head_dim}
            sizes |= {"k": attention.kv_heads * attention.head_dim, "v": attention.kv_heads * value}
            for name, size in sizes.items():
                self.add_module(name, nn.Linear(hidden, size, bias=attention.bias))
        if attention.qk_norm:
            self.q_norm, self.k_norm = (nn.RMSNorm(attention.head_dim) for _ in range(2))
        self.core = CoreAttention(attention)
        self.out = nn.Linear(attention.heads * value, hidden, bias=attention.output_bias)

    def forward(self, x: Tensor) -> Tensor:
        """Return the output of attention for each token."""
        shapes = self.shapes
        where = _positions(self, x.shape[1], x.device)
        if shapes.latent:
            q_in, kv_in, rope = x.split(self.widths, -1)
            if isinstance(rope, DTensor):  # each rank's heads add their part to its gradient
                rope = rope.to_local(grad_placements=(Partial(),))
            q = _heads(self.q(q_in), shapes.key_width)
            both = _heads(self.kv(kv_in), shapes.head_dim + shapes.value_width)
            k, v = both.split([shapes.head_dim, shapes.value_width], -1)
            q, q_rope = q.split([shapes.head_dim, shapes.rope_dim], -1)
            rope = _rotated(rope[:, None], where).expand(-1, q.shape[1], -1, -1)
            q, k = torch.cat([q, _rotated(q_rope, where)], -1), torch.cat([k, rope], -1)
        else:
            q, k = (_heads(self.get_submodule(n)(x), shapes.head_dim) for n in ("q", "k"))
            v = _heads(self.v(x), shapes.value_width)
            if shapes.qk_norm:
                q, k = self.q_norm(q), self.k_norm(k)
            if self.rotary:
                q, k = _rotated(q, where), _rotated(k, where)
        made: Tensor = self.out(self.core(q, k, v, where).transpose(1, 2).flatten(2))
        return made


class CoreAttention(nn.Module):  # type: ignore[misc]
    """Softmax of queries and keys, and the values that it weighs."""

    def __init__(self, attention: Attention) -> None:
        super().__init__()
        self.causal, self.window = attention.causal, attention.window

    def forward(self, q: Tensor, k: Tensor, v: Tensor, positions: Tensor) -> Tensor:
        """Return values of each head; keys and values are shared by groups of queries."""
        mask = None
        if self.window is not None and self.window < q.shape[2]:
            mask = _window(positions, self.window, self.causal, q.dtype)
        return F.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, is_causal=self.causal and mask is None,
            enable_gqa=q.shape[1] != k.shape[1],
        )  # fmt: skip


class GatedLayer(nn.Module):  # type: ignore[misc]
    """Dense feed-forward layer: SwiGLU if gated, else GELU between two matrices."""

    def __init__(self, layer: FeedForward, hidden: int) -> None:
        super().__init__()
        self.gated = layer.gated
        if layer.gated:
            self.gate = nn.Linear(hidden, layer.width, bias=layer.bias)
        self.up = nn.Linear(hidden, layer.width, bias=layer.bias)
        self.down = nn.Linear(layer.width, hidden, bias=layer.bias)

    def forward(self, x: Tensor) -> Tensor:
        """Return the layer's output."""
        inner = F.silu(self.gate(x)) * self.up(x) if self.gated else F.gelu(self.up(x))
        made: Tensor = self.down(inner)
        return made


class MixtureLayer(nn.Module):  # type: ignore[misc]
    """Router, routed experts of which a token takes `top_k`, and shared experts."""

    def __init__(self, experts: Experts, hidden: int) -> None:
        super().__init__()
        self.count, self.top_k = experts.experts, experts.top_k
        self.router = nn.Linear(hidden, experts.experts, bias=experts.router_bias)
        self.experts = ExpertMatrices(experts, hidden)
        if experts.shared is not None:
            self.shared = GatedLayer(experts.shared, hidden)
            if experts.shared_gate:
                self.shared_gate = nn.Linear(hidden, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return the outputs of each token's experts, weighted by the softmax of their scores."""
        tokens = x.flatten(0, 1)
        scores, chosen = self.router(tokens).topk(self.top_k)
        order = chosen.flatten().argsort(stable=True)
        counts = chosen.flatten().bincount(minlength=self.count)
        made = self.experts(tokens[order // self.top_k], counts)
        weighed = made * scores.softmax(-1).flatten()[order, None]
        routed = torch.zeros_like(tokens).index_add(0, order // self.top_k, weighed).view_as(x)
        if not hasattr(self, "shared"):
            return routed
        shared = self.shared(x)
        if hasattr(self, "shared_gate"):
            shared = shared * self.shared_gate(x).sigmoid()
        result: Tensor = routed + shared
        return result


class ExpertMatrices(nn.Module):  # type: ignore[misc]
    """Matrices of experts, which take tokens in the order of their experts."""

    def __init__(self, experts: Experts, hidden: int) -> None:
        super().__init__()
        inner = (1 + experts.gated) * experts.width
        self.up = nn.Parameter(torch.empty(experts.experts, hidden, inner))
        self.down = nn.Parameter(torch.empty(experts.experts, experts.width, hidden))
        self.gated, self.biased = experts.gated, experts.bias
        if experts.bias:
            self.up_bias = nn.Parameter(torch.empty(experts.experts, inner))
            self.down_bias = nn.Parameter(torch.empty(experts.experts, hidden))

    def forward(self, tokens: Tensor, counts: Tensor) -> Tensor:
        """Return each token's output; `counts` says how many tokens each expert has."""
        made = []
        # taken one by one from a parameter, each would have a gradient as large as all of it
        ups, downs = self.up.unbind(), self.down.unbind()
        for e, part in enumerate(tokens.split(counts.tolist())):
            inner = part @ ups[e] + (self.up_bias[e] if self.biased else 0)
            if self.gated:
                gate, inner = inner.chunk(2, -1)
                inner = F.silu(gate) * inner
            else:
                inner = F.gelu(inner)
            made.append(inner @ downs[e] + (self.down_bias[e] if self.biased else 0))
        return torch.cat(made)


@lru_cache(maxsize=2)  # of a stage's layers, which alternate
def _window(positions: Tensor, window: int, causal: bool, dtype: torch.dtype) -> Tensor:
    """Return the mask of a sliding window, one for all layers of a stage."""
    apart = positions[:, None] - positions
    return added_mask((apart < window) & ((apart >= 0) if causal else (-apart < window)), dtype)


def _norm(kind: Norm, width: int) -> nn.Module:
    return nn.LayerNorm(width) if kind is Norm.LAYER else nn.RMSNorm(width)


def _positions(module: nn.Module, count: int, device: torch.device) -> Tensor:
    """Return the positions that a job gave a module, or those of whole sequences."""
    given: Tensor | None = module.positions
    return torch.arange(count, device=device) if given is None else given


def _heads(x: Tensor, width: int) -> Tensor:
    """Return batch × heads × tokens × width."""
    return x.unflatten(-1, (-1, width)).transpose(1, 2)


def _rotated(x: Tensor, positions: Tensor) -> Tensor:
    """Return queries or keys turned by their positions (rotary embedding)."""
    half = x.shape[-1] // 2
    rates = ROTARY_BASE ** (-torch.arange(half, device=x.device) / half)
    angles = positions[:, None] * rates
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    a, b = x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)
