"""Schedules with a repeating pattern, from GPipe to asynchronous ones, and list scheduling.

Most follow one rule: task τ of microbatch j belongs to *round* j + k_τ of its device, and a device
works round by round, in the order of positions within a round. Such an order cannot deadlock if
every task that waits for another has a larger (k, position).

`list_schedule` orders passes by a rule on the stages' own times, for any plan: a device that is
free takes a ready backward task, else a forward task, else a weight gradient. Forward tasks are
held back while too many microbatches are in flight. Every stage takes microbatches in order, so the
oldest one can always go on: no deadlock.

With one version of the weights, all replicas of a stage reduce their gradients at the end of the
batch. PipeDream has no batches: replicas reduce after every round, in which each has done one
microbatch. 2BW reduces the gradients of a batch while the next one runs, in equal slices, one after
every round, so that no device stops for long and neighbouring stages do not wait for it.

*Cyclic* schedules, for any plan: every device repeats one round of work and never waits. Let T be
the max-load. Give every device d its tasks in a fixed order, one after the other, within a period
of length T that begins at a phase x_d. Task τ of microbatch 0 then starts at

    σ_τ = x_d + k_τ·T + position of τ in the period,

with the least whole k_τ for which σ_τ is not before the end of every task that τ waits for.
Microbatch j follows j·T later. Nothing ever collides, so the period T is reached, whatever the
graph and however often work comes back to a device; k says how many microbatches are in flight.
Phases are chosen so that the first task on a device starts as soon as it can: for a chain of equal
stages this is 1F1B itself. If transfers overlap with compute, a copy engine is one more device,
whose tasks are receives and sends; messages over links are delays.

A stage of R replicas takes every R-th microbatch. Its devices work in step, with a period of R·T
that begins at the same phase, since replicas may wait for each other: each then does its part of R
microbatches. If a device holds stages with different numbers of replicas, the period is T times
their least common multiple.

References
----------
Narayanan et al., "PipeDream", SOSP 2019, section 3.3 (replicated stages); "Memory-Efficient
Pipeline-Parallel DNN Training", ICML 2021 (2BW). Slices are ours.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from heapq import heappop, heappush
from typing import NamedTuple

import numpy as np

from ...instances import InputError
from ...instances.common.arrays import Floats, Ints
from ...instances.model.schedule import V_CHUNKS, interleaved_rows, v_rows
from ..simulate.network import HostMemory, Links, Network, all_reduce_times, message_times
from ..simulate.stages import BACKWARD, FORWARD, StageGraph
from .actions import Action, ActionTable, Kind, Schedule, WeightVersions, schedule_of

#: Passes by urgency in `list_schedule`: 0 forward, 1 backward or 2 weights, and the action.
_PASSES = ((1, Kind.I), (0, Kind.F), (2, Kind.W))
#: Tolerance for rounding of sums, as a fraction of the period.
SLACK = 1e-12


class Slot(NamedTuple):
    """Recurring action for every `stride`-th microbatch from `first` on.

    The n-th one is in round n + `round`. If `covers` is above 1, groups of so many microbatches
    take the place of microbatches.
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
    """Return for each device the stages that it holds, with its replica number in each."""
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
    """1F1B (one forward, one backward) for plans with at most one stage per device.

    On a chain, stage s (0-based) of S holds S − s microbatches in flight, and begins with so many
    forward passes; each of d_s replicas holds ⌈(d_s + … + d_{S−1}) / d_s⌉.
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
    """Schedule of a single request, forward only, which shows its latency."""
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


def list_schedule(
    stages: StageGraph,
    microbatches: int,
    name: str,
    *,
    limit: Ints,
    weight_limit: Ints,
) -> Schedule:
    """Return the list schedule by the module's rule, in O(actions · (log devices + stages held)).

    `limit`, shape (P,), is the most microbatches between forward and backward pass, per replica of
    a stage; `weight_limit`, shape (P,), the most between forward pass and weight gradient.
    """
    number = [len(ring) for ring in stages.replicas]
    weights = stages.weight_share * stages.compute[:, BACKWARD]
    forward, backward = stages.duration.T
    seconds = np.stack((forward, backward - weights, weights), axis=1).tolist()
    after: list[list[int]] = [[] for _ in range(2 * stages.count)]
    for task, following in stages.edges.tolist():
        after[task].append(following)
    waits = np.bincount(stages.edges[:, 1], minlength=2 * stages.count)
    missing = np.repeat(waits[:, None], microbatches, axis=1).tolist()
    present, rank, own = stages.present.tolist(), stages.rank.tolist(), held(stages)
    # for each replica of a stage, the next microbatch of forward, backward and weight pass
    turn = {replica: [replica[1]] * len(_PASSES) for here in own for replica in here}

    def ready(device: int) -> Iterator[tuple[int, int, int, int, int]]:
        """Yield the passes that can begin: urgency, microbatch, position, stage and replica."""
        for s, r in own[device]:
            there, back, swept = turn[s, r]
            goes, returns = present[s]
            if returns and back < microbatches and not missing[2 * s + BACKWARD][back]:
                yield 0, back, rank[2 * s + BACKWARD], s, r
            full = returns and (
                (there - back) // number[s] >= limit[s]
                or (there - swept) // number[s] >= weight_limit[s]
            )
            if goes and not full and there < microbatches and not missing[2 * s][there]:
                yield 1, there, rank[2 * s], s, r
            if returns and swept < back:
                yield 2, swept, rank[2 * s + BACKWARD], s, r

    rows: list[list[Action]] = [[] for _ in own]
    running: list[tuple[float, int, int, int, int]] = []
    look, busy, now = set(range(len(own))), set[int](), 0.0
    while True:
        for d in look - busy:
            found = min(ready(d), default=None)
            if found is not None:
                urgency, j, _, s, r = found
                side, kind = _PASSES[urgency]
                turn[s, r][side] += number[s]
                rows[d].append(Action(s, kind, j))
                heappush(running, (now + seconds[s][side], d, s, side, j))
                busy.add(d)
        if not running:
            break
        look, now = set(), running[0][0]
        while running and running[0][0] <= now:
            _, d, s, side, j = heappop(running)
            busy.remove(d)
            look.add(d)
            for task in after[2 * s + side] if side <= BACKWARD else ():
                missing[task][j] -= 1
                if not missing[task][j]:
                    look.add(stages.replicas[task // 2][j % number[task // 2]])
    made = schedule_of(rows, name=name, microbatches=microbatches)
    depth = (int(limit.max()) + 1) * max(number)
    return replace(made, depth=depth, repeat=math.lcm(*number))


def all_reduce_actions(
    stages: StageGraph, versions: WeightVersions | str, network: Network
) -> Floats:
    """Return the time of one all-reduce action of each stage, shape (P,).

    InputError if the bandwidth between replicas is not known.
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


