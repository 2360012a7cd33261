"""The DP over ideals: ideals, pairs, seconds, memory, optimum, and how its time grows.

    python benchmarks/dp.py table --benchmarks ../shared/benchmarks
    python benchmarks/dp.py growth --output build/dp

`table` solves each published throughput workload twice in a process of its own, and reports the
second solve, for which compiled code is already loaded. Seconds are wall time of the whole method,
from the loaded workload to the verified plan; memory is the process's peak, Python libraries
included. `growth` solves generated workloads whose lattices grow, until one takes longer than
--seconds, and writes growth.csv and growth.png.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import resource
import subprocess
import sys
import time
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

import stagecut
from stagecut.formulations.task import pose
from stagecut.formulations.throughput.ideals import pipeline
from stagecut.instances import accelerators_and_cpus
from stagecut.instances.common.arrays import Ints
from stagecut.solvers.core.lattice import count_ideals

CONTIGUOUS = stagecut.Throughput("contiguous")
COUNTING_EFFORT = 3_000_000
FOLDERS = {"LayerGraphs": "layer", "OperatorGraphs": "operator"}


def main() -> None:
    """Do what is asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    table = commands.add_parser("table", help="published workloads")
    table.add_argument("--benchmarks", type=Path, default=Path("../shared/benchmarks"))
    one = commands.add_parser("one", help="one workload, as JSON")
    one.add_argument("path", type=Path)
    growth = commands.add_parser("growth", help="generated workloads")
    growth.add_argument("--output", type=Path, default=Path("build/dp"))
    growth.add_argument("--seconds", type=float, default=60.0, help="of the longest solve")
    options = parser.parse_args()
    if options.command == "table":
        print_table(options.benchmarks)
    elif options.command == "one":
        print(json.dumps(measure(options.path)))
    else:
        measure_growth(options.output, options.seconds)


