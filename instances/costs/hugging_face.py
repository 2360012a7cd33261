"""Model descriptions from Hugging Face configurations (`config.json`).

Each architecture has a reader, which interprets the fields; `_READERS` lists them by
``model_type``. An unlisted architecture is refused, since a guess at its blocks would be a guess at
costs. Of models that also take images or sound, only the text model is read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..common.errors import InputError, prefix_errors, quote
from ..common.units import MOST_COUNT
from ..formats.source import Source
from .description import Attention, Block, Experts, FeedForward, ModelDescription, Norm

#: Most layers of a description.
MOST_LAYERS = 100_000


class _Config:
    """Fields of a configuration, checked when they are read; error messages name the file."""

    def __init__(self, name: str, model: str, fields: Mapping[str, Any]) -> None:
        self.name, self.model, self.fields = name, model, fields  # of the file, and of the model

    def has(self, *keys: str) -> bool:
        """Whether one of these fields exists and is not null."""
        return any(self.fields.get(key) is not None for key in keys)

    def count(self, *keys: str, default: int | None = None, least: int = 1) -> int:
        """Return the first of these fields that exists, as a whole number."""
        key = next((key for key in keys if self.has(key)), None)
        if key is None:
            if default is None:
                raise InputError(
                    f"{self.name}: {keys[0]}: missing; add it (a whole number of at least {least})"
                )
            return default
        value = self.fields[key]
        whole = isinstance(value, int) and not isinstance(value, bool)
        if not whole or not least <= value <= MOST_COUNT:
            raise InputError(
                f"{self.name}: {key}: {quote(value)}; it must be a whole number, {least} or more"
            )
        return int(value)

    def flag(self, key: str, *, default: bool) -> bool:
        """Return a field that is true or false."""
        value = self.fields.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise InputError(f"{self.name}: {key}: {quote(value)}; it must be true or false")
        return value

    def positive(self, *keys: str, default: float) -> bool:
        """Return whether the first of these fields that is there is a number above 0."""
        value = next((self.fields[key] for key in keys if self.has(key)), default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise InputError(f"{self.name}: {keys[0]}: {quote(value)}; it must be a number")
        return value > 0

    def text(self, key: str, default: str) -> str:
        """Return a field that is a text."""
        value = self.fields.get(key)
        if value is None:
            return default
        if not isinstance(value, str):
            raise InputError(f"{self.name}: {key}: {quote(value)}; it must be a text")
        return value

    def array(self, key: str) -> list[Any] | None:
        """Return a field that is an array, or None."""
        value = self.fields.get(key)
        if value is not None and not isinstance(value, list):
            raise InputError(f"{self.name}: {key}: {quote(value)}; it must be an array")
        return value

    def positions(self, key: str) -> set[int] | None:
        """Return a field that is an array of positions of layers, or None.

        Some may be beyond the last layer, as in configurations of which only layers were taken out.
        """
        values = self.array(key)
        wrong = [value for value in values or () if type(value) is not int]
        if wrong:
            raise InputError(f"{self.name}: {key}: {quote(wrong[0])}; give numbers of layers")
        return None if values is None else set(values)

    @property
    def layers(self) -> int:
        """Blocks of the model, or of its decoder."""
        layers = self.count("num_hidden_layers", "n_layer", "num_layers")
        if layers > MOST_LAYERS:
            raise InputError(f"{self.name}: {layers} layers; at most {MOST_LAYERS} are read")
        return layers

    @property
    def hidden(self) -> int:
        """Width of the model."""
        return self.count("hidden_size", "n_embd", "n_embed", "d_model")

    @property
    def heads(self) -> int:
        """Query heads."""
        return self.count("num_attention_heads", "n_head", "num_heads")

    def head_dim(self) -> int:
        """Width of a head; by default the model's, divided evenly."""
        if self.has("head_dim"):
            return self.count("head_dim")
        if self.hidden % self.heads:
            raise InputError(
                f"{self.name}: {self.heads} heads do not divide hidden_size {self.hidden}; "
                "give head_dim"
            )
        return self.hidden // self.heads

    def windows(self, window: int | None, slides: Callable[[int], bool]) -> list[int | None]:
        """Return each layer's window, None for full attention: by ``layer_types``, or `slides`."""
        kinds = self.array("layer_types")
        if kinds is None or window is None:
            return [window if slides(layer) else None for layer in range(self.layers)]
        if len(kinds) != self.layers:
            raise InputError(
                f"{self.name}: layer_types: {len(kinds)} entries for {self.layers} layers"
            )
        known = {"full_attention": None, "sliding_attention": window, "chunked_attention": window}
        for kind in kinds:
            if not isinstance(kind, str) or kind not in known:
                raise InputError(
                    f"{self.name}: layer_types: {quote(kind)} is not one of {', '.join(known)}"
                )
        return [known[kind] for kind in kinds]

    def window(self) -> int | None:
        """Return the length of the sliding window in positions, or None."""
        return self.count("sliding_window") if self.has("sliding_window") else None