class Work(NamedTuple):
    """Work that recurs for every microbatch, or for every round of microbatches."""

    task: int  # task, kind: number of the task, and kind of the action
    kind: Kind
    # for each copy in a period, its lanes: a device, or D + device for a copy engine
    lanes: list[list[int]]
    microbatches: int  # number of microbatches that a copy covers
    duration: float  # duration of a copy
    # prerequisites: index in the list of all work, and delay
    after: tuple[tuple[int, float], ...]

    @property
    def period(self) -> int:
        """Number of microbatches in a period."""
        return len(self.lanes) * self.microbatches


def pipedream(stages: StageGraph, microbatches: int, network: Network) -> Schedule:
    """PipeDream's asynchronous pipeline: no flush, one weight version per microbatch in flight."""
    return asynchronous(stages, microbatches, network, "pipedream", WeightVersions.IN_FLIGHT)


def pipedream_2bw(stages: StageGraph, microbatches: int, network: Network) -> Schedule:
    """PipeDream-2BW: PipeDream's order with accumulated gradients and two weight versions.

    Narayanan et al., "Memory-Efficient Pipeline-Parallel DNN Training", ICML 2021.
    """
    return asynchronous(stages, microbatches, network, "2bw", WeightVersions.TWO)


def inference(stages: StageGraph, microbatches: int, network: Network) -> Schedule:
    """Pipelined inference: a stream of microbatches, forward only."""
    forward_only(stages, "inference")
    return asynchronous(stages, microbatches, network, "inference", WeightVersions.ONE)


