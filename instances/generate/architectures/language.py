"""Language models: GPT-2 XL, Llama 3 8B, Mixtral 8x7B, BERT-Large, T5-Large.

Layers are the halves of the transformer blocks (attention, feed-forward), each expert by itself.
`deeper` multiplies the published number of blocks.
"""

from __future__ import annotations

from ...common.errors import InputError
from .network import (
    Network,
    NetworkTensor,
    Reads,
    attention,
    elementwise,
    embedding,
    first_token,
    fused_attention,
    learned,
    linear,
    norm,
)

#: Operator that owns the embedding's table, which the output layer uses, too.
TABLE = "embedding.tokens"


def gpt2_xl(batch: int, tokens: int, deeper: int = 1) -> Network:
    """GPT-2 XL on a prompt: 48 blocks, width 1600, 25 heads, vocabulary 50257, tied table.

    Radford et al., "Language models are unsupervised multitask learners", 2019; dimensions and
    count as in the published checkpoint ``openai-community/gpt2-xl``.
    """
    width, heads, vocabulary = 1600, 25, 50257
    _at_most(tokens, 1024)
    net = Network("GPT-2 XL", _sample(batch, tokens))
    with net.layer("embedding"):
        x = embedding(net, NetworkTensor((batch, tokens)), vocabulary, width, "tokens")
        positions = learned(net, (tokens, width), "positions", rows=1024)
        x = elementwise(net, "add", x, positions)
    for i in range(48 * deeper):
        with net.layer(f"block.{i}.attention"):
            y = norm(net, "layernorm", x, "norm")
            x = _self_attention(net, x, y, heads, cached=True)
        with net.layer(f"block.{i}.mlp"):
            y = norm(net, "layernorm", x, "norm")
            x = elementwise(net, "add", x, _mlp(net, y, 4 * width), name="residual")
    with net.layer("head"):
        x = norm(net, "layernorm", x, "norm")
        linear(net, x, vocabulary, "logits", bias=False, owner=TABLE)
    return net


def llama3_8b(batch: int, tokens: int, deeper: int = 1) -> Network:
    """Llama 3 8B on a prompt: 32 blocks, width 4096, 32 heads and 8 for keys and values.

    Grattafiori et al., "The Llama 3 herd of models", arXiv:2407.21783, Table 3.
    """
    return _llama("Llama 3 8B", batch, tokens, 32 * deeper, vocabulary=128256, experts=0)


def mixtral_8x7b(batch: int, tokens: int, deeper: int = 1) -> Network:
    """Mixtral 8x7B on a prompt: as Llama, with 8 experts per block, 2 of them for each token.

    Tokens are assumed to spread evenly over the experts: each gets a quarter of them. An operator
    per expert gathers its tokens, so that it can run on the device of the tokens.
    Jiang et al., "Mixtral of experts", arXiv:2401.04088, Table 1.
    """
    return _llama("Mixtral 8x7B", batch, tokens, 32 * deeper, vocabulary=32000, experts=8)


def _llama(
    title: str, batch: int, tokens: int, blocks: int, vocabulary: int, experts: int
) -> Network:
    width, narrow, inner = 4096, 1024, 14336
    net = Network(title, _sample(batch, tokens))
    with net.layer("embedding"):
        x = embedding(net, NetworkTensor((batch, tokens)), vocabulary, width, "tokens")
    for i in range(blocks):
        with net.layer(f"block.{i}.attention"):
            y = norm(net, "rmsnorm", x, "norm")
            query = linear(net, y, width, "query", bias=False)
            key = linear(net, y, narrow, "key", bias=False)
            value = linear(net, y, narrow, "value", bias=False)
            query = elementwise(net, "rotary", query, name="rotary_query")
            key = elementwise(net, "rotary", key, name="rotary_key")
            net.cache(key, value)
            y = fused_attention(net, query, key, value, causal=True)
            y = linear(net, y, width, "output", bias=False)
            x = elementwise(net, "add", x, y, name="residual")
        if experts:
            x = _experts(net, x, f"block.{i}", experts, inner)
            continue
        with net.layer(f"block.{i}.mlp"):
            y = norm(net, "rmsnorm", x, "norm")
            x = elementwise(net, "add", x, _swiglu(net, y, inner), name="residual")
    with net.layer("head"):
        x = norm(net, "rmsnorm", x, "norm")
        linear(net, x, vocabulary, "logits", bias=False)
    return net


