"""Probability model of block counts: devices of each block in each stage that meet a target.

Given the counts n_{s,b} of devices of block b in stage s, choose them to maximise the probability
that a random placement with these counts has stage times of at most T seconds:

    log P(n) ≈ Σ_s max_q Σ_e m_{s,e}(n) log p_{s,q,e}

Here q is a split of the slack of stage s between messages and ring messages; e one of four kinds of
edges: messages and ring messages, inside blocks and between them; m_{s,e}(n) the number of such
edges; and p_{s,q,e} the share of pairs of devices that are admitted to them at T. The edges are
taken to be independent, as if the routes were drawn at random. Annealing minimises the negative
log-probability (NLL).

Weights of stages and penalties of blocks correct the model where the annealing of devices leaves
edges violated: edges that are harder to meet than their share says, as those of a ring, which must
close, become less likely for the next counts.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ....formulations.mapping.bound import LowerBounds
from ....formulations.mapping.costs import MappingCosts
from ....instances.common.arrays import Floats, Ints
from ..layouts import matched
from ..parameters import (
    COUNT_COLD,
    COUNT_EXCHANGE_RATE,
    COUNT_HOT,
    DECAY,
    MAX_EDGE_NLL,
    PENALTY,
    RARE_NLL,
    RESTART_RATE,
    VIOLATION_FACTOR,
)
from .anneal_kernel import State, generator, state_of
from .costs import sampled_splits
from .count_model_kernel import CountObjective, anneal_counts


@dataclass(frozen=True, eq=False)
class RouteSample:
    """Sample of routes in blocks, and between them: latency in seconds and 1 / bandwidth."""

    latency: tuple[Floats, Floats]
    inverse: tuple[Floats, Floats]


@dataclass(eq=False)
class CountModel:
    """Counts of devices per block, and what corrects their probability from violations."""

    block: Ints  # (D,): block of each device
    sample: RouteSample  # routes from which the shares of admitted pairs are estimated
    counts: Ints  # (B, S + 1): devices of each block that serve each stage, spare ones last
    weights: Floats  # (S, 2): factors on the NLL of messages and ring messages
    penalties: Floats  # (B, S + 1): NLL added for each device of a block that serves a stage


def sample_routes(costs: MappingCosts, block: Ints) -> RouteSample:
    """Return the routes from evenly chosen devices to all others."""
    # about 2^17 pairs: enough for their quantiles, at any number of devices
    count = min(costs.size, max(16, (1 << 17) // costs.size))
    rows = np.linspace(0, costs.size - 1, count).astype(np.int64)
    between = block[rows][:, None] != block[None, :]
    inside = ~between & (rows[:, None] != np.arange(costs.size)[None, :])
    latency, inverse = costs.latency[rows], costs.inverse[rows]
    return RouteSample(
        (latency[inside], latency[between]),
        (inverse[inside], inverse[between]),
    )


def admitted_nll(
    costs: MappingCosts, sample: RouteSample, messages: Floats, rings: Floats
) -> Floats:
    """Return −log of the share of admitted pairs of each stage, split and kind; shape (S, Q, 4).

    Kinds are messages inside blocks and between them, then ring messages inside and between. Upper
    bounds of each split, shape (S, Q), are in seconds, by `sampled_splits`.
    """
    found = np.zeros((*messages.shape, 4))
    for k, (upper_bounds, factors) in enumerate(((messages, costs.boundary), (rings, costs.ring))):
        for j, (latency, inverse) in enumerate(zip(sample.latency, sample.inverse, strict=True)):
            for s in np.flatnonzero(factors.any(axis=1)).tolist():
                values = np.sort(factors[s, 0] * latency + factors[s, 1] * inverse)
                share = np.searchsorted(values, upper_bounds[s], side="right") / max(1, len(values))
                with np.errstate(divide="ignore"):
                    found[s, :, 2 * k + j] = np.minimum(-np.log(share), MAX_EDGE_NLL)
    return found


def initial_counts(costs: MappingCosts, block: Ints) -> Ints:
    """Return counts, shape (B, S + 1), of replicas placed one after the other, block by block."""
    replicas = np.tile(np.arange(costs.stages), costs.replicas)
    labels = np.concatenate([replicas, np.full(costs.spare, costs.stages)])
    counts = np.zeros((int(block.max()) + 1, costs.stages + 1), np.int64)
    np.add.at(counts, (np.sort(block), labels), 1)
    return counts


def most_likely_counts(
    counts: Ints, edge_nll: Floats, penalties: Floats, replicas: int, steps: int, seed: int
) -> tuple[Ints, float]:
    """Anneal from given counts, shape (B, S + 1); return the likeliest found, and their NLL.

    `edge_nll`, (S, Q, 4), is the NLL of one edge, by `admitted_nll`.
    """
    counts = counts.copy()
    nll = float(
        anneal_counts(
            counts,
            CountObjective(edge_nll, penalties, replicas),
            steps,
            generator(seed),
            COUNT_HOT,
            COUNT_COLD,
            COUNT_EXCHANGE_RATE,
        )
    )
    return counts, nll


def new_count_model(costs: MappingCosts, block: Ints) -> CountModel:
    """Return the model with neutral weights and no penalties."""
    first = initial_counts(costs, block)
    return CountModel(
        block,
        sample_routes(costs, block),
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
    """Replace the counts by likely ones for a target, annealed from them and at times anew."""
    edge_nll = _weighted_nll(model, costs, *sampled_splits(costs, lower_bounds, target))
    begins = [model.counts]
    if rng.random() < RESTART_RATE:
        begins.append(initial_counts(costs, model.block))
    found = [
        most_likely_counts(
            begin, edge_nll, model.penalties, costs.replicas, steps, int(rng.integers(2**31))
        )
        for begin in begins
    ]
    model.counts = min(found, key=lambda pair: pair[1])[0]


def rare_upper_bounds(
    model: CountModel, costs: MappingCosts, lower_bounds: LowerBounds, target: float
) -> tuple[Floats, Floats]:
    """Return `sampled_splits`, with `inf` where admitted pairs between blocks are not rare."""
    messages, rings = sampled_splits(costs, lower_bounds, target)
    found = _weighted_nll(model, costs, messages, rings)[:, :, (1, 3)].min(axis=1)
    messages[found[:, 0] < RARE_NLL] = np.inf
    rings[found[:, 1] < RARE_NLL] = np.inf
    return messages, rings


def sample_placement(model: CountModel, costs: MappingCosts, rng: np.random.Generator) -> State:
    """Return a random mapping with the model's counts."""
    slots: list[list[int]] = [[] for _ in range(costs.stages)]
    for b in rng.permutation(len(model.counts)).tolist():
        devices = rng.permutation(np.flatnonzero(model.block == b)).tolist()
        for s, count in enumerate(model.counts[b, :-1].tolist()):
            slots[s] += devices[:count]
            del devices[:count]
    chosen = np.array(slots)
    return state_of(costs, chosen, matched(costs, chosen))


