"""Seconds of a layer type on one rank under a layout, part by part.

A block is a list of parts in the order in which they run: matrix products, attention, pointwise
work, collectives. A part belongs to a module (the unit of recomputation) and to a term (by which
reports add up), and has the seconds of its forward pass, its gradient with respect to inputs and
that with respect to weights. Recomputation adds the forward passes of all parts of its modules.

A rank has T = microbatch · sequence / context tokens; with sequence parallelism over t ranks, T/t
of them outside tensor-parallel regions.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter

from .activations import (
    WIDE,
    activation_bytes,
    element_bytes,
    fused,
    loss_bytes,
    masks_window,
    norm_bytes,
    one_by_one,
)
from .calibration import (
    ELEMENT,
    Calibration,
    fused_attention,
    pointwise,
    product,
    tables_by_kind,
)
from .collectives import (
    Group,
    UsedLinks,
    all_gather,
    all_reduce,
    all_to_all,
    crowding,
    links_of,
    members_per_domain,
    skew,
)
from .description import Attention, Block, Experts, FeedForward, ModelDescription, Norm
from .experts import (
    EXPERT_LAUNCHES,
    ROUTER_LAUNCHES,
    Product,
    dispatched,
    expert_products,
    permutation_bytes,
    routed_rows,
    router_bytes,
)
from .hardware import NumberFormat, TrainingCluster
from .layout import ContextKind, Graphs, Layout, Recompute, Software, axis_stride

#: Terms by which the time of a pass is added up.
TERMS = ("products", "attention", "pointwise", "tensor", "context", "experts", "layers")
#: Terms of kernels that compute.
COMPUTED = TERMS[:3]


@dataclass(frozen=True)
class LayerPart:
    """One step of a block, with the seconds of its forward pass and of its two gradients."""

    module: str  # module to which it belongs, as in `Recompute`
    term: str  # one of `TERMS`
    # forward, inputs, weights: seconds forward, of gradients of inputs, and of gradients of weights
    forward: float
    inputs: float = 0.0
    weights: float = 0.0
    # kernels of the forward pass, and of the backward pass; None: twice as many
    kernels: float = 1.0
    backward_kernels: float | None = None
    # seconds of each pass in which ranks wait for each other and no kernel runs
    wait: float = 0.0
    # links that a collective keeps busy, and its seconds in each pass, hidden ones included
    links: UsedLinks = UsedLinks.NONE
    busy: tuple[float, float] = (0.0, 0.0)


@dataclass(frozen=True)
class LayerTime:
    """Seconds of a layer's passes for one microbatch, as a whole and by term."""

    # forward, backward: whole passes; `backward` includes `weights` and recomputation
    forward: float
    backward: float
    weights: float  # seconds of the backward pass for gradients of weights
    # seconds by term, with recomputation and host; they sum to the two passes
    terms: tuple[tuple[str, float], ...]
    # seconds of the forward and of the backward pass in which collectives keep only peer links
    # busy, then only the network, then both
    busy: tuple[float, ...] = (0.0,) * 6


@dataclass(frozen=True)
class Setting:
    """Layout, cluster and calibration, on which a layer's time depends."""

    layout: Layout
    cluster: TrainingCluster
    calibration: Calibration

    @property
    def tokens(self) -> float:
        """Tokens of a rank inside tensor-parallel regions."""
        return self.layout.tokens

    @property
    def outer(self) -> float:
        """Tokens of a rank outside tensor-parallel regions."""
        return self.tokens / (self.layout.tensor if self.layout.sequence_parallel else 1)

    @property
    def element(self) -> float:
        """Bytes per element of activations."""
        return element_bytes(self.layout)

    @property
    def precision(self) -> NumberFormat:
        """Precision of linear layers' products."""
        return self.layout.recipe.compute

    @property
    def wide(self) -> NumberFormat:
        """Precision of attention's and the router's products: at least 16 bits."""
        compute = self.precision
        return compute if compute in WIDE else NumberFormat.BF16