def asynchronous(
    stages: StageGraph,
    microbatches: int,
    network: Network,
    name: str,
    versions: WeightVersions,
) -> Schedule:
    """Return the cyclic schedule that this module describes.

    It resembles modulo scheduling in compilers: Rau, "Iterative Modulo Scheduling", MICRO 1994.
    """
    group = _groups(stages)
    works = _works(stages, network, versions, group)
    load = np.zeros(2 * len(stages.devices))
    for work in works:
        for lane in (lane for lanes in work.lanes for lane in lanes):
            load[lane] += work.duration / work.period
    pace = float(load.max())

    filled = np.zeros(len(load))
    phase: dict[tuple[frozenset[int], bool], float] = {}
    number: list[Ints] = []
    end: list[Floats] = []
    for work in works:
        length = work.period * pace
        position = np.zeros(len(work.lanes))
        for c, lanes in enumerate(work.lanes):
            position[c] = filled[lanes].max()
            filled[lanes] = position[c] + work.duration
        ready = np.zeros(len(work.lanes))
        for i, delay in work.after:
            other = works[i]
            arrival = _arrivals(end[i], other.microbatches, work, pace)
            ready = np.maximum(ready, arrival + delay)
        first = work.lanes[0][0]
        in_step = (group[first % len(stages.devices)], first >= len(stages.devices))
        if in_step not in phase:
            phase[in_step] = float((ready - position).max()) % length if length > 0 else 0.0
        begin = phase[in_step] + position
        k = np.zeros(len(ready), np.int64)
        if length > 0:
            k = np.ceil((ready - begin) / length - SLACK).astype(np.int64)
        number.append(k)
        end.append(begin + k * length + work.duration)

    slots: list[list[Slot]] = [[] for _ in load]
    for index, (work, k) in enumerate(zip(works, number, strict=True)):
        for c, lanes in enumerate(work.lanes):
            for lane in lanes:
                slots[lane].append(
                    Slot(
                        work.task // 2, work.kind, int(k[c]), index, c, len(work.lanes),
                        work.microbatches,
                    )
                )  # fmt: skip
    tables = [rounds(own, microbatches) for own in slots]
    size = len(stages.devices)
    late = [int(k.max()) * work.period for k, work in zip(number, works, strict=True)]
    early = [int(k.min()) * work.period for k, work in zip(number, works, strict=True)]
    return Schedule(
        name,
        microbatches,
        tuple(tables[:size]),
        versions=versions,
        depth=max(late) - min(early) + max(work.period for work in works),
        repeat=math.lcm(*(work.period for work in works)),
        cyclic=True,
        engines=tuple(tables[size:]) if _has_engines(network) else (),
    )