def set_counts(model: CountModel, costs: MappingCosts, state: State) -> None:
    """Replace the model's counts by those of a mapping."""
    used = costs.stages * costs.replicas
    stage = np.full(costs.size, costs.stages)
    stage[:used] = np.repeat(np.arange(costs.stages), costs.replicas)
    model.counts = np.zeros_like(model.counts)
    np.add.at(model.counts, (model.block[state.slot], stage), 1)


def update_weights(
    model: CountModel, costs: MappingCosts, state: State, upper_bounds: tuple[Floats, Floats]
) -> None:
    """Raise weights and penalties where messages exceed their bounds, after both have decayed.

    Bounds are in seconds, by `sampled_splits`.
    """
    messages, rings = upper_bounds
    slots = state.slots()
    model.weights = model.weights**DECAY
    model.penalties *= DECAY
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
            np.add.at(model.penalties[:, s], block[slots[s][bad]], PENALTY)
            np.add.at(model.penalties[:, stage], block[other[bad]], PENALTY)


def _weighted_nll(
    model: CountModel, costs: MappingCosts, messages: Floats, rings: Floats
) -> Floats:
    """Return the NLL of one edge of each stage, split and kind, times weights; shape (S, Q, 4)."""
    edge_nll = admitted_nll(costs, model.sample, messages, rings)
    edge_nll *= np.repeat(model.weights, 2, axis=1)[:, None, :]
    return edge_nll
