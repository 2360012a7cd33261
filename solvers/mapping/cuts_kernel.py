"""Kernels of cuts into stages: moves of single units, and the DP over chains of ideals."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...instances.common.arrays import Floats, Ints
from ...instances.common.kernel import inner, kernel

#: Lists of numbers: where the list of each one begins, and the lists.
Lists = tuple[Ints, Ints]


class UnitGraph(NamedTuple):
    """Units with their edges and nets, as lists by unit or net."""

    seconds: Floats  # (U,)
    successors: Lists
    predecessors: Lists
    nets_of: Lists  # nets of each unit
    pins_of: Lists  # units of each net
    weight: Floats  # (E,) cost of a net for each boundary that it crosses


@inner
def _eighth_power(x):
    """Return x⁸, rounded in the same way whether interpreted or compiled."""
    x *= x
    x *= x
    return x * x


@kernel
def move_units(graph, stage, stages, sweeps):
    """Move units between stages in place, in at most `sweeps` passes; return the objective."""
    seconds, successors, predecessors, nets_of, pins_of, weight = graph
    (after_at, after), (before_at, before) = successors, predecessors
    (nets_at, nets), (net_start, pins) = nets_of, pins_of
    units = len(seconds)
    load = np.zeros(stages)
    cut = np.zeros(stages + 1)
    for v in range(units):
        load[stage[v]] += seconds[v]
    for e in range(len(weight)):
        low, high = stages, -1
        for k in range(net_start[e], net_start[e + 1]):
            low, high = min(low, stage[pins[k]]), max(high, stage[pins[k]])
        for s in range(low, high):
            cut[s] += weight[e]
    members = np.zeros(stages, np.int64)
    for v in range(units):
        members[stage[v]] += 1
    total = 0.0
    for s in range(stages):
        total += load[s]
    scale = max(total / stages, 1e-300)
    for sweep in range(sweeps):
        moved = False
        for k in range(units):
            v = k if sweep % 2 == 0 else units - 1 - k
            s = stage[v]
            if members[s] == 1:
                continue
            lowest, highest = 0, stages - 1
            for j in range(before_at[v], before_at[v + 1]):
                lowest = max(lowest, stage[before[j]])
            for j in range(after_at[v], after_at[v + 1]):
                highest = min(highest, stage[after[j]])
            for t in (s - 1, s + 1):
                if t < lowest or t > highest:
                    continue
                # moving v between s and t changes boundary min(s, t) alone
                b = min(s, t)
                change = 0.0
                for j in range(nets_at[v], nets_at[v + 1]):
                    e = nets[j]
                    low, high = stages, -1
                    for q in range(net_start[e], net_start[e + 1]):
                        if pins[q] != v:
                            low = min(low, stage[pins[q]])
                            high = max(high, stage[pins[q]])
                    was = min(low, s) <= b < max(high, s)
                    will = min(low, t) <= b < max(high, t)
                    change += weight[e] * (int(will) - int(was))
                x = load[s] + cut[s] * (s + 1 < stages)
                y = load[t] + cut[t] * (t + 1 < stages)
                x2 = x - seconds[v] + (change if s == b else 0.0)
                y2 = y + seconds[v] + (change if t == b else 0.0)
                old = _eighth_power(x / scale) + _eighth_power(y / scale)
                new = _eighth_power(x2 / scale) + _eighth_power(y2 / scale)
                if new < old * (1 - 1e-9):
                    load[s] -= seconds[v]
                    load[t] += seconds[v]
                    cut[b] += change
                    members[s] -= 1
                    members[t] += 1
                    stage[v] = t
                    moved = True
                    break
        if not moved:
            break
    worst = 0.0
    for s in range(stages):
        worst = max(worst, load[s] + (cut[s] if s + 1 < stages else 0.0))
    return worst


class StageEnds(NamedTuple):
    """Ideals at which a stage ends, with its prices; N ideals, Q states."""

    members: NDArray[np.uint64]  # (N, words): bits of the units
    work: Floats  # (N,): seconds of the units, ascending
    held: Floats  # (N,): their bytes of parameters
    sent: Floats  # (B, N): what the boundary costs, the least first
    prices: Floats  # (2,): of a byte of parameters
    table: Ints  # (Q, K, 2, 3): as of `run_states`
    speed: int  # number of the speed of the stage's devices
    overlap: bool


@kernel
def add_stage(ends, begins, before, after, came, low, high):
    """Extend the chains of `before` by a stage that ends at ideals `low` to `high`, in `after`.

    `begins` are the ideals that chains of `before` reach, ascending. `before` and `after`, (N, Q),
    are the least maximum by state, which only falls; `came`, (N, Q), (j Q + q) K + k of the ideal j
    and state q before, and the speed k. From state 0 all is allowed that is from another, so that
    only values below its own are of use there.
    """
    work, reached = ends.work[begins], np.empty(len(begins))
    for b in range(len(begins)):
        reached[b] = before[begins[b]].min()
    for i in range(low, high):
        first = np.searchsorted(work, ends.work[i] - after[i, 0])
        for b in range(first, np.searchsorted(begins, i)):
            j, worst = begins[b], after[i, 0]
            if reached[b] >= worst:
                continue
            compute = ends.work[i] - ends.work[j]
            least = ends.prices[0] * (ends.held[i] - ends.held[j]) + ends.sent[0, i]
            if (max(least, compute) if ends.overlap else least + compute) >= worst:
                continue
            if is_inside(ends.members, j, i):
                extend(ends, before, after, came, j, i)


@kernel
def is_inside(members, j, i):
    """Whether ideal j is part of ideal i."""
    for k in range(members.shape[1]):
        if members[j, k] & ~members[i, k]:
            return False
    return True


@kernel
def extend(ends, before, after, came, j, i):
    """Extend the chains to ideal j by the stage from there to ideal i, ring and boundary chosen."""
    compute, reduced = ends.work[i] - ends.work[j], ends.held[i] - ends.held[j]
    for ring in range(2):
        for boundary in range(len(ends.sent)):
            time = ends.prices[ring] * reduced + ends.sent[boundary, i]
            time = max(time, compute) if ends.overlap else time + compute
            for q in range(before.shape[1]):
                target = ends.table[q, ends.speed, ring, boundary]
                value = max(time, before[j, q])
                if target >= 0 and value < min(after[i, target], after[i, 0]):
                    after[i, target] = value
                    came[i, target] = (j * before.shape[1] + q) * ends.table.shape[1] + ends.speed
