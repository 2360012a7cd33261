"""Block counts: how many devices of each block serve each stage, chosen to fit a target likely.

Whether devices can be found for given counts depends on how rare the links are that they need. At a
target T, and for each split of a stage's slack between messages and ring messages, the shares of
admitted pairs inside blocks and between blocks are known. If links were drawn independently at
random, the log-probability that a mapping with these counts fits would be a sum over its edges.
Annealing minimises its negative, in nats, with each stage in its best split.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ....formulations.mapping.costs import MappingCosts
from ....instances.common.arrays import Bools, Floats, Ints
from ..parameters import (
    COUNT_COLD,
    COUNT_EXCHANGE_RATE,
    COUNT_HOT,
    FORBIDDEN,
    LIKELY_NATS,
    SAMPLE_PAIRS,
)
from .block_counts_kernel import anneal_counts


@dataclass(frozen=True, eq=False)
class Links:
    """A sample of routes: latency and inverse bandwidth, inside blocks and between them."""

    latency: tuple[Floats, Floats]
    inverse: tuple[Floats, Floats]


def sample_links(costs: MappingCosts, block: Ints) -> Links:
    """Return the routes from some devices to all others."""
    count = min(costs.size, max(16, SAMPLE_PAIRS // costs.size))
    rows = np.linspace(0, costs.size - 1, count).astype(np.int64)
    between = block[rows][:, None] != block[None, :]
    inside = ~between & (rows[:, None] != np.arange(costs.size)[None, :])
    latency, inverse = costs.latency[rows], costs.inverse[rows]
    return Links(
        (latency[inside], latency[between]),
        (inverse[inside], inverse[between]),
    )


def scarcity(costs: MappingCosts, links: Links, messages: Floats, rings: Floats) -> Floats:
    """Return −log of the share of admitted pairs; shape (S, Q, 4).

    The four are messages inside blocks and between them, ring messages inside and between.

    Parameters
    ----------
    messages, rings
        Shape (S, Q): upper bounds of each split, as `violations.sampled_splits` returns them.
    """
    found = np.zeros((*messages.shape, 4))
    for k, (upper_bounds, factors) in enumerate(((messages, costs.boundary), (rings, costs.ring))):
        for j, (latency, inverse) in enumerate(zip(links.latency, links.inverse, strict=True)):
            for s in np.flatnonzero(factors.any(axis=1)).tolist():
                values = np.sort(factors[s, 0] * latency + factors[s, 1] * inverse)
                share = np.searchsorted(values, upper_bounds[s], side="right") / max(1, len(values))
                with np.errstate(divide="ignore"):
                    found[s, :, 2 * k + j] = np.minimum(-np.log(share), FORBIDDEN)
    return found


def first_counts(costs: MappingCosts, block: Ints) -> Ints:
    """Return counts to begin with, shape (B, S + 1): replica after replica, spare devices last."""
    replicas = np.tile(np.arange(costs.stages), costs.replicas)
    labels = np.concatenate([replicas, np.full(costs.spare, costs.stages)])
    counts = np.zeros((int(block.max()) + 1, costs.stages + 1), np.int64)
    np.add.at(counts, (np.sort(block), labels), 1)
    return counts


def likely_counts(
    counts: Ints, edge_nats: Floats, prices: Floats, replicas: int, steps: int, seed: int
) -> tuple[Ints, float]:
    """Anneal from given counts, shape (B, S + 1); return the likeliest found, and its nats.

    Parameters
    ----------
    edge_nats
        As `scarcity` returns them.
    prices
        Shape (B, S + 1): nats added for each device of a block that serves a stage.
    """
    counts = counts.copy()
    nats = float(
        anneal_counts(
            counts,
            edge_nats,
            prices,
            replicas,
            steps,
            seed,
            COUNT_HOT,
            COUNT_COLD,
            COUNT_EXCHANGE_RATE,
        )
    )
    return counts, nats


def likely_splits(counts: Ints, edge_nats: Floats, replicas: int) -> Bools:
    """Return which splits of each stage are likely with these counts; shape (S, Q).

    Splits that are much less likely than the best one would only mislead the annealing.
    """
    n = counts[:, :-1]
    inside = np.zeros(len(edge_nats))
    inside[:-1] = np.minimum(n[:, :-1], n[:, 1:]).sum(axis=0)
    used = (n > 0).sum(axis=0)
    between = np.where(used > 1, used, 0)
    edges = np.stack([inside, replicas - inside, replicas - between, between], axis=1)
    value = (edge_nats * edges[:, None, :]).sum(axis=2)
    likely: Bools = value <= value.min(axis=1, keepdims=True) + LIKELY_NATS
    return likely
