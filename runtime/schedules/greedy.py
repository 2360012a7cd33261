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
from ..simulate.stages import StageGraph
from .actions import Kind, Schedule
from .kernels import place_tasks
from .patterns import held


class Placed(NamedTuple):
    """The stage replicas that the devices hold."""

    first: Ints  # (D + 1,): begins each device's part of the others
    # owner, replica, number: of each replica: its stage, its number, and how many the stage has
    owner: Ints
    replica: Ints
    number: Ints


class Tasks(NamedTuple):
    """The passes of the stages; task 2 · stage + pass."""

    duration: Floats  # (P, 3): of forward, backward and weight gradient
    present: Bools  # (P, 2): whether a stage has a forward and a backward pass
    rank: Ints  # (2P,)
    waits: Ints  # (2P,): for how many tasks each waits
    edge_at: Ints  # edge_at, edge_to: CSR: tasks that wait for each
    edge_to: Ints


class InFlightLimits(NamedTuple):
    """Most microbatches, shape (P,) each, between two passes of a stage's replica."""

    backward: Ints  # between forward and backward
    weights: Ints  # between forward and weight gradient


def list_schedule(
    stages: StageGraph,
    microbatches: int,
    name: str,
    *,
    limit: Ints,
    weight_limit: Ints | None = None,
) -> Schedule:
    """Return the schedule of the rule, in O(actions · (log devices + stages on a device)).

    `limit`, (P,), is the most microbatches between forward and backward, per replica of a stage;
    `weight_limit` that between forward and weight gradient, None not to split the backward.
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
    limits = InFlightLimits(
        np.array(limit), np.array(limit if weight_limit is None else weight_limit)
    )
    replicas = np.array([len(devices) for devices in stages.replicas])
    done, count = place_tasks(placed, tasks, limits, where, replicas, microbatches, split)
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
