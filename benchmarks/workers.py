"""Several workers against one: seconds to a gap, on a machine that does nothing else.

Each row is one workload and objective. `auto` solves it with each number of workers in processes of
their own, one after the other; seconds count from the start of the process. *To the gap of one* is
the time to the gap that one worker ended with (or to the gap asked for, if it reached that). CPU
seconds count all processes. Run it twice: the first run compiles. Prints Markdown.

    python benchmarks/workers.py --time-limit 60 --gap 0.001 FILES
    python benchmarks/workers.py --objective latency --time-limit 60 FILES
    python benchmarks/workers.py --map random_blk_1:256@seed=0 --stages 16 --replicas 16 FILES
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any


def one(options: argparse.Namespace, workers: int) -> None:
    """Solve one workload and print what came of it as JSON."""
    import stagecut
    from stagecut.api.solve import solve
    from stagecut.instances.topologies import topology

    problem: Any = stagecut.Throughput(split="noncontiguous")
    if options.map:
        problem = stagecut.DeviceMapping(topology(options.map), options.stages, options.replicas)
    elif options.objective == "latency":
        problem = stagecut.Latency()
    elif options.objective == "pipeline":
        problem = stagecut.PipelineJob(options.microbatches)
    workload = stagecut.load(options.workloads[0])
    result = solve(
        workload,
        problem=problem,
        limits=stagecut.Limits(
            seconds=options.time_limit,
            gap=options.gap,
            seed=options.seed,
            since=time.monotonic() - (time.time() - options.begun),
        ),
        workers=workers,
    )
    assert result.plan is not None, result.reason
    stagecut.verify(workload, result.plan)
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    row = {
        "objective": result.objective,
        "bound": result.bound,
        "origin": result.bound_origin,
        "gap": result.gap,
        "seconds": result.seconds,
        "cpu": sum(use.ru_utime + use.ru_stime for use in used),
        "trace": [(p.seconds, p.gap) for p in result.trace],
    }
    print(json.dumps(row))


def run(options: argparse.Namespace, path: str, workers: int) -> dict[str, Any] | None:
    """Return what a process of its own says."""
    command = [sys.executable, __file__, path, "--one", workers, "--begun", time.time()]
    for name in ("objective", "microbatches", "time_limit", "gap", "seed", "stages", "replicas"):
        command += [f"--{name.replace('_', '-')}", getattr(options, name)]
    command += ["--map", options.map] if options.map else []
    done = subprocess.run([str(x) for x in command], capture_output=True, text=True, check=False)
    if done.returncode:
        print(f"{path}: {done.stderr.strip().splitlines()[-1]}", file=sys.stderr)
        return None
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("workloads", nargs="+", help="files")
    parser.add_argument("--workers", default="1,2", help="numbers to compare, 1 first")
    parser.add_argument("--objective", default="throughput")
    parser.add_argument("--microbatches", type=int, default=8, help="of an iteration")
    parser.add_argument("--map", default="", help="a topology: map, instead of the objective")
    parser.add_argument("--stages", type=int, default=8)
    parser.add_argument("--replicas", type=int, default=1)
    parser.add_argument("--time-limit", type=float, default=60.0, help="seconds per solve")
    parser.add_argument("--gap", type=float, default=0.001, help="stop at this relative gap")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--begun", type=float, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one is not None:
        one(options, options.one)
        return
    print(f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores\n")
    print("| workload | workers | objective | bound (by) | gap | s | CPU s | s to the gap of one |")
    print("|---|---|---|---|---|---|---|---|")
    for path in options.workloads:
        goal = None
        for workers in map(int, options.workers.split(",")):
            row = run(options, path, workers)
            if row is None:
                continue
            goal = max(row["gap"], options.gap) if goal is None else goal
            until = next((s for s, gap in row["trace"] if gap <= goal * (1 + 1e-9)), None)
            print(
                f"| {Path(path).parent.name}/{Path(path).stem} | {workers} "
                f"| {row['objective']:.6f} | {row['bound']:.6f} ({row['origin']}) "
                f"| {row['gap']:.3%} | {row['seconds']:.1f} | {row['cpu']:.1f} "
                f"| {'—' if until is None else f'{until:.1f}'} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
