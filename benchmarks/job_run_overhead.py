"""Cost of a job's loop, against the same layout written by hand on torch's own parts.

A transformer of four blocks runs on processes with one core each, with a step of SGD. The version
by hand uses FSDP2 for each block, Megatron's tensor parallelism by `parallelize_module`, and
torch's `Schedule1F1B`, with the same collectives. Both versions take their steps in turn in the
same processes. Takes a few minutes:

    python benchmarks/job_run_overhead.py | python benchmarks/results.py job_run_overhead
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from ranks import on_ranks
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.distributed.tensor import Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)

import stagecut
from stagecut.instances.costs.description import Attention, Block, FeedForward, ModelDescription
from stagecut.runtime.execution.job.parallelize import materialize
from stagecut.runtime.execution.job.running import RunningJob
from stagecut.runtime.execution.job.transformer import transformer

MODEL = ModelDescription(
    "overhead", 256, 1024, (Block(Attention(8, 8, 32), feed_forward=FeedForward(688)),) * 4
)
SEQUENCE, BATCH, STEPS, WARM_UP = 64, 8, 30, 3
CPU = torch.device("cpu")
#: Layouts by name.
LAYOUTS: dict[str, dict[str, Any]] = {
    "FSDP2 (ZeRO 3)": {"data": 2, "zero": 3, "microbatch": 2},
    "TP 2 with sequences": {"tensor": 2, "sequence_parallel": True, "microbatch": 2},
    "PP 2, 1F1B": {"pipeline": 2, "microbatch": 1},
    "PP 2 x FSDP2 (ZeRO 1)": {"pipeline": 2, "data": 2, "zero": 1, "microbatch": 1},
}


def made() -> nn.Module:
    """Return the model with its numbers."""
    model, plan = transformer(MODEL)
    materialize(model, plan, (), CPU)
    return model


class Part(nn.Module):
    """Some of a model's modules in their order."""

    def __init__(self, modules: list[nn.Module]) -> None:
        super().__init__()
        self.parts = nn.ModuleList(modules)

    def forward(self, x: Tensor) -> Tensor:
        for part in self.parts:
            x = part(x)
        return x


