"""Policies against the optimum on graphs that are new to all: PipeDream's profiles, two families.

    PYTHONPATH=.dev OMP_NUM_THREADS=1 python benchmarks/learned_policies.py NAME=FILE …
        [--only vgg16 transformer …] [--draws 256] [--seeds 0 1 2] [--seconds 20]
        | python benchmarks/results.py learned_policies

The profiles (VGG16, ResNet-50 and AlexNet at full size, from the folder that STAGECUT_BENCHMARKS
names) are planned for four devices, all alike or with two that are 2.5 times as slow as the others,
at half the bandwidth. The families, transformer blocks and encoder-decoders, are planned for
devices of their own. Each policy draws alone. `learned` is the method, which has the policy of the
package and begins with greedy's plan. All of them, and `random`, get the same number of placements.
Ratios are to the bound that `auto` proves in the given CPU seconds (its clock is replaced).
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from stagecut import (
    Cluster,
    DeviceKind,
    Limits,
    Link,
    Throughput,
    Workload,
    evaluate,
    load,
    solve,
)
from stagecut.formulations.task import pose
from stagecut.instances.generate.graph_family import family_graph
from stagecut.solvers.learned.environments import environment
from stagecut.solvers.learned.policy import draw_placements, one_thread
from stagecut.solvers.learned.policy_file import policy_of, read_policy
from stagecut.solvers.learned.train import targets

PROFILES = Path(os.environ.get("STAGECUT_BENCHMARKS", "../shared/benchmarks")) / "pipedream"
FAST = DeviceKind("fast", 4, 16e9, times="accelerator", link=Link(1e-5, 10e9))
SLOW = DeviceKind("slow", 2, 12e9, times="accelerator", slowdown=2.5, link=Link(1e-5, 5e9))
CLUSTERS = {
    "4 equal": Cluster((FAST,)),
    "2 fast, 2 slow": Cluster((replace(FAST, count=2), SLOW)),
}
#: Profiled networks, and held-out families with the seeds of their graphs.
PROFILED = ("vgg16", "resnet50", "alexnet")
FAMILIES, SEEDS = ("transformer", "encoder-decoder"), range(900, 904)


def workloads(names: Sequence[str]) -> Iterator[tuple[str, str, Workload]]:
    """Yield the name of a profile or family, the devices, and a workload for them."""
    for name in names:
        if name in PROFILED:
            for devices, cluster in CLUSTERS.items():
                yield name, devices, replace(load(PROFILES / f"{name}.txt"), cluster=cluster)
            continue
        for unlike in (False, True):
            devices = "its own, unlike" if unlike else "its own, equal"
            for seed in SEEDS:
                yield name, devices, family_graph(name, seed, unlike=unlike)


def best_drawn(
    policy: Any, workload: Workload, problem: Throughput, draws: int, seed: int
) -> float:
    """Return the best of so many placements by the verifier; `inf` if all break a rule."""
    assert workload.cluster is not None
    of = environment(pose(workload, workload.cluster, problem))
    rng, best = np.random.default_rng(seed), math.inf
    for _ in range(draws // 64):
        drawn = draw_placements(policy, of, targets(of, 64, rng), rng)
        i = int(drawn.values.argmin())
        solution = of.solution(drawn.group[i], drawn.device[i])
        told = evaluate(workload, workload.cluster, problem, solution)
        best = min(best, math.inf if told.violations else told.objective)
    return best


def ratios(
    workload: Workload, problem: Throughput, policies: dict[str, str], options: argparse.Namespace
) -> dict[str, list[float]]:
    """Return the ratios to the bound of every arm, one for each seed."""

    def solved(method: str, seed: int = 0) -> float:
        limits = Limits(nodes=options.draws, seconds=options.seconds, seed=seed)
        objective = solve(workload, problem=problem, method=method, limits=limits).objective
        return math.inf if objective is None else objective

    best = solve(workload, problem=problem, limits=Limits(seconds=options.seconds, gap=1e-4))
    assert best.objective is not None
    found = {"exact": [best.objective], "greedy": [solved("greedy")]}
    found["random"] = [solved("random", seed) for seed in options.seeds]
    for name, file in policies.items():
        policy = policy_of(read_policy(file or None))
        found[name] = [
            best_drawn(policy, workload, problem, options.draws, seed) for seed in options.seeds
        ]
    found["learned"] = [solved("learned", seed) for seed in options.seeds]
    return {arm: [value / best.bound for value in values] for arm, values in found.items()}


def shown(value: float) -> str:
    """Return a ratio; – for none."""
    return "–" if math.isinf(value) else f"{value:.3f}"


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("policies", nargs="+", metavar="NAME=FILE", help="No FILE: the package's.")
    parser.add_argument("--only", nargs="+", choices=(*PROFILED, *FAMILIES))
    parser.add_argument("--draws", type=int, default=256)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--seconds", type=float, default=20.0)
    options = parser.parse_args(arguments)
    policies = dict(text.split("=", 1) for text in options.policies)
    time.monotonic = time.process_time
    columns = ("workload", "devices", "split", "arm", "median", "least", "most")
    print(f"| {' | '.join(columns)} |\n|{'---|' * len(columns)}")
    found: dict[tuple[str, str, str, str], list[float]] = {}
    for name, devices, workload in workloads(options.only or (*PROFILED, *FAMILIES)):
        for problem in (Throughput("contiguous"), Throughput()):
            for arm, values in ratios(workload, problem, policies, options).items():
                found.setdefault((name, devices, str(problem.split), arm), []).extend(values)
    for key, values in found.items():
        middle, low, high = (shown(f(values)) for f in (statistics.median, min, max))
        print("|", " | ".join((*key, middle, low, high)), "|", flush=True)


if __name__ == "__main__":
    with one_thread():
        main()
