"""Schedules with a repeating pattern, from GPipe to asynchronous, and list scheduling.

Almost all are one thing: task τ of microbatch j belongs to *round* j + k_τ of its device, and a
device works round by round, in the order of positions within a round. Such an order cannot
deadlock if every task that waits for another has a larger (k, position).

`list_schedule` orders passes by a rule on the stages' own times, for any plan: a device that is
free takes a ready backward task, else a forward task, else a weight gradient. Forward tasks are
held back while too many microbatches are in flight. Every stage takes microbatches in order, so the
oldest one can always go on: no deadlock.

With one version of the weights, all replicas of a stage reduce their gradients at the end of the
batch. PipeDream has no batches: replicas reduce after every round, in which each has done one
microbatch. 2BW reduces the gradients of a batch while the next one runs, in equal slices, one after
every round: so no device stops for long, and stages next to each other do not wait for it.

References
----------
Narayanan et al., "PipeDream", SOSP 2019, section 3.3 (replicated stages); "Memory-Efficient
Pipeline-Parallel DNN Training", ICML 2021 (2BW). Slices are ours.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from ...instances import InputError
from ...instances.common.arrays import Bools, Floats, Ints
from ...instances.model.chunk_schedules import V_CHUNKS, interleaved_rows, v_rows
from ..simulate.network import Network, all_reduce_times
from ..simulate.stages import BACKWARD, FORWARD, StageGraph
from .actions import ActionTable, Kind, Schedule, WeightVersions
from .kernels import place_tasks


class Slot(NamedTuple):
    """An action of every `stride`-th microbatch from `first`; the n-th is in round n + `round`.

    Or, if it `covers` several, of so many microbatches at a time.
    """

    stage: int
    kind: Kind
    round: int
    position: int
    first: int = 0
    stride: int = 1
    covers: int = 1


def rounds(slots: Sequence[Slot], microbatches: int) -> ActionTable:
    """Return the actions of one device, round by round."""
    parts = []
    for slot in slots:
        which = np.arange(slot.first, -(-microbatches // slot.covers), slot.stride)
        part = np.empty((len(which), 5), dtype=np.int64)
        part[:, 0] = slot.stage
        part[:, 1] = slot.kind
        part[:, 2] = which
        part[:, 3] = np.arange(len(which)) + slot.round
        part[:, 4] = slot.position
        parts.append(part)
    if not parts:
        return np.empty((0, 3), dtype=np.int32)
    table = np.concatenate(parts)
    return table[np.lexsort((table[:, 4], table[:, 3])), :3].astype(np.int32)


def held(stages: StageGraph) -> list[list[tuple[int, int]]]:
    """Return for each device the stages that it holds, and as which of their replicas."""
    lists: list[list[tuple[int, int]]] = [[] for _ in stages.devices]
    for stage, devices in enumerate(stages.replicas):
        for r, d in enumerate(devices):
            lists[d].append((stage, r))
    return lists


def is_plain(stages: StageGraph) -> bool:
    """Whether no device holds two stages and no stage has two replicas."""
    return all(len(own) <= 1 for own in held(stages)) and all(
        len(devices) == 1 for devices in stages.replicas
    )


def plain_1f1b(stages: StageGraph, microbatches: int) -> Schedule:
    """One forward, one backward: stage s begins with as many forwards as 1F1B holds there.

    Needs one stage at most per device. On a chain stage s (0-based) of S holds S − s microbatches;
    of stages with replicas each replica holds ⌈(d_s + … + d_S) / d_s⌉ of those that it takes.
    Narayanan et al., "PipeDream: Generalized Pipeline Parallelism for DNN Training", SOSP 2019.
    """
    return _by_height(stages, microbatches, "1f1b", stages.in_flight - 1, None)


def plain_zero_bubble(stages: StageGraph, microbatches: int, variant: int) -> Schedule:
    """Zero-bubble schedules H1 and H2: gradients of weights fill the bubbles.

    With H stages on the longest path, stage s of height h begins with h (H1) or 2h − 1 (H2)
    forwards; its weight gradients lag so that it holds H (H1) or 2H − 1 (H2) microbatches. Qi et
    al., "Zero Bubble Pipeline Parallelism", ICLR 2024, section 2.
    """
    factor = 1 if variant == 1 else 2
    inputs = factor * (stages.in_flight - 1)
    weights = np.full(stages.count, factor * (int(stages.in_flight.max()) - 1))
    return _by_height(stages, microbatches, f"zb-h{variant}", inputs, weights)


def _by_height(
    stages: StageGraph, microbatches: int, name: str, inputs: Ints, weights: Ints | None
) -> Schedule:
    tables = []
    for own in held(stages):
        slots = []
        for stage, r in own:
            turn = r, len(stages.replicas[stage])
            if stages.present[stage, FORWARD]:
                slots.append(Slot(stage, Kind.F, 0, 0, *turn))
            if stages.present[stage, BACKWARD]:
                kind = Kind.B if weights is None else Kind.I
                slots.append(Slot(stage, kind, int(inputs[stage]), 1, *turn))
                if weights is not None:
                    slots.append(Slot(stage, Kind.W, int(weights[stage]), 2, *turn))
        tables.append(rounds(slots, microbatches))
    number = [len(ring) for ring in stages.replicas]
    depth = 2 * int((stages.in_flight * number).max())
    repeat = math.lcm(*number)
    return Schedule(name, microbatches, tuple(tables), depth=depth, repeat=repeat, cyclic=True)


def is_interleaved(stages: StageGraph, microbatches: int) -> bool:
    """Whether stage s of a training pipeline is on device s modulo D, and D divides the batch."""
    used = len(set(stages.replicas))
    return (
        all(len(devices) == 1 for devices in stages.replicas)
        and all(devices == stages.replicas[s % used] for s, devices in enumerate(stages.replicas))
        and stages.count % used == 0
        and microbatches % used == 0
        and bool(stages.present.all())
    )


def interleaved(stages: StageGraph, microbatches: int) -> Schedule:
    """Interleaved 1F1B: D devices hold V chunks each, and take D microbatches per chunk in turn.

    Narayanan et al., "Efficient Large-Scale Language Model Training on GPU Clusters Using
    Megatron-LM", SC 2021, section 2.2.
    """
    size = len(set(stages.replicas))
    chunks = stages.count // size
    tables = [np.empty((0, 3), np.int32)] * len(stages.devices)
    for position, row in enumerate(interleaved_rows(size, chunks, microbatches)):
        tables[stages.replicas[position][0]] = row.astype(np.int32)
    return Schedule(
        "interleaved",
        microbatches,
        tuple(tables),
        depth=2 * stages.count,
        repeat=size,
        cyclic=True,
    )


def v_shaped(stages: StageGraph, microbatches: int, name: str) -> Schedule:
    """ZB-V or DualPipeV of stages in a V: down the devices and up again."""
    size, left = divmod(stages.count, V_CHUNKS)
    down = stages.replicas[:size]
    needed = stages.count if name == "dualpipe-v" else 1
    in_v = not left and stages.replicas == (*down, *down[::-1]) and len(set(down)) == size
    if not (in_v and bool(stages.present.all()) and microbatches >= needed):
        raise InputError(
            f"schedule: {name} trains 2 D stages that go down D devices and up again, "
            f"with at least {needed} microbatches; use 1f1b"
        )
    tables = [np.empty((0, 3), np.int32)] * len(stages.devices)
    for (device,), row in zip(down, v_rows(name, size, microbatches), strict=True):
        tables[device] = row.astype(np.int32)
    return Schedule(name, microbatches, tuple(tables))


def single(stages: StageGraph, microbatches: int) -> Schedule:
    """One request alone, forward only: what its latency is."""
    if microbatches != 1:
        raise InputError(
            f"microbatches: {microbatches}; the schedule single sends one request at a time: "
            "set 1, or use inference"
        )
    forward_only(stages, "single")
    tables = [
        rounds([Slot(s, Kind.F, 0, int(stages.rank[2 * s])) for s, r in own if r == 0], 1)
        for own in held(stages)
    ]
    return Schedule("single", 1, tuple(tables))


def forward_only(stages: StageGraph, name: str) -> None:
    """Raise InputError if there is a backward pass."""
    if stages.present[:, BACKWARD].any():
        raise InputError(
            f"schedule: {name} is for inference, and the workload has backward nodes; use 1f1b"
        )


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
    weight_limit: Ints,
) -> Schedule:
    """Return the schedule of the rule, in O(actions · (log devices + stages on a device)).

    `limit`, (P,), is the most microbatches between forward and backward, per replica of a stage;
    `weight_limit` that between forward and weight gradient.
    """
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
    limits = InFlightLimits(np.array(limit), np.array(weight_limit))
    replicas = np.array([len(devices) for devices in stages.replicas])
    done, count = place_tasks(placed, tasks, limits, where, replicas, microbatches)
    kinds = np.array([Kind.F, Kind.I, Kind.W], dtype=np.int32)
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


def all_reduce_actions(
    stages: StageGraph, versions: WeightVersions | str, network: Network
) -> Floats:
    """Return, shape (P,), how long one all-reduce action of each stage takes.

    InputError if nothing says how fast replicas talk to each other.
    """
    times = all_reduce_times(stages, network)
    if versions != WeightVersions.TWO:
        return times
    number = np.array([len(ring) for ring in stages.replicas])
    batch = stages.batch or int(number.max())
    sliced: Floats = times * np.minimum(1.0, number / batch)
    return sliced


def at_the_end(schedule: Schedule, stages: StageGraph) -> Schedule:
    """Return the schedule of one batch with an all-reduce per replicated stage at its end."""
    tables = list(schedule.actions)
    for stage in np.argsort(stages.rank[1::2], kind="stable").tolist():
        ring = stages.replicas[stage]
        if len(ring) > 1 and stages.present[stage, BACKWARD]:
            row = np.array([[stage, Kind.REDUCE_GRAD, 0]], dtype=np.int32)
            for d in ring:
                tables[d] = np.concatenate((tables[d], row))
    return replace(schedule, actions=tuple(tables))
