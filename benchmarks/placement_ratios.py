"""Ratios of baselines to the best non-contiguous split, as Tarnawski et al. (NeurIPS 2020) print.

    python benchmarks/placement_ratios.py ../shared/benchmarks/placement
    python benchmarks/placement_ratios.py CHECKOUT_OF_dnn-partitioning --write

Finds the throughput workloads and hand-made splits below the folder, plans each workload by every
method, and prints the ratios, followed by their largest value and mean beside the paper's. The
protocol is the authors': local search has 10 restarts; PipeDream's optimizer runs on layers alone,
and for GNMT without the outgoing edges of the three nodes that the authors left out. But the best
split is sought to a gap of 0.1 %, not 1 %, within 120 s. If METIS or Scotch is missing, the program
says so. `--write` puts the rows into `results/placement_ratios.csv`.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import mean

from results import read, write

from stagecut import InputError, Limits, Throughput, Workload, load, solve

LONG = Limits(seconds=300)


@dataclass(frozen=True)
class Baseline:
    """A baseline, its largest and mean ratio in the paper, and what it runs on."""

    published: tuple[float, float] | None
    layers_alone: bool = False
    limits: Limits = LONG


#: Table 1 and section 1 of the paper say these ratios; it has no METIS and no greedy filling.
BASELINES: Mapping[str, Baseline] = {
    "expert": Baseline((2.0, 1.46), layers_alone=True),
    "local-search": Baseline((2.08, 1.29), limits=Limits(nodes=10)),
    "pipedream": Baseline((1.21, 1.10), layers_alone=True),
    "scotch": Baseline((7.69, 1.50)),
    "metis": Baseline(None),
    "dp": Baseline(None),
}
#: By the nodes that a workload has: those whose outgoing edges the authors left out.
SKIPPED = {"gnmt": "2+40+46"}


def files(folder: Path) -> list[Path]:
    """Return the workloads for throughput below a folder, each once."""
    found = sorted(folder.glob("throughput*/*Graphs/*.json"))
    if not found:
        raise SystemExit(f"{folder}: no throughput*/*Graphs/*.json below it")
    return found


def argument(method: str, workload: Workload, folder: Path) -> str:
    """Return a method with what it reads."""
    if method == "expert":
        return f"expert:{folder / 'human-experts'}"
    skipped = SKIPPED.get(workload.name.partition("_")[0])
    return f"{method}:skip={skipped}" if method == "pipedream" and skipped else method


def rows_of(path: Path, folder: Path) -> Iterable[dict[str, str]]:
    """Return a row per method of one workload."""
    workload, problem = load(path), Throughput(split="noncontiguous")
    graph = path.parent.name.removesuffix("Graphs").lower()
    best = solve(workload, None, problem, limits=Limits(seconds=120, gap=0.001))
    assert best.objective is not None
    for method, baseline in BASELINES.items():
        if baseline.layers_alone and graph != "layer":
            continue
        name = argument(method, workload, folder)
        split = "contiguous" if method == "dp" else "noncontiguous"
        asked = Throughput(split=split)
        try:
            found = solve(workload, None, asked, method=name, limits=baseline.limits, workers=1)
        except InputError as error:
            print(f"{workload.name}: {error}", flush=True)
            continue
        if found.objective is None:
            print(f"{workload.name}: {method}: no plan", flush=True)
            continue
        yield {
            "graph": graph,
            "workload": workload.name,
            "method": method,
            "option": name.partition(":")[2] if method == "pipedream" else "",
            "objective": f"{found.objective:.8g}",
            "best": f"{best.objective:.8g}",
            "bound": f"{best.bound:.8g}",
            "ratio": f"{found.objective / best.objective:.4f}",
        }


def summary(rows: Iterable[Mapping[str, str]]) -> list[list[str]]:
    """Return the cells of a row per method: its largest and mean ratio, the paper's beside."""
    rows, cells = list(rows), []
    for method, baseline in BASELINES.items():
        ratios = [float(row["ratio"]) for row in rows if row["method"] == method]
        if not ratios:
            continue
        largest = max(rows, key=lambda r: float(r["ratio"]) if r["method"] == method else 0.0)
        told = ["", ""] if baseline.published is None else [f"{x:.2f}" for x in baseline.published]
        cells.append(
            [
                method,
                str(len(ratios)),
                f"{max(ratios):.2f}",
                told[0],
                f"{mean(ratios):.2f}",
                told[1],
                f"{largest['workload']}, {largest['graph']}s",
            ]
        )
    return cells


def main() -> None:
    """Plan all, print, and write if asked."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="of the published workloads and splits")
    parser.add_argument("--write", action="store_true", help="results/placement_ratios.csv")
    options = parser.parse_args()
    rows = []
    for path in files(options.folder):
        for row in rows_of(path, options.folder):
            rows.append(row)
            print(f"{row['graph']:8} {row['workload']:24} {row['method']:13} {row['ratio']}",
                  flush=True)  # fmt: skip
    if options.write:
        write("placement_ratios", rows, "0")
        rows = read("placement_ratios")
    print("\n| method | graphs | largest | paper | mean | paper | largest at |")
    print("|---|---|---|---|---|---|---|")
    for cells in summary(rows):
        print("| " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
