"""Latency: every method on the published workloads, and on a large generated one.

    PYTHONPATH=.dev python benchmarks/latency.py FOLDER [--experts FOLDER] [--large 5000]
    PYTHONPATH=.dev python benchmarks/latency.py --shipped gpt2-xl-training@4x20 … --calls 2

The second form plans one training step, in which each accelerator has a call for the forward and
one for the backward pass: NAME@ACCELERATORSxGIB.

Prints a Markdown table: first the baselines, then our methods, with one call per accelerator and
with two. Each line comes from a fresh process; before the table, a small case compiles the kernels.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

import stagecut
from stagecut import Latency, Limits, Workload, accelerators_and_cpus
from stagecut.instances import CallPlacement
from stagecut.runtime import evaluate

BASELINES = ("greedy", "max-load", "expert", "linear")
METHODS = (*BASELINES, "auto")
COLUMNS = ("workload", "calls", "method", "latency", "bound", "gap", "proved by", "status")


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


def loaded(what: str) -> tuple[Workload, stagecut.Cluster]:
    """Return a workload with its cluster: a file, a shipped one, or the nodes of a large one."""
    if what.isdigit():
        return large(int(what))
    if "@" in what:
        name, _, devices = what.partition("@")
        count, _, memory = devices.partition("x")
        return stagecut.load(name), accelerators_and_cpus(
            int(count), 1, memory_bytes=float(memory) * 2**30
        )
    workload = stagecut.load(what)
    assert workload.cluster is not None
    return workload, workload.cluster


def solved(what: str, calls: int, method: str, seconds: float) -> list[str]:
    """Return the cells of one line."""
    workload, cluster = loaded(what)
    name = f"{Path(what).parent.name}/{workload.name}" if Path(what).suffix else workload.name
    name = what if "@" in what else name
    if method.startswith("expert="):
        split = Path(method.removeprefix("expert="))
        asked = len(json.loads(split.read_text())["fpgas"])
        limit = cluster.kinds[0].count
        cluster = cluster.with_counts(accelerators=max(asked, limit))
        device = stagecut.instances.formats.load_split(split, workload, cluster).device
        host = [cluster.kinds[d.kind].host for d in cluster.devices]
        call = [-1 if host[d] else 0 for d in device.tolist()]
        report = evaluate(workload, cluster, Latency(calls), CallPlacement(device, call))
        broken = [f"{asked} accelerators for {limit}"] if asked > limit else []
        status = "; ".join([*broken, *report.violations[:1]]) or "feasible"
        return [name, str(calls), "expert", f"{report.objective:.4f}", "", "", "", status]
    found = stagecut.solve(
        workload, cluster, Latency(calls), method=method, limits=Limits(seconds=seconds)
    )
    value = "none" if found.objective is None else f"{found.objective:.4f}"
    gap = "" if found.gap is None or found.gap == float("inf") else f"{100 * found.gap:.4f} %"
    bound = "" if found.bound == float("-inf") else f"{found.bound:.4f}"
    return [name, str(calls), method, value, bound, gap, found.bound_origin, found.status]


def line(what: str, calls: int, method: str, seconds: float) -> str:
    """Return one line of the table, from a process of its own."""
    case = json.dumps([what, calls, method, seconds])
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, __file__, "--case", case], check=True, capture_output=True, text=True
    )
    cells = [*json.loads(done.stdout), f"{time.monotonic() - began:.1f}"]
    return "| " + " | ".join(cells) + " |"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, nargs="?", help="workloads, searched recursively")
    parser.add_argument("--experts", type=Path, help="split files NAME_expert.json")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--calls", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--methods", nargs="+", default=METHODS, help="milp is another one")
    parser.add_argument("--shipped", nargs="+", default=[], help="NAME@ACCELERATORSxGIB")
    parser.add_argument("--large", type=int, default=0, help="also a graph of so many operators")
    parser.add_argument("--case", help="for the processes that this one starts")
    options = parser.parse_args()
    if options.case:
        print(json.dumps(solved(*json.loads(options.case))))
        return
    files = sorted(options.folder.rglob("*.json")) if options.folder else []
    smallest = sorted(files, key=lambda path: path.stat().st_size)[:1]
    for what in [*map(str, smallest), "30"]:  # compiles, in processes like all others
        for calls in options.calls:
            for method in {*options.methods} - {"expert"}:
                line(what, calls, method, 600.0)
    print("| " + " | ".join([*COLUMNS, "seconds of the whole process"]) + " |")
    print("|" + "---|" * (len(COLUMNS) + 1))
    for path in [*files, *map(Path, options.shipped)]:
        for calls in options.calls:
            for method in options.methods:
                if method == "expert":
                    split = Path(options.experts or "") / f"{path.stem}_expert.json"
                    if not options.experts or not split.exists() or "Layer" not in path.parent.name:
                        continue
                    method = f"expert={split}"
                print(line(str(path), calls, method, options.seconds), flush=True)
    if options.large:
        for method in ("greedy", "linear", "auto"):
            print(line(str(options.large), 1, method, max(options.seconds, 120.0)), flush=True)


if __name__ == "__main__":
    main()
