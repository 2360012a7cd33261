"""Training plans against Piper, PipeDream and equal stages, and the time that planning takes.

Prints Markdown tables. Times are CPU seconds of the whole `solve`, with compiled code warm.
"""

from __future__ import annotations

import argparse
import copy
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from stagecut import (
    Limits,
    PipelineJob,
    Result,
    Workload,
    accelerators_and_cpus,
    load,
    solve,
    verify,
)
from stagecut.instances import StagePlacement
from stagecut.instances.formats.piper_json import read_piper
from stagecut.instances.formats.source import parse

GIB = 2.0**30
#: Memory in GiB, devices, switches, what the authors' program gives (recomputed).
PIPER: list[tuple[float, int, dict[str, Any], float]] = [
    (8, 8, {}, 0.165856),
    (8, 32, {}, 0.0415155),
    (8, 64, {}, 0.0202006),
    (8, 128, {}, 0.0101209),
    (8, 512, {}, 0.00256113),
    (2, 64, {}, 0.0320301),
    (2, 512, {}, 0.00366753),
    (80, 512, {}, 0.00227252),
    (8, 64, {"degrees": (1,)}, 0.0202006),
    (8, 64, {"replicas": (1,)}, 0.0739063),
    (8, 64, {"recomputation": "off"}, 0.0279883),
]


def timed(workload: Workload, devices: int, memory: float, problem: PipelineJob, method: str,
          seconds: float | None = None, gap: float = 0.0) -> tuple[Result, float]:  # fmt: skip
    """Solve, verify, and return the result with the processor seconds."""
    begin = time.process_time()
    result = solve(
        workload,
        accelerators_and_cpus(devices, 0, memory),
        problem,
        method=method,
        limits=Limits(seconds=seconds, gap=gap),
    )
    used = time.process_time() - begin
    if result.plan is not None:
        verify(workload, result.plan)
    return result, used


def shape(result: Result) -> str:
    """Return the stages as d×t:nodes."""
    if result.plan is None or not isinstance(result.plan.solution, StagePlacement):
        return "—"
    parts = [f"{s.replicas}×{s.degree}:{len(s.nodes)}" for s in result.plan.solution.stages]
    return " ".join([*parts[:8], "…"] if len(parts) > 8 else parts)


def number(value: float | None) -> str:
    """Return six digits, or a dash."""
    return "—" if value is None else f"{value:.6g}"


def piper(folder: Path) -> None:
    """Print the published values and ours."""
    workload = load(folder / "piper" / "bert32a100.json")
    print("| M (GiB) | K | switches | authors | greedy rule | exact | gap | s | stages |")
    print("|---|---|---|---|---|---|---|---|---|")
    for memory, devices, switches, theirs in PIPER:
        problem = PipelineJob(bandwidth=25 * GIB, **switches)
        rule, _ = timed(workload, devices, memory * GIB, problem, "piper")
        ours, used = timed(workload, devices, memory * GIB, problem, "dp")
        print(
            f"| {memory:g} | {devices} | {switches or ''} | {theirs} | {number(rule.objective)} | "
            f"{number(ours.objective)} | {ours.gap:.1e} | {used:.2f} | {shape(ours)} |"
        )
    equal, _ = timed(workload, 64, 8 * GIB, PipelineJob(bandwidth=25 * GIB), "equal-stages")
    print(f"\nEqual stages, M = 8 GiB, K = 64: {number(equal.objective)} (authors: 0.0257245)")


def knapsack(folder: Path) -> None:
    """Print where the exact knapsack beats the authors' rule: layers that differ, memory tight."""
    print("| workload | M (GB) | K | greedy rule | exact | better by |")
    print("|---|---|---|---|---|---|")
    tried = won = 0
    cases = [("gnmt", k, m * 1e7) for k, low, high in ((2, 185, 220), (3, 124, 170), (4, 82, 120),
             (6, 60, 90)) for m in range(low, high, 3)]  # fmt: skip
    cases += [("bert32a100", k, m * GIB) for k in (8, 16, 32) for m in (1.5, 2, 3, 4, 6, 8, 12, 16)]
    workloads = {name: load(folder / "piper" / f"{name}.json") for name in ("gnmt", "bert32a100")}
    for name, devices, memory in cases:
        workload = workloads[name]
        problem = PipelineJob(replicas=(1,)) if name == "gnmt" else PipelineJob(bandwidth=25 * GIB)
        rule, _ = timed(workload, devices, memory, problem, "piper", seconds=60)
        ours, _ = timed(workload, devices, memory, problem, "dp", seconds=60)
        tried += ours.objective is not None
        if ours.objective is None:
            continue
        by = 1 - ours.objective / rule.objective if rule.objective else 1.0
        if by > 1e-7:
            won += 1
            print(
                f"| {name} | {memory / 1e9:.3g} | {devices} | {number(rule.objective)} | "
                f"{number(ours.objective)} | {by:.3%} |", flush=True
            )  # fmt: skip
    print(f"\nBetter in {won} of {tried} cases.")


