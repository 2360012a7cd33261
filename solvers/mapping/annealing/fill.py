"""From contents of blocks to mappings: fill them with devices, settle, learn what was hard, repeat.

What stays violated counts for more when the next contents are chosen: links that are rarer than
their share says (as those of a ring that has to close) are then asked for less often.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ....formulations.mapping.bound import Floors
from ....formulations.mapping.costs import MappingCosts
from ....instances.model.arrays import Floats, Ints
from ..layouts import paired
from .anneal import State, new_state, ways
from .contents import (
    Links,
    first_contents,
    likely_contents,
    likely_ways,
    sample_links,
    scarcity,
)

#: What stays violated counts for so much more, and all that was learnt for so much less.
LEARN, FORGET = 1.4, 0.9
#: Nats for a device of a block, at either end of an edge that stays violated.
LESSON = 0.3
#: From how many nats on a link between blocks is rare.
HARD = 3.0
#: How often contents are chosen afresh, too.
AFRESH = 0.5


@dataclass(eq=False)
class Filling:
    """Contents of blocks, and what was learnt of them.

    Parameters
    ----------
    held
        Shape (B, S + 1): devices of each block that serve each stage, spare ones last.
    harder
        Shape (S, 2): factors on the nats of messages and ring messages.
    prices
        Shape (B, S + 1): nats that a device of a block costs besides, if it serves a stage.
    """

    block: Ints
    links: Links
    held: Ints
    harder: Floats
    prices: Floats


def new_filling(costs: MappingCosts, block: Ints) -> Filling:
    """Return a filling that has learnt nothing yet."""
    first = first_contents(costs, block)
    return Filling(
        block,
        sample_links(costs, block),
        first,
        np.ones((costs.stages, 2)),
        np.zeros(first.shape),
    )


def choose(
    filling: Filling,
    costs: MappingCosts,
    least: Floors,
    target: float,
    steps: int,
    rng: np.random.Generator,
) -> None:
    """Choose contents for a target: from the last ones, and sometimes from the first as well."""
    weights = _weights(filling, costs, *ways(costs, least, target))
    begins = [filling.held]
    if rng.random() < AFRESH:
        begins.append(first_contents(costs, filling.block))
    found = [
        likely_contents(
            begin, weights, filling.prices, costs.replicas, steps, int(rng.integers(2**31))
        )
        for begin in begins
    ]
    filling.held = min(found, key=lambda pair: pair[1])[0]


def likely_caps(
    filling: Filling, costs: MappingCosts, least: Floors, target: float
) -> tuple[Floats, Floats]:
    """Return the caps of messages and ring messages in the likely ways; shape (S, ways) both."""
    messages, rings = ways(costs, least, target)
    weights = _weights(filling, costs, messages, rings)
    likely = likely_ways(filling.held, weights, costs.replicas)
    first = likely.argmax(axis=1)[:, None]  # takes the place of the others
    return (
        np.where(likely, messages, np.take_along_axis(messages, first, axis=1)),
        np.where(likely, rings, np.take_along_axis(rings, first, axis=1)),
    )


def hard_caps(
    filling: Filling, costs: MappingCosts, least: Floors, target: float
) -> tuple[Floats, Floats]:
    """Likewise, but without limit where links between blocks are not rare."""
    messages, rings = likely_caps(filling, costs, least, target)
    found = _weights(filling, costs, messages, rings)[:, :, (1, 3)].min(axis=1)
    messages[found[:, 0] < HARD] = np.inf
    rings[found[:, 1] < HARD] = np.inf
    return messages, rings


def filled(
    filling: Filling, costs: MappingCosts, order: NDArray[np.int32], rng: np.random.Generator
) -> State:
    """Return a mapping with the contents, otherwise at random."""
    slots: list[list[int]] = [[] for _ in range(costs.stages)]
    for b in rng.permutation(len(filling.held)).tolist():
        devices = rng.permutation(np.flatnonzero(filling.block == b)).tolist()
        for s, count in enumerate(filling.held[b, :-1].tolist()):
            slots[s] += devices[:count]
            del devices[:count]
    chosen = np.array(slots)
    return new_state(costs, chosen, paired(costs, chosen), order)


def take_over(filling: Filling, costs: MappingCosts, state: State) -> None:
    """Let the contents be those of a mapping."""
    used = costs.stages * costs.replicas
    stage = np.full(costs.size, costs.stages)
    stage[:used] = np.repeat(np.arange(costs.stages), costs.replicas)
    filling.held = np.zeros_like(filling.held)
    np.add.at(filling.held, (filling.block[state.slot], stage), 1)


def learn(filling: Filling, costs: MappingCosts, state: State, caps: tuple[Floats, Floats]) -> None:
    """Let what the state violates count for more; caps as `likely_caps` returns them."""
    messages, rings = caps
    slots = state.slots(costs)
    filling.harder = filling.harder**FORGET
    filling.prices *= FORGET
    block = filling.block
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
        way = sum(each.sum(axis=0) for each in over).argmin()
        for (stage, other, _, _), each in zip(ends, over, strict=True):
            bad = each[:, way]
            filling.harder[s, int(stage == s)] *= LEARN if bad.any() else 1.0
            np.add.at(filling.prices[:, s], block[slots[s][bad]], LESSON)
            np.add.at(filling.prices[:, stage], block[other[bad]], LESSON)


def _weights(filling: Filling, costs: MappingCosts, messages: Floats, rings: Floats) -> Floats:
    weights = scarcity(costs, filling.links, messages, rings)
    weights *= np.repeat(filling.harder, 2, axis=1)[:, None, :]
    return weights
