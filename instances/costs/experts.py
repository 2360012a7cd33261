"""Mixtures of experts: products, memory traffic and messages of routed experts under a layout.

A token is routed to ``top_k`` of the layer's experts, which lie on ``expert · expert_tensor``
devices. Each device sends its tokens to the devices of their experts (dispatch), computes the
experts that it holds as one grouped matrix product, and sends the results back (combine). Loads are
assumed to be balanced.

The cost is more than the operations of the products (without the rest, estimates of
Megatron-Bridge's runs of DeepSeek V3, Qwen 3 and GPT-OSS are 1.0 to 2.8 times too fast):

- a product with few rows per expert reads all weights of the expert for them (`expert_products`);
- rows are permuted into the order of their experts and back, in both passes (`permutation_bytes`);
- the router works on 32-bit floats (`router_bytes`);
- tokens travel over the network, once per device and node or once per expert (`dispatched`);
- the host launches some thirty kernels more per pass (`ROUTER_LAUNCHES`, `EXPERT_LAUNCHES`).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from math import comb

from .description import Experts
from .layout import Dispatcher, Layout

#: Kernels that the forward pass of a layer of routed experts launches: the router (softmax or
#: sigmoid, top-k, mask, counts, auxiliary loss), and around the experts (permutation, dispatch,
#: combine, unpermutation). Backward: twice as many. With a layer's other kernels they add up to the
#: 151 per layer and microbatch in Megatron-Bridge's trace of Qwen3 30B-A3B (463,348 an iteration).
ROUTER_LAUNCHES, EXPERT_LAUNCHES = 16, 12


@dataclass(frozen=True)
class Product:
    """Grouped matrix product: `count` products of (m × k) with (k × n) matrices in one kernel."""

    count: int
    m: float
    n: float
    k: float


@dataclass(frozen=True)
class Dispatched:
    """Bytes that one device sends in a dispatch or a combine, by destination."""

    domain: float  # to devices within reach of peer links
    network: float  # to other nodes, over its share of the network


def routed_rows(experts: Experts, layout: Layout) -> float:
    """Rows (tokens times chosen experts) that one device's experts process per microbatch.

    Tensor-parallel ranks divide the sequence before dispatch, and all devices that share an expert
    process the tokens of all of them.
    """
    own = layout.tokens / layout.tensor
    rows = own * experts.top_k * layout.expert_tensor
    return rows * (layout.expert_capacity or 1.0)


def expert_products(experts: Experts, layout: Layout, hidden: int) -> tuple[Product, ...]:
    """Return the two grouped products of the experts' forward pass on one device."""
    held = max(1, experts.experts // layout.expert)
    rows = routed_rows(experts, layout) / held
    width = experts.width // layout.expert_tensor
    into = width * (2 if experts.gated else 1)
    return (Product(held, rows, into, hidden), Product(held, rows, hidden, width))


def permutation_bytes(experts: Experts, layout: Layout, token: float) -> float:
    """Bytes that a forward pass reads and writes to permute rows into expert order and back.

    Rows are gathered before the dispatch and sorted by local expert after it, and the combine
    reverses both: four copies, or two if the dispatcher itself writes rows in order (DeepEP,
    HybridEP). The last copy adds up each token's weighted results. A backward pass moves as much.
    `token` are the bytes of one token.
    """
    rows = routed_rows(experts, layout)
    copies = 2 if layout.dispatcher is Dispatcher.HIERARCHICAL or layout.expert == 1 else 4
    return copies * 2 * rows * token


def router_bytes(experts: Experts, layout: Layout, hidden: int) -> float:
    """Bytes that the router's forward pass moves: 32-bit tokens, and eight passes over scores."""
    return layout.tokens / layout.tensor * (6.0 * hidden + 8 * 4.0 * experts.experts)


@cache
def distinct_groups(experts: int, top_k: int, groups: int) -> float:
    """Expected number of groups, of `groups` equal ones, that `top_k` random experts fall into."""
    size = experts // groups
    if size == 0:
        return float(top_k)
    return groups * (1 - comb(experts - size, top_k) / comb(experts, top_k))


def dispatched(experts: Experts, layout: Layout, token: float, domain: int) -> Dispatched:
    """Bytes that one device sends in the dispatch of a microbatch; the combine returns as many.

    `token` are the bytes of one token, `domain` is the number of devices of the expert group that
    share a domain of peer links.
    """
    group = layout.expert * layout.expert_tensor
    if group == 1:
        return Dispatched(0.0, 0.0)
    own = layout.tokens / layout.tensor * (layout.expert_capacity or 1.0)
    nodes = -(-group // domain)
    devices = group / nodes
    if layout.dispatcher is Dispatcher.HIERARCHICAL:
        reached = distinct_groups(experts.experts, experts.top_k, layout.expert)
        reached *= layout.expert_tensor
        far = distinct_groups(experts.experts, experts.top_k, nodes) if nodes > 1 else 1.0
        across = far * (nodes - 1) / nodes
        # A node makes its copies itself; copies for the sending device are not sent.
        inside = reached * (devices - 1) / devices
    else:
        copies = experts.top_k * layout.expert_tensor
        across = copies * (nodes - 1) / nodes
        inside = copies / nodes * (devices - 1) / devices
    return Dispatched(inside * own * token, across * own * token)