def read_config(source: Source) -> ModelDescription:
    """Return the description of the model that a Hugging Face ``config.json`` configures.

    InputError if its architecture is unknown, or a field is missing or wrong.
    """
    fields, path = source.table("a Hugging Face config.json"), Path(source.file)
    name = path.parent.name if path.name == "config.json" else path.stem
    return from_config(fields, name=name or path.stem, source=source.file)


def from_config(fields: Mapping[str, Any], *, name: str, source: str = "") -> ModelDescription:
    """Return the description of the model that the fields of a ``config.json`` configure.

    For models with several parts, ``text_config`` is read. If the architecture is unknown, or a
    field is missing or wrong, InputError names the source.

    Examples
    --------
    >>> fields = {"model_type": "gpt2", "n_layer": 12, "n_head": 12, "n_embd": 768,
    ...           "n_positions": 1024, "vocab_size": 50257}
    >>> from_config(fields, name="gpt2").parameters
    124439808
    """
    where = source or name
    nested = fields.get("text_config")
    if isinstance(nested, dict):
        tied = {"tie_word_embeddings": fields.get("tie_word_embeddings")}
        nested = tied | nested
        nested.setdefault("model_type", fields.get("model_type"))
        fields = nested
    kind = fields.get("model_type")
    reader = _READERS.get(kind) if isinstance(kind, str) else None
    if reader is None:
        raise InputError(
            f"{where}: architecture {quote(kind)} is not known; known are "
            f"{', '.join(_READERS)}; describe another by the fields of one of these"
        )
    with prefix_errors(where, "model"):
        return reader(_Config(where, name, fields))


# The readers, one per architecture. Fields that a configuration may leave out have the defaults of
# the architecture's configuration class.


def _llama(config: _Config) -> ModelDescription:
    """Llama 2 and 3, and Mistral, which adds a sliding window."""
    bias = config.flag("attention_bias", default=False)
    block = Block(
        _grouped(config, window=config.window(), bias=bias, output_bias=bias),
        feed_forward=FeedForward(
            config.count("intermediate_size"), bias=config.flag("mlp_bias", default=False)
        ),
    )
    return _model(config, [block] * config.layers)


def _grouped(
    config: _Config,
    *,
    window: int | None = None,
    bias: bool = False,
    output_bias: bool = False,
    qk_norm: bool = False,
    sinks: bool = False,
) -> Attention:
    """Return attention with the configuration's heads, key and value heads, and head width."""
    heads = config.heads
    kv_heads = config.count("num_key_value_heads", default=heads)
    if heads % kv_heads:
        raise InputError(
            f"{config.name}: num_key_value_heads {kv_heads} does not divide {heads} heads"
        )
    return Attention(
        heads, kv_heads, config.head_dim(), window=window, bias=bias, output_bias=output_bias,
        qk_norm=qk_norm, sinks=sinks,
    )  # fmt: skip


def _model(
    config: _Config, blocks: Sequence[Block], *, tied: bool = False, **own: Any
) -> ModelDescription:
    """Return the description with these blocks; `tied` is the default for tied embeddings."""
    if "vocabulary" not in own:
        own["vocabulary"] = config.count("vocab_size")
    return ModelDescription(
        config.model,
        config.hidden,
        blocks=tuple(blocks),
        tied=config.flag("tie_word_embeddings", default=tied),
        source=config.name,
        **own,
    )


def _with_layer_norms(
    config: _Config, width: int, dropout: bool, *, dense_bias: bool = True, **attention: bool
) -> Block:
    """Return a block like GPT-2's: layer norms, multi-head attention, ungated, with biases."""
    heads = config.heads
    own = {"bias": True, "output_bias": True, **attention}
    return Block(
        Attention(heads, heads, config.head_dim(), **own),
        feed_forward=FeedForward(width, gated=False, bias=dense_bias),
        norm=Norm.LAYER,
        dropout=dropout,
    )


