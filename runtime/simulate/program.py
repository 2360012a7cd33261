"""Stages, schedule and network compiled to arrays for the event engine.

An action waits at a *gate*, which counts the arrivals that a microbatch still lacks; the end of an
action or transfer is an arrival at the gates that it feeds. Actions are on devices, in fixed order;
*jobs*, transfers beside compute, are on lanes, in order of arrival.

Gates 0 … 2P−1 are those of tasks (2 · stage + pass); then come, per stage, those of weight
gradients and of all-reduces; at last one gate per job.

Arrays are of D devices, P stages, N actions of T templates (kind · P + stage), G gates, X jobs per
microbatch, L lanes (copy engines, or links).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...instances.common.arrays import Floats, Ints
from ..schedules.actions import Kind, Schedule
from ..schedules.patterns import all_reduce_actions
from .network import HostMemory, Links, Network, Sharing, units_per_second
from .stages import BACKWARD, FORWARD, StageGraph

KINDS = len(Kind)
Ints32 = NDArray[np.int32]


class Actions(NamedTuple):
    """Actions of the devices, each device's in order."""

    first: Ints  # (D + 1,): first action of each device
    template: Ints32  # template, microbatch: (N,)
    microbatch: Ints32
    duration: Floats  # (T,)
    gate: Ints  # (T,): gate at which an action waits, or −1
    rendezvous: Ints  # (T,): whether actions of all replicas begin together


class Gates(NamedTuple):
    """Gates at which actions and jobs wait, per microbatch."""

    waits: Ints  # (G,): number of arrivals that a gate waits for
    stage: Ints  # stage, job: (G,): stage whose devices wait at it; job that it starts, or −1
    job: Ints
    # feed_at, feed_to: CSR over templates, then jobs: gates at which their ends arrive
    feed_at: Ints
    feed_to: Ints


class Replicas(NamedTuple):
    """Devices of each stage, as CSR; they take microbatches in turn."""

    at: Ints  # (P + 1,): begin of each stage's devices
    to: Ints  # numbers of devices


class Jobs(NamedTuple):
    """Transfers beside compute."""

    source: Ints  # source, target: (X,): stages
    target: Ints
    task: Ints  # (X,): the task that it belongs to, 2 · stage + pass
    # (X,): 1 if the job takes the route between the two stages' devices, 0 if it takes the copy
    # engine of the source's device
    pair: Ints
    work: Floats  # (X,): bytes, or time on a copy engine


class Lanes(NamedTuple):
    """Copy engines or links, with the routes over them."""

    rate: Floats  # (L,)
    latency: Floats  # (routes,)
    route: Ints  # (D, D): number of the route from a device to another, −1 for none
    route_at: Ints  # route_at, route_to: CSR: lanes on each route
    route_to: Ints
    # order_at, order_to: CSR: jobs of each lane (job · microbatches + microbatch) in a prescribed
    # order; without lanes there, jobs run in order of arrival
    order_at: Ints
    order_to: Ints


class TransferJob(NamedTuple):
    """Transfer beside compute: its task, the stages at its ends, and its work.

    `pair` is true if it takes the link between the two stages' devices, false if it takes the
    copy engine of the first.
    """

    source: int
    target: int
    task: int
    pair: bool
    work: float


@dataclass
class Wiring:
    """Feeds (pairs of an end and a gate), jobs, and the orders of copy engines.

    Ends are numbered kind · P + stage for actions, and from `first_job` on for jobs.
    """

    stages: int
    feeds: list[tuple[int, int]] = field(default_factory=list)
    jobs: list[TransferJob] = field(default_factory=list)
    orders: list[Ints] = field(default_factory=list)

    @property
    def first_job(self) -> int:
        """Number of the end of job 0."""
        return KINDS * self.stages

    def weight(self, stage: int) -> int:
        """Gate of a stage's weight gradient."""
        return 2 * self.stages + stage

    def all_reduce(self, stage: int) -> int:
        """Gate of a stage's all-reduce."""
        return 3 * self.stages + stage

    def job_gate(self, job: int) -> int:
        """Gate of a job."""
        return 4 * self.stages + job

    def feed(self, task: int, gate: int) -> None:
        """Let the end of a task feed a gate; a backward pass ends with its input gradients."""
        stage, side = divmod(task, 2)
        for kind in (Kind.B, Kind.I) if side == BACKWARD else (Kind.F,):
            self.feeds.append((kind * self.stages + stage, gate))

    def waits(self, replicas: list[int]) -> Ints:
        """Return the number of arrivals that each gate waits for."""
        waits = np.zeros(self.job_gate(len(self.jobs)), dtype=np.int64)
        for end, gate in self.feeds:
            # A whole backward and its input half feed the same gates: count one of them.
            half = end // self.stages == Kind.I and end < self.first_job
            waits[gate] += not half or self.weight(0) <= gate < self.all_reduce(0)
        waits[self.all_reduce(0) : self.job_gate(0)] = replicas
        return waits


