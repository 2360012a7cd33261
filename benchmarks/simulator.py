"""Cost of the simulator, and its agreement with closed forms and the verifier.

    PYTHONPATH=.dev python benchmarks/simulator.py [--largest 10000000] [--inputs FOLDER]

Prints Markdown tables:

* time and memory against the number of tasks (1F1B, user CPU seconds, warm);
* the steady state against the verifier's max-load on the published workloads, and against the time
  per sample of Piper plans;
* mapped plans with and without contention;
* the optimal schedules of small pipelines against the heuristics.
"""

from __future__ import annotations

import argparse
import os
import resource
import time
from pathlib import Path

import numpy as np

import stagecut
from stagecut import Limits
from stagecut.api.best_schedule import best_schedule
from stagecut.instances import DeviceMapping, topology
from stagecut.runtime.schedules import make_schedule
from stagecut.runtime.simulate.network import HostMemory
from stagecut.runtime.simulate.plan_stages import stages_of
from stagecut.runtime.simulate.simulator import simulate, simulate_stages
from stagecut.runtime.simulate.stages import chain

STAGES = 64


def cpu_seconds() -> float:
    """User and system CPU seconds of this process."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def speed(largest: int) -> None:
    """Print time per task for pipelines of 64 stages."""
    simulate_stages(chain([1.0] * 4, [2.0] * 4, send=[0.1] * 4), "1f1b", 8)
    print("| stages | microbatches | tasks | CPU s | wall s | ns per task | peak MB | error |")
    print("|---|---|---|---|---|---|---|---|")
    stages = chain([1.0] * STAGES, [2.0] * STAGES)
    m = 256
    while 2 * STAGES * m <= 1.1 * largest:
        begin, wall = cpu_seconds(), time.perf_counter()
        run = simulate_stages(stages, make_schedule("1f1b", stages, m))
        used, wall = cpu_seconds() - begin, time.perf_counter() - wall
        tasks = run.schedule.size
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        error = abs(run.makespan / (3 * (m + STAGES - 1)) - 1)
        print(
            f"| {STAGES} | {m} | {tasks} | {used:.2f} | {wall:.2f} | {used / tasks * 1e9:.0f} "
            f"| {peak:.0f} | {error:.0e} |",
            flush=True,
        )
        m = 4096 * 20 if m == 16384 else 4 * m


def steady_state(inputs: Path) -> None:
    """Print the asynchronous steady state of greedy and local-search plans."""
    print(
        "\n| workload | plan | stages | max-load | simulated per microbatch | relative error | s |"
    )
    print("|---|---|---|---|---|---|---|")
    for path in sorted((inputs / "placement" / "throughput").glob("*/*.json")):
        workload = stagecut.load(path)
        for method in ("greedy", "local-search"):
            limits = Limits(seconds=10)
            plan = stagecut.solve(workload, method=method, limits=limits).plan
            if plan is None:
                continue
            begin = time.perf_counter()
            run = simulate(workload, plan, "pipedream", 8)
            error = abs(run.time_per_sample / plan.objective - 1)
            print(
                f"| {path.parent.name[:-6]} {workload.name} | {method} "
                f"| {stages_of(workload, plan).count} | {plan.objective:.8g} "
                f"| {run.time_per_sample:.8g} | {error:.0e} | {time.perf_counter() - begin:.2f} |",
                flush=True,
            )


def training(inputs: Path) -> None:
    """Print the asynchronous steady state of Piper plans, all-reduces included."""
    print("\n| workload | devices | stages | replicas | planned | simulated | error | s |")
    print("|---|---|---|---|---|---|---|---|")
    for name, devices in (("bert32a100", 8), ("bert32a100", 64), ("bert32a100", 512), ("gnmt", 64)):
        workload = stagecut.load(inputs / "piper" / f"{name}.json")
        cluster = stagecut.accelerators_and_cpus(devices, memory_bytes=8 * 2**30)
        for way in ("1f1b", "pipedream"):
            problem = stagecut.PipelineJob(schedule="stream", in_flight=way)
            plan = stagecut.solve(workload, cluster, problem, limits=Limits(seconds=120)).plan
            if plan is None:
                continue
            begin = time.perf_counter()
            run = simulate(workload, plan, "2bw" if way == "1f1b" else way)
            error = abs(run.time_per_sample / plan.objective - 1)
            print(
                f"| {name}, {way} | {devices} | {run.stages.count} "
                f"| {sum(map(len, run.stages.replicas))} | {plan.objective:.8g} "
                f"| {run.time_per_sample:.8g} | {error:.0e} | {time.perf_counter() - begin:.2f} |",
                flush=True,
            )


def mapped() -> None:
    """Print what messages that share links cost mapped plans."""
    print("\n| topology | S × R | per batch | no contention | over the topology | s |")
    print("|---|---|---|---|---|---|")
    workload = stagecut.load("semantic-fpn-operators-training")
    for name, stages, replicas in (
        ("mesh2d:4x4", 4, 4),
        ("islands:8x8", 8, 8),
        ("fattree:8", 8, 16),
        ("torus3d:8x8x8", 8, 64),
    ):
        problem = DeviceMapping(topology(name), stages, replicas, "both", microbatches=4)
        plan = stagecut.solve(workload, problem=problem, limits=Limits(seconds=60)).plan
        if plan is None:
            continue
        alone = simulate(workload, plan, "2bw", network=HostMemory())
        begin = time.perf_counter()
        run = simulate(workload, plan, "2bw")
        per_batch = 4 * replicas
        print(
            f"| {name} | {stages} × {replicas} | {plan.objective:.6g} "
            f"| {alone.time_per_sample * per_batch:.6g} | {run.time_per_sample * per_batch:.6g} "
            f"| {time.perf_counter() - begin:.2f} |",
            flush=True,
        )


def optimal() -> None:
    """Print optimal schedules against heuristics, for memory of so many microbatches."""
    print("\n| stages | microbatches | memory | 1F1B | ZB-H1 | ZB-H2 | optimal | bound | s |")
    print("|---|---|---|---|---|---|---|---|---|")
    for count, m, memory in ((3, 4, 9.0), (3, 6, 3.0), (4, 4, 4.0), (4, 6, 4.0), (4, 6, 3.0)):
        rng = np.random.default_rng(count * 10 + m)
        times = rng.integers(2, 5, count).astype(float), rng.integers(3, 8, count).astype(float)
        stages = chain(*times, activation_bytes=[1.0] * count, send=[0.5] * count)
        found = best_schedule(
            stages, m, activation_bytes=[memory] * count, limits=Limits(seconds=60)
        )
        heuristics = " | ".join(f"{found.heuristics[k]:g}" for k in ("1f1b", "zb-h1", "zb-h2"))
        print(
            f"| {count} | {m} | {memory:g} | {heuristics} | {found.simulation.makespan:g} "
            f"| {found.bound:.6g} | {found.seconds:.1f} |",
            flush=True,
        )


def main() -> None:
    """Run all of it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--largest", type=int, default=10_500_000, help="tasks")
    default = os.environ.get("STAGECUT_BENCHMARKS", Path(__file__).parents[2] / "shared/benchmarks")
    parser.add_argument("--inputs", type=Path, default=Path(default))
    arguments = parser.parse_args()
    speed(arguments.largest)
    steady_state(arguments.inputs)
    training(arguments.inputs)
    mapped()
    optimal()


if __name__ == "__main__":
    main()
