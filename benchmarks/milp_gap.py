"""Time in which the compact program alone proves a gap, non-contiguous, from greedy's plan.

Prints a Markdown table. Needs the published inputs (STAGECUT_BENCHMARKS), or files to plan for.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path

import stagecut

FOLDER = "placement/throughput"
ASKED = (
    "LayerGraphs/bert24_inference",
    "LayerGraphs/bert24_training",
    "LayerGraphs/gnmt_training",
    "LayerGraphs/resnet50_inference",
    "OperatorGraphs/bert_l-3_inference",
    "OperatorGraphs/bert_l-3_training",
    "OperatorGraphs/resnet50_inference",
)


def main() -> None:
    """Solve each workload and print a row."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("workloads", nargs="*", help="files; default: those asked for")
    parser.add_argument("--gap", type=float, default=0.01)
    parser.add_argument("--time-limit", type=float, default=300.0)
    options = parser.parse_args()
    folder = Path(os.environ.get("STAGECUT_BENCHMARKS", "../shared/benchmarks")) / FOLDER
    files = options.workloads or [folder / f"{name}.json" for name in ASKED]
    print("| workload | nodes | objective | bound | gap | seconds | CPU s | bound from |")
    print("|---|---|---|---|---|---|---|---|")
    for file in files:
        workload = stagecut.load(file)
        cpu = time.process_time()
        result = stagecut.solve(
            workload,
            problem=stagecut.Throughput("noncontiguous"),
            method="milp",
            limits=stagecut.Limits(seconds=options.time_limit, gap=options.gap),
        )
        cpu = time.process_time() - cpu
        found = "–" if result.objective is None else f"{result.objective:.5f}"
        gap = "–" if result.gap is None else f"{100 * result.gap:.3f} %"
        print(
            f"| {workload.name} | {workload.n} | {found} | {result.bound:.5f} | {gap} "
            f"| {result.seconds:.1f} | {cpu:.1f} | {result.bound_origin} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
