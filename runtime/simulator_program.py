"""Stages, schedule and network compiled to arrays for the event engine.

An action waits at a *gate*, which counts what has not arrived yet for a microbatch; whoever ends
opens the gates it feeds. Actions are on devices, in fixed order; *jobs* (transfers that run beside
compute) are on lanes, in order of arrival.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..instances import InputError
from ..instances.arrays import Floats, Ints
from .network import HostMemory, Links, Network, ring_all_reduce_s, units_per_second
from .pieces import Stages
from .schedules.actions import Kind, Schedule

KINDS = len(Kind)


@dataclass(frozen=True, eq=False)
class Program:
    """N actions of T templates (kind · P + stage), X jobs per microbatch, G gates, L lanes.

    Parameters
    ----------
    first
        Shape (D + 1,): first action of each device.
    template, microbatch
        Shape (N,).
    duration
        Shape (T,).
    gate
        Shape (T,): where an action waits; −1 for nowhere.
    rendezvous
        Shape (T,): whether actions of all replicas begin together.
    waits
        Shape (G,): arrivals that a gate waits for.
    gate_stage, gate_job
        Shape (G,): whose devices a gate stops; the job that it starts, or −1.
    feed_at, feed_to
        CSR over templates, then jobs: gates that they open when they end.
    replicas_at, replicas_to
        CSR: devices of each stage.
    job_from, job_to
        Shape (X,): stages.
    job_pair
        Shape (X,): 1 if the job takes the link between the two stages' devices, 0 if it takes
        the copy engine of `job_from`'s device.
    job_work
        Shape (X,): in units of the lane's rate.
    link
        Shape (D, D).
    rate, latency
        Shape (L,).
    order_at, order_to
        CSR: jobs of each lane (job · microbatches + microbatch) in the order in which they must
        run; without any lane, they run as they come.
    fair
        Whether jobs on a lane share it.
    lanes
        Names of the lanes.
    inputs
        Shape (2P, 2): time within an action for receiving and for sending (tasks).
    """

    first: Ints
    template: Ints
    microbatch: Ints
    duration: Floats
    gate: Ints
    rendezvous: Ints
    waits: Ints
    gate_stage: Ints
    gate_job: Ints
    feed_at: Ints
    feed_to: Ints
    replicas_at: Ints
    replicas_to: Ints
    job_from: Ints
    job_to: Ints
    job_task: Ints
    job_pair: Ints
    job_work: Floats
    link: Ints
    rate: Floats
    latency: Floats
    order_at: Ints
    order_to: Ints
    fair: bool
    lanes: tuple[str, ...]
    inputs: Floats


def compile_program(stages: Stages, schedule: Schedule, network: Network) -> Program:
    """Return the arrays that the engine runs; the stages are settled in the network.

    Raises
    ------
    InputError
        If the schedule has explicit transfers and the network moves data beside compute.
    """
    count = stages.count
    kinds = {int(k) for table in schedule.actions for k in np.unique(table[:, 1])}
    explicit = bool(kinds & {Kind.RECV_F, Kind.SEND_F, Kind.RECV_B, Kind.SEND_B})
    if explicit and network.overlap:
        raise InputError(
            "schedule: it lists transfers as actions of the devices; "
            "simulate it with a network that does not overlap"
        )
    ends = np.stack((stages.receive.ravel(), stages.send.ravel()), axis=1)
    inline = not explicit and not network.overlap
    duration = np.zeros((KINDS, count))
    tasks = (Kind.F, Kind.B)
    around = ends.sum(axis=1).reshape(count, 2) if inline else np.zeros((count, 2))
    for side, kind in enumerate(tasks):
        duration[kind] = stages.compute[:, side] + around[:, side]
    duration[Kind.W] = stages.weight_share * stages.compute[:, 1]
    duration[Kind.I] = duration[Kind.B] - duration[Kind.W]
    for side in (0, 1):
        duration[Kind.RECV_F + 2 * side] = ends[side::2, 0]
        duration[Kind.SEND_F + 2 * side] = ends[side::2, 1]
    if Kind.REDUCE_GRAD in kinds:
        duration[Kind.REDUCE_GRAD] = [
            ring_all_reduce_s(network, ring, float(size)) * units_per_second(stages.time_unit)
            if len(ring) > 1
            else 0.0
            for ring, size in zip(stages.replicas, stages.weight_bytes, strict=True)
        ]

    # Gates: tasks 0 … 2P−1, W 2P …, receives 3P …, sends 5P …, all-reduces 7P …, jobs 8P ….
    weight, receive, sending, reduce = 2 * count, 3 * count, 5 * count, 7 * count
    local = np.array(
        [stages.replicas[a // 2] == stages.replicas[b // 2] for a, b in stages.edges.tolist()],
        dtype=bool,
    ).reshape(-1)
    feeds: list[tuple[int, int]] = []  # (template or job, gate)
    jobs: list[tuple[int, int, int, int, float]] = []  # from, to, task, pair, work
    engine_order: list[Ints] = []

    def begin(task: int, gate: int) -> list[tuple[int, int]]:
        """What the end of a task feeds; the input-gradient half of a backward counts as its end."""
        stage, side = divmod(task, 2)
        at = [Kind.F] if side == 0 else [Kind.B, Kind.I]
        return [(kind * count + stage, gate) for kind in at]

    for s in range(count):
        feeds.append((Kind.I * count + s, weight + s))
    remote = stages.edges[~local].tolist()
    size = stages.payload_bytes[~local].tolist()
    for a, b in stages.edges[local].tolist():
        feeds += begin(a, b)
    if inline:
        for a, b in remote:
            feeds += begin(a, b)
    elif explicit:
        for a in sorted({a for a, _ in remote}):
            feeds += begin(a, sending + a)
        for a, b in remote:
            feeds.append(((Kind.SEND_F + 2 * (a % 2)) * count + a // 2, receive + b))
        for b in sorted({b for _, b in remote}):
            feeds.append(((Kind.RECV_F + 2 * (b % 2)) * count + b // 2, b))
    elif isinstance(network, HostMemory):
        out = {a: 0 for a, _ in remote}
        into = {b: 0 for _, b in remote}
        for table, column in ((out, 1), (into, 0)):
            for task in table:
                table[task] = len(jobs)
                jobs.append((task // 2, task // 2, task, 0, float(ends[task, column])))
        engine_order = _engine_order(schedule, out, into)
        base = KINDS * count
        for a, x in out.items():
            feeds += begin(a, 8 * count + x)
        for a, b in remote:
            feeds.append((base + out[a], 8 * count + into[b]))
        feeds += [(base + x, b) for b, x in into.items()]
    else:
        base = KINDS * count
        for (a, b), work in zip(remote, size, strict=True):
            if work == 0:
                feeds += begin(a, b)
                continue
            feeds += begin(a, 8 * count + len(jobs))
            feeds.append((base + len(jobs), b))
            jobs.append((a // 2, b // 2, a, 1, work))

    gates = 8 * count + len(jobs)
    waits = np.zeros(gates, dtype=np.int64)
    for source, gate in feeds:
        kind = source // count if source < KINDS * count else -1
        # A whole backward and its input half feed the same gates: count one of them.
        waits[gate] += kind != Kind.I or weight <= gate < receive
    waits[reduce : 8 * count] = [len(ring) for ring in stages.replicas]
    gate_stage = np.zeros(gates, dtype=np.int64)
    every = np.arange(count)
    gate_stage[: 2 * count] = gate_stage[receive:sending] = np.repeat(every, 2)
    gate_stage[sending:reduce] = np.repeat(every, 2)
    gate_stage[weight:receive] = gate_stage[reduce : 8 * count] = every
    gate_job = np.full(gates, -1, dtype=np.int64)
    gate_job[8 * count :] = np.arange(len(jobs))
    gate = np.full((KINDS, count), -1, dtype=np.int64)
    gate[Kind.F] = 2 * every
    gate[Kind.B] = gate[Kind.I] = 2 * every + 1
    gate[Kind.W] = weight + every
    for side in (0, 1):
        gate[Kind.RECV_F + 2 * side] = receive + 2 * every + side
        gate[Kind.SEND_F + 2 * side] = sending + 2 * every + side
    gate[Kind.REDUCE_GRAD] = reduce + every
    rendezvous = np.zeros((KINDS, count), dtype=np.int64)
    rendezvous[Kind.REDUCE_GRAD] = 1

    pairs = np.array(sorted(feeds), dtype=np.int64).reshape(-1, 2)
    sources = KINDS * count + len(jobs)
    feed_at = np.searchsorted(pairs[:, 0], np.arange(sources + 1))
    table = np.concatenate(schedule.actions).reshape(-1, 3)
    columns = np.array(jobs, dtype=np.float64).reshape(-1, 5)
    lanes, link, rate, latency = _lanes(stages, network)
    return Program(
        first=np.cumsum([0, *map(len, schedule.actions)]).astype(np.int64),
        template=(table[:, 1] * np.int32(count) + table[:, 0]).astype(np.int32),
        microbatch=np.ascontiguousarray(table[:, 2]),
        duration=duration.ravel(),
        gate=gate.ravel(),
        rendezvous=rendezvous.ravel(),
        waits=waits,
        gate_stage=gate_stage,
        gate_job=gate_job,
        feed_at=feed_at.astype(np.int64),
        feed_to=pairs[:, 1].copy(),
        replicas_at=np.cumsum([0, *map(len, stages.replicas)]).astype(np.int64),
        replicas_to=np.array([d for ring in stages.replicas for d in ring], dtype=np.int64),
        job_from=columns[:, 0].astype(np.int64),
        job_to=columns[:, 1].astype(np.int64),
        job_task=columns[:, 2].astype(np.int64),
        job_pair=columns[:, 3].astype(np.int64),
        job_work=columns[:, 4].copy(),
        link=link,
        rate=rate,
        latency=latency,
        order_at=np.cumsum([0, *map(len, engine_order)]).astype(np.int64),
        order_to=np.concatenate([np.zeros(0, np.int64), *engine_order]),
        fair=isinstance(network, Links) and network.sharing == "fair",
        lanes=lanes,
        inputs=ends if inline else np.zeros_like(ends),
    )


def _engine_order(schedule: Schedule, out: dict[int, int], into: dict[int, int]) -> list[Ints]:
    jobs = np.full((2, 1 + max([0, *out, *into])), -1, dtype=np.int64)
    jobs[0, list(into)] = list(into.values())
    jobs[1, list(out)] = list(out.values())
    orders = []
    for table in schedule.engines:
        task = 2 * table[:, 0] + (table[:, 1] >= Kind.RECV_B)
        sends = (table[:, 1] == Kind.SEND_F) | (table[:, 1] == Kind.SEND_B)
        orders.append(jobs[sends.astype(np.int64), task] * schedule.microbatches + table[:, 2])
    return orders


def _lanes(stages: Stages, network: Network) -> tuple[tuple[str, ...], Ints, Floats, Floats]:
    devices = len(stages.devices)
    if isinstance(network, HostMemory):
        names = tuple(f"{name} copy engine" for name in stages.devices)
        return names, np.full((devices, devices), -1), np.ones(devices), np.zeros(devices)
    scale = units_per_second(stages.time_unit)
    used: list[list[str]] = [[] for _ in network.bytes_per_s]
    for a in range(devices):
        for b in range(devices):
            if network.link[a, b] >= 0:
                used[network.link[a, b]].append(f"{stages.devices[a]} → {stages.devices[b]}")
    names = tuple(
        pairs[0] if len(pairs) == 1 else f"link {i}" for i, pairs in enumerate(used)
    )
    return names, network.link, network.bytes_per_s / scale, network.latency_s * scale