def linear(
    at: Setting,
    module: str,
    n: float,
    k: float,
    m: float | None = None,
    *,
    precision: NumberFormat | None = None,
    matrices: int = 1,
    biased: bool = False,
) -> LayerPart:
    """Return the part of linear layers from k to n features in all, for m tokens (default: all)."""
    one = Product(1, at.tokens if m is None else m, n, k)
    part = _products(at, module, one, precision or at.precision)
    # Gradients of a matrix, of its input and its bias; those of one input are added up.
    behind = (2 + biased) * matrices + matrices - 1
    return in_modules(part, at, matrices, behind, matrices * (1 + biased))


def _products(
    at: Setting, module: str, one: Product, precision: NumberFormat, times: int = 1
) -> LayerPart:
    """Return the part of products with a layer's weights, repeated `times` times in sequence."""
    m, n, k, count = one.m, one.n, one.k, one.count
    device, reach = at.cluster.accelerator, at.calibration.kernels
    forward = times * product(m, n, k, count, device, precision, reach)
    inputs = times * product(m, k, n, count, device, precision, reach)
    weights = times * product(n, k, m, count, device, precision, reach, turned=True)
    # Adding a gradient to its accumulator reads and writes the accumulator.
    held = times * count * n * k
    weights += 2 * at.layout.recipe.gradient_bytes * held / (device.bandwidth * reach.memory)
    if precision not in WIDE:
        forward += pointwise(4 * times * count * m * k, 1, device, reach)
        inputs += pointwise(4 * times * count * m * n, 1, device, reach)
    return LayerPart(module, "products", forward, inputs, weights)


def memory_bound(
    at: Setting, module: str, forward: float, backward: float, kernels: float = 1
) -> LayerPart:
    """Return the part of pointwise kernels that move `forward` and `backward` bytes."""
    device, reach = at.cluster.accelerator, at.calibration.kernels
    ahead, behind = (pointwise(moved, kernels, device, reach) for moved in (forward, backward))
    return LayerPart(module, "pointwise", ahead, behind, kernels=kernels)


#: Kernels per parameter's gradient: a cast, and the addition to the accumulated gradient.
GRADIENT_KERNELS = 2


def in_modules(
    part: LayerPart, at: Setting, forward: float, backward: float, parameters: int = 0
) -> LayerPart:
    """Return a part with the kernel counts of PyTorch's modules, if the layout runs these.

    The backward pass also has the kernels of its `parameters` gradients. Counted in the dispatched
    operations of `runtime.execution.job.transformer`; attention's backward has two further kernels.
    """
    if not one_by_one(at.layout):
        return part
    behind = backward + GRADIENT_KERNELS * parameters
    return replace(part, kernels=forward, backward_kernels=behind)


def tensor_collective(
    at: Setting, module: str, hidden: int, *, enters: bool = True, leaves: bool = True
) -> LayerPart:
    """Return the collectives at the borders of a tensor-parallel region, in both passes.

    Without sequence parallelism, an all-reduce sums a region's outputs in the forward pass, and the
    gradients of its inputs in the backward pass. With it, either pass has an all-gather and a
    reduce-scatter; the backward pass's second gather of the inputs is not counted, as it overlaps
    with a product. The embedding only `leaves` a region, the head only `enters` one.
    """
    layout = at.layout
    if layout.tensor == 1:
        return LayerPart(module, "tensor", 0.0, kernels=0)
    group = Group(layout.tensor, axis_stride(layout, "tensor"))
    links, moved = at.calibration.links, at.element * at.tokens * hidden
    used = links_of(group, at.cluster)
    if not layout.sequence_parallel:
        once = all_reduce(moved, group, at.cluster, links)
        passes, wait = (once * leaves, once * enters), skew(group, links)
        return LayerPart(module, "tensor", *passes, wait=wait, links=used, busy=passes)
    once = all_gather(moved, group, at.cluster, links)
    borders = enters + leaves
    busy, wait = (borders * once, borders * once), borders * skew(group, links)
    if layout.overlap.tensor:
        once *= 1 - at.calibration.tensor_hidden
    shown = borders * once
    return LayerPart(
        module, "tensor", shown, shown, kernels=borders, wait=wait, links=used, busy=busy
    )