def _experts(net: Network, x: NetworkTensor, block: str, experts: int, inner: int) -> NetworkTensor:
    """Experts, 2 for each token, with router and weighted sum of their outputs."""
    chosen = 2
    batch, tokens, width = x.shape
    share = -(-batch * tokens * chosen // experts)
    with net.layer(f"{block}.router"):
        y = norm(net, "rmsnorm", x, "norm")
        scores = linear(net, y, experts, "gate", bias=False)
        weights = elementwise(net, "softmax", scores)
    outputs = []
    for e in range(experts):
        with net.layer(f"{block}.expert.{e}"):
            mine = net.add(
                "gather",
                "gather",
                (y, weights),
                (share, width),
                flops=0,
                reads=Reads(elements=share * width + weights.elements),
                saves="nothing",
            )
            outputs.append(_swiglu(net, mine, inner))
    with net.layer(f"{block}.combine"):
        flops = 2 * chosen * x.elements
        z = net.add("combine", "combine", (weights, *outputs), x.shape, flops=flops, saves="inputs")
        return elementwise(net, "add", x, z, name="residual")


def _swiglu(net: Network, x: NetworkTensor, inner: int) -> NetworkTensor:
    gate = linear(net, x, inner, "gate", bias=False)
    up = linear(net, x, inner, "up", bias=False)
    return linear(net, elementwise(net, "swiglu", gate, up), x.shape[-1], "down", bias=False)


def bert_large(batch: int, tokens: int, deeper: int = 1) -> Network:
    """BERT-Large (uncased) in pre-training: 24 blocks, width 1024, 16 heads, both heads on top.

    Devlin et al., "BERT", NAACL 2019 (340M, rounded); the count includes the pooler, the masked
    language model's transform and bias (its matrix is the embedding's), and the next-sentence
    classifier, as in the checkpoint ``google-bert/bert-large-uncased``.
    """
    width, heads, vocabulary = 1024, 16, 30522
    _at_most(tokens, 512)
    net = Network("BERT-Large", _sample(batch, tokens))
    with net.layer("embedding"):
        x = embedding(net, NetworkTensor((batch, tokens)), vocabulary, width, "tokens")
        positions = learned(net, (tokens, width), "positions", rows=512)
        segments = embedding(net, NetworkTensor((batch, tokens)), 2, width, "segments")
        x = elementwise(net, "add", x, positions, segments)
        x = norm(net, "layernorm", x, "norm")
    for i in range(24 * deeper):
        with net.layer(f"block.{i}.attention"):
            x = norm(net, "layernorm", _self_attention(net, x, x, heads), "norm")
        with net.layer(f"block.{i}.mlp"):
            x = elementwise(net, "add", x, _mlp(net, x, 4 * width), name="residual")
            x = norm(net, "layernorm", x, "norm")
    with net.layer("pooler"):
        pooled = elementwise(net, "tanh", linear(net, first_token(x), width, "dense"))
        linear(net, pooled, 2, "next_sentence")
    with net.layer("head"):
        x = elementwise(net, "gelu", linear(net, x, width, "transform"))
        x = norm(net, "layernorm", x, "norm")
        linear(net, x, vocabulary, "logits", owner=TABLE)
    return net


def t5_large(batch: int, tokens: int, deeper: int = 1) -> Network:
    """T5-Large: 24 blocks each in encoder and decoder, width 1024, 16 heads, tied table.

    The decoder gets as many tokens as the encoder. The relative position bias of each half is
    computed once and used by all its blocks. Raffel et al., "Exploring the limits of transfer
    learning with a unified text-to-text transformer", JMLR 2020; count as in the checkpoint
    ``google-t5/t5-large``.
    """
    width, heads, inner, vocabulary = 1024, 16, 4096, 32128
    net = Network("T5-Large", _sample(batch, tokens))
    with net.layer("embedding"):
        x = embedding(net, NetworkTensor((batch, tokens)), vocabulary, width, "tokens")
    with net.layer("decoder.embedding"):
        z = embedding(net, NetworkTensor((batch, tokens)), vocabulary, width, "tokens", owner=TABLE)
    bias = _position_bias(net, "encoder", tokens, heads)
    for i in range(24 * deeper):
        with net.layer(f"encoder.{i}.attention"):
            y = norm(net, "rmsnorm", x, "norm")
            x = _self_attention(net, x, y, heads, affine=False, position=bias)
        with net.layer(f"encoder.{i}.mlp"):
            y = norm(net, "rmsnorm", x, "norm")
            x = elementwise(net, "add", x, _relu_mlp(net, y, inner), name="residual")
    with net.layer("encoder.norm"):
        encoded = norm(net, "rmsnorm", x, "norm")
    bias = _position_bias(net, "decoder", tokens, heads)
    for i in range(24 * deeper):
        with net.layer(f"decoder.{i}.attention"):
            y = norm(net, "rmsnorm", z, "norm")
            z = _self_attention(net, z, y, heads, affine=False, position=bias, cached=True)
        with net.layer(f"decoder.{i}.cross"):
            y = norm(net, "rmsnorm", z, "norm")
            query = linear(net, y, width, "query", bias=False)
            key = linear(net, encoded, width, "key", bias=False)
            value = linear(net, encoded, width, "value", bias=False)
            net.cache(key, value)
            y = attention(net, query, key, value, heads)
            y = linear(net, y, width, "output", bias=False)
            z = elementwise(net, "add", z, y, name="residual")
        with net.layer(f"decoder.{i}.mlp"):
            y = norm(net, "rmsnorm", z, "norm")
            z = elementwise(net, "add", z, _relu_mlp(net, y, inner), name="residual")
    with net.layer("head"):
        z = norm(net, "rmsnorm", z, "norm")
        linear(net, z, vocabulary, "logits", bias=False, owner=TABLE)
    return net


def _position_bias(net: Network, half: str, tokens: int, heads: int) -> NetworkTensor:
    """Bias per head and class of distances, of which there are 32."""
    shape = (1, heads, tokens, tokens)
    size = NetworkTensor(shape).elements
    with net.layer(f"{half}.position_bias"):
        return net.add(
            "embedding",
            "",
            (),
            shape,
            flops=0,
            reads=Reads(32 * heads, weights=size),
            saves="nothing",
        )


def _self_attention(
    net: Network,
    x: NetworkTensor,
    y: NetworkTensor,
    heads: int,
    *,
    affine: bool = True,
    position: NetworkTensor | None = None,
    cached: bool = False,
) -> NetworkTensor:
    """Self-attention of `y` in unfused operators, added to `x`."""
    width = x.shape[-1]
    query = linear(net, y, width, "query", bias=affine)
    key = linear(net, y, width, "key", bias=affine)
    value = linear(net, y, width, "value", bias=affine)
    if cached:
        net.cache(key, value)
    y = attention(net, query, key, value, heads, bias=position)
    y = linear(net, y, width, "output", bias=affine)
    return elementwise(net, "add", x, y, name="residual")


def _mlp(net: Network, x: NetworkTensor, inner: int) -> NetworkTensor:
    y = elementwise(net, "gelu", linear(net, x, inner, "expand"))
    return linear(net, y, x.shape[-1], "contract")


def _relu_mlp(net: Network, x: NetworkTensor, inner: int) -> NetworkTensor:
    y = elementwise(net, "relu", linear(net, x, inner, "expand", bias=False))
    return linear(net, y, x.shape[-1], "contract", bias=False)


def _sample(batch: int, tokens: int) -> str:
    return f"batch {batch}, {tokens} tokens each"


def _at_most(tokens: int, limit: int) -> None:
    if tokens > limit:
        raise InputError(f"size: {tokens} tokens, but the network has only {limit} positions")
