"""From contents of blocks to mappings: fill them with devices, settle, learn what was hard, repeat.

What stays violated counts for more when the next contents are chosen: links that are rarer than
their share says (as those of a ring that has to close) are then asked for less often.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..formulations.mapping import MappingCosts
from ..formulations.mapping_bound import Floors
from ..instances.arrays import Floats, Ints
from .mapping_anneal import State, new_state, ways
from .mapping_contents import (
    Links,
    first_contents,
    likely_contents,
    likely_ways,
    sample_links,
    scarcity,
)
from .mapping_layouts import paired

#: What stays violated counts for so much more, and all that was learnt for so much less.
LEARN, FORGET = 1.5, 0.9


@dataclass(eq=False)
class Filling:
    """Contents of blocks, and what was learnt of them.

    Parameters
    ----------
    held
        Shape (B, S + 1): devices of each block that serve each stage, spare ones last.
    harder
        Shape (S, 2): factors on the nats of messages and ring messages.
    """

    block: Ints
    links: Links
    held: Ints
    harder: Floats


def new_filling(costs: MappingCosts, block: Ints) -> Filling:
    """Return a filling that has learnt nothing yet."""
    return Filling(
        block,
        sample_links(costs, block),
        first_contents(costs, block),
        np.ones((costs.stages, 2)),
    )


def choose(
    filling: Filling,
    costs: MappingCosts,
    least: Floors,
    target: float,
    steps: int,
    rng: np.random.Generator,
) -> None:
    """Choose contents for a target: every second time from the last ones."""
    weights = _weights(filling, costs, *ways(costs, least, target))
    begin = filling.held if rng.random() < 0.5 else first_contents(costs, filling.block)
    seed = int(rng.integers(2**31))
    filling.held = likely_contents(begin, weights, costs.replicas, steps, seed)


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


def learn(filling: Filling, costs: MappingCosts, state: State, caps: tuple[Floats, Floats]) -> None:
    """Let what the state violates count for more; caps as `likely_caps` returns them."""
    messages, rings = caps
    slots = state.slots(costs)
    filling.harder = filling.harder**FORGET
    for s in range(costs.stages):
        alone = np.zeros(costs.replicas)
        sent, reduced = alone, alone
        if s + 1 < costs.stages:
            pairs = slots[s], slots[s + 1][state.sends_to[s]]
            alpha, beta = costs.boundary[s]
            sent = alpha * costs.latency[pairs] + beta * costs.inverse[pairs]
        if costs.replicas > 1:
            pairs = slots[s], np.roll(slots[s], -1)
            gamma, delta = costs.ring[s]
            reduced = gamma * costs.latency[pairs] + delta * costs.inverse[pairs]
        over = np.stack(
            [
                (sent[:, None] > messages[s]).sum(axis=0),
                (reduced[:, None] > rings[s]).sum(axis=0),
            ]
        )
        best = over[:, over.sum(axis=0).argmin()]
        filling.harder[s] *= np.where(best > 0, LEARN, 1.0)


def _weights(filling: Filling, costs: MappingCosts, messages: Floats, rings: Floats) -> Floats:
    weights = scarcity(costs, filling.links, messages, rings)
    weights *= np.repeat(filling.harder, 2, axis=1)[:, None, :]
    return weights