def _llama4(config: _Config) -> ModelDescription:
    """Llama 4's text model: every step-th layer has experts; 3 of 4 layers attend to chunks."""
    layers = config.layers
    chunk = config.count("attention_chunk_size", default=8192)
    roped = config.array("no_rope_layers")
    if roped is not None and len(roped) == layers:
        windows = config.windows(chunk, lambda layer: bool(roped[layer]))
    else:
        windows = config.windows(chunk, lambda layer: (layer + 1) % 4 != 0)
    step = config.count("interleave_moe_layer_step", default=1)
    listed = config.positions("moe_layers")
    sparse = set(range(step - 1, layers, step)) if listed is None else listed
    width = config.count("intermediate_size")
    experts = Experts(
        config.count("num_local_experts"),
        config.count("num_experts_per_tok", default=1),
        width,
        shared_width=width,
    )
    dense = FeedForward(config.count("intermediate_size_mlp", "intermediate_size"))
    bias = config.flag("attention_bias", default=False)
    blocks = []
    for layer, window in enumerate(windows):
        attention = _grouped(config, window=window, bias=bias, output_bias=bias)
        blocks.append(_either(attention, dense, experts, sparse=layer in sparse))
    return _model(config, blocks)


def _either(
    attention: Attention, dense: FeedForward | None, experts: Experts, *, sparse: bool
) -> Block:
    """Return a block with experts, or with one feed-forward layer."""
    if sparse:
        return Block(attention, experts=experts)
    return Block(attention, feed_forward=dense)


def _mixtral(config: _Config) -> ModelDescription:
    experts = Experts(
        config.count("num_local_experts"),
        config.count("num_experts_per_tok"),
        config.count("intermediate_size"),
    )
    block = Block(_grouped(config, window=config.window()), experts=experts)
    return _model(config, [block] * config.layers)


def _qwen(config: _Config) -> ModelDescription:
    """Qwen 2 and 2.5 (biases of query, key and value) and 3 (normalized queries and keys)."""
    third = config.text("model_type", "qwen2").startswith("qwen3")
    dense = FeedForward(config.count("intermediate_size"))
    blocks = [
        Block(_qwen_attention(config, window, third=third), feed_forward=dense)
        for window in _qwen_windows(config)
    ]
    return _model(config, blocks)


def _qwen_windows(config: _Config) -> list[int | None]:
    window = config.window() if config.flag("use_sliding_window", default=False) else None
    first = config.count("max_window_layers", default=28, least=0)
    return config.windows(window, lambda layer: layer >= first)


def _qwen_attention(config: _Config, window: int | None, *, third: bool) -> Attention:
    if third and not config.has("head_dim"):
        raise InputError(f"{config.name}: head_dim: missing; add it (128 in Qwen 3)")
    own = config.flag("attention_bias", default=False)
    return _grouped(
        config, window=window, bias=own if third else True, output_bias=third and own, qk_norm=third
    )


def _qwen_moe(config: _Config) -> ModelDescription:
    """Qwen 2 and 3 with experts; the second has a gated shared expert."""
    third = config.text("model_type", "qwen2_moe").startswith("qwen3")
    shared = 0 if third else config.count("shared_expert_intermediate_size", least=0)
    experts = Experts(
        config.count("num_experts"),
        config.count("num_experts_per_tok"),
        config.count("moe_intermediate_size"),
        shared_width=shared,
        shared_gate=shared > 0,
    )
    dense = (
        FeedForward(config.count("intermediate_size")) if config.has("intermediate_size") else None
    )
    step = config.count("decoder_sparse_step", default=1)
    plain = config.positions("mlp_only_layers") or set()
    blocks = []
    for layer, window in enumerate(_qwen_windows(config)):
        attention = _qwen_attention(config, window, third=third)
        sparse = layer not in plain and (layer + 1) % step == 0
        if not sparse and dense is None:
            config.count("intermediate_size")
        blocks.append(_either(attention, dense, experts, sparse=sparse))
    return _model(config, blocks)


def _gemma(config: _Config) -> ModelDescription:
    """Gemma 2 and 3: four norms per block; every second or sixth layer has full attention."""
    third = config.text("model_type", "gemma2").startswith("gemma3")
    if third:  # configurations of Gemma 3 leave out what equals the class's defaults
        defaults = {
            "vocab_size": 262_208, "hidden_size": 2304, "intermediate_size": 9216,
            "num_hidden_layers": 26, "num_attention_heads": 8, "num_key_value_heads": 4,
            "head_dim": 256, "sliding_window": 4096,
        }  # fmt: skip
        given = {key: value for key, value in config.fields.items() if value is not None}
        config = _Config(config.name, config.model, defaults | given)
    period = config.count("sliding_window_pattern", default=6 if third else 2)
    windows = config.windows(config.window(), lambda layer: (layer + 1) % period != 0)
    if not config.has("head_dim"):
        raise InputError(f"{config.name}: head_dim: missing; add it (256 in most Gemma models)")
    bias = config.flag("attention_bias", default=False)
    dense = FeedForward(config.count("intermediate_size"))
    blocks = [
        Block(
            _grouped(config, window=window, bias=bias, output_bias=bias, qk_norm=third),
            feed_forward=dense,
            norms=4,
        )
        for window in windows
    ]
    return _model(config, blocks, tied=True)


