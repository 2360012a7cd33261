"""Asynchronous pipelines for any plan: every device repeats one round of work and never waits.

Let T be the max-load. Give every device d its tasks in a fixed order, one after the other, within
a period of length T that begins at a phase x_d. Task τ of a sample then starts at

    σ_τ = x_d + k_τ·T + position of τ in the period,

with the least whole k_τ for which σ_τ is not before the end of every task that τ waits for.
Sample j follows j·T later. Nothing ever collides, so the period T is reached, whatever the graph
and however often work comes back to a device; k says how many samples are in flight. Phases are
chosen so that the first task on a device starts as soon as it can: for a chain of equal stages
this is 1F1B itself. Where transfers run beside compute, a copy engine is one more device, whose
tasks are the receptions and sendings; messages over links are delays.

A stage of R replicas takes every R-th sample; then L samples, L the least common multiple, are
treated as one.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from ..network import HostMemory, Links, Network, message_times
from ..stages import Stages
from .actions import Kind, Schedule, Versions
from .patterns import Slot, forward_only, rounds

#: Slack in units of the period for rounding of sums.
SLACK = 1e-12


class Work(NamedTuple):
    """Something that a device or its copy engine does for every sample.

    Parameters
    ----------
    task, kind, copy
        Which task, what of it, and which of the L samples.
    lane
        The device, or D + device for its copy engine.
    duration
        Time it takes.
    after
        What it waits for, as index in the list of all work and delay.
    """

    task: int
    kind: Kind
    copy: int
    lane: int
    duration: float
    after: tuple[tuple[int, float], ...]


def pipedream(stages: Stages, microbatches: int, network: Network) -> Schedule:
    """PipeDream's asynchronous pipeline: no flush, one weight version per sample in flight."""
    return asynchronous(stages, microbatches, network, "pipedream", "in flight")


def pipedream_2bw(stages: Stages, microbatches: int, network: Network) -> Schedule:
    """PipeDream-2BW: the same order, gradients accumulated, two weight versions.

    References
    ----------
    Narayanan et al., "Memory-Efficient Pipeline-Parallel DNN Training", ICML 2021.
    """
    return asynchronous(stages, microbatches, network, "2bw", "two")


def inference(stages: Stages, microbatches: int, network: Network) -> Schedule:
    """Pipelined inference: a stream of samples, forward only."""
    forward_only(stages, "inference")
    return asynchronous(stages, microbatches, network, "inference", "one")


def asynchronous(
    stages: Stages, microbatches: int, network: Network, name: str, versions: Versions
) -> Schedule:
    """Return the cyclic schedule of the module's description.

    References
    ----------
    [ours] After modulo scheduling in compilers: Rau, "Iterative Modulo Scheduling", MICRO 1994.
    """
    repeat = math.lcm(*(len(devices) for devices in stages.replicas))
    works = _works(stages, network, repeat)
    load = np.zeros(2 * len(stages.devices))
    for work in works:
        load[work.lane] += work.duration
    period = float(load.max())

    filled = np.zeros(len(load))
    phase: dict[int, float] = {}
    number: list[int] = []
    end: list[float] = []
    for work in works:
        position = float(filled[work.lane])
        filled[work.lane] += work.duration
        ready = max((end[i] + delay for i, delay in work.after), default=0.0)
        if work.lane not in phase:
            phase[work.lane] = (ready - position) % period if period > 0 else 0.0
        begin = phase[work.lane] + position
        k = math.ceil((ready - begin) / period - SLACK) if period > 0 else 0
        number.append(k)
        end.append(begin + k * period + work.duration)

    slots: list[list[Slot]] = [[] for _ in load]
    for index, work in enumerate(works):
        slot = Slot(work.task // 2, work.kind, number[index], index, work.copy, repeat)
        slots[work.lane].append(slot)
    tables = [rounds(own, microbatches) for own in slots]
    size = len(stages.devices)
    depth = (max(number) - min(number) + 1) * repeat
    return Schedule(
        name,
        microbatches,
        tuple(tables[:size]),
        versions=versions,
        depth=depth,
        repeat=repeat,
        cyclic=True,
        engines=tuple(tables[size:]) if _has_engines(network) else (),
    )


def gpipe(stages: Stages, microbatches: int, network: Network) -> Schedule:
    """All forward passes, then all backward passes, each in the order of the cyclic schedule.

    References
    ----------
    Huang et al., "GPipe: Efficient Training of Giant Neural Networks using Pipeline
    Parallelism", NeurIPS 2019.
    """
    order = asynchronous(stages, microbatches, network, "gpipe", "one")
    tables = [table[np.argsort(table[:, 1] != Kind.F, kind="stable")] for table in order.actions]
    return replace(order, actions=tuple(tables), engines=(), cyclic=False)


def flushed(stages: Stages, microbatches: int, network: Network, name: str) -> Schedule:
    """Return the cyclic order for one batch: what 1F1B is for any plan."""
    return replace(asynchronous(stages, microbatches, network, name, "one"), engines=())


def _has_engines(network: Network) -> bool:
    return isinstance(network, HostMemory) and network.overlap


def _works(stages: Stages, network: Network, repeat: int) -> list[Work]:
    """Return all work in topological order."""
    delay = np.zeros(len(stages.edges))
    if isinstance(network, Links) and network.overlap:
        delay = message_times(stages, network)
    before: list[list[tuple[int, float]]] = [[] for _ in range(2 * stages.count)]
    leaves = np.zeros(2 * stages.count, dtype=bool)
    for (a, b), time in zip(stages.edges.tolist(), delay.tolist(), strict=True):
        before[b].append((a, time))
        leaves[a] |= stages.replicas[a // 2] != stages.replicas[b // 2]
    works: list[Work] = []
    computed: dict[tuple[int, int], int] = {}
    visible: dict[tuple[int, int], int] = {}  # the work after which other devices can go on

    for task in np.argsort(stages.rank, kind="stable").tolist():
        stage, side = divmod(task, 2)
        if not stages.present[stage, side]:
            continue
        ring = stages.replicas[stage]
        for c in range(repeat):
            device = ring[c % len(ring)]
            near = [(computed[a, c], t) for a, t in before[task] if stages.replicas[a // 2] == ring]
            far = [(visible[a, c], t) for a, t in before[task] if stages.replicas[a // 2] != ring]
            time = float(stages.duration[stage, side])
            engine = len(stages.devices) + device
            if _has_engines(network):
                time = float(stages.compute[stage, side])
                if far:
                    cost = float(stages.receive[stage, side])
                    kind = Kind.RECV_B if side else Kind.RECV_F
                    near.append((len(works), 0.0))
                    works.append(Work(task, kind, c, engine, cost, tuple(far)))
                    far = []
            computed[task, c] = visible[task, c] = len(works)
            kind = Kind.B if side else Kind.F
            works.append(Work(task, kind, c, device, time, tuple(near + far)))
            if _has_engines(network) and leaves[task]:
                visible[task, c] = len(works)
                cost = float(stages.send[stage, side])
                kind = Kind.SEND_B if side else Kind.SEND_F
                works.append(Work(task, kind, c, engine, cost, ((computed[task, c], 0.0),)))
    return works
