"""Growth of mapping, partition and the joint program with size.

    python benchmarks/mapping_growth.py devices --output docs    time and memory up to 4096 devices
    python benchmarks/mapping_growth.py partition                20 000 operators into 64 stages
    python benchmarks/mapping_growth.py joint                    cut and map together, or in turn

`devices` maps each topology twice in a process of its own, and reports the second solve, for which
compiled code is already loaded, and the process's peak memory. It writes mapping_growth.csv and
.png. `joint` adds the rows that results/joint_mapping.csv lacks, with devices alike and with half
of them twice as slow, and checks each bound; its seconds are CPU seconds.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import resource
import subprocess
import sys
import time
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
from clocks import cpu_clock
from matplotlib.figure import Figure
from results import RESULTS, read, write

from stagecut import Limits, Workload, check_bound, load, solve, verify
from stagecut.formulations.mapping.all_cuts import stage_objective
from stagecut.instances import DeviceMapping, stage_costs
from stagecut.instances.common.kernel import compile_at_once
from stagecut.instances.topologies import topology
from stagecut.solvers.mapping.partition import balanced_partition

FAMILIES = {
    "torus": ["4x4x4", "4x8x8", "8x8x8", "8x8x16", "8x16x16", "16x16x16"],
    "nodes of 8": ["8x8", "32x8", "64x8", "128x8", "256x8", "512x8"],
}
KINDS = {"torus": "torus3d", "nodes of 8": "islands"}
NETWORK = "semantic-fpn-operators-training"
STAGES = 16


def devices(args: argparse.Namespace) -> None:
    """Measure and draw."""
    rows = []
    for family, sizes in FAMILIES.items():
        for size in sizes:
            name = f"{KINDS[family]}:{size}"
            if topology(name).size > args.most:
                continue
            command = [sys.executable, __file__, "one", name, "--seconds", str(args.seconds)]
            out = subprocess.run(command, check=True, capture_output=True, text=True)
            rows.append({"family": family, **json.loads(out.stdout.splitlines()[-1])})
            print(rows[-1], flush=True)
            with (args.output / "mapping_growth.csv").open("w", newline="") as file:
                writer = csv.DictWriter(file, rows[0])
                writer.writeheader()
                writer.writerows(rows)
            draw(rows, args.output / "mapping_growth.png")


def one(args: argparse.Namespace) -> None:
    """Map one topology; print what it took as JSON."""
    workload = load(NETWORK)
    compile_at_once()
    small = DeviceMapping(topology(args.name.partition(":")[0] + _small(args.name)), 2, 4, "both")
    solve(workload, problem=small, limits=Limits(seconds=60, nodes=1))
    begin = time.monotonic()
    found = topology(args.name)
    problem = DeviceMapping(found, STAGES, found.size // STAGES, "both")
    result = solve(workload, problem=problem, limits=Limits(seconds=args.seconds, since=begin))
    assert result.plan is not None
    proven = (p.seconds for p in result.trace if p.gap <= 1e-6)
    print(
        json.dumps(
            {
                "topology": args.name,
                "devices": found.size,
                "seconds": round(next(proven, result.seconds), 2),
                "gap": result.plan.gap,
                "peak_MiB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
                "first_plan_s": round(result.trace[0].seconds, 2),
            }
        )
    )


def _small(name: str) -> str:
    if name.startswith(("random", "uniform")):
        return ":8"
    return ":2x4" if name.startswith("islands") else ":2x2x2"


def draw(rows: list[dict[str, object]], path: Path) -> None:
    """Draw seconds (logarithmic) and memory over devices."""
    figure = Figure(figsize=(9, 4), layout="constrained")
    for axes, key, label in zip(
        figure.subplots(1, 2),
        ("seconds", "peak_MiB"),
        ("seconds until proven, or the limit", "peak memory of the process, MiB"),
        strict=True,
    ):
        for family, marker in zip(FAMILIES, "os", strict=True):
            part = [row for row in rows if row["family"] == family]
            x = [row["devices"] for row in part]
            y = [row[key] for row in part]
            axes.plot(x, y, marker=marker, label=family)
            for row in part if key == "seconds" else []:
                if float(str(row["gap"])) > 1e-6:
                    text = f"gap {float(str(row['gap'])):.2%}"
                    at = (float(str(row["devices"])), float(str(row["seconds"])))
                    axes.annotate(
                        text, at, (-8, 8), textcoords="offset points", fontsize=8, ha="right"
                    )
        axes.set_xscale("log", base=2)
        axes.set_yscale("log" if key == "seconds" else "linear")
        axes.set_ylim(bottom=None if key == "seconds" else 0)
        axes.set_xlabel("devices")
        axes.set_title(label, fontsize=10)
        axes.grid(alpha=0.3)
        axes.legend()
    figure.savefig(path, dpi=130)


def random_operators(n: int, seed: int = 0) -> Workload:
    """A random operator graph: short edges, log-normal times and sizes."""
    rng = np.random.default_rng(seed)
    ends = [(max(0, v - int(rng.geometric(0.05))), v) for v in range(1, n) for _ in range(2)]
    return Workload(
        name=f"random {n}",
        ids=tuple(range(n)),
        edges=np.array(ends),
        times={"accelerator": rng.lognormal(0, 1, n)},
        memory_bytes=np.zeros(n),
        transfer=None,
        output_bytes=rng.lognormal(14, 1, n),
        time_unit="us",
    )


def partition(_: argparse.Namespace) -> None:
    """Print how long a balanced partition takes, and its gap."""
    print(
        "| operators | stages | κ s/byte | objective ms | bound ms | gap % | s |\n"
        "|---|---|---|---|---|---|---|"
    )
    for n in (2_000, 20_000):
        workload = random_operators(n)
        for coefficient in (0.0, 1 / 100e9):
            begin = time.monotonic()
            stage = balanced_partition(workload, 64, coefficient)
            seconds = time.monotonic() - begin
            costs = stage_costs(workload, stage, 64)
            longest, bound = stage_objective(costs, coefficient), float(costs.compute_s.mean())
            print(
                f"| {n} | 64 | {coefficient:.0e} | {1e3 * longest:.4f} | {1e3 * bound:.4f} "
                f"| {100 * (1 - bound / longest):.3f} | {seconds:.1f} |",
                flush=True,
            )


def joint(args: argparse.Namespace) -> None:
    """Write what cutting and mapping together gains over doing one after the other, and its gap."""
    data = os.environ.get("STAGECUT_BENCHMARKS", "../shared/benchmarks")
    shipped = (NETWORK, "resnet50-operators-training", "gpt2-xl-training")
    published = [f"{data}/pipedream/{name}.txt" for name in ("vgg16", "resnet50", "gnmt")]
    known = read("joint_mapping") if (RESULTS / "joint_mapping.csv").exists() else []
    done = {(row["workload"], row["topology"], row["slow_half"]) for row in known}
    compile_at_once()
    cells = product((*shipped, *published), ((4, 4), (4, 8), (8, 8)), (1.0, 2.0))
    for name, (s, r), slow in cells:
        workload = load(name)
        for place in (f"torus2d:{s}x{r}", f"islands:{s * r // 8}x8", f"random_blk_1:{s * r}"):
            if (Path(name).stem, place, str(slow)) in done:
                continue
            half = np.where(np.arange(s * r) < s * r // 2, 1.0, slow)
            devices = replace(topology(place), slowdown=half)
            problem = DeviceMapping(devices, s, r, microbatches=4, collective="ring")
            with cpu_clock():
                limits = Limits(seconds=args.seconds, since=time.monotonic())
                result = solve(workload, problem=problem, method="joint", limits=limits)
            assert result.plan is not None
            verify(workload, result.plan)
            begin = time.process_time()
            check_bound(workload, result.plan)
            in_turn = next(n.split()[-2] for n in result.notes if n.startswith("partition first"))
            row = {
                "workload": Path(name).stem,
                "devices": s * r,
                "topology": place,
                "slow_half": slow,
                "stages": s,
                "replicas": r,
                "in_turn_ms": float(in_turn),
                "joint_ms": round(result.plan.objective, 4),
                "bound_ms": round(result.bound, 4),
                "gap_percent": round(100 * result.plan.gap, 3),
                "cpu_seconds": round(result.seconds, 1),
                "check_cpu_seconds": round(time.process_time() - begin, 2),
            }
            texts = {key: str(value) for key, value in row.items()}
            print(", ".join(f"{key} {value}" for key, value in row.items()), flush=True)
            write("joint_mapping", [texts], "0", add=bool(done))
            done.add((Path(name).stem, place, str(slow)))


def main() -> None:
    """Run what was asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    tasks = parser.add_subparsers(required=True)
    for task, seconds in ((devices, 300.0), (one, 300.0), (partition, 0.0), (joint, 30.0)):
        sub = tasks.add_parser(task.__name__, help=task.__doc__)
        sub.set_defaults(task=task)
        sub.add_argument("--seconds", type=float, default=seconds, help="limit of each solve")
        if task is one:
            sub.add_argument("name", help="topology")
        if task is devices:
            sub.add_argument("--output", type=Path, default=Path())
            sub.add_argument("--most", type=int, default=4096, help="devices")
    args = parser.parse_args()
    args.task(args)


if __name__ == "__main__":
    main()