def _gpt2(config: _Config) -> ModelDescription:
    """GPT-2, and models described by its fields, such as GPT-3."""
    width = config.count("n_inner", default=4 * config.hidden)
    block = _with_layer_norms(config, width, config.positive("resid_pdrop", default=0.1))
    positions = config.count("n_positions", "n_ctx")
    return _model(config, [block] * config.layers, tied=True, positions=positions)


def _gpt_neox(config: _Config) -> ModelDescription:
    bias, width = config.flag("attention_bias", default=True), config.count("intermediate_size")
    dropout = config.positive("hidden_dropout", default=0.0)
    block = _with_layer_norms(config, width, dropout, bias=bias, output_bias=bias)
    return _model(config, [block] * config.layers)


def _opt(config: _Config) -> ModelDescription:
    """OPT: two rows of the position embedding stand for padding."""
    hidden = config.hidden
    if config.count("word_embed_proj_dim", default=hidden) != hidden:
        raise InputError(
            f"{config.name}: word_embed_proj_dim differs from hidden_size {hidden}; only models "
            "whose embedding is as wide as their blocks are read"
        )
    if not config.flag("do_layer_norm_before", default=True):
        raise InputError(f"{config.name}: do_layer_norm_before: false is not read; only true")
    bias = config.flag("enable_bias", default=True)
    width, dropout = config.count("ffn_dim"), config.positive("dropout", default=0.1)
    block = _with_layer_norms(config, width, dropout, dense_bias=bias, bias=bias, output_bias=bias)
    positions = config.count("max_position_embeddings") + 2
    return _model(config, [block] * config.layers, tied=True, positions=positions)


def _bloom(config: _Config) -> ModelDescription:
    """BLOOM: a norm after the embedding, and no position embedding (ALiBi)."""
    hidden, dropout = config.hidden, config.positive("hidden_dropout", default=0.0)
    block = _with_layer_norms(config, 4 * hidden, dropout)
    return _model(config, [block] * config.layers, tied=True, more_embedding=2 * hidden)


def _phi(config: _Config) -> ModelDescription:
    """Phi 1, 1.5 and 2: attention and feed-forward layer in parallel, after one norm."""
    block = Block(
        _grouped(config, bias=True, output_bias=True),
        feed_forward=FeedForward(config.count("intermediate_size"), gated=False, bias=True),
        norm=Norm.LAYER,
        norms=1,
        dropout=config.positive("resid_pdrop", default=0.0),
    )
    more = config.count("vocab_size")  # the head's bias
    return _model(config, [block] * config.layers, more_head=more)


def _phi3(config: _Config) -> ModelDescription:
    """Phi 3 and 4."""
    block = Block(
        _grouped(config, window=config.window()),
        feed_forward=FeedForward(config.count("intermediate_size")),
        dropout=config.positive("resid_pdrop", default=0.0),
    )
    return _model(config, [block] * config.layers)


def _deepseek(config: _Config) -> ModelDescription:
    """DeepSeek V2 and V3, Kimi K2: latent attention, first layers dense, then experts."""
    heads, layers = config.heads, config.layers
    bias = config.flag("attention_bias", default=False)
    attention = Attention(
        heads,
        heads,
        config.count("qk_nope_head_dim"),
        value_dim=config.count("v_head_dim"),
        q_rank=config.count("q_lora_rank", default=0),
        kv_rank=config.count("kv_lora_rank"),
        rope_dim=config.count("qk_rope_head_dim"),
        bias=bias,
        output_bias=bias,
    )
    width = config.count("moe_intermediate_size")
    experts = Experts(
        config.count("n_routed_experts"),
        config.count("num_experts_per_tok"),
        width,
        shared_width=width * config.count("n_shared_experts", default=0, least=0),
        router_bias=config.text("topk_method", "") == "noaux_tc",
    )
    dense = FeedForward(config.count("intermediate_size"))
    first = config.count("first_k_dense_replace", default=0, least=0)
    step = config.count("moe_layer_freq", default=1)
    blocks = [
        _either(attention, dense, experts, sparse=layer >= first and layer % step == 0)
        for layer in range(layers)
    ]
    predicted = config.count("num_nextn_predict_layers", default=0, least=0)
    return _model(config, blocks, mtp=(Block(attention, experts=experts),) * predicted)