def loss_of(logits: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def tensor_parallel(model: nn.Module) -> None:
    """Divide a model as torch's tutorial of tensor and sequence parallelism does."""
    mesh = init_device_mesh("cpu", (2,))
    whole = PrepareModuleInput(
        input_layouts=(Shard(1),), desired_input_layouts=(torch.distributed.tensor.Replicate(),)
    )
    for block in model.layers:
        parallelize_module(
            block,
            mesh,
            {
                "attention_norm": SequenceParallel(), "mlp_norm": SequenceParallel(),
                "attention": whole, "mlp": whole,
                **{f"attention.{name}": ColwiseParallel() for name in "qkv"},
                "mlp.gate": ColwiseParallel(), "mlp.up": ColwiseParallel(),
                "attention.out": RowwiseParallel(output_layouts=Shard(1)),
                "mlp.down": RowwiseParallel(output_layouts=Shard(1)),
            },
        )  # fmt: skip
    parallelize_module(
        model,
        mesh,
        {
            "embedding": RowwiseParallel(
                input_layouts=torch.distributed.tensor.Replicate(), output_layouts=Shard(1)
            ),
            "norm": SequenceParallel(),
            "head": ColwiseParallel(
                input_layouts=Shard(1), output_layouts=Shard(-1), use_local_output=False
            ),
        },
    )


def by_hand(fields: dict[str, Any], tokens: Tensor, targets: Tensor) -> Callable[[], float]:
    """Return what takes a step, and gives its loss."""
    rank, model = dist.get_rank(), made()
    pipeline, data = fields.get("pipeline", 1), fields.get("data", 1)
    count = BATCH // (fields["microbatch"] * data)
    mesh = init_device_mesh(
        "cpu",
        (pipeline, data, dist.get_world_size() // (pipeline * data)),
        mesh_dim_names=("pipeline", "data", "tensor"),
    )
    part: nn.Module = model
    if pipeline > 1:
        half, layers = len(MODEL.blocks) // 2, list(model.layers)
        first = [model.embedding, *layers[:half]]
        part = Part([*layers[half:], model.norm, model.head] if rank >= data else first)
    if fields.get("tensor", 1) > 1:
        tensor_parallel(model)
    if data > 1:
        blocks = part.parts if pipeline > 1 else model.layers
        resharded = fields["zero"] == 3
        for block in blocks:
            fully_shard(block, mesh=mesh["data"], reshard_after_forward=resharded)
        fully_shard(part, mesh=mesh["data"], reshard_after_forward=False)
    optimizer = torch.optim.SGD(part.parameters(), lr=0.01)
    mine = rank % data
    x, y = tokens.chunk(data)[mine], targets.chunk(data)[mine]
    if pipeline > 1:
        stage = PipelineStage(part, rank // data, pipeline, CPU, group=mesh.get_group("pipeline"))
        schedule = Schedule1F1B(stage, count, loss_fn=loss_of)

    def losses() -> list[Tensor]:
        if pipeline > 1:
            found: list[Tensor] = []
            if rank >= data:
                schedule.step(target=y, losses=found)
            else:
                schedule.step(x)
            return found
        found = []
        for a, b in zip(x.chunk(count), y.chunk(count), strict=True):
            if fields.get("tensor", 1) > 1:
                with loss_parallel():
                    loss = loss_of(model(a), b).full_tensor()
                    (loss / count).backward()
            else:
                loss = loss_of(model(a), b)
                (loss / count).backward()
            found.append(loss.detach())
        return found

    def step() -> float:
        optimizer.zero_grad()
        found = losses()
        mean = torch.stack(found).mean() if found else torch.zeros(())
        dist.all_reduce(mean)
        optimizer.step()
        return float(mean) / data / fields.get("tensor", 1)

    return step


def planned(fields: dict[str, Any], tokens: Tensor, targets: Tensor) -> Callable[[], float]:
    """Return the same of a job."""
    layout = stagecut.Layout(global_batch=BATCH, sequence=SEQUENCE, recipe="fp32", **fields)
    model, plan = transformer(MODEL)
    job = RunningJob(model, plan, layout, device=CPU)
    optimizers = [torch.optim.SGD(job.parameter_groups(s), lr=0.01) for s in job.stages]

    def step() -> float:
        loss = job.step(tokens, targets)
        for optimizer in optimizers:
            optimizer.step()
        return loss

    return step


def measure(fields: dict[str, Any], steps: int) -> dict[str, tuple[list[float], list[float]]]:
    """Be a rank: return seconds and CPU seconds of each step in both ways."""
    torch.set_num_threads(1)
    words = torch.randint(
        0, 1024, (BATCH, SEQUENCE + 1), generator=torch.Generator().manual_seed(0)
    )
    given = words[:, :-1], words[:, 1:]
    ways = {"by hand": by_hand(fields, *given), "job": planned(fields, *given)}
    taken: dict[str, tuple[list[float], list[float]]] = {name: ([], []) for name in ways}
    for number in range(WARM_UP + steps):
        losses = []
        for name in ways if number % 2 else reversed(ways):
            dist.barrier()
            begun, cpu = time.perf_counter(), time.process_time()
            losses.append(ways[name]())
            dist.barrier()
            if number >= WARM_UP:
                taken[name][0].append(time.perf_counter() - begun)
                taken[name][1].append(time.process_time() - cpu)
        assert abs(losses[0] - losses[1]) <= 1e-4 * losses[0], losses
    return taken


def main() -> None:
    """Print a row per layout; milliseconds are medians, and what a job takes more is of pairs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", help="Name of one layout.")
    parser.add_argument("--steps", type=int, default=STEPS)
    options = parser.parse_args()
    columns = ("layout", "processes", "by_hand_ms", "job_ms", "more_percent")
    columns += ("by_hand_cpu_ms", "job_cpu_ms", "more_cpu_percent", "steps")
    print(f"| {' | '.join(columns)} |\n|{'---|' * len(columns)}")
    for name, fields in LAYOUTS.items():
        if options.only not in (None, name):
            continue
        world = fields.get("pipeline", 1) * fields.get("data", 1) * fields.get("tensor", 1)
        taken = on_ranks(world, measure, fields, options.steps)
        row = [name, str(world)]
        for kind in range(2):
            hand, job = (taken[way][kind] for way in ("by hand", "job"))
            more = statistics.median(a / b for a, b in zip(job, hand, strict=True)) - 1
            row += [f"{1e3 * statistics.median(each):.1f}" for each in (hand, job)]
            row.append(f"{100 * more:+.1f}")
        print(f"| {' | '.join(row)} | {options.steps} |", flush=True)


if __name__ == "__main__":
    main()