def attention_parts(
    at: Setting, attention: Attention, hidden: int, cross: int = 0, *, rotary: bool = False
) -> Iterator[LayerPart]:
    """Yield the parts of an attention between its norm and its residual addition."""
    layout = at.layout
    t, tokens = layout.tensor, at.tokens
    heads, kv = attention.heads / t, max(attention.kv_heads / t, 1)
    key, value = attention.key_width, attention.value_width
    q_out, kv_out = heads * key, kv * (key + value)
    if attention.latent:
        if attention.q_rank:
            yield linear(at, "linear", attention.q_rank, hidden, at.outer)
            yield linear(at, "mla_up_proj", q_out, attention.q_rank)
        else:
            yield linear(at, "linear", q_out, hidden)
        yield linear(at, "linear", attention.kv_rank + attention.rope_dim, hidden, at.outer)
        kv_out = heads * (attention.head_dim + value)
        yield linear(at, "mla_up_proj", kv_out, attention.kv_rank)
        moved = at.element * tokens * (q_out + kv_out)
        yield memory_bound(at, "mla_up_proj", 2 * moved, 2 * moved, 4)
    elif cross:
        yield linear(at, "linear", q_out, hidden)
        yield linear(at, "linear", kv_out, hidden, layout.microbatch * cross)
    else:
        yield linear(at, "linear", q_out + kv_out, hidden, matrices=3, biased=attention.bias)
    if attention.qk_norm:
        moved = at.element * tokens * (heads + kv) * key
        norms = memory_bound(at, "layernorm", *norm_bytes(layout, Norm.RMS, moved), 2)
        yield in_modules(norms, at, 4, 8, 2)  # of each head, copied before
    if rotary:
        moved = at.element * tokens * (heads + kv) * key
        if one_by_one(layout):
            # Angles, their cosines and sines; then, for queries and for keys, four products of
            # halves with these, a sum, a difference, a concatenation.
            yield in_modules(memory_bound(at, "linear", 15 * moved, 15.5 * moved, 24), at, 33, 19)
        else:
            yield memory_bound(at, "linear", 2 * moved, 2 * moved, 2)
    yield core_attention(at, attention, cross)
    yield from context_exchange(at, attention)
    yield linear(at, "linear", hidden, heads * value, biased=attention.output_bias)
    yield tensor_collective(at, "tensor", hidden)


def core_attention(at: Setting, attention: Attention, cross: int = 0) -> LayerPart:
    """Return the part of scores, softmax and weighted values: one kernel, or several if unfused."""
    layout, device, reach = at.layout, at.cluster.accelerator, at.calibration.kernels
    heads = attention.heads / layout.tensor
    seen = cross or layout.sequence
    rows = layout.sequence / layout.context
    key, value = attention.key_width, attention.value_width
    precision = at.wide
    if layout.fused_attention:
        visible = seen if cross or masks_window(attention, layout) else attention.visible(seen)
        operations = 2 * layout.microbatch * heads * rows * visible * (key + value)
        forward = fused_attention(operations, False, device, precision, reach)
        backward = fused_attention(2.5 * operations, True, device, precision, reach)
        part = LayerPart("core_attn", "attention", forward, backward)
        grouped = attention.kv_heads < attention.heads  # whose gradients are added up
        return in_modules(part, at, 1, 7 if grouped else 5)
    count = layout.microbatch * heads
    scores = count * rows * seen
    whole = int(16 / ELEMENT[precision])
    if key % whole or value % whole:
        # Batched products of such heads run on the ordinary units (BLOOM's candidates with heads
        # of 108 and 150 elements).
        device = replace(device, peak={**device.peak, precision: device.vector})
        key, value = (whole * math.ceil(width / whole) for width in (key, value))
    into = product(rows, seen, key, count, device, precision, reach)
    out = product(rows, value, seen, count, device, precision, reach)
    into_q = product(rows, key, seen, count, device, precision, reach)
    into_k = product(seen, key, rows, count, device, precision, reach, turned=True)
    out_p = product(rows, seen, value, count, device, precision, reach)
    out_v = product(seen, value, rows, count, device, precision, reach, turned=True)
    ahead, behind, kernels = 4.5 * at.element, 5.5 * at.element, 5
    if count % 4:
        # Megatron's kernel for the softmax takes scores of four heads at once; else two casts,
        # scale, mask and softmax run one by one, on 32-bit scores.
        ahead, behind, kernels = 41, 45, 9
    forward = into + out + pointwise(ahead * scores, kernels - 3, device, reach)
    backward = into_q + into_k + out_p + out_v
    backward += pointwise(behind * scores, kernels - 3, device, reach)
    return LayerPart("core_attn", "attention", forward, backward, kernels=kernels)


