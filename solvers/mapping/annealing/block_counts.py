"""Block counts: how many devices of each block serve each stage, chosen to fit a target likely.

Whether devices can be found for given counts depends on how rare the links are that they need. At a
target T, and for each split of a stage's slack between messages and ring messages, the shares of
admitted pairs inside blocks and between blocks are known. If links were drawn independently at
random, the log-probability that a mapping with these counts fits would be a sum over its edges.
Annealing minimises its negative, in nats, with each stage in its best split.

Weights of stages and prices of blocks correct this model where the annealing of devices leaves
edges violated: they rise there. So the next counts use fewer of the links that are harder to get
than their share says, as those of a ring, which must close.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ....formulations.mapping.bound import LowerBounds
from ....formulations.mapping.costs import MappingCosts
from ....instances.common.arrays import Bools, Floats, Ints
from ..layouts import paired
from ..parameters import (
    COUNT_COLD,
    COUNT_EXCHANGE_RATE,
    COUNT_HOT,
    DECAY,
    FORBIDDEN,
    LIKELY_NATS,
    PENALTY,
    RARE_NATS,
    RESTART_RATE,
    SAMPLE_PAIRS,
    VIOLATION_FACTOR,
)
from .anneal_kernel import State, generator, state_of
from .block_counts_kernel import anneal_counts
from .costs import sampled_splits


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
            generator(seed),
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


@dataclass(eq=False)
class CountModel:
    """Counts of devices per block, and the weights by which the next ones are chosen.

    Parameters
    ----------
    block
        Shape (D,): block of each device.
    counts
        Shape (B, S + 1): devices of each block that serve each stage, spare ones last.
    weights
        Shape (S, 2): factors on the nats of messages and ring messages.
    prices
        Shape (B, S + 1): nats added for each device of a block that serves a stage.
    """

    block: Ints
    links: Links
    counts: Ints
    weights: Floats
    prices: Floats


def new_count_model(costs: MappingCosts, block: Ints) -> CountModel:
    """Return the model with neutral weights and no prices."""
    first = first_counts(costs, block)
    return CountModel(
        block,
        sample_links(costs, block),
        first,
        np.ones((costs.stages, 2)),
        np.zeros(first.shape),
    )


def choose_counts(
    model: CountModel,
    costs: MappingCosts,
    lower_bounds: LowerBounds,
    target: float,
    steps: int,
    rng: np.random.Generator,
) -> None:
    """Choose counts for a target: from the last ones, and sometimes from the first as well."""
    edge_nats = _edge_nats(model, costs, *sampled_splits(costs, lower_bounds, target))
    begins = [model.counts]
    if rng.random() < RESTART_RATE:
        begins.append(first_counts(costs, model.block))
    found = [
        likely_counts(
            begin, edge_nats, model.prices, costs.replicas, steps, int(rng.integers(2**31))
        )
        for begin in begins
    ]
    model.counts = min(found, key=lambda pair: pair[1])[0]


def likely_upper_bounds(
    model: CountModel, costs: MappingCosts, lower_bounds: LowerBounds, target: float
) -> tuple[Floats, Floats]:
    """Return the upper bounds of both kinds of messages in likely splits; shape (S, Q) both."""
    messages, rings = sampled_splits(costs, lower_bounds, target)
    edge_nats = _edge_nats(model, costs, messages, rings)
    likely = likely_splits(model.counts, edge_nats, costs.replicas)
    first = likely.argmax(axis=1)[:, None]  # takes the place of the others
    return (
        np.where(likely, messages, np.take_along_axis(messages, first, axis=1)),
        np.where(likely, rings, np.take_along_axis(rings, first, axis=1)),
    )


def hard_upper_bounds(
    model: CountModel, costs: MappingCosts, lower_bounds: LowerBounds, target: float
) -> tuple[Floats, Floats]:
    """Return the same bounds, but `inf` where links between blocks are not rare."""
    messages, rings = likely_upper_bounds(model, costs, lower_bounds, target)
    found = _edge_nats(model, costs, messages, rings)[:, :, (1, 3)].min(axis=1)
    messages[found[:, 0] < RARE_NATS] = np.inf
    rings[found[:, 1] < RARE_NATS] = np.inf
    return messages, rings


def realise(model: CountModel, costs: MappingCosts, rng: np.random.Generator) -> State:
    """Return a random mapping with the model's counts."""
    slots: list[list[int]] = [[] for _ in range(costs.stages)]
    for b in rng.permutation(len(model.counts)).tolist():
        devices = rng.permutation(np.flatnonzero(model.block == b)).tolist()
        for s, count in enumerate(model.counts[b, :-1].tolist()):
            slots[s] += devices[:count]
            del devices[:count]
    chosen = np.array(slots)
    return state_of(costs, chosen, paired(costs, chosen))


def read_counts(model: CountModel, costs: MappingCosts, state: State) -> None:
    """Set the counts to those of a mapping."""
    used = costs.stages * costs.replicas
    stage = np.full(costs.size, costs.stages)
    stage[:used] = np.repeat(np.arange(costs.stages), costs.replicas)
    model.counts = np.zeros_like(model.counts)
    np.add.at(model.counts, (model.block[state.slot], stage), 1)


def update_weights(
    model: CountModel, costs: MappingCosts, state: State, upper_bounds: tuple[Floats, Floats]
) -> None:
    """Raise weights and prices where the state is violated, after both have decayed.

    Parameters
    ----------
    upper_bounds
        As `likely_upper_bounds` returns them.
    """
    messages, rings = upper_bounds
    slots = state.slots()
    model.weights = model.weights**DECAY
    model.prices *= DECAY
    block = model.block
    for s in range(costs.stages):
        ends, over = [], []
        if s + 1 < costs.stages:
            ends.append((s + 1, slots[s + 1][state.sends_to[s]], costs.boundary[s], messages[s]))
        if costs.replicas > 1:
            ends.append((s, np.roll(slots[s], -1), costs.ring[s], rings[s]))
        for _, other, (by_latency, by_inverse), limits in ends:
            pairs = slots[s], other
            cost = by_latency * costs.latency[pairs] + by_inverse * costs.inverse[pairs]
            over.append(cost[:, None] > limits)
        if not over:
            continue
        split = sum(each.sum(axis=0) for each in over).argmin()
        for (stage, other, _, _), each in zip(ends, over, strict=True):
            bad = each[:, split]
            model.weights[s, int(stage == s)] *= VIOLATION_FACTOR if bad.any() else 1.0
            np.add.at(model.prices[:, s], block[slots[s][bad]], PENALTY)
            np.add.at(model.prices[:, stage], block[other[bad]], PENALTY)


def _edge_nats(model: CountModel, costs: MappingCosts, messages: Floats, rings: Floats) -> Floats:
    edge_nats = scarcity(costs, model.links, messages, rings)
    edge_nats *= np.repeat(model.weights, 2, axis=1)[:, None, :]
    return edge_nats
