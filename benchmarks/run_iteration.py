"""An iteration on two processes, a core each: planned, in equal layers, and of least max-load.

A GPT with blocks of different widths and a head for many words is trained under 1F1B with 4 and
with 16 microbatches. Both the profile and the link of gloo are measured here. There are four
splits: ours for the time of an iteration, once as a chain of two stages and once in pieces of any
kind; equal numbers of layers, as DeepSpeed's ``uniform`` makes them; and our plan of least
max-load. The whole model also runs in one process.

Prints Markdown: the median time of an iteration over repetitions, with the least and the largest,
beside the simulator's prediction; and the CPU time of the busiest process beside its predicted
work. If other programs share the cores, which the spread of the times shows, go by CPU time. The
host may be faster or slower than when the model was profiled. The last column is the error of the
speed-up over one process, in which that cancels. Times are those of forward and backward passes,
without the optimizer. Takes some three minutes: `python benchmarks/run_iteration.py`.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import torch.distributed as dist
from ranks import on_ranks
from torch import nn
from torch.nn import functional as F
from transformer_block import TransformerBlock

import stagecut
from stagecut import Cluster, Limits, PipelineJob, Plan, Throughput, Workload
from stagecut.instances.pytorch.profile import profile
from stagecut.runtime.execution.options import RunOptions
from stagecut.runtime.execution.prepare import split_model
from stagecut.runtime.execution.trainer import PipelineTrainer
from stagecut.runtime.simulate.simulator import simulate_stages

WIDTH, WORDS, LENGTH, SAMPLES = 128, 4096, 64, 4
#: How many times as wide as the rest each block is inside.
BLOCKS = (8, 2, 8, 2, 12, 4)
MICROBATCHES = (4, 16)
ALONE = "one process"


class Gpt(nn.Module):
    """Embeddings, blocks, a head for many words, and the loss."""

    def __init__(self) -> None:
        super().__init__()
        self.token, self.place = nn.Embedding(WORDS, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList(TransformerBlock(WIDTH, times) for times in BLOCKS)
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, ids: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        x = self.token(ids) + self.place(torch.arange(LENGTH))
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.head(x).flatten(0, 1), targets.flatten())


def gpt() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    torch.manual_seed(0)
    return Gpt(), tuple(torch.randint(0, WORDS, (2, SAMPLES, LENGTH)))


@dataclass(frozen=True)
class Run:
    """A plan, run for so many microbatches; None: the model as it is, on rank 0."""

    split: str
    microbatches: int
    plan: Plan | None


@dataclass(frozen=True)
class Measured:
    """Seconds of an iteration: on the clock, and CPU time of each rank."""

    wall: float
    busy: tuple[float, ...]


def measured_cluster(workload: Workload) -> Cluster:
    """Return two processes of the profile, with the link between them as it is measured now."""
    assert workload.cluster is not None
    links = stagecut.runtime.measure.to_cluster(on_ranks(2, stagecut.measure))
    return Cluster((replace(workload.cluster.kinds[0], count=2, link=links.kinds[0].link),))


def planned(workload: Workload, cluster: Cluster) -> list[Run]:
    """Return what runs."""
    limits = Limits(seconds=60, gap=0.01)

    def plan(problem: Throughput | PipelineJob, **more: Any) -> Plan:
        found = stagecut.solve(workload, cluster, problem, **{"limits": limits, **more}).plan
        assert found is not None
        return found

    load = plan(Throughput())
    runs = []
    for m in MICROBATCHES:
        pieces = PipelineJob(m, split="noncontiguous")
        runs += [
            Run(ALONE, m, None),
            Run("planned, a chain", m, plan(PipelineJob(m))),
            Run("planned, any pieces", m, plan(pieces, limits=Limits(seconds=20))),
            Run("equal layers", m, plan(PipelineJob(m), method="deepspeed-uniform")),
            Run("least max-load", m, load),
        ]
    return runs


def train(
    workload: Workload, runs: list[Run], repetitions: int, steps: int
) -> list[list[Measured]]:
    """Be a rank: return what each run takes, in each repetition."""
    prepared = []
    for run in runs:
        model, inputs = gpt()
        batch = [inputs] * run.microbatches
        if run.plan is None:
            parameters = list(model.parameters())
            prepared.append((partial(_alone, model, batch), parameters))
        else:
            ready = split_model(run.plan, model, inputs, workload=workload)
            trainer = PipelineTrainer(
                ready, RunOptions(schedule="1f1b", microbatches=run.microbatches, learning_rate=0.0)
            )
            parameters = list(trainer.trained().parameters.values())
            prepared.append((partial(trainer.run, batch), parameters))
    found: list[list[Measured]] = [[] for _ in runs]
    for repetition in range(repetitions + 1):
        for own, (step, parameters) in zip(found, prepared, strict=True):
            taken = [_timed(step, parameters) for _ in range(steps)]
            wall, busy = (statistics.median(part) for part in zip(*taken, strict=True))
            everywhere: list[float] = [0.0] * dist.get_world_size()
            dist.all_gather_object(everywhere, busy)
            if repetition:  # the first one warms up
                own.append(Measured(wall, tuple(everywhere)))
    return found


def _alone(model: nn.Module, batch: list[tuple[torch.Tensor, ...]]) -> None:
    if dist.get_rank() == 0:
        for inputs in batch:
            model(*inputs).backward()


def _timed(step: Callable[[], object], parameters: list[nn.Parameter]) -> tuple[float, float]:
    """Return what an iteration takes on the clock, which all ranks begin together, and of CPU."""
    for parameter in parameters:
        parameter.grad = None
    dist.barrier()
    begun, used = time.perf_counter(), time.process_time()
    step()
    used = time.process_time() - used
    dist.barrier()
    return time.perf_counter() - begun, used


def said(workload: Workload, run: Run) -> tuple[int, float, float]:
    """Return how many stages there are, and what an iteration and its busiest process take."""
    if run.plan is None:
        work = run.microbatches * float(workload.times["accelerator"].sum())
        return 1, work, work
    stages = split_model(run.plan, *gpt(), workload=workload).stages
    busy = [0.0] * run.plan.cluster.size
    for stage, (d,) in enumerate(stages.replicas):
        busy[d] += run.microbatches * float(stages.duration[stage].sum())
    predicted = simulate_stages(stages, "1f1b", run.microbatches).makespan
    return stages.count, predicted, max(busy)


def report(workload: Workload, runs: list[Run], found: list[list[Measured]]) -> None:
    print(
        "| M | split | iteration (ms) | predicted | error | busiest (CPU ms) | predicted | error "
        "| of the speed-up |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    medians = {}
    for run, taken in zip(runs, found, strict=True):
        count, predicted, busiest = said(workload, run)
        walls = [1e3 * each.wall for each in taken]
        wall = medians[run.microbatches, run.split] = statistics.median(walls)
        if run.split == ALONE:
            alone = [1e3 * each.wall / predicted for each in taken]
        pairs = zip(walls, alone, strict=True)  # of the same repetition
        part = statistics.median(wall / predicted / slower for wall, slower in pairs)
        busy = 1e3 * statistics.median(max(each.busy) for each in taken)
        print(
            f"| {run.microbatches} | {run.split}{f', {count} stages' * (count > 1)} "
            f"| {wall:.1f} ({min(walls):.1f} to {max(walls):.1f}) | {predicted:.1f} "
            f"| {predicted / wall - 1:+.1%} | {busy:.1f} | {busiest:.1f} "
            f"| {busiest / busy - 1:+.1%} | {part - 1:+.1%} |".replace("%", " %")
        )
    for m in MICROBATCHES:
        others = {way: t for (own, way), t in medians.items() if own == m and way != ALONE}
        ours = {split: wall for split, wall in others.items() if split.startswith("planned")}
        best = min(ours, key=ours.__getitem__)
        gains = (
            f"{wall / ours[best] - 1:+.1%} than {split}"
            for split, wall in others.items()
            if split not in ours
        )
        print(f"\nM = {m}: {best}: faster by {', '.join(gains)}.".replace("%", " %"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--steps", type=int, default=6, help="of each repetition")
    options = parser.parse_args()
    torch.set_num_threads(1)
    with TemporaryDirectory() as cache:  # measured anew
        workload = profile(*gpt(), training=True, depth=1, cache=Path(cache)).workload
    runs = planned(workload, measured_cluster(workload))
    found = on_ranks(2, train, workload, runs, options.repetitions, options.steps)
    report(workload, runs, found)


if __name__ == "__main__":
    main()