def deeper(data: dict[str, Any], layers: int) -> dict[str, Any]:
    """Return the 32-layer BERT with as many transformer layers, by copies of the last but one."""
    data = copy.deepcopy(data)
    nodes = {node["id"]: node for node in data["nodes"]}
    last, before, mask = 35, 34, 4
    fed = next(e for e in data["edges"] if (e["sourceId"], e["destId"]) == (before, last))
    masked = next(e for e in data["edges"] if (e["sourceId"], e["destId"]) == (mask, last))
    template = copy.deepcopy(nodes[before])

    def rename(table: dict[str, float], old: int, new: int) -> None:
        if str(old) in table:
            table[str(new)] = table.pop(str(old))

    def each(node: dict[str, Any]) -> list[dict[str, Any]]:
        return [c for group in node["TMPCs"].values() for c in group]

    above = before
    for k in range(layers - 32):
        new = 100 + k
        node = copy.deepcopy(template)
        node["id"] = new
        for c in each(node):
            rename(c["syncTimeFw"], before - 1, above)
        for c in each(nodes[above]):
            rename(c["syncTimeBw"], last, new)
        for c in each(nodes[mask]):
            c["syncTimeBw"][str(new)] = c["syncTimeBw"][str(before)]
        data["nodes"].append(node)
        nodes[new] = node
        data["edges"].append({**fed, "sourceId": above, "destId": new})
        data["edges"].append({**masked, "destId": new})
        above = new
    for c in each(nodes[last]):
        rename(c["syncTimeFw"], before, above)
    if above != before:
        data["edges"].remove(fed)
        data["edges"].append({**fed, "sourceId": above})
    return data


def growth(folder: Path) -> None:
    """Print how time grows with devices and with layers."""
    data = json.loads((folder / "piper" / "bert32a100.json").read_text())
    print("| transformer layers | K | objective | gap | s |")
    print("|---|---|---|---|---|")
    problem = PipelineJob(bandwidth=25 * GIB)
    for layers, devices in ((32, 512), (32, 1024), (32, 2048), (48, 512), (64, 512), (96, 512),
                            (96, 2048)):  # fmt: skip
        text = json.dumps(deeper(data, layers)).encode()
        workload = read_piper(parse(text, "bert", f"bert {layers}"))
        result, used = timed(workload, devices, 8 * GIB, problem, "dp", seconds=600)
        print(
            f"| {layers} | {devices} | {number(result.objective)} | {result.gap:.1e} | {used:.2f} |"
        )


def gnmt(folder: Path) -> None:
    """Print exact plans for the graph that the authors' program does not finish."""
    workload = load(folder / "piper" / "gnmt.json")
    print("| K | M (GB) | replicas | objective | gap | s | stages |")
    print("|---|---|---|---|---|---|---|")
    cases: list[tuple[int, float, tuple[int, ...] | None]] = [
        *((devices, 80e9, None) for devices in range(2, 17)),
        *((devices, 80e9, (1,)) for devices in (2, 4, 8, 12, 16)),
        *((devices, 2e9, None) for devices in (2, 4, 8, 16)),
    ]
    for devices, memory, replicas in cases:
        problem = PipelineJob(replicas=replicas)
        result, used = timed(workload, devices, memory, problem, "dp", seconds=600)
        gap = "—" if result.gap is None else f"{result.gap:.1e}"
        print(
            f"| {devices} | {memory / 1e9:g} | {replicas or 'free'} | {number(result.objective)} | "
            f"{gap} | {used:.1f} | {shape(result) if result.plan else result.reason} |"
        )


def pipedream(folder: Path) -> None:
    """Print PipeDream's profiles, planned on 4 devices and on 4 servers of 4."""
    print("| profile | K | exact | gap | PipeDream's optimizer | data parallel | s | stages |")
    print("|---|---|---|---|---|---|---|---|")
    for name in ("vgg16", "resnet50", "gnmt", "alexnet"):
        workload = load(folder / "pipedream" / f"{name}.txt")
        for devices in (4, 16):
            problem = PipelineJob(bandwidth=12e9, in_flight="pipedream")
            if devices == 16:
                problem = PipelineJob(
                    bandwidth=1.25e9, in_flight="pipedream", server_devices=4, server_bandwidth=12e9
                )
            ours, used = timed(workload, devices, 80 * GIB, problem, "dp", seconds=600)
            rest = [
                timed(workload, devices, 80 * GIB, problem, method)[0].objective
                for method in ("pipedream", "data-parallel")
            ]
            gap = "—" if ours.gap is None else f"{ours.gap:.1e}"
            print(
                f"| {name} | {devices} | {number(ours.objective)} | {gap} | {number(rest[0])} | "
                f"{number(rest[1])} | {used:.1f} | {shape(ours)} |", flush=True
            )  # fmt: skip


PARTS: dict[str, Callable[[Path], None]] = {
    "piper": piper,
    "knapsack": knapsack,
    "growth": growth,
    "gnmt": gnmt,
    "pipedream": pipedream,
}


def main() -> None:
    """Run the parts asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("benchmarks", type=Path, help="folder of the published inputs")
    parser.add_argument("--part", choices=PARTS, action="append", help="default: all")
    arguments = parser.parse_args()
    warm = load(arguments.benchmarks / "piper" / "bert32a100.json")
    for method in ("dp", "piper"):
        solve(warm, accelerators_and_cpus(8, 0, 8 * GIB), PipelineJob(), method=method)
    for part in arguments.part or PARTS:
        print(f"\n## {part}\n")
        PARTS[part](arguments.benchmarks)


if __name__ == "__main__":
    main()
