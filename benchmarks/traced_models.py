"""Twenty-five traced models on 2 and 4 devices: gap shown, trivial bound, seconds to the end.

The models (`models.py`) need torch, transformers, torchvision, timm and diffusers (`pip install -c
constraints.txt torch==2.13.0 torchvision transformers timm diffusers`); models whose library is
missing are skipped and named. Each is profiled once, on one thread, into a file of --cache, and
method `auto` plans it from there in a process of its own. Seconds and CPU seconds count from the
start of that process. On a busy machine, `--cpu-clock` makes CPU seconds stand for both, also for
the time limit. Run it twice: the first run compiles. Prints Markdown. The split `iteration` plans
an iteration of 8 microbatches under 1F1B, with a contiguous split.

    python benchmarks/traced_models.py --time-limit 20
    python benchmarks/traced_models.py --devices 2 --splits contiguous noncontiguous iteration
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path

COLUMNS = (
    "model", "nodes", "devices", "split", "objective", "bound", "gap", "origin", "trivial",
    "gap to it", "s to 1 %", "s", "CPU s",
)  # fmt: skip

MICROBATCHES = 8


def profile_one(name: str, path: Path) -> None:
    """Trace and measure one model."""
    import models
    import torch

    from stagecut.instances.formats.files import save
    from stagecut.instances.pytorch.profile import profile

    torch.set_num_threads(1)
    torch.manual_seed(0)
    made = {factory.__name__: factory for factory in models.FACTORIES}
    model, inputs = made[name]()
    save(profile(model, (), inputs, name=name, training=True).workload, path)


def plan_one(
    path: Path, devices: int, split: str, seconds: float, begun: float, cpu_clock: bool
) -> None:
    """Plan one workload and print its row as JSON."""
    from dataclasses import replace

    if cpu_clock:
        time.monotonic = time.process_time

    import stagecut
    from stagecut.api.solve import solve

    workload = stagecut.load(path)
    assert workload.cluster is not None
    kind = replace(workload.cluster.kinds[0], count=devices)
    cluster = stagecut.Cluster((kind,))
    iteration = split == "iteration"
    problem = stagecut.PipelineJob(MICROBATCHES) if iteration else stagecut.Throughput(split=split)
    times = MICROBATCHES if iteration else 1
    result = solve(
        workload,
        cluster,
        problem,
        limits=stagecut.Limits(
            seconds=seconds,
            gap=0.01,
            since=0.0 if cpu_clock else time.monotonic() - (time.time() - begun),
        ),
    )
    spent = time.process_time()
    assert result.plan is not None, result.reason
    stagecut.verify(workload, result.plan)
    time_of = workload.times["accelerator"]
    colours = {int(c): float(time_of[workload.colours == c].sum()) for c in workload.colours}
    heaviest = max([float(time_of.max()), *(t for c, t in colours.items() if c >= 0)])
    row = {
        "nodes": workload.n,
        "objective": result.plan.objective,
        "bound": result.bound,
        "gap": result.plan.gap,
        "origin": result.bound_origin,
        "trivial": times * max(float(time_of.sum()) / devices, heaviest),
        "to_1": next((p.seconds for p in result.trace if p.gap <= 0.01), None),
        "seconds": result.seconds,
        "cpu": spent,
        "notes": result.notes,
    }
    print(json.dumps(row))


def profiled(name: str, library: str, cache: Path) -> Path | None:
    """Return the file of a model; profile it if it is not there; None if it cannot be."""
    path = cache / f"{name}.json"
    if path.exists():
        return path
    if any(find_spec(needed) is None for needed in ("torch", library or "torch")):
        print(f"skipped: {name} needs {library or 'torch'}", file=sys.stderr)
        return None
    command = [sys.executable, __file__, "--profile", name, "--cache", cache]
    run = subprocess.run([str(x) for x in command], capture_output=True, text=True, check=False)
    if run.returncode:
        print(f"skipped: {name}: {run.stderr.strip().splitlines()[-1]}", file=sys.stderr)
        return None
    return path


def _cells(name: str, devices: int, split: str, row: dict[str, object]) -> list[str]:
    objective, bound, trivial = (float(str(row[k])) for k in ("objective", "bound", "trivial"))
    below = " (below the trivial bound)" if bound < trivial * (1 - 1e-6) else ""
    return [
        name, str(row["nodes"]), str(devices), split, f"{objective:.4g}", f"{bound:.4g}{below}",
        f"{float(str(row['gap'])):.2%}", str(row["origin"]), f"{trivial:.4g}",
        f"{1 - trivial / objective:.2%}",
        "–" if row["to_1"] is None else f"{float(str(row['to_1'])):.1f}",
        f"{float(str(row['seconds'])):.1f}", f"{float(str(row['cpu'])):.1f}",
    ]  # fmt: skip


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", help="names; default: all")
    parser.add_argument("--time-limit", type=float, default=20.0, help="seconds per plan")
    parser.add_argument("--devices", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--splits", nargs="+", default=["contiguous", "noncontiguous"])
    parser.add_argument("--cache", type=Path, default=Path(tempfile.gettempdir()) / "traced_models")
    parser.add_argument("--cpu-clock", action="store_true", help="count CPU seconds")
    parser.add_argument("--verbose", action="store_true", help="print what the methods noted")
    parser.add_argument("--profile", help=argparse.SUPPRESS)
    parser.add_argument("--begun", type=float, help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.cache.mkdir(parents=True, exist_ok=True)
    if options.profile:
        profile_one(options.profile, options.cache / f"{options.profile}.json")
        return
    if options.begun is not None:
        path = options.cache / f"{options.models[0]}.json"
        cell = (options.devices[0], options.splits[0], options.time_limit, options.begun)
        plan_one(path, *cell, options.cpu_clock)
        return
    from models import FACTORIES

    print("| " + " | ".join(COLUMNS) + " |\n" + "|---" * len(COLUMNS) + "|", flush=True)
    for factory, library in FACTORIES.items():
        name = factory.__name__
        if options.models and name not in options.models:
            continue
        if profiled(name, library, options.cache) is None:
            continue
        for devices in options.devices:
            for split in options.splits:
                command = [
                    sys.executable, __file__, name, "--cache", options.cache, "--devices", devices,
                    "--splits", split, "--time-limit", options.time_limit, "--begun", time.time(),
                ]  # fmt: skip
                command += ["--cpu-clock"] if options.cpu_clock else []
                run = subprocess.run(
                    [str(x) for x in command], capture_output=True, text=True, check=False
                )
                if run.returncode:
                    print(f"| {name} | failed: {run.stderr.strip().splitlines()[-1]} |")
                    continue
                row = json.loads(run.stdout)
                print("| " + " | ".join(_cells(name, devices, split, row)) + " |", flush=True)
                if options.verbose:
                    print("\n".join(f"    {note}" for note in row["notes"]), file=sys.stderr)


if __name__ == "__main__":
    main()