def print_table(benchmarks: Path) -> None:
    """Print one Markdown row for each published workload."""
    reference = benchmarks.parent / "reference-values.csv"
    with reference.open() as file:
        optimum = {
            (row["graph"], row["workload"]): float(row["value"])
            for row in csv.DictReader(file)
            if row["quantity"] == "contiguous DP optimum"
        }
    print(
        "| workload | graph | ideals | ideal pairs | pairs visited | seconds | first solve |",
        end="",
    )
    print(" peak MB | optimum | published |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    for path in sorted((benchmarks / "placement" / "throughput").glob("*/*.json")):
        graph = FOLDERS[path.parent.name]
        command = [sys.executable, __file__, "one", str(path)]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        row = json.loads(done.stdout)
        published = optimum.get((graph, path.stem))
        print(
            f"| {path.stem} | {graph} | {row['ideals']:,} | {row['pairs']:.3g} | "
            f"{row['visited']:,} | {row['seconds']:.3f} | {row['first']:.2f} | "
            f"{row['peak_mb']:.0f} | {row['objective']:.10g} | "
            f"{'' if published is None else f'{published:.10g}'} |",
            flush=True,
        )


def measure(path: Path) -> dict[str, float]:
    """Solve the workload in a file twice."""
    workload = stagecut.load(path)
    _, first = solve(workload, workload.cluster, math.inf)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    result, seconds = solve(workload, workload.cluster, math.inf)
    assert result.status == "optimal"
    row = sizes(workload, workload.cluster)
    return {
        **row,
        "visited": visited(result),
        "seconds": seconds,
        "first": first,
        "peak_mb": before,
        "objective": result.objective or math.nan,
    }


def solve(
    workload: stagecut.Workload, cluster: stagecut.Cluster | None, limit: float
) -> tuple[stagecut.Result, float]:
    """Return the result and the wall-clock seconds."""
    limits = stagecut.Limits(seconds=None if math.isinf(limit) else limit)
    began = time.perf_counter()
    result = stagecut.solve(workload, cluster, CONTIGUOUS, method="dp", limits=limits)
    return result, time.perf_counter() - began


def sizes(workload: stagecut.Workload, cluster: stagecut.Cluster | None) -> dict[str, float]:
    """Return the number of ideals and of pairs I' ⊆ I, counted without listing them."""
    assert cluster is not None
    graph = pipeline(pose(workload, cluster, CONTIGUOUS)).graph
    ideals, _ = count_ideals(graph.size, graph.edges, COUNTING_EFFORT)
    pairs, counted = count_ideals(2 * graph.size, twice(graph.edges, graph.size), COUNTING_EFFORT)
    return {"ideals": ideals, "pairs": pairs if counted else math.nan}


def twice(edges: Ints, size: int) -> Ints:
    """Return the order whose ideals are the pairs I' ⊆ I: two copies, the first below the other.

    Unit v is in I if v is in the ideal of the product, and in I' if v + size is.
    """
    below = np.arange(size)
    rungs = np.stack([below, below + size], axis=1)
    return np.concatenate([edges, edges + size, rungs])


def visited(result: stagecut.Result) -> int:
    """Return the pairs visited, from the note that the DP leaves."""
    note = next(note for note in result.notes if "pairs visited" in note)
    return int(note.split(",")[-1].split()[0])


def lstm_grid(layers: int, times: int, transfer: float) -> stagecut.Workload:
    """Return a grid of cells, each after the one below and the one before it: GNMT's shape."""
    rng = np.random.default_rng(layers * 1000 + times)
    cell = np.arange(layers * times).reshape(layers, times)
    up = np.stack([cell[:-1].ravel(), cell[1:].ravel()], axis=1)
    on = np.stack([cell[:, :-1].ravel(), cell[:, 1:].ravel()], axis=1)
    compute = rng.uniform(0.5, 1.5, cell.size)
    return stagecut.Workload(
        name=f"grid {layers} × {times}",
        ids=tuple(range(cell.size)),
        edges=np.concatenate([up, on]),
        times={"accelerator": compute, "cpu": 20 * compute},
        memory_bytes=np.ones(cell.size),
        transfer=transfer * rng.uniform(0.5, 1.5, cell.size),
    )


def measure_growth(output: Path, limit: float) -> None:
    """Solve growing grids with cheap and with costly transfers; write a table and a plot."""
    output.mkdir(parents=True, exist_ok=True)
    cluster = accelerators_and_cpus(6, 1)
    solve(lstm_grid(2, 4, 0.1), cluster, math.inf)  # loads the compiled code
    rows = []
    for family, transfer in (("cheap transfers", 0.001), ("costly transfers", 0.3)):
        for layers, times in grids():
            workload = lstm_grid(layers, times, transfer)
            result, seconds = solve(workload, cluster, limit)
            if result.status != "optimal":
                print(f"{family}, {workload.name}: {'; '.join(result.notes)}", flush=True)
                break
            row = {"family": family, "layers": layers, "times": times}
            row |= {**sizes(workload, cluster), "visited": visited(result), "seconds": seconds}
            rows.append(row)
            print(row, flush=True)
    with (output / "growth.csv").open("w", newline="") as file:
        table = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        table.writeheader()
        table.writerows(rows)
    draw(rows, output / "growth.png")


def grids() -> list[tuple[int, int]]:
    """Return grid sizes, each with about twice to four times the ideals of the one before."""
    return [(4, n) for n in (4, 6, 8, 10)] + [(n, n + 3) for n in range(5, 12)]


def draw(rows: list[dict[str, float]], path: Path) -> None:
    """Draw seconds over ideal pairs, and over pairs visited."""
    figure, axes = plt.subplots(1, 2, figsize=(9, 4), sharey=True, layout="constrained")
    for axis, key, label in (
        (axes[0], "pairs", "ideal pairs I' ⊆ I in the lattice"),
        (axes[1], "visited", "ideal pairs visited"),
    ):
        for family in dict.fromkeys(row["family"] for row in rows):
            mine = [row for row in rows if row["family"] == family]
            axis.loglog(
                [row[key] for row in mine], [row["seconds"] for row in mine], "o-", label=family
            )
        axis.set_xlabel(label)
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("seconds to the verified plan")
    axes[0].legend()
    figure.suptitle("DP over ideals on grids of cells, 6 accelerators and a CPU core")
    figure.savefig(path, dpi=150)


if __name__ == "__main__":
    main()
