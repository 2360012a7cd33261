"""Models that run: each is profiled, planned, and trained on two processes and on one.

Prints Markdown: how a model was traced, its nodes, the difference between the losses of five steps
and those of one process, and predicted against measured times. These are the time of an iteration,
which other programs on the machine disturb, and the computing time of the busiest process, which
they do not. Models (`models.py`, `more_models.py`) whose library is missing are skipped and named.
Dropout is left out, since processes draw different random numbers. Each process is pinned to a
core.

    python benchmarks/models_table.py gpt2 llama
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

COLUMNS = (
    "model", "traced", "nodes", "devices", "speed-up", "loss", "greatest difference",
    "iteration predicted (ms)", "measured (ms)", "busiest process predicted (CPU ms)",
    "measured (CPU ms)", "error",
)  # fmt: skip
MICROBATCHES, STEPS, SCHEDULE = 4, 5, "1f1b"
#: Not in the table: what others show as well.
ALIKE = ("mlp", "convnext", "inplace", "moe")


def factories() -> dict[str, tuple[Any, str]]:
    """Return every factory and the library that it needs, by name."""
    from models import FACTORIES
    from more_models import MORE

    found = {make.__name__: (make, library) for make, library in (FACTORIES | MORE).items()}
    return {name: pair for name, pair in found.items() if name not in ALIKE}


def made(name: str) -> tuple[Any, dict[str, Any]]:
    """Return a model without dropout, and inputs; the same numbers in every process."""
    import torch

    torch.manual_seed(0)
    model, inputs = factories()[name][0]()
    for module in model.modules():
        for key, value in list(vars(module).items()):
            if isinstance(value, float) and ("drop" in key or "Drop" in type(module).__name__):
                setattr(module, key, 0.0)
            if isinstance(value, float) and key == "p":
                module.p = 0.0
    return model, inputs


def microbatches(inputs: dict[str, Any]) -> list[dict[str, Any]]:
    """Return inputs that differ a little."""
    from torch.utils._pytree import tree_map

    def near(x: Any, j: int) -> Any:
        return x * (1 + 0.02 * j) if getattr(x, "is_floating_point", bool)() else x

    return [tree_map(lambda x, j=j: near(x, j), inputs) for j in range(MICROBATCHES)]


def measured(name: str, seconds: float) -> dict[str, Any]:
    """Profile and plan a model, and train it on one process and on those of the plan.

    All in copies of this process, which itself runs nothing: autograd cannot be copied.
    """
    model, inputs = made(name)
    batches = microbatches(inputs)
    with tempfile.TemporaryDirectory() as folder:
        (row,) = in_processes(1, planned, name, model, inputs, seconds, folder)
        row |= {"alone": in_processes(1, train_alone, model, batches)[0]}
        ranks = in_processes(row["devices"], train_as_rank, model, batches, folder)
    row |= ranks[0] | {"busy": max(each["busy"] for each in ranks)}
    pairs = zip(row["losses"], row["alone"], strict=True)
    return dict(row) | {"difference": max(abs(a - b) / abs(b) for a, b in pairs)}


def planned(name: str, model: Any, inputs: Any, seconds: float, folder: str) -> dict[str, Any]:
    """Profile and plan a model."""
    from dataclasses import replace

    import stagecut
    from stagecut.instances.formats.files import save
    from stagecut.instances.pytorch.profile import profile

    done = profile(model, (), inputs, name=name, training=True)
    workload = done.workload
    assert workload.cluster is not None
    cluster = stagecut.Cluster((replace(workload.cluster.kinds[0], count=2),))
    problem = stagecut.Throughput(split="contiguous")
    limits = stagecut.Limits(seconds=seconds, gap=0.01)
    found = stagecut.solve(workload, cluster, problem, limits=limits)
    assert found.plan is not None, found.reason
    save(workload, f"{folder}/workload.json")
    save(found.plan, f"{folder}/plan.json", workload=workload)
    return {
        "traced": done.traced.because or done.traced.how,
        "nodes": workload.n,
        "devices": len(set(found.plan.placement.tolist())),
        "speed-up": float(workload.times["accelerator"].sum()) / found.plan.objective,
    }


def in_processes(count: int, work: Callable[..., Any], *arguments: Any) -> list[Any]:
    """Return what copies of this process give; each has a core of its own."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    context = multiprocessing.get_context("fork")
    ends = []
    for rank in range(count):
        here, there = context.Pipe(duplex=False)
        context.Process(target=_child, args=(there, rank, count, port, work, arguments)).start()
        there.close()
        ends.append(here)
    return [end.recv() for end in ends]