def context_exchange(at: Setting, attention: Attention) -> Iterator[LayerPart]:
    """Yield the exposed exchange of keys and values between context-parallel ranks."""
    layout = at.layout
    c = layout.context
    if c == 1:
        return
    group, links = Group(c, axis_stride(layout, "context")), at.calibration.links
    kv = max(attention.kv_heads / layout.tensor, 1)
    if attention.latent:
        kv = attention.heads / layout.tensor
    width, used = kv * (attention.key_width + attention.value_width), links_of(group, at.cluster)
    if layout.context_kind is ContextKind.ALL_TO_ALL:
        wide = attention.heads / layout.tensor * (attention.key_width + attention.value_width)
        once = all_to_all(at.element * at.tokens * (wide + width), group, at.cluster, links)
        busy = once, once
        yield LayerPart("core_attn", "context", *busy, kernels=4, links=used, busy=busy)
        return
    gathered = at.element * at.tokens * c * width
    once = all_gather(gathered, group, at.cluster, links)
    busy = once, 2 * once
    if layout.context_kind is ContextKind.ALL_GATHER:
        yield LayerPart("core_attn", "context", *busy, kernels=1, links=used, busy=busy)
        return
    core = core_attention(at, attention)
    forward = max(0.0, once - core.forward * (c - 1) / c)
    backward = max(0.0, 2 * once - core.inputs * (c - 1) / c)
    step = (c - 1) * at.calibration.links.start
    passes = forward + step, backward + step
    yield LayerPart("core_attn", "context", *passes, kernels=2 * c, links=used, busy=busy)


def feed_forward_parts(
    at: Setting, layer: FeedForward, hidden: int, tensor: int, tokens: float, module: str = "mlp"
) -> Iterator[LayerPart]:
    """Yield the parts of a feed-forward layer between norm and residual, without collectives."""
    width, into = layer.width / tensor, 2 if layer.gated else 1
    yield linear(at, module, into * width, hidden, tokens, matrices=into, biased=layer.bias)
    moved = at.element * tokens * width
    between = memory_bound(at, module, *activation_bytes(at.layout, layer.gated, moved))
    yield in_modules(between, at, into, 2 * into - 1)
    yield linear(at, module, hidden, width, tokens, biased=layer.bias)


