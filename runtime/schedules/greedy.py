"""List scheduling: the order that a rule produces on the stages' own times, for any plan.

A device that becomes free takes a ready backward task, else a forward task, else a weight
gradient. Forward tasks are held back while too many microbatches are in flight. Every
stage takes microbatches in order, so the oldest one can always go on: no deadlock.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from ...instances.common.arrays import Bools, Floats, Ints
from ...instances.common.kernel import kernel
from ..simulate.stages import StageGraph
from .actions import Kind, Schedule
from .patterns import held


class Placed(NamedTuple):
    """The stage replicas that the devices hold.

    Parameters
    ----------
    first
        Shape (D + 1,): begins each device's part of the others.
    owner, replica, number
        Of each replica: its stage, its number, and how many the stage has.
    """

    first: Ints
    owner: Ints
    replica: Ints
    number: Ints


class Tasks(NamedTuple):
    """The passes of the stages; task 2 · stage + pass.

    Parameters
    ----------
    duration
        Shape (P, 3): of forward, backward and weight gradient.
    present
        Shape (P, 2): whether a stage has a forward and a backward pass.
    rank
        Shape (2P,).
    waits
        Shape (2P,): for how many tasks each waits.
    edge_at, edge_to
        CSR: tasks that wait for each.
    """

    duration: Floats
    present: Bools
    rank: Ints
    waits: Ints
    edge_at: Ints
    edge_to: Ints


class Limits(NamedTuple):
    """Most microbatches, shape (P,) each, between two passes of a stage's replica.

    Parameters
    ----------
    backward
        Between forward and backward.
    weights
        Between forward and weight gradient.
    """

    backward: Ints
    weights: Ints


def list_schedule(
    stages: StageGraph,
    microbatches: int,
    name: str,
    *,
    limit: Ints,
    weight_limit: Ints | None = None,
) -> Schedule:
    """Return the schedule that the rule gives.

    Parameters
    ----------
    limit
        Shape (P,): most microbatches between forward and backward, per replica of a stage.
    weight_limit
        Shape (P,): most between forward and weight gradient; None not to split the backward.

    Notes
    -----
    O(actions · (log devices + stages on a device)).
    """
    split = weight_limit is not None
    owner, replica, number = [], [], []
    first = [0]
    for own in held(stages):
        for stage, r in own:
            owner.append(stage)
            replica.append(r)
            number.append(len(stages.replicas[stage]))
        first.append(len(owner))
    duration = np.zeros((stages.count, 3))
    duration[:, :2] = stages.duration
    if split:
        duration[:, 2] = stages.weight_share * stages.compute[:, 1]
        duration[:, 1] -= duration[:, 2]
    starts = np.zeros(2 * stages.count + 1, dtype=np.int64)
    order = np.argsort(stages.edges[:, 0], kind="stable")
    np.add.at(starts, stages.edges[:, 0] + 1, 1)
    waits = np.bincount(stages.edges[:, 1], minlength=2 * stages.count)
    where = np.full((stages.count, max(number)), -1, dtype=np.int64)
    for stage, devices in enumerate(stages.replicas):
        where[stage, : len(devices)] = devices
    placed = Placed(np.array(first), np.array(owner), np.array(replica), np.array(number))
    tasks = Tasks(
        duration,
        stages.present,
        stages.rank,
        waits,
        np.cumsum(starts),
        stages.edges[order, 1].copy(),
    )
    limits = Limits(limit, weight_limit if weight_limit is not None else limit)
    replicas = np.array([len(devices) for devices in stages.replicas])
    done, count = _list_schedule(placed, tasks, limits, where, replicas, microbatches, split)
    kinds = np.array([Kind.F, Kind.I if split else Kind.B, Kind.W], dtype=np.int32)
    done = done[:count]
    done[:, 2] = kinds[done[:, 2]]
    tables = [done[done[:, 0] == d][:, 1:] for d in range(len(stages.devices))]
    return Schedule(
        name,
        microbatches,
        tuple(tables),
        depth=(int(limit.max()) + 1) * max(number),
        repeat=math.lcm(*number),
    )


@kernel
def _list_schedule(placed, tasks, limits, where, replicas, m, split):
    """Give a device that is free backward passes first, then forward ones, then weight gradients.

    Of those the lowest microbatch, then the lowest `rank`. Returns rows of device, stage, pass and
    microbatch in the order of their start, and how many of them are filled.

    Parameters
    ----------
    where
        Shape (P, most replicas): device of each replica of a stage, −1 behind the last.
    replicas
        Shape (P,): how many there are.
    split
        Whether weight gradients are passes of their own.
    """
    first, owner, replica, number = placed
    duration, present, rank, waits, edge_at, edge_to = tasks
    limit, weight_limit = limits
    devices = len(first) - 1
    held_count = len(owner)
    missing = np.zeros((len(waits), m), np.int32)
    for t in range(len(waits)):
        missing[t, :] = waits[t]
    nxt = np.zeros((held_count, 3), np.int64)
    for h in range(held_count):
        nxt[h, :] = replica[h]
    free = np.zeros(devices)  # when a device is free; inf while it waits
    doing = np.full((devices, 3), -1, np.int64)  # entry, pass, microbatch
    done = np.empty((3 * held_count * (m + 1), 4), np.int32)
    count = 0
    now = 0.0
    look = np.ones(devices, np.bool_)
    while True:
        for d in range(devices):
            if not look[d] or doing[d, 0] >= 0:
                continue
            look[d] = False
            best, side, key0, key1 = -1, -1, 0, 0
            for h in range(first[d], first[d + 1]):
                s = owner[h]
                flying = (nxt[h, 0] - nxt[h, 1]) // number[h] if present[s, 1] else 0
                unswept = (nxt[h, 0] - nxt[h, 2]) // number[h] if split and present[s, 1] else 0
                for p in range(3):
                    j = nxt[h, p]
                    if j >= m or (p < 2 and not present[s, p]):
                        continue
                    if p == 2 and (not split or not present[s, 1] or j >= nxt[h, 1]):
                        continue
                    if p < 2 and missing[2 * s + p, j] > 0:
                        continue
                    if p == 0 and flying >= limit[s]:
                        continue
                    if p == 0 and split and unswept >= weight_limit[s]:
                        continue
                    urgency = 0 if p == 1 else (1 if p == 0 else 2)
                    a = urgency * (m + 1) + j
                    b = rank[2 * s + min(p, 1)] * (m + 1) + j
                    if best < 0 or a < key0 or (a == key0 and b < key1):
                        best, side, key0, key1 = h, p, a, b
            if best >= 0:
                j = nxt[best, side]
                doing[d, 0], doing[d, 1], doing[d, 2] = best, side, j
                nxt[best, side] += number[best]
                free[d] = now + duration[owner[best], side]
                done[count, 0], done[count, 1] = d, owner[best]
                done[count, 2], done[count, 3] = side, j
                count += 1
        now = np.inf
        for d in range(devices):
            if doing[d, 0] >= 0 and free[d] < now:
                now = free[d]
        if now == np.inf:
            return done, count
        for d in range(devices):
            if doing[d, 0] >= 0 and free[d] <= now:
                s, p, j = owner[doing[d, 0]], doing[d, 1], doing[d, 2]
                doing[d, 0] = -1
                look[d] = True
                if p < 2:
                    for e in range(edge_at[2 * s + p], edge_at[2 * s + p + 1]):
                        t = edge_to[e]
                        missing[t, j] -= 1
                        if missing[t, j] == 0:
                            look[where[t // 2, j % replicas[t // 2]]] = True
