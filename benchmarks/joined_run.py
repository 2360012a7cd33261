"""Stages, replicas and tensor degree planned together, as they run, beside each alone; Markdown.

    PYTHONPATH=.dev python benchmarks/joined_run.py [--microbatches 2] [--steps 4]

A small GPT runs on four processes of this machine, in batches of few microbatches. Its layers are
measured on one thread, and the collectives of gloo on two processes. For each plan, it prints the
objective (a batch, with fill and drain), the CPU time of the process that computed longest and of
all processes together, and the wall time of the fastest step. If there are more processes than
cores, they take turns, which affects only the wall time.
"""

from __future__ import annotations

import argparse
import statistics
import time

import torch
import torch.distributed as dist
from joined import ways
from ranks import on_ranks
from sharding_models import Language, Made

import stagecut
from stagecut import Cluster, DeviceKind, Limits, Link, Plan, Workload, solve
from stagecut.runtime.execution.options import RunOptions
from stagecut.runtime.execution.prepare import split_model
from stagecut.runtime.execution.trainer import PipelineTrainer
from stagecut.runtime.measure.collectives import measure_collectives

DEVICES, LAYERS, WIDTH, WORDS, SAMPLES, LENGTH = 4, 4, 384, 1024, 4, 64
SIZES = [1 << k for k in range(10, 25, 2)]


def gpt() -> Made:
    """Return the model with a microbatch; the same numbers each time."""
    torch.manual_seed(0)
    words = torch.randint(0, WORDS, (SAMPLES, LENGTH))
    return Language(LAYERS, WIDTH, 6, WORDS, LENGTH), (words, words.roll(-1, 1))


def link_here() -> Link:
    """Be a rank: measure the collectives of two processes."""
    (axis,) = measure_collectives((2,), SIZES, seconds=6.0)
    return axis.link


def train(workload: Workload, plan: Plan, microbatches: int, steps: int) -> list[list[float]]:
    """Be a rank: return the clock's seconds, the CPU seconds of each rank, and losses, by step."""
    model, inputs = gpt()
    ready = split_model(plan, model, inputs, workload=workload)
    stream = PipelineTrainer(ready, RunOptions(schedule="1f1b", microbatches=microbatches))
    batch = [ready.inputs(inputs)] * microbatches
    found = []
    for _ in range(steps + 1):
        dist.barrier()
        begun, used = time.perf_counter(), time.process_time()
        (loss,) = stream.run(batch)
        used = time.process_time() - used
        dist.barrier()
        everywhere = [0.0] * dist.get_world_size()
        dist.all_gather_object(everywhere, used)
        found.append([time.perf_counter() - begun, loss, *everywhere])
    return found[1:]  # the first one warms up


def row(name: str, plan: Plan, done: list[list[float]]) -> str:
    """Return a line of the table."""
    busy = [statistics.median(own) for own in zip(*(one[2:] for one in done), strict=True)]
    shown = ", ".join(
        f"{len(s.nodes)} ({s.replicas}, {s.degree})"
        for s in plan.solution.stages  # type: ignore[union-attr]
    )
    cells = [name, shown, f"{plan.objective:.4g}", f"{1e3 * max(busy):.4g}",
             f"{1e3 * sum(busy):.4g}", f"{1e3 * min(one[0] for one in done):.4g}",
             f"{done[-1][1]:.6f}"]  # fmt: skip
    return "| " + " | ".join(cells) + " |"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--microbatches", type=int, default=2)
    parser.add_argument("--steps", type=int, default=4)
    given = parser.parse_args()
    torch.set_num_threads(1)
    model, inputs = gpt()
    link = on_ranks(2, link_here)
    print(f"collectives: {1e6 * link.latency_s:.0f} µs, {link.bytes_per_s / 1e9:.2f} GB/s\n")
    done = stagecut.profile(model, inputs, training=True, depth="auto", name="gpt")
    layers = stagecut.api.layers_by_degree(done, (1, 2, 4), link=link)
    cluster = Cluster((DeviceKind("process", DEVICES, link=link),))
    columns = ["plan", "layers (replicas, degree)", "predicted ms", "busiest process, CPU ms",
               "all, CPU ms", "least on the clock, ms", "loss"]  # fmt: skip
    print("|", " | ".join(columns), "|\n" + "|---" * len(columns) + "|", flush=True)
    problems = ways(DEVICES, given.microbatches, bandwidth=link.bytes_per_s)
    for name, problem in problems.items():
        plan = solve(layers, cluster, problem, limits=Limits(seconds=60)).plan
        if plan is None:
            continue
        devices = sum(s.replicas * s.degree for s in plan.solution.stages)  # type: ignore[union-attr]
        run = on_ranks(devices, train, layers, plan, given.microbatches, given.steps)
        print(row(name, plan, run), flush=True)