def expert_parts(at: Setting, experts: Experts, hidden: int) -> Iterator[LayerPart]:
    """Yield the parts of a mixture of experts between norm and residual."""
    layout = at.layout
    local = at.tokens / layout.tensor
    yield linear(at, "moe_router", experts.experts, hidden, local, precision=at.wide)
    scores = router_bytes(experts, layout, hidden)
    yield memory_bound(at, "moe_router", scores, scores, ROUTER_LAUNCHES)
    copied = permutation_bytes(experts, layout, at.element * hidden)
    yield memory_bound(at, "moe", copied, copied, EXPERT_LAUNCHES)
    yield exchange_of_tokens(at, experts, hidden)
    into, out = expert_products(experts, layout, hidden)
    yield grouped(at, into)
    rows = routed_rows(experts, layout)
    between = at.element * rows * out.k
    if experts.bias and not layout.compiled:
        # GPT-OSS: bias, two clamps, sigmoid, gate and the router's weights are operations of
        # their own, some in 32 bits; going backward each has one or two.
        yield memory_bound(at, "moe_act", 31 * between, 60 * between, 12)
    else:
        yield memory_bound(at, "moe_act", *activation_bytes(layout, experts.gated, between))
    yield grouped(at, out)
    if experts.shared is not None:
        yield from feed_forward_parts(
            at, experts.shared, hidden, layout.tensor, at.tokens, "shared_experts"
        )
        yield tensor_collective(at, "shared_experts", hidden)


def grouped(at: Setting, one: Product) -> LayerPart:
    """Return the part of a grouped product over the experts of a device.

    This project's runtime computes one expert after the other instead.
    """
    alone = at.layout.software is Software.STAGECUT
    times, count = (one.count, 1) if alone else (1, one.count)
    each = replace(one, m=max(1.0, one.m), count=count)
    return replace(_products(at, "moe", each, at.precision, times), kernels=2.0 * times)


def exchange_of_tokens(at: Setting, experts: Experts, hidden: int) -> LayerPart:
    """Return dispatch and combine, each as long as the slower of peer links and network.

    If they overlap with another microbatch's computation, only the exposed time remains.
    """
    layout, cluster, links = at.layout, at.cluster, at.calibration.links
    group = Group(layout.expert * layout.expert_tensor, 1)
    if group.size == 1:
        return LayerPart("moe", "experts", 0.0, kernels=0)
    domain = members_per_domain(group, cluster)
    sent = dispatched(experts, layout, at.element * hidden, domain)
    inside = sent.domain / (cluster.accelerator.peer_bandwidth * links.peer)
    across = crowding(group, cluster) * sent.network / (cluster.network.bandwidth * links.network)
    once = links.start + links.skew * math.log2(group.size) + max(inside, across)
    used, busy = links_of(group, cluster), (2 * once, 2 * once)
    if layout.overlap.experts:
        once *= 1 - at.calibration.hidden
    return LayerPart("moe", "experts", 2 * once, 2 * once, kernels=4, links=used, busy=busy)


def block_parts(at: Setting, block: Block, hidden: int, encoded: int = 0) -> Iterator[LayerPart]:
    """Yield the parts of a block in the order in which they run.

    `encoded` is the number of positions of the encoder's output, for cross-attention.
    """
    if block.profiled is not None:
        one = block.profiled.at(at.layout.tensor)
        half = one.backward / 2
        yield LayerPart("layer", "layers", one.forward, half, half, kernels=0)
        return
    outer = at.element * at.outer * hidden
    layer_norm = block.norm is Norm.LAYER
    for _ in range(block.norms):
        norm = memory_bound(at, "layernorm", *norm_bytes(at.layout, block.norm, outer))
        yield in_modules(norm, at, 1, 3, 2 if layer_norm else 1)
    mask = 0.5 if block.dropout else 0.0
    ahead, behind = 3 + mask, (3 if one_by_one(at.layout) else 2) + mask
    for attention, cross in ((block.attention, 0), (block.cross_attention, encoded)):
        if attention is not None:
            yield from attention_parts(at, attention, hidden, cross, rotary=not layer_norm)
            yield in_modules(memory_bound(at, "residual", ahead * outer, behind * outer), at, 1, 1)
    if block.feed_forward is not None:
        t = at.layout.tensor
        yield from feed_forward_parts(at, block.feed_forward, hidden, t, at.tokens)
        yield tensor_collective(at, "mlp", hidden)
    if block.experts is not None:
        yield from expert_parts(at, block.experts, hidden)
    if block.feed_forward is not None or block.experts is not None:
        yield in_modules(memory_bound(at, "residual", ahead * outer, behind * outer), at, 1, 1)