def _child(
    end: Any, rank: int, count: int, port: int, work: Callable[..., Any], arguments: Any
) -> None:
    import torch

    os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[rank]})
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(count))
    torch.set_num_threads(1)
    end.send(work(*arguments))


def train_alone(model: Any, batches: list[dict[str, Any]]) -> list[float]:
    """Train a model as its user would; return its losses."""
    import torch

    from stagecut.instances.pytorch.tracing.traced import tensors
    from stagecut.runtime.execution.stage import mean_loss

    model = getattr(model, "_orig_mod", model).train()
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.01)
    losses = []
    torch.manual_seed(1)
    for _ in range(STEPS):
        means = []
        for batch in batches:
            loss = mean_loss(tensors(model(**batch)))
            (loss / MICROBATCHES).backward()
            means.append(float(loss))
        optimizer.step()
        optimizer.zero_grad()
        losses.append(statistics.fmean(means))
    return losses


def train_as_rank(model: Any, batches: list[dict[str, Any]], folder: str) -> dict[str, Any]:
    """Train as one process of a plan."""
    import torch
    import torch.distributed as dist

    from stagecut.instances.formats.files import load, load_plan
    from stagecut.runtime.execution.options import RunOptions
    from stagecut.runtime.execution.prepare import split_model
    from stagecut.runtime.execution.trainer import PipelineTrainer
    from stagecut.runtime.simulate.simulator import simulate_stages

    workload = load(f"{folder}/workload.json")
    plan = load_plan(f"{folder}/plan.json", workload)
    prepared = split_model(plan, model, (), batches[0], workload)
    dist.init_process_group("gloo")
    trainer = PipelineTrainer(prepared, RunOptions(schedule=SCHEDULE, microbatches=MICROBATCHES))
    batch = [prepared.inputs((), each) for each in batches]
    losses, taken, busy = [], [], []
    torch.manual_seed(1)
    for _ in range(STEPS):
        dist.barrier()
        begun, spent = time.perf_counter(), time.process_time()
        losses += trainer.run(batch)
        busy.append(time.process_time() - spent)
        dist.barrier()
        taken.append(time.perf_counter() - begun)
    stages = prepared.stages
    load = [0.0] * len(stages.devices)
    for stage, (device, *_) in enumerate(stages.replicas):
        load[device] += MICROBATCHES * float(stages.compute[stage].sum())
    dist.destroy_process_group()
    return {
        "losses": losses,
        "measured": 1e3 * min(taken[1:]),
        "busy": 1e3 * min(busy[1:]),
        "predicted": simulate_stages(stages, SCHEDULE, MICROBATCHES).makespan,
        "load": max(load),
    }


def shown(name: str, row: dict[str, Any]) -> list[str]:
    """Return the cells of a row."""
    error = 100 * (row["load"] / row["busy"] - 1)
    return [
        name, row["traced"], str(row["nodes"]), str(row["devices"]), f"{row['speed-up']:.2f}",
        f"{row['alone'][0]:.6g} → {row['alone'][-1]:.6g}", f"{row['difference']:.0e}",
        f"{row['predicted']:.3g}", f"{row['measured']:.3g}", f"{row['load']:.3g}",
        f"{row['busy']:.3g}", f"{error:+.0f} %",
    ]  # fmt: skip


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", help="names; default: all")
    parser.add_argument("--time-limit", type=float, default=20.0, help="seconds per plan")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measured(options.models[0], options.time_limit)))
        return
    print("| " + " | ".join(COLUMNS) + " |\n" + "|---" * len(COLUMNS) + "|", flush=True)
    for name, (_, library) in factories().items():
        if options.models and name not in options.models:
            continue
        if find_spec(library or "torch") is None:
            print(f"skipped: {name} needs {library}", file=sys.stderr)
            continue
        command = [sys.executable, __file__, name, "--one", "--time-limit"]
        run = subprocess.run(
            [*command, str(options.time_limit)], capture_output=True, text=True, check=False
        )
        if run.returncode:
            why = (run.stderr.strip().splitlines() or ["it ended"])[-1]
            cells = [name, f"**{why}**", *("–" for _ in COLUMNS[2:])]
        else:
            cells = shown(name, json.loads(run.stdout.strip().splitlines()[-1]))
        print("| " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
