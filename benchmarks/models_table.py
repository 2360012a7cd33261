"""Models that run: each is profiled, planned, and trained on two processes and on one.

Prints Markdown: how a model was traced, nodes, whether the losses of three steps are those of one
process, and predicted against measured: the time of an iteration, which other programs on the
machine disturb, and what the busiest process computes in it, which they do not. Models
(`models.py`, `more_models.py`) whose library is missing are skipped, and said to be. Dropout is
left out, since processes draw other numbers. Every step is a process of its own; two of them are
pinned to a core each.

    python benchmarks/models_table.py gpt2 llama
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

COLUMNS = (
    "model", "traced", "nodes", "plan", "speed-up", "loss", "greatest difference",
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


def plan_one(name: str, folder: Path, seconds: float) -> dict[str, Any]:
    """Profile and plan a model."""
    from dataclasses import replace

    import torch

    import stagecut
    from stagecut.instances.formats.files import save
    from stagecut.instances.pytorch.profile import profile

    torch.set_num_threads(1)
    model, inputs = made(name)
    done = profile(model, (), inputs, name=name, training=True)
    workload = done.workload
    assert workload.cluster is not None
    cluster = stagecut.Cluster((replace(workload.cluster.kinds[0], count=2),))
    problem = stagecut.Throughput(split="contiguous")
    found = stagecut.solve(
        workload, cluster, problem, limits=stagecut.Limits(seconds=seconds, gap=0.01)
    )
    assert found.plan is not None, found.reason
    save(workload, folder / f"{name}.json")
    save(found.plan, folder / f"{name}.plan.json", workload=workload)
    alone = float(workload.times["accelerator"].sum())
    return {
        "traced": done.traced.because or done.traced.how,
        "nodes": workload.n,
        "plan": "two devices" if len(set(found.plan.placement.tolist())) == 2 else "one device",
        "speed-up": alone / found.plan.objective,
    }


def train_alone(name: str) -> dict[str, Any]:
    """Train a model in one process."""
    import torch

    from stagecut.instances.pytorch.tracing.leaves import tensors
    from stagecut.runtime.execution.stage import mean_loss

    torch.set_num_threads(1)
    model, inputs = made(name)
    model = getattr(model, "_orig_mod", model).train()
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.01)
    losses = []
    torch.manual_seed(1)
    for _ in range(STEPS):
        means = []
        for batch in microbatches(inputs):
            loss = mean_loss(tensors(model(**batch)))
            (loss / MICROBATCHES).backward()
            means.append(float(loss))
        optimizer.step()
        optimizer.zero_grad()
        losses.append(statistics.fmean(means))
    return {"alone": losses}


def rank(name: str, folder: Path) -> dict[str, Any]:
    """Be one of two processes."""
    import torch
    import torch.distributed as dist

    from stagecut.instances.formats.files import load, load_plan
    from stagecut.runtime.execution.pipeline import Pipeline
    from stagecut.runtime.execution.prepare import split_model
    from stagecut.runtime.simulate.simulator import simulate_stages

    os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[int(os.environ["RANK"])]})
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    workload = load(folder / f"{name}.json")
    plan = load_plan(folder / f"{name}.plan.json", workload)
    model, inputs = made(name)
    prepared = split_model(plan, model, (), inputs, workload)
    pipeline = Pipeline(prepared, schedule=SCHEDULE, microbatches=MICROBATCHES)
    learned = [p for _, p in pipeline.named_parameters() if p.requires_grad]
    optimizer = torch.optim.SGD(learned, lr=0.01) if learned else None
    batch = [prepared.inputs((), each) for each in microbatches(inputs)]
    losses, taken, busy = [], [], []
    torch.manual_seed(1)
    for _ in range(STEPS):
        dist.barrier()
        begun, spent = time.perf_counter(), time.process_time()
        pipeline.step(batch)
        if optimizer is not None:
            optimizer.step()
            optimizer.zero_grad()
        busy.append(time.process_time() - spent)
        dist.barrier()
        taken.append(time.perf_counter() - begun)
        losses.append(pipeline.mean_loss())
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


def called(step: str, name: str, folder: Path, seconds: float, **environment: str) -> Any:
    """Start a step in a process of its own."""
    command = [sys.executable, __file__, name, "--step", step, "--folder", str(folder)]
    return subprocess.Popen(
        [*command, "--time-limit", str(seconds)], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True, env={**os.environ, **environment},
    )  # fmt: skip


def answer(process: subprocess.Popen[str]) -> dict[str, Any]:
    """Return what a step gave.

    Raises
    ------
    RuntimeError
        With its last line, if it failed.
    """
    out, said = process.communicate(timeout=900)
    if process.returncode:
        raise RuntimeError((said.strip().splitlines() or ["it ended"])[-1])
    return dict(json.loads(out.strip().splitlines()[-1]))


def row_of(name: str, folder: Path, seconds: float) -> dict[str, Any]:
    """Do all steps of a model."""
    row = answer(called("plan", name, folder, seconds))
    row |= answer(called("alone", name, folder, seconds))
    world = 2 if row["plan"] == "two devices" else 1
    port = str(29500 + os.getpid() % 1000)
    group = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": str(world)}
    ranks = [called("rank", name, folder, seconds, RANK=str(r), **group) for r in range(world)]
    answers = [answer(process) for process in ranks]
    row |= answers[0] | {"busy": max(each["busy"] for each in answers)}
    pairs = zip(row["losses"], row["alone"], strict=True)
    row["difference"] = max(abs(a - b) / abs(b) for a, b in pairs)
    return row


def shown(name: str, row: dict[str, Any]) -> list[str]:
    """Return the cells of a row."""
    error = 100 * (row["load"] / row["busy"] - 1)
    return [
        name, row["traced"], str(row["nodes"]), row["plan"], f"{row['speed-up']:.2f}",
        f"{row['alone'][0]:.6g} → {row['alone'][-1]:.6g}", f"{row['difference']:.0e}",
        f"{row['predicted']:.3g}", f"{row['measured']:.3g}", f"{row['load']:.3g}",
        f"{row['busy']:.3g}", f"{error:+.0f} %",
    ]  # fmt: skip


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", help="names; default: all")
    parser.add_argument("--time-limit", type=float, default=20.0, help="seconds per plan")
    parser.add_argument("--folder", type=Path, help="for workloads and plans")
    parser.add_argument("--step", choices=["plan", "alone", "rank"], help=argparse.SUPPRESS)
    options = parser.parse_args()
    folder = options.folder or Path(tempfile.mkdtemp())
    folder.mkdir(parents=True, exist_ok=True)
    if options.step:
        (name,) = options.models
        steps = {
            "plan": lambda: plan_one(name, folder, options.time_limit),
            "alone": lambda: train_alone(name),
            "rank": lambda: rank(name, folder),
        }
        print(json.dumps(steps[options.step]()))
        return
    print("| " + " | ".join(COLUMNS) + " |\n" + "|---" * len(COLUMNS) + "|", flush=True)
    for name, (_, library) in factories().items():
        if options.models and name not in options.models:
            continue
        if find_spec(library or "torch") is None:
            print(f"skipped: {name} needs {library}", file=sys.stderr)
            continue
        try:
            cells = shown(name, row_of(name, folder, options.time_limit))
        except RuntimeError as error:
            cells = [name, f"**{error}**", *("–" for _ in COLUMNS[2:])]
        print("| " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
