"""Annealing of block counts, a matrix of shape (B, S + 1) with the spare devices last.

`inside`, shape (S,), is the largest number of messages to the next stage that stay in their block;
`used`, shape (S,), the number of blocks that serve a stage. See `count_model` for the objective.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from ....instances.common.arrays import Floats
from ....instances.common.kernel import inner, kernel
from .anneal_kernel import below, uniform


class CountObjective(NamedTuple):
    """Negative log-probability of counts, by its terms; S stages, Q splits, B blocks."""

    edges: Floats  # (S, Q, 4) of one edge of each kind
    penalties: Floats  # (B, S + 1) added for each device
    replicas: int


@inner
def _stage_value(s, inside, used, edge_nll, replicas):
    """Negative log-probability of stage s in its likeliest split."""
    across = replicas - inside[s]
    ring_across = used[s] if used[s] > 1 else 0
    ring_inside = replicas - ring_across
    best = np.inf
    for k in range(edge_nll.shape[1]):
        value = inside[s] * edge_nll[s, k, 0] + across * edge_nll[s, k, 1]
        value += ring_inside * edge_nll[s, k, 2] + ring_across * edge_nll[s, k, 3]
        best = min(best, value)
    return best


@inner
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


@inner
def _exchange(counts, inside, used, one, other, length, count):
    """Exchange `count` devices each of `length` stages from two pairs (block, stage) on."""
    (b, s), (c, t) = one, other
    for j in range(length):
        _move(counts, inside, used, b, s + j, -count)
        _move(counts, inside, used, b, t + j, count)
        _move(counts, inside, used, c, t + j, -count)
        _move(counts, inside, used, c, s + j, count)


@inner
def _copy(target, source):
    """Copy the source into the target; numba takes seconds to compile `target[:] = source`."""
    for b in range(source.shape[0]):
        for s in range(source.shape[1]):
            target[b, s] = source[b, s]


@kernel
def anneal_counts(counts, objective, steps, random, hot, cold, exchange_rate):
    """Minimise the negative log-probability of `counts` in place; return the least found.

    A step exchanges some devices of one stage, one device each of several stages in a row, or all
    counts of two blocks.
    """
    edge_nll, penalties, replicas = objective
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
        value[s] = _stage_value(s, inside, used, edge_nll, replicas)
    total = 0.0
    for s in range(stages):
        total += value[s]
    for b in range(blocks):
        for s in range(stages + 1):
            total += counts[b, s] * penalties[b, s]
    best, best_counts = total, np.empty_like(counts)
    _copy(best_counts, counts)
    trial, is_touched = np.empty(stages), np.zeros(stages + 1, np.bool_)
    for step in range(steps):
        heat = hot * (cold / hot) ** (step / steps)
        b, c = below(random, blocks), below(random, blocks)
        if b == c:
            continue
        if size[b] == size[c] and uniform(random) < exchange_rate:
            change = 0.0
            for s in range(stages + 1):
                change += (counts[c, s] - counts[b, s]) * (penalties[b, s] - penalties[c, s])
            if change <= 0 or uniform(random) < math.exp(-change / heat):
                for s in range(stages + 1):
                    counts[b, s], counts[c, s] = counts[c, s], counts[b, s]
                total += change
                if total < best - 1e-9 * abs(best):
                    best = total
                    _copy(best_counts, counts)
            continue
        s, t = below(random, stages + 1), below(random, stages + 1)
        if s == t or counts[b, s] == 0 or counts[c, t] == 0:
            continue
        length, count = 1, 1
        if uniform(random) < 0.5:
            count = 1 + below(random, min(counts[b, s], counts[c, t]))
        else:
            most = stages - max(s, t)
            while length < most and counts[b, s + length] > 0 and counts[c, t + length] > 0:
                length += 1
            length = 1 + below(random, length)
        _exchange(counts, inside, used, (b, s), (c, t), length, count)
        for j in range(-1, length):
            is_touched[max(0, s + j)] = True
            is_touched[max(0, t + j)] = True
        change = 0.0
        for j in range(length):
            change += count * (penalties[b, t + j] - penalties[b, s + j])
            change += count * (penalties[c, s + j] - penalties[c, t + j])
        for x in range(stages):
            if is_touched[x]:
                trial[x] = _stage_value(x, inside, used, edge_nll, replicas)
                change += trial[x] - value[x]
        accept = change <= 0 or uniform(random) < math.exp(-change / heat)
        for x in range(stages):
            if is_touched[x] and accept:
                value[x] = trial[x]
            is_touched[x] = False
        if not accept:
            _exchange(counts, inside, used, (c, s), (b, t), length, count)
            continue
        total += change
        if total < best - 1e-9 * abs(best):
            best = total
            _copy(best_counts, counts)
    _copy(counts, best_counts)
    return best
