"""What `auto` has by the time at which it would have to compile: for every problem, in order.

Run as a program it prints the objective of each case of `CASES`, `inf` without a plan. Nothing is
compiled: there, the search ends.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial

import numpy as np
from conformance import task

from stagecut import (
    Latency,
    Limits,
    PipelineJob,
    Sharding,
    Throughput,
    accelerators_and_cpus,
    load,
    solve,
)
from stagecut.formulations.task import Task, pose
from stagecut.instances import DeviceMapping, Problem, topology
from stagecut.instances.common import kernel as kernels
from stagecut.instances.common.kernel import Kernel, NotCompiled

GIB = 2.0**30


def _shipped(name: str, problem: Problem, devices: int, gib: float = math.inf) -> Task[Problem]:
    cluster = accelerators_and_cpus(devices, memory_bytes=gib * GIB)
    return pose(load(name), cluster, problem)


def _layers(microbatches: int, room: float) -> Task[Problem]:
    """Forty layers on six devices, whose memory may not hold them all."""
    of = task("stream", np.random.default_rng(0).uniform(1, 3, 40).tolist(), room=room)
    problem = replace(of.problem, microbatches=microbatches)
    return pose(of.workload, accelerators_and_cpus(6, memory_bytes=room), problem)


def _mapping() -> Task[Problem]:
    problem = DeviceMapping(topology("torus2d:4x8"), 4, 8)
    return pose(load("gpt2-xl-training"), accelerators_and_cpus(32), problem)


def _sharding() -> Task[Problem]:
    of = task("sharding")
    assert isinstance(of.problem, Sharding)
    return of


#: By name, how to make it.
CASES = {
    **{
        f"latency, {calls} calls of {name} in {gib} GiB": partial(
            _shipped, name, Latency(calls), 4, gib
        )
        for name, gib, calls in (("gpt2-xl-training", 20.0, 2), ("unet-training", 8.0, 4))
    },
    "latency, inference": partial(_shipped, "t5-large", Latency(), 4),
    "throughput, training": partial(_shipped, "gpt2-xl-training", Throughput(), 4, 20.0),
    "throughput, noncontiguous": partial(_shipped, "unet-training", Throughput("noncontiguous"), 4),
    "iteration": partial(_shipped, "unet-training", PipelineJob(8), 4),
    "iteration, noncontiguous": partial(
        _shipped, "unet-training", PipelineJob(8, split="noncontiguous"), 4
    ),
    "stream": partial(_layers, 64, math.inf),
    "stream in little memory": partial(_layers, 24, 40.0),
    "mapping": _mapping,
    "sharding": _sharding,
}


def objectives() -> Iterator[float]:
    """Yield for each case the best objective before a kernel would be compiled."""

    def refuse(kernel: Kernel, *_: object) -> None:
        raise NotCompiled(kernel.function.__name__)

    Kernel._compile = refuse  # type: ignore[method-assign]
    for make in CASES.values():
        best = [math.inf]
        of = make()
        kernels._taken = 0  # as in a process of its own
        with suppress(NotCompiled):
            solve(
                of.workload,
                of.cluster,
                of.problem,
                limits=Limits(seconds=60),
                on_progress=lambda progress, best=best: best.append(progress.point.objective),
                workers=1,
            )
        yield min(best)


if __name__ == "__main__":
    for objective in objectives():
        print(objective)