def _arrivals(end: Floats, microbatches: int, work: Work, pace: float) -> Floats:
    """Return the time, in the period of `work`, when the inputs of each of its copies are there.

    `end` has the end of each copy of a prerequisite; a copy covers `microbatches`.
    """
    theirs, mine = len(end) * microbatches, work.period
    number = np.arange(math.lcm(theirs, mine))
    when = end[number % theirs // microbatches] + number // theirs * (theirs * pace)
    ready = np.full(len(work.lanes), -np.inf)
    np.maximum.at(ready, number % mine // work.microbatches, when - number // mine * (mine * pace))
    return ready


def gpipe(stages: StageGraph, microbatches: int, network: Network) -> Schedule:
    """All forward passes, then all backward passes, each in the order of the cyclic schedule.

    Huang et al., "GPipe: Efficient Training of Giant Neural Networks using Pipeline Parallelism",
    NeurIPS 2019.
    """
    order = asynchronous(stages, microbatches, network, "gpipe", WeightVersions.ONE)
    tables = [table[np.argsort(table[:, 1] != Kind.F, kind="stable")] for table in order.actions]
    return replace(order, actions=tuple(tables), engines=(), cyclic=False)


def flushed(stages: StageGraph, microbatches: int, network: Network) -> Schedule:
    """Return the cyclic order for one batch, which generalises 1F1B to any plan."""
    order = asynchronous(stages, microbatches, network, "1f1b", WeightVersions.ONE)
    return replace(order, engines=())


def _has_engines(network: Network) -> bool:
    return isinstance(network, HostMemory) and network.overlap


def _groups(stages: StageGraph) -> list[frozenset[int]]:
    """Return for each device the devices in step with it, connected to it by shared replicas."""
    import networkx as nx

    graph: nx.Graph[int] = nx.Graph()
    graph.add_nodes_from(range(len(stages.devices)))
    for ring in stages.replicas:
        nx.add_path(graph, ring)
    together = {d: frozenset(group) for group in nx.connected_components(graph) for d in group}
    return [together[d] for d in range(len(stages.devices))]


def _works(
    stages: StageGraph,
    network: Network,
    versions: WeightVersions,
    group: list[frozenset[int]],
) -> list[Work]:
    """Return the work of all stages in topological order."""
    delay = np.zeros(len(stages.edges))
    if isinstance(network, Links) and network.overlap:
        delay = message_times(stages, network)
    before: list[list[tuple[int, float]]] = [[] for _ in range(2 * stages.count)]
    leaves = np.zeros(2 * stages.count, dtype=bool)
    for (a, b), time in zip(stages.edges.tolist(), delay.tolist(), strict=True):
        before[b].append((a, time))
        leaves[a] |= stages.replicas[a // 2] != stages.replicas[b // 2]
    replicated = any(len(ring) > 1 for ring in stages.replicas)
    reduces = np.zeros(stages.count)
    if versions != WeightVersions.ONE and replicated:
        reduces = all_reduce_actions(stages, versions, network)
    period: dict[frozenset[int], int] = {}
    for ring in stages.replicas:
        period[group[ring[0]]] = math.lcm(len(ring), period.get(group[ring[0]], 1))
    engines, size = _has_engines(network), len(stages.devices)
    works: list[Work] = []
    computed: dict[int, int] = {}
    visible: dict[int, int] = {}  # the work after which other devices can go on

    for task in np.argsort(stages.rank, kind="stable").tolist():
        stage, side = divmod(task, 2)
        if not stages.present[stage, side]:
            continue
        ring = stages.replicas[stage]
        lanes = [[ring[c % len(ring)]] for c in range(period[group[ring[0]]])]
        engine = [[size + d for d in own] for own in lanes]
        near = [(computed[a], t) for a, t in before[task] if stages.replicas[a // 2] == ring]
        far = [(visible[a], t) for a, t in before[task] if stages.replicas[a // 2] != ring]
        time = float((stages.compute if engines else stages.duration)[stage, side])
        if engines and far:
            kind, cost = Kind.RECV_F + 2 * side, float(stages.receive[stage, side])
            works.append(Work(task, Kind(kind), engine, 1, cost, tuple(far)))
            near, far = [*near, (len(works) - 1, 0.0)], []
        computed[task] = visible[task] = len(works)
        works.append(Work(task, Kind(side), lanes, 1, time, tuple(near + far)))
        if engines and leaves[task]:
            visible[task] = len(works)
            kind, cost = Kind.SEND_F + 2 * side, float(stages.send[stage, side])
            works.append(Work(task, Kind(kind), engine, 1, cost, ((computed[task], 0.0),)))
        if side == BACKWARD and reduces[stage] > 0:
            together = [list(ring)] * (len(lanes) // len(ring))
            cost = float(reduces[stage])
            own = ((computed[task], 0.0),)
            works.append(Work(task, Kind.REDUCE_GRAD, together, len(ring), cost, own))
    return works