def _gpt_oss(config: _Config) -> ModelDescription:
    """GPT-OSS: biases everywhere, a sink per head, every second layer a window of 128."""
    experts = Experts(
        config.count("num_local_experts"),
        config.count("num_experts_per_tok", "experts_per_token"),
        config.count("intermediate_size"),
        bias=True,
        router_bias=True,
    )
    bias = config.flag("attention_bias", default=True)
    windows = config.windows(config.window(), lambda layer: layer % 2 == 0)
    blocks = [
        Block(
            _grouped(config, window=window, bias=bias, output_bias=bias, sinks=True),
            experts=experts,
        )
        for window in windows
    ]
    return _model(config, blocks)


def _t5(config: _Config) -> ModelDescription:
    """T5 and its successors: encoder and decoder, with biases of relative positions."""
    heads = config.heads
    gated = config.text("feed_forward_proj", "relu").startswith("gated")
    dense = FeedForward(config.count("d_ff"), gated=gated)
    dropout = config.positive("dropout_rate", default=0.1)
    around = Attention(heads, heads, config.count("d_kv"), causal=False)
    encoder = Block(around, feed_forward=dense, dropout=dropout)
    decoder = Block(
        Attention(heads, heads, config.count("d_kv")),
        cross_attention=around,
        feed_forward=dense,
        norms=3,
        dropout=dropout,
    )
    layers = config.count("num_layers")
    buckets = config.count("relative_attention_num_buckets", default=32)
    return _model(
        config,
        [decoder] * config.count("num_decoder_layers", default=layers),
        encoder=(encoder,) * layers,
        tied=True,
        more_embedding=2 * buckets * heads,
        more_head=config.hidden,  # the norm after the encoder
    )


def _bert(config: _Config) -> ModelDescription:
    """BERT with its head for masked tokens: norms follow the parts of a block."""
    hidden, width = config.hidden, config.count("intermediate_size")
    dropout = config.positive("hidden_dropout_prob", default=0.1)
    return _model(
        config,
        [_with_layer_norms(config, width, dropout, causal=False)] * config.layers,
        tied=True,
        positions=config.count("max_position_embeddings"),
        token_types=config.count("type_vocab_size"),
        final_norm=False,
        more_embedding=2 * hidden,
        more_head=(hidden + 1) * hidden + 2 * hidden + config.count("vocab_size"),
    )


def _vit(config: _Config) -> ModelDescription:
    """ViT with its classifier: a token per patch, and one for the class."""
    side, patch = config.count("image_size", default=224), config.count("patch_size", default=16)
    if side % patch:
        raise InputError(f"{config.name}: patch_size {patch} does not divide image_size {side}")
    bias = config.flag("qkv_bias", default=True)
    width, dropout = (
        config.count("intermediate_size"),
        config.positive("hidden_dropout_prob", default=0.0),
    )
    block = _with_layer_norms(config, width, dropout, causal=False, bias=bias)
    labels = config.fields.get("id2label")
    named = len(labels) if isinstance(labels, dict) else 0
    return _model(
        config,
        [block] * config.layers,
        vocabulary=0,
        positions=(side // patch) ** 2 + 1,
        head=False,
        patch_inputs=config.count("num_channels", default=3) * patch * patch,
        classes=config.count("num_labels", default=named, least=0),
        more_embedding=config.hidden,  # the class token
    )


_Reader = Callable[[_Config], ModelDescription]

#: Readers by ``model_type``.
_READERS: dict[str, _Reader] = {
    "llama": _llama,
    "llama4": _llama4,
    "llama4_text": _llama4,
    "mistral": _llama,
    "mixtral": _mixtral,
    "qwen2": _qwen,
    "qwen2_moe": _qwen_moe,
    "qwen3": _qwen,
    "qwen3_moe": _qwen_moe,
    "gemma2": _gemma,
    "gemma3": _gemma,
    "gemma3_text": _gemma,
    "gpt2": _gpt2,
    "gpt_neox": _gpt_neox,
    "opt": _opt,
    "bloom": _bloom,
    "phi": _phi,
    "phi3": _phi3,
    "deepseek_v2": _deepseek,
    "deepseek_v3": _deepseek,
    "kimi_k2": _deepseek,
    "gpt_oss": _gpt_oss,
    "t5": _t5,
    "mt5": _t5,
    "bert": _bert,
    "vit": _vit,
}