@dataclass(frozen=True, eq=False)
class SimulationProgram:
    """Program of the event engine, with the names of its lanes."""

    actions: Actions
    gates: Gates
    replicas: Replicas
    jobs: Jobs
    lanes: Lanes
    fair: bool  # whether jobs share the lanes on their routes
    names: tuple[str, ...]  # of the L lanes
    inputs: Floats  # (2P, 2): time within an action for receiving and for sending (tasks)


def compile_program(stages: StageGraph, schedule: Schedule, network: Network) -> SimulationProgram:
    """Return the engine's program for stages that are priced in the network."""
    count = stages.count
    every, tasks = np.arange(count), np.arange(2 * count)
    wiring = wire(stages, schedule, network)
    replicas = [len(ring) for ring in stages.replicas]
    pairs = np.array(sorted(wiring.feeds), dtype=np.int64).reshape(-1, 2)
    ends = wiring.first_job + len(wiring.jobs)
    table = np.concatenate(schedule.actions).reshape(-1, 3)
    actions = Actions(
        first=np.cumsum([0, *map(len, schedule.actions)]).astype(np.int64),
        template=(table[:, 1] * np.int32(count) + table[:, 0]).astype(np.int32),
        microbatch=np.ascontiguousarray(table[:, 2]),
        duration=_durations(stages, schedule, network).ravel(),
        gate=_gates(wiring).ravel(),
        rendezvous=np.repeat(np.arange(KINDS) == Kind.REDUCE_GRAD, count).astype(np.int64),
    )
    gates = Gates(
        waits=wiring.waits(replicas),
        stage=np.concatenate((tasks // 2, every, every, np.zeros(len(wiring.jobs), np.int64))),
        job=np.concatenate(
            (np.full(wiring.job_gate(0), -1, dtype=np.int64), np.arange(len(wiring.jobs)))
        ),
        feed_at=np.searchsorted(pairs[:, 0], np.arange(ends + 1)).astype(np.int64),
        feed_to=pairs[:, 1].copy(),
    )
    jobs = Jobs(
        source=np.array([job.source for job in wiring.jobs], dtype=np.int64),
        target=np.array([job.target for job in wiring.jobs], dtype=np.int64),
        task=np.array([job.task for job in wiring.jobs], dtype=np.int64),
        pair=np.array([job.pair for job in wiring.jobs], dtype=np.int64),
        work=np.array([job.work for job in wiring.jobs], dtype=np.float64),
    )
    names, rate = _lanes(stages, network)
    routes = network.routes if isinstance(network, Links) else ()
    lanes = Lanes(
        rate=rate,
        latency=_latencies(stages, network),
        route=network.route.copy() if isinstance(network, Links) else np.zeros((0, 0), np.int64),
        route_at=np.cumsum([0, *map(len, routes)]).astype(np.int64),
        route_to=np.array([i for links in routes for i in links], dtype=np.int64),
        order_at=np.cumsum([0, *map(len, wiring.orders)]).astype(np.int64),
        order_to=np.concatenate([np.zeros(0, np.int64), *wiring.orders]),
    )
    transfers = np.stack((stages.receive.ravel(), stages.send.ravel()), axis=1)
    return SimulationProgram(
        actions,
        gates,
        Replicas(
            at=np.cumsum([0, *replicas]).astype(np.int64),
            to=np.array([d for ring in stages.replicas for d in ring], dtype=np.int64),
        ),
        jobs,
        lanes,
        fair=isinstance(network, Links) and network.sharing == Sharing.FAIR,
        names=names,
        inputs=np.zeros_like(transfers) if network.overlap else transfers,
    )


def _durations(stages: StageGraph, schedule: Schedule, network: Network) -> Floats:
    """Return the time that each action keeps its device busy, shape (kinds, P)."""
    duration = np.zeros((KINDS, stages.count))
    tasks = stages.compute if network.overlap else stages.duration
    duration[Kind.F] = tasks[:, FORWARD]
    duration[Kind.B] = tasks[:, BACKWARD]
    duration[Kind.W] = stages.weight_share * stages.compute[:, BACKWARD]
    duration[Kind.I] = duration[Kind.B] - duration[Kind.W]
    if any((table[:, 1] == Kind.REDUCE_GRAD).any() for table in schedule.actions):
        duration[Kind.REDUCE_GRAD] = all_reduce_actions(stages, schedule.versions, network)
    return duration


def _gates(wiring: Wiring) -> Ints:
    """Return the gate at which each action waits, or −1, shape (kinds, P)."""
    every = np.arange(wiring.stages)
    gate = np.full((KINDS, wiring.stages), -1, dtype=np.int64)
    gate[Kind.F] = 2 * every
    gate[Kind.B] = gate[Kind.I] = 2 * every + 1
    gate[Kind.W] = wiring.weight(0) + every
    gate[Kind.REDUCE_GRAD] = wiring.all_reduce(0) + every
    return gate


def _lanes(stages: StageGraph, network: Network) -> tuple[tuple[str, ...], Floats]:
    """Return names and rates of copy engines or links."""
    devices = len(stages.devices)
    if isinstance(network, HostMemory):
        return tuple(f"{name} copy engine" for name in stages.devices), np.ones(devices)
    rate = network.bytes_per_s / units_per_second(stages.time_unit)
    if network.names:
        return network.names, rate
    used: list[list[str]] = [[] for _ in network.bytes_per_s]
    for a, b in np.argwhere(network.route >= 0).tolist():
        for i in network.routes[network.route[a, b]]:
            used[i].append(f"{stages.devices[a]} → {stages.devices[b]}")
    names = (pairs[0] if len(pairs) == 1 else f"link {i}" for i, pairs in enumerate(used))
    return tuple(names), rate


def _latencies(stages: StageGraph, network: Network) -> Floats:
    if isinstance(network, HostMemory):
        return np.zeros(0)
    return network.route_latency_s * units_per_second(stages.time_unit)


def wire(stages: StageGraph, schedule: Schedule, network: Network) -> Wiring:
    """Return feeds and jobs by the network's way to move data."""
    wiring = Wiring(stages.count)
    for s in range(stages.count):
        wiring.feeds.append((Kind.I * stages.count + s, wiring.weight(s)))
    remote = []
    sizes = stages.payload_bytes.tolist()
    for (a, b), size in zip(stages.edges.tolist(), sizes, strict=True):
        if stages.replicas[a // 2] == stages.replicas[b // 2]:
            wiring.feed(a, b)
        else:
            remote.append((a, b, size))
    if not network.overlap:
        for a, b, _ in remote:
            wiring.feed(a, b)
    elif isinstance(network, HostMemory):
        _through_engines(wiring, stages, schedule, remote)
    else:
        _over_links(wiring, remote)
    return wiring


def _through_engines(
    wiring: Wiring, stages: StageGraph, schedule: Schedule, remote: list[tuple[int, int, float]]
) -> None:
    """Wire transfers by copy engines: task, job of the sender's, job of the receiver's, task."""
    out, into = {a: 0 for a, _, _ in remote}, {b: 0 for _, b, _ in remote}
    for numbers, cost in ((out, stages.send), (into, stages.receive)):
        for task in numbers:
            numbers[task] = len(wiring.jobs)
            stage = task // 2
            wiring.jobs.append(TransferJob(stage, stage, task, False, float(cost[stage, task % 2])))
    for a, job in out.items():
        wiring.feed(a, wiring.job_gate(job))
    for a, b, _ in remote:
        wiring.feeds.append((wiring.first_job + out[a], wiring.job_gate(into[b])))
    wiring.feeds += [(wiring.first_job + job, b) for b, job in into.items()]
    job_of = np.full((2, 2 * stages.count), -1, dtype=np.int64)
    job_of[0, list(into)] = list(into.values())
    job_of[1, list(out)] = list(out.values())
    for table in schedule.engines:
        tasks = 2 * table[:, 0] + (table[:, 1] >= Kind.RECV_B)
        sends = (table[:, 1] == Kind.SEND_F) | (table[:, 1] == Kind.SEND_B)
        order = job_of[sends.astype(np.int64), tasks] * schedule.microbatches + table[:, 2]
        wiring.orders.append(order)


def _over_links(wiring: Wiring, remote: list[tuple[int, int, float]]) -> None:
    """Wire transfers over links: task, job of the link, task; empty ones take no time."""
    for a, b, size in remote:
        if size == 0:
            wiring.feed(a, b)
            continue
        wiring.feed(a, wiring.job_gate(len(wiring.jobs)))
        wiring.feeds.append((wiring.first_job + len(wiring.jobs), b))
        wiring.jobs.append(TransferJob(a // 2, b // 2, a, True, size))
