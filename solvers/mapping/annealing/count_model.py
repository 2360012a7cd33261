"""A model of which block counts can be realised, corrected by what the annealing leaves violated.

Weights of stages and prices of blocks rise where edges stay violated. So the next counts use fewer
of the links that are harder to get than their share says, as those of a ring, which must close.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ....formulations.mapping.bound import LowerBounds
from ....formulations.mapping.costs import MappingCosts
from ....instances.common.arrays import Floats, Ints
from ..layouts import paired
from ..parameters import DECAY, PENALTY, RARE_NATS, RESTART_RATE, VIOLATION_FACTOR
from .block_counts import (
    Links,
    first_counts,
    likely_counts,
    likely_splits,
    sample_links,
    scarcity,
)
from .state import State, state_of
from .violations import sampled_splits


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
