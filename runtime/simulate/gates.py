"""What the end of each action sets off: the gates of a program, by how data moves.

Gates 0 … 2P−1 stop tasks (2 · stage + pass), then come, per stage or task: weight gradients,
receptions, sendings, all-reduces; at last one gate per job.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from ...instances.common.arrays import Ints
from ..schedules.actions import Kind, Schedule
from .network import HostMemory, Network
from .stages import BACKWARD, StageGraph

KINDS = len(Kind)


class Job(NamedTuple):
    """A transfer beside compute: its task, the stages at its ends, and its work.

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
    """Feeds (what ends, which gate it opens), jobs, and the orders of copy engines.

    Ends are numbered kind · P + stage for actions, and from `first_job` on for jobs.
    """

    stages: int
    feeds: list[tuple[int, int]] = field(default_factory=list)
    jobs: list[Job] = field(default_factory=list)
    orders: list[Ints] = field(default_factory=list)

    @property
    def first_job(self) -> int:
        """Number of the end of job 0."""
        return KINDS * self.stages

    def weight(self, stage: int) -> int:
        """Gate of a stage's weight gradient."""
        return 2 * self.stages + stage

    def reception(self, task: int) -> int:
        """Gate of the action that receives a task's inputs."""
        return 3 * self.stages + task

    def sending(self, task: int) -> int:
        """Gate of the action that sends a task's outputs."""
        return 5 * self.stages + task

    def all_reduce(self, stage: int) -> int:
        """Gate of a stage's all-reduce."""
        return 7 * self.stages + stage

    def job_gate(self, job: int) -> int:
        """Gate of a job."""
        return 8 * self.stages + job

    def feed(self, task: int, gate: int) -> None:
        """Let the end of a task open a gate; a backward ends with its input gradients."""
        stage, side = divmod(task, 2)
        for kind in (Kind.B, Kind.I) if side == BACKWARD else (Kind.F,):
            self.feeds.append((kind * self.stages + stage, gate))

    def waits(self, replicas: list[int]) -> Ints:
        """Return how many arrivals each gate waits for."""
        waits = np.zeros(self.job_gate(len(self.jobs)), dtype=np.int64)
        for end, gate in self.feeds:
            # A whole backward and its input half feed the same gates: count one of them.
            half = end // self.stages == Kind.I and end < self.first_job
            waits[gate] += not half or self.weight(0) <= gate < self.reception(0)
        waits[self.all_reduce(0) : self.job_gate(0)] = replicas
        return waits


def wire(stages: StageGraph, schedule: Schedule, network: Network, listed: bool) -> Wiring:
    """Return what sets off what.

    Parameters
    ----------
    listed
        The schedule lists the transfers as actions.
    """
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
    if listed:
        _through_actions(wiring, remote)
    elif not network.overlap:
        for a, b, _ in remote:
            wiring.feed(a, b)
    elif isinstance(network, HostMemory):
        _through_engines(wiring, stages, schedule, remote)
    else:
        _over_links(wiring, remote)
    return wiring


def _through_actions(wiring: Wiring, remote: list[tuple[int, int, float]]) -> None:
    """Task, sending, reception, task: all of them actions of the devices."""
    count = wiring.stages
    for a in sorted({a for a, _, _ in remote}):
        wiring.feed(a, wiring.sending(a))
    for a, b, _ in remote:
        end = (Kind.SEND_F + 2 * (a % 2)) * count + a // 2
        wiring.feeds.append((end, wiring.reception(b)))
    for b in sorted({b for _, b, _ in remote}):
        wiring.feeds.append(((Kind.RECV_F + 2 * (b % 2)) * count + b // 2, b))


def _through_engines(
    wiring: Wiring, stages: StageGraph, schedule: Schedule, remote: list[tuple[int, int, float]]
) -> None:
    """Task, job of the sender's copy engine, job of the receiver's, task."""
    out, into = {a: 0 for a, _, _ in remote}, {b: 0 for _, b, _ in remote}
    for numbers, cost in ((out, stages.send), (into, stages.receive)):
        for task in numbers:
            numbers[task] = len(wiring.jobs)
            stage = task // 2
            wiring.jobs.append(Job(stage, stage, task, False, float(cost[stage, task % 2])))
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
    """Task, job of the link, task; what has no bytes takes no time."""
    for a, b, size in remote:
        if size == 0:
            wiring.feed(a, b)
            continue
        wiring.feed(a, wiring.job_gate(len(wiring.jobs)))
        wiring.feeds.append((wiring.first_job + len(wiring.jobs), b))
        wiring.jobs.append(Job(a // 2, b // 2, a, True, size))