def recomputed(part: LayerPart, layout: Layout) -> float:
    """Return the fraction of a part's forward pass that the backward pass repeats."""
    modules = layout.recompute
    if Recompute.FULL in modules or part.module in modules:
        return 1.0
    if Recompute.OPERATORS in modules and part.term in ("pointwise", "products"):
        return 1.0 if part.term == "pointwise" else 0.5  # every second product
    return float(Recompute.MOE in modules and part.module.startswith(("moe", "shared_experts")))


def checkpointed_modules(parts: Sequence[LayerPart], layout: Layout) -> int:
    """Return the number of a layer's modules that are checkpointed separately."""
    if layout.recompute & {Recompute.FULL, Recompute.OPERATORS}:
        return 1
    again = [part.module for part in parts if recomputed(part, layout)]
    return len(set(again)) + max(0, again.count("layernorm") - 1)  # each norm is a module


def add_up(parts: Sequence[LayerPart], at: Setting) -> LayerTime:
    """Return the passes of a list of parts, limited by the device and by the host's launches.

    The host also limits either half of a backward pass, whose seconds are divided between gradients
    of inputs and of weights in proportion to what each half would take alone.
    """
    host = 0.0 if at.layout.graphs is Graphs.ITERATION else at.calibration.host
    divided = at.calibration.divided if at.layout.tensor > 1 and host else 0.0
    if (longer := at.calibration.passes) != 1.0:
        parts = [_lengthened(part, longer) if part.term in COMPUTED else part for part in parts]
    again = [(part, recomputed(part, at.layout)) for part in parts]
    forward = sum(part.forward for part in parts)
    inputs = sum(part.inputs for part in parts)
    weights = sum(part.weights for part in parts)
    repeated = sum(share * part.forward for part, share in again)
    kernels = [_issued(part, at) for part in parts]
    issued, issued_behind = (host * sum(one[k] for one in kernels) for k in (0, 1))
    issued_again = host * sum(s * own for (_, s), (own, _) in zip(again, kernels, strict=True))
    if Recompute.OPERATORS in at.layout.recompute:  # each is asked for in both passes
        issued_again = issued = at.calibration.selective * issued
    if host:
        issued_again += at.calibration.checkpointed * checkpointed_modules(parts, at.layout)
    placed = divided * sum(part.term == "products" for part in parts)
    placed_again = divided * sum(share for part, share in again if part.term == "products")
    terms = dict.fromkeys(TERMS, 0.0)
    for part in parts:
        terms[part.term] += part.forward + part.inputs + part.weights
    terms["recomputation"] = repeated
    wait = sum(part.wait for part in parts)
    waits = wait + sum(share * part.wait for part, share in again)
    ahead = at.calibration.pass_time(forward - wait, issued + placed) + wait
    work = inputs + weights + repeated
    issued_behind += issued_again + placed + placed_again
    backward = at.calibration.pass_time(work - waits, issued_behind)
    # Half of the launches of a product's backward pass are of weights' gradients.
    own = host * sum(one[1] for part, one in zip(parts, kernels, strict=True) if part.weights) / 2
    halves = (
        at.calibration.pass_time(weights, own),
        at.calibration.pass_time(work - waits - weights, issued_behind - own),
    )
    weights = backward * halves[0] / sum(halves) if any(halves) else 0.0
    backward += waits
    terms["host"] = ahead - forward + backward - work
    busy = [0.0] * 6
    for part, share in again:
        if part.links:
            place = 2 * (part.links - 1)
            busy[place] += part.busy[0]
            busy[place + 1] += part.busy[1] + share * part.busy[0]
    return LayerTime(ahead, backward, weights, tuple(terms.items()), tuple(busy))


