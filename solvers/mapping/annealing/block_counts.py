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
from numba import njit

from ....formulations.mapping.costs import MappingCosts
from ....instances.model.arrays import Bools, Floats, Ints
from ..parameters import (
    COUNT_COLD,
    COUNT_EXCHANGE_RATE,
    COUNT_HOT,
    FORBIDDEN,
    LIKELY_NATS,
    SAMPLE_PAIRS,
)


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
        _anneal(
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


@njit(cache=True)
def _stage_value(s, inside, used, edge_nats, replicas):
    """Nats of stage s in its best split."""
    across = replicas - inside[s]
    ring_across = used[s] if used[s] > 1 else 0
    ring_inside = replicas - ring_across
    best = np.inf
    for k in range(edge_nats.shape[1]):
        value = inside[s] * edge_nats[s, k, 0] + across * edge_nats[s, k, 1]
        value += ring_inside * edge_nats[s, k, 2] + ring_across * edge_nats[s, k, 3]
        best = min(best, value)
    return best


@njit(cache=True)
def _move(counts, inside, used, b, s, by):
    """Add `by` devices of block b to stage s."""
    stages = len(inside)
    if s == stages:
        counts[b, s] += by
        return
    before, after = s - 1 >= 0, s + 1 < stages
    if before:
        inside[s - 1] -= min(counts[b, s - 1], counts[b, s])
    if after:
        inside[s] -= min(counts[b, s], counts[b, s + 1])
    used[s] -= counts[b, s] > 0
    counts[b, s] += by
    used[s] += counts[b, s] > 0
    if before:
        inside[s - 1] += min(counts[b, s - 1], counts[b, s])
    if after:
        inside[s] += min(counts[b, s], counts[b, s + 1])


@njit(cache=True)
def _exchange(counts, inside, used, b, c, s, t, length, count):
    """Exchange `count` devices each of `length` stages: from s on in block b, from t on in c."""
    for j in range(length):
        _move(counts, inside, used, b, s + j, -count)
        _move(counts, inside, used, b, t + j, count)
        _move(counts, inside, used, c, t + j, -count)
        _move(counts, inside, used, c, s + j, count)


@njit(cache=True)
def _copy(target, source):
    """As `target[:] = source`, which takes numba seconds to compile."""
    for b in range(source.shape[0]):
        for s in range(source.shape[1]):
            target[b, s] = source[b, s]


@njit(cache=True)
def _anneal(counts, edge_nats, prices, replicas, steps, seed, hot, cold, exchange_rate):
    """Exchange devices, one device each of several stages in a row, or all counts of two blocks."""
    np.random.seed(seed)  # noqa: NPY002
    blocks, stages = counts.shape[0], counts.shape[1] - 1
    inside, used = np.zeros(stages, np.int64), np.zeros(stages, np.int64)
    size = np.zeros(blocks, np.int64)
    for b in range(blocks):
        size[b] = counts[b, stages]
        for s in range(stages):
            size[b] += counts[b, s]
            used[s] += counts[b, s] > 0
            if s + 1 < stages:
                inside[s] += min(counts[b, s], counts[b, s + 1])
    value = np.empty(stages)
    for s in range(stages):
        value[s] = _stage_value(s, inside, used, edge_nats, replicas)
    total = 0.0
    for s in range(stages):
        total += value[s]
    for b in range(blocks):
        for s in range(stages + 1):
            total += counts[b, s] * prices[b, s]
    best, kept = total, np.empty_like(counts)
    _copy(kept, counts)
    trial, is_touched = np.empty(stages), np.zeros(stages + 1, np.bool_)
    for step in range(steps):
        heat = hot * (cold / hot) ** (step / steps)
        b, c = np.random.randint(blocks), np.random.randint(blocks)  # noqa: NPY002
        if b == c:
            continue
        if size[b] == size[c] and np.random.random() < exchange_rate:  # noqa: NPY002
            change = 0.0
            for s in range(stages + 1):
                change += (counts[c, s] - counts[b, s]) * (prices[b, s] - prices[c, s])
            if change <= 0 or np.random.random() < np.exp(-change / heat):  # noqa: NPY002
                for s in range(stages + 1):
                    counts[b, s], counts[c, s] = counts[c, s], counts[b, s]
                total += change
                if total < best - 1e-9 * abs(best):
                    best = total
                    _copy(kept, counts)
            continue
        s, t = np.random.randint(stages + 1), np.random.randint(stages + 1)  # noqa: NPY002
        if s == t or counts[b, s] == 0 or counts[c, t] == 0:
            continue
        length, count = 1, 1
        if np.random.random() < 0.5:  # noqa: NPY002
            count = 1 + np.random.randint(min(counts[b, s], counts[c, t]))  # noqa: NPY002
        else:
            most = stages - max(s, t)
            while length < most and counts[b, s + length] > 0 and counts[c, t + length] > 0:
                length += 1
            length = 1 + np.random.randint(length)  # noqa: NPY002
        _exchange(counts, inside, used, b, c, s, t, length, count)
        for j in range(-1, length):
            is_touched[max(0, s + j)] = True
            is_touched[max(0, t + j)] = True
        change = 0.0
        for j in range(length):
            change += count * (prices[b, t + j] - prices[b, s + j])
            change += count * (prices[c, s + j] - prices[c, t + j])
        for x in range(stages):
            if is_touched[x]:
                trial[x] = _stage_value(x, inside, used, edge_nats, replicas)
                change += trial[x] - value[x]
        accept = change <= 0 or np.random.random() < np.exp(-change / heat)  # noqa: NPY002
        for x in range(stages):
            if is_touched[x] and accept:
                value[x] = trial[x]
            is_touched[x] = False
        if not accept:
            _exchange(counts, inside, used, c, b, s, t, length, count)
            continue
        total += change
        if total < best - 1e-9 * abs(best):
            best = total
            _copy(kept, counts)
    _copy(counts, kept)
    return best
