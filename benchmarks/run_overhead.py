"""What executors of a plan cost: torch's pipelining runtime, the own loop, and a split by hand.

A GPT of eight blocks on two processes with one core each: halves with 1F1B and ZB-H1, and quarters
in turn, two on each process. Prints Markdown: schedule, way, repetition and milliseconds of an
iteration, on the clock and of CPU time. About four minutes: `python benchmarks/run_overhead.py`.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from ranks import median_s, on_ranks
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.nn import functional as F
from transformer_block import Block

import stagecut
from stagecut import Plan, Workload
from stagecut.instances import Placement
from stagecut.instances.pytorch.profile import profile
from stagecut.runtime.execution.chain import executed_schedule
from stagecut.runtime.execution.own_loop.loop import Loop
from stagecut.runtime.execution.pipeline import RunningPipeline
from stagecut.runtime.execution.prepare import split_model

WIDTH, WORDS, LENGTH, BLOCKS = 128, 512, 64, 8
SAMPLES, MICROBATCHES, STEPS, REPETITIONS = 4, 8, 2, 5
CASES = (("1f1b, halves", "1f1b", 2), ("zb-h1, halves", "zb-h1", 2), ("1f1b, quarters", "1f1b", 4))


class First(nn.Module):
    """Embeddings and the first half of the blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.token, self.place = nn.Embedding(WORDS, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList(Block(WIDTH) for _ in range(BLOCKS // 2))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.token(ids) + self.place(torch.arange(LENGTH))
        for block in self.blocks:
            x = block(x)
        return x


class Second(nn.Module):
    """The other half, and the head."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(WIDTH) for _ in range(BLOCKS // 2))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WORDS)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class Gpt(nn.Module):
    """Both halves and the loss."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = First(), Second()

    def forward(self, ids: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return loss_of(self.second(self.first(ids)), targets)


def loss_of(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def gpt() -> tuple[Gpt, tuple[torch.Tensor, torch.Tensor]]:
    torch.manual_seed(0)
    return Gpt(), tuple(torch.randint(0, WORDS, (2, SAMPLES, LENGTH)))  # type: ignore[return-value]


def split_in(workload: Workload, parts: int) -> Plan:
    """The plan that is written by hand below, or quarters in turn."""

    def device(node: str) -> int:
        side, *rest = node.split(".")
        if parts == 2 or rest[:1] != ["blocks"]:
            return int(side != "first")
        return int(int(rest[1]) >= BLOCKS // 4)

    where = np.array([device(str(node)) for node in workload.ids])
    return Plan(
        workload.name, workload.fingerprint, stagecut.accelerators_and_cpus(2),
        stagecut.Throughput(), Placement(where), 1.0, 0.0, "by hand", workload.time_unit,
    )  # fmt: skip


def train(workload: Workload) -> dict[tuple[str, str], list[tuple[float, float]]]:
    """Be a rank: return seconds of each way's median iteration, and of the busier process."""
    rank = dist.get_rank()
    ways: dict[tuple[str, str], Callable[[], None]] = {}
    for name, schedule, parts in CASES:
        model, inputs = gpt()
        plan = split_in(workload, parts)
        prepared = split_model(plan, model, inputs, workload=workload)
        assert len(prepared.pieces) == parts
        torch_runs = RunningPipeline(prepared, schedule=schedule, microbatches=MICROBATCHES)
        batch = [prepared.inputs(inputs)] * MICROBATCHES
        again = split_model(plan, gpt()[0], inputs, workload=workload)
        rows = executed_schedule(schedule, again.stages, MICROBATCHES)
        loop = Loop(again.pieces, [[piece.device] for piece in again.pieces], rows)

        def by_torch(run: RunningPipeline = torch_runs, batch: Any = batch) -> None:
            run.step(batch)
            for _, parameter in run.named_parameters():
                parameter.grad = None

        def by_loop(run: Loop = loop, batch: Any = batch) -> None:
            run.run(lambda j: batch[j])

        ways[name, "torch's runtime"], ways[name, "own loop"] = by_torch, by_loop

    model, inputs = gpt()
    half = model.second if rank else model.first
    stage = PipelineStage(half, rank, 2, torch.device("cpu"))
    by_hand = Schedule1F1B(stage, MICROBATCHES, loss_fn=loss_of)
    ids, targets = (x.repeat(MICROBATCHES, 1) for x in inputs)

    def run_by_hand() -> None:
        if rank:
            by_hand.step(target=targets, losses=[])
        else:
            by_hand.step(ids)
        for parameter in half.parameters():
            parameter.grad = None

    ways["1f1b, halves", "by hand"] = run_by_hand
    seconds: dict[tuple[str, str], list[tuple[float, float]]] = {name: [] for name in ways}
    for repetition in range(REPETITIONS + 1):
        for name, step in ways.items():
            begun = time.process_time()
            taken = median_s(step, STEPS)
            busy = torch.tensor((time.process_time() - begun) / STEPS)
            dist.all_reduce(busy, dist.ReduceOp.MAX)
            if repetition:  # the first one warms up
                seconds[name].append((taken, float(busy)))
    return seconds


def main() -> None:
    argparse.ArgumentParser(description=__doc__).parse_args()
    model, inputs = gpt()
    workload = profile(model, inputs, training=True, estimate="h100", depth=2).workload
    seconds = on_ranks(2, train, workload)
    print("| schedule | way | repetition | iteration (ms) | CPU ms of the busier process |")
    print("|---|---|---|---|---|")
    for (name, way), taken in seconds.items():
        for k, (wall, busy) in enumerate(taken):
            print(f"| {name} | {way} | {k} | {1e3 * wall:.1f} | {1e3 * busy:.1f} |")


if __name__ == "__main__":
    main()
