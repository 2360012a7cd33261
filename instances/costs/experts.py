"""Mixtures of experts: what a layer's routed experts compute, move and send under a layout.

A token is routed to ``top_k`` of the layer's experts, which lie on ``expert · expert_tensor``
devices. Each device sends its tokens to the devices of their experts (dispatch), computes the
experts that it holds as one grouped matrix product, and sends the results back (combine). Loads are
taken as balanced.

What this costs beside the products' operations, and what it explains (Megatron-Bridge's runs of
DeepSeek V3, Qwen 3 and GPT-OSS come out 1.0 to 2.8 times too fast without it):

- a product of few rows per expert reads all weights of the expert for them (`expert_products`);
- rows are copied in the order of their experts and back, in both passes (`permutation_bytes`);
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
#: combine, unpermutation). Backward: twice as many. With the others of a layer they make the 151
#: per layer and microbatch of Megatron-Bridge's trace of Qwen3 30B-A3B (463,348 in an iteration).
ROUTER_LAUNCHES, EXPERT_LAUNCHES = 16, 12


@dataclass(frozen=True)
class Product:
    """`count` matrix products of an (m × k) with a (k × n) matrix, done as one grouped kernel."""

    count: int
    m: float
    n: float
    k: float


@dataclass(frozen=True)
class Dispatched:
    """Bytes that one device sends in a dispatch or a combine, by where they go."""

    domain: float  # to devices within reach of peer links
    network: float  # to other nodes, over its share of the network


def routed_rows(experts: Experts, layout: Layout) -> float:
    """Rows that one device's experts compute for one microbatch: tokens times chosen experts.

    The sequence is divided by tensor parallelism before dispatch, and the group of one expert's
    devices works on all of its members' tokens.
    """
    own = layout.tokens / layout.tensor
    rows = own * experts.top_k * layout.expert_tensor
    return rows * (layout.expert_capacity or 1.0)


def expert_products(experts: Experts, layout: Layout, hidden: int) -> tuple[Product, ...]:
    """Return the grouped products of a forward pass on one device: into the experts, and out."""
    held = max(1, experts.experts // layout.expert)
    rows = routed_rows(experts, layout) / held
    width = experts.width // layout.expert_tensor
    into = width * (2 if experts.gated else 1)
    return (Product(held, rows, into, hidden), Product(held, rows, hidden, width))


def permutation_bytes(experts: Experts, layout: Layout, hidden: int) -> float:
    """Bytes that a forward pass reads and writes to order rows by expert and back.

    Rows are gathered before the dispatch, sorted by local expert behind it, and back on the way
    out: four copies, two where the dispatcher itself writes rows in order (DeepEP, HybridEP). The
    last sums each token's results with their weights. A backward pass moves as much.
    """
    rows = routed_rows(experts, layout)
    copies = 2 if layout.dispatcher is Dispatcher.HIERARCHICAL or layout.expert == 1 else 4
    return copies * 2 * 2.0 * rows * hidden


def router_bytes(experts: Experts, layout: Layout, hidden: int) -> float:
    """Bytes of a forward pass of the router: tokens in 32 bits, and eight passes over scores."""
    return layout.tokens / layout.tensor * (6.0 * hidden + 8 * 4.0 * experts.experts)


@cache
def distinct_groups(experts: int, top_k: int, groups: int) -> float:
    """Expected number of `groups` of equal size that `top_k` of `experts` fall into, at random."""
    size = experts // groups
    if size == 0:
        return float(top_k)
    return groups * (1 - comb(experts - size, top_k) / comb(experts, top_k))


def dispatched(experts: Experts, layout: Layout, hidden: int, domain: int) -> Dispatched:
    """Bytes that one device sends to dispatch a microbatch's tokens, and gets at their return.

    `domain` devices of the expert group are within reach of each other's peer links.
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
        # A node's share of copies is made inside it; those for the device itself are not sent.
        inside = reached * (devices - 1) / devices
    else:
        copies = experts.top_k * layout.expert_tensor
        across = copies * (nodes - 1) / nodes
        inside = copies / nodes * (devices - 1) / devices
    token = own * hidden * 2.0  # bytes
    return Dispatched(inside * token, across * token)
