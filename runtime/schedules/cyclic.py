"""Asynchronous pipelines for any plan: every device repeats one round of work and never waits.

Let T be the max-load. Give every device d its tasks in a fixed order, one after the other, within
a period of length T that begins at a phase x_d. Task τ of microbatch 0 then starts at

    σ_τ = x_d + k_τ·T + position of τ in the period,

with the least whole k_τ for which σ_τ is not before the end of every task that τ waits for.
Microbatch j follows j·T later. Nothing ever collides, so the period T is reached, whatever the
graph and however often work comes back to a device; k says how many microbatches are in flight.
Phases are chosen so that the first task on a device starts as soon as it can: for a chain of equal
stages this is 1F1B itself. Where transfers run beside compute, a copy engine is one more device,
whose tasks are the receptions and sendings; messages over links are delays.

A stage of R replicas takes every R-th microbatch. Its devices work in step, with a period of R·T
that begins at one phase for all of them, for replicas may wait for each other (`reduction`): each
then does its part of R microbatches. Where a device holds stages of different replicas, the period
is that of their least common multiple.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from ...instances.common.arrays import Floats, Ints
from ..simulate.network import HostMemory, Links, Network, message_times
from ..simulate.stages import BACKWARD, StageGraph
from .actions import Kind, Schedule, WeightVersions
from .patterns import Slot, all_reduce_actions, forward_only, rounds

#: Tolerance for rounding of sums, as a fraction of the period.
SLACK = 1e-12


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
