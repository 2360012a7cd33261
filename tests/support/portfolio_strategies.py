"""Strategies for tests of portfolios; in a module, so that other processes find them."""

from __future__ import annotations

import os
import signal
import time

import numpy as np

from stagecut.formulations.task import Task
from stagecut.instances import Placement, Solution, Throughput
from stagecut.solvers import Search
from stagecut.solvers.core.processes import Channel

#: A bound that `begins_twice` waits for: above the first ones, below the better plan.
AFTER_THE_KILL = 4.8


def all_on(device: int, task: Task[Throughput]) -> Placement:
    """The plan that has all nodes on one device."""
    return Placement(np.full(task.workload.n, device))


def waits(task: Task[Throughput], search: Search[Solution]) -> None:
    """Offer a plan, then wait for others until told to stop."""
    search.offer(all_on(0, task))
    while not search.should_stop():
        time.sleep(0.005)


def waits_alone(task: Task[Throughput], search: Search[Solution]) -> None:
    """Offer a plan, then wait until two workers have ended, and no other process is left."""
    search.offer(all_on(0, task))
    while not search.should_stop() and (any(search.beside) or len(search.notes) < 3):
        time.sleep(0.005)  # notes: who is beside, and how each of the two ended


def computes_alone(task: Task[Throughput], search: Search[Solution]) -> None:
    """Offer a plan, then compute until another process has been beside this one, and is no more."""
    search.offer(all_on(0, task))
    seen = False
    while not search.should_stop() and (search.beside or not seen):
        seen = seen or search.beside == {"starves"}
    search.raise_bound(search.objective if seen else 0.0, "alone")


def starves(_task: Task[Throughput], _search: Search[Solution]) -> None:
    """Get no time to compute any more."""
    os.kill(os.getpid(), signal.SIGSTOP)


def answers(task: Task[Throughput], search: Search[Solution]) -> None:
    """Wait for a plan, offer a better one, and call it optimal."""
    while search.best is None and not search.should_stop():
        time.sleep(0.005)
    search.offer(halves(task))
    search.raise_bound(search.objective, "an answer", {"by": "a worker"})


def halves(task: Task[Throughput]) -> Placement:
    """The plan that has the first half of the nodes on one device, the others on the next."""
    return Placement((np.arange(task.workload.n) * 2 >= task.workload.n).astype(np.int64))


def dies(task: Task[Throughput], search: Search[Solution]) -> None:
    """Offer a better plan, then be killed."""
    search.offer(halves(task))
    os.kill(os.getpid(), signal.SIGKILL)


def fails(task: Task[Throughput], search: Search[Solution]) -> None:
    """Offer a better plan, then fail."""
    search.offer(halves(task))
    raise ArithmeticError("on purpose")


def does_not_listen(task: Task[Throughput], search: Search[Solution]) -> None:
    """Offer a better plan, then never look up again."""
    search.offer(halves(task))
    while True:
        time.sleep(0.1)


def begins_twice(task: Task[Throughput], search: Search[Solution]) -> None:
    """Offer the better plan, and call it optimal if told that its first process was killed."""
    while search.best is None and not search.should_stop():
        time.sleep(0.005)
    search.offer(halves(task))
    while search.bound < AFTER_THE_KILL and not search.should_stop():
        time.sleep(0.005)
    search.raise_bound(search.objective, "a second life")


def sleeps(_argument: object, channel: Channel) -> None:
    """Tell the process's number, and stay."""
    channel.send(os.getpid())
    channel.receive()
    time.sleep(1000)


def tells_its_place(_argument: object, channel: Channel) -> None:
    """Tell session, process group and niceness."""
    channel.send((os.getsid(0), os.getpgrp(), os.nice(0)))
