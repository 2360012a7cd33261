"""Latency: every method on the published workloads, and on a large generated one.

    PYTHONPATH=.dev python benchmarks/latency.py FOLDER [--seconds 60] [--calls 1 2] [--large 5000]

Prints a Markdown table. Run it twice: the first run compiles.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

import stagecut
from stagecut import Latency, Limits, Workload, accelerators_and_cpus

METHODS = ("greedy", "max-load", "linear", "auto", "milp")


def large(nodes: int, seed: int = 0) -> tuple[Workload, stagecut.Cluster]:
    """Return a deep graph of residual blocks with up to four branches each."""
    rng = np.random.default_rng(seed)
    edges: list[tuple[int, int]] = []
    ends, count = [0], 1
    while count < nodes:
        branches = int(rng.integers(1, 5))
        new = []
        for _ in range(branches):
            at = ends[int(rng.integers(len(ends)))]
            for _ in range(int(rng.integers(1, 7))):
                if count < nodes:
                    edges.append((at, count))
                    at, count = count, count + 1
            new.append(at)
        if count < nodes:
            edges += [(end, count) for end in dict.fromkeys([*new, *ends]) if end != count]
            ends, count = [count], count + 1
    compute = rng.gamma(2.0, 0.5, count) * (rng.random(count) < 0.7)
    memory = rng.integers(1, 100, count).astype(float)
    workload = Workload(
        name=f"residual blocks, {count} operators",
        ids=tuple(range(count)),
        edges=np.array(edges),
        times={"accelerator": compute, "cpu": 10 * compute},
        memory_bytes=memory,
        transfer=rng.gamma(2.0, 2.0, count),
    )
    return workload, accelerators_and_cpus(8, 8, memory_bytes=float(memory.sum()) / 10)


def row(workload: Workload, cluster: stagecut.Cluster, calls: int, method: str, s: float) -> str:
    """Return one line of the table."""
    found = stagecut.solve(
        workload, cluster, Latency(calls), method=method, limits=Limits(seconds=s)
    )
    value = "none" if found.objective is None else f"{found.objective:.4f}"
    gap = "" if found.gap is None or found.gap == float("inf") else f"{100 * found.gap:.4f} %"
    bound = "" if found.bound == float("-inf") else f"{found.bound:.4f}"
    cells = [workload.name, calls, method, value, bound, found.bound_origin, gap, found.status]
    return "| " + " | ".join(map(str, [*cells, f"{found.seconds:.1f}"])) + " |"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="placement JSON files, searched recursively")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--calls", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--methods", nargs="+", default=METHODS)
    parser.add_argument("--large", type=int, default=0, help="also a graph of so many operators")
    options = parser.parse_args()
    print("| workload | calls | method | latency | bound | proved by | gap | status | seconds |")
    print("|---|---|---|---|---|---|---|---|---|")
    for path in sorted(options.folder.rglob("*.json")):
        workload = stagecut.load(path)
        assert workload.cluster is not None
        for calls in options.calls:
            for method in options.methods:
                print(row(workload, workload.cluster, calls, method, options.seconds), flush=True)
    if options.large:
        workload, cluster = large(options.large)
        print(row(workload, cluster, 1, "auto", options.seconds), flush=True)


if __name__ == "__main__":
    main()
