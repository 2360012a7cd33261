"""Cost of the executor: a plan's split, against the same split by hand on torch's pipelining.

A GPT of eight blocks runs with four on each of two processes with one core each, under 1F1B, with a
step of SGD. Prints the milliseconds per iteration in five repetitions, and the difference. Takes
about a minute:

    python benchmarks/run_overhead.py | python benchmarks/results.py run_overhead
"""

from __future__ import annotations

import argparse
import statistics

import numpy as np
import torch
import torch.distributed as dist
from ranks import median_s, on_ranks
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.nn import functional as F
from transformer_block import TransformerBlock

import stagecut
from stagecut import Plan, Workload
from stagecut.instances import Placement
from stagecut.instances.pytorch.profile import profile
from stagecut.runtime.execution.options import RunOptions
from stagecut.runtime.execution.prepare import split_model
from stagecut.runtime.execution.trainer import PipelineTrainer

WIDTH, WORDS, LENGTH, BLOCKS = 128, 512, 64, 8
SAMPLES, MICROBATCHES, STEPS, REPETITIONS = 8, 8, 8, 5


class First(nn.Module):
    """Embeddings and the first half of the blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.token, self.place = nn.Embedding(WORDS, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList(TransformerBlock(WIDTH) for _ in range(BLOCKS // 2))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.token(ids) + self.place(torch.arange(LENGTH))
        for block in self.blocks:
            x = block(x)
        return x


class Second(nn.Module):
    """The other half, and the head."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(TransformerBlock(WIDTH) for _ in range(BLOCKS // 2))
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


def halves(workload: Workload) -> Plan:
    """The plan that is written by hand below."""
    device = [int(not str(node).startswith("first")) for node in workload.ids]
    return Plan(
        workload.name, workload.fingerprint, stagecut.accelerators_and_cpus(2),
        stagecut.Throughput(), Placement(np.array(device)), 1.0, 0.0, "halves",
        workload.time_unit,
    )  # fmt: skip


def train(workload: Workload) -> dict[str, list[float]]:
    """Be a rank: return the median iteration of both ways in each repetition, in seconds."""
    rank = dist.get_rank()
    model, inputs = gpt()
    prepared = split_model(halves(workload), model, inputs, workload=workload)
    ours = PipelineTrainer(prepared, RunOptions(schedule="1f1b", microbatches=MICROBATCHES))
    batch = [prepared.inputs(inputs)] * MICROBATCHES

    model, inputs = gpt()
    half = model.second if rank else model.first
    stage = PipelineStage(half, rank, 2, torch.device("cpu"))
    by_hand = Schedule1F1B(stage, MICROBATCHES, loss_fn=loss_of)
    optimizer = torch.optim.SGD(half.parameters(), lr=0.01)
    ids, targets = (x.repeat(MICROBATCHES, 1) for x in inputs)

    def run_ours() -> None:
        ours.run(batch)

    def run_by_hand() -> None:
        if rank:
            by_hand.step(target=targets, losses=[])
        else:
            by_hand.step(ids)
        optimizer.step()
        optimizer.zero_grad()

    ways = {"by hand": run_by_hand, "plan": run_ours}
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for repetition in range(REPETITIONS + 1):
        for name, step in ways.items():
            taken = median_s(step, STEPS)
            if repetition:  # the first one warms up
                seconds[name].append(taken)
    return seconds


def main() -> None:
    argparse.ArgumentParser(description=__doc__).parse_args()
    model, inputs = gpt()
    workload = profile(model, inputs, training=True, estimate="h100", depth=2).workload
    seconds = on_ranks(2, train, workload)
    print("| way | repetition | iteration_ms |")
    print("|---|---|---|")
    for name, taken in seconds.items():
        for repetition, each in enumerate(taken):
            print(f"| {name} | {repetition} | {1e3 * each:.1f} |")
    cost = statistics.median(seconds["plan"]) / statistics.median(seconds["by hand"]) - 1
    print(f"\nThe plan takes {100 * cost:+.1f} %.")


if __name__ == "__main__":
    main()