def _lengthened(part: LayerPart, factor: float) -> LayerPart:
    """Return a part with all its seconds multiplied by `factor`."""
    longer = {name: factor * getattr(part, name) for name in ("forward", "inputs", "weights")}
    return replace(part, **longer)


def _issued(part: LayerPart, at: Setting) -> tuple[float, float]:
    """Return the kernels of a part's passes that the host issues one by one."""
    if at.layout.graphs is Graphs.MODULES and part.module not in ("moe", "moe_act"):
        return 0.0, 0.0
    behind = part.backward_kernels
    return part.kernels, 2 * part.kernels if behind is None else behind


@dataclass(frozen=True)
class LayerTimes:
    """Times of the components of stages: layer types, embedding, head, multi-token prediction."""

    blocks: tuple[LayerTime, ...]  # by layer type of the model, without recomputation
    recomputed: tuple[LayerTime, ...]  # by layer type, with the layout's recomputation
    embedding: LayerTime  # embedding, head: all before the first and all after the last block
    head: LayerTime
    # one token of multi-token prediction, without its block: projection and head
    mtp: LayerTime


@dataclass(frozen=True)
class PricedParts:
    """Parts of every layer type, and their times without recomputation."""

    parts: tuple[tuple[LayerPart, ...], ...]
    times: LayerTimes


#: Fields of a layout on which the time of a layer depends.
_DECIDES = (
    "tensor", "sequence_parallel", "context", "context_kind", "expert", "expert_tensor",
    "dispatcher", "expert_capacity", "microbatch", "sequence", "recompute", "recipe",
    "fused_attention", "overlap", "compiled", "graphs", "order", "software",
)  # fmt: skip


class LayerPrices:
    """Cache of the times of a model's layers on the first kind of nodes of a cluster, by layout.

    For ranks that lie on several kinds of nodes, `each` has the prices on every kind.
    """

    def __init__(
        self,
        model: ModelDescription,
        cluster: TrainingCluster,
        calibration: Calibration,
        each: tuple[LayerPrices, ...] = (),
    ) -> None:
        self.model, self.cluster, self.calibration = model, cluster, calibration
        self.each = each or (self,)
        self._known: dict[tuple[object, ...], LayerTimes] = {}
        self._parts: dict[tuple[object, ...], PricedParts] = {}
        self._others: dict[tuple[tuple[int, ...], Software], LayerPrices] = {}
        self._decides = attrgetter(*_DECIDES)

    def on(self, kinds: tuple[int, ...], software: Software) -> LayerPrices:
        """Return the prices of ranks that lie on the given kinds of nodes.

        Kinds other than the first have their own calibration tables.
        """
        if kinds == (0,):
            return self
        if (kinds, software) not in self._others:
            if len(kinds) > 1:
                found = _on_several(tuple(self.on((kind,), software) for kind in kinds))
            else:
                nodes = self.cluster.nodes[kinds[0]]
                table = tables_by_kind(self.calibration, self.cluster, software)[kinds[0]]
                found = LayerPrices(self.model, replace(self.cluster, nodes=(nodes,)), table)
            self._others[kinds, software] = found
        return self._others[kinds, software]

    def by_kind(self, software: Software) -> list[LayerPrices]:
        """Return the prices on each kind of nodes."""
        return [self.on((kind,), software) for kind in range(len(self.cluster.nodes))]

    def times(self, layout: Layout) -> LayerTimes:
        """Return the times under a layout; on several kinds of nodes, each layer's longest."""
        key = self._decides(layout)
        if key not in self._known:
            every = [one.times(layout) for one in self.each] if len(self.each) > 1 else []
            self._known[key] = _longest(every) if every else self._price(layout)
        return self._known[key]

    def _price(self, layout: Layout) -> LayerTimes:
        plain = Setting(replace(layout, recompute=frozenset()), self.cluster, self.calibration)
        key = self._decides(plain.layout)
        known = self._parts.get(key)
        if known is None:
            known = self._parts[key] = self._price_parts(plain)
        recomputed = known.times.blocks
        if layout.recompute:
            at = Setting(layout, self.cluster, self.calibration)
            recomputed = tuple(add_up(parts, at) for parts in known.parts)
        return replace(known.times, recomputed=recomputed)

    def _price_parts(self, plain: Setting) -> PricedParts:
        """Price the parts of every layer type, and all times without recomputation."""
        model, layout = self.model, plain.layout
        encoded = (model.encoder_sequence or layout.sequence) if model.encoder else 0
        priced = []
        for block in model.layer_types:
            at = plain
            if block in model.encoder and model.encoder_sequence:
                shorter = replace(layout, sequence=model.encoder_sequence)
                at = Setting(shorter, self.cluster, self.calibration)
            priced.append(tuple(block_parts(at, block, model.hidden, encoded)))
        blocks = tuple(add_up(parts, plain) for parts in priced)
        last = tuple(head_parts(model, plain))
        joined = linear(plain, "mtp", model.hidden, 2 * model.hidden)
        ends = tuple(embedding_parts(model, plain)), last, (joined, *last)
        times = LayerTimes(blocks, blocks, *(add_up(parts, plain) for parts in ends))
        return PricedParts(tuple(priced), times)


def _on_several(each: tuple[LayerPrices, ...]) -> LayerPrices:
    """Return the prices of ranks that lie on several kinds of nodes and wait for each other.

    Overlap, slow-down and link to the host are those of the kind where they are worst.
    """
    first, tables = each[0], [one.calibration for one in each]
    table = replace(
        first.calibration,
        hidden=min(one.hidden for one in tables),
        slowed=max(one.slowed for one in tables),
        hooks=max(one.hooks for one in tables),
    )
    slowest = min(one.cluster.accelerator.host_bandwidth for one in each)
    device = replace(first.cluster.accelerator, host_bandwidth=slowest)
    nodes = replace(first.cluster.nodes[0], accelerator=device)
    return LayerPrices(first.model, replace(first.cluster, nodes=(nodes,)), table, each)


def _longest(every: Sequence[LayerTimes]) -> LayerTimes:
    """Return each layer's times on the kind where it is slowest without recomputation."""

    def longest(times: Sequence[LayerTime]) -> int:
        both = [one.forward + one.backward for one in times]
        return both.index(max(both))

    kinds = [longest(of) for of in zip(*(times.blocks for times in every), strict=True)]
    ends = ([getattr(times, name) for times in every] for name in ("embedding", "head", "mtp"))
    return LayerTimes(
        tuple(every[kind].blocks[k] for k, kind in enumerate(kinds)),
        tuple(every[kind].recomputed[k] for k, kind in enumerate(kinds)),
        *(own[longest(own)] for own in ends),
    )


def head_parts(model: ModelDescription, at: Setting) -> Iterator[LayerPart]:
    """Yield the parts of final norm, logits and loss, or of a classifier."""
    if not model.head and not model.classes:
        return
    outer = at.element * at.outer * model.hidden
    yield memory_bound(at, "head", 2 * outer, 4 * outer)
    if model.head and model.vocabulary:
        # Megatron and similar software pad the vocabulary to a multiple of 128 per rank.
        multiple = 128 if fused(at.layout) else 1
        rows = multiple * math.ceil(model.vocabulary / (multiple * at.layout.tensor))
        yield linear(at, "head", rows, model.hidden)
        yield memory_bound(at, "head", *loss_bytes(at.layout, at.tokens * rows), 6)
        yield tensor_collective(at, "head", model.hidden, leaves=False)


def embedding_parts(model: ModelDescription, at: Setting) -> Iterator[LayerPart]:
    """Yield the parts of the embeddings."""
    if not model.embedding_parameters:
        return
    moved = at.element * at.tokens * model.hidden
    yield memory_bound(at, "embedding", 3 * moved, 4 * moved, 3)
    yield tensor_collective(at, "embedding", model.hidden, enters=False)
