"""Time of `verify --bound` for contiguous splits, which looks at all chains of stages anew.

    python benchmarks/check_chains.py FILES              published graphs, the least max-load
    python benchmarks/check_chains.py --microbatches 8 32 --schedules 1f1b gpipe zb-h1 \\
        --accelerators 8 NAMES                           iterations, gap asked 0.1 %

Prints one Markdown row per case: the CPU seconds of the search and of the check, and the check's
answer.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import stagecut
from stagecut import Cluster, InputError, Limits, PipelineJob, Throughput, VerificationError
from stagecut.instances import Problem, is_iteration
from stagecut.runtime.verify.bounds.check import check_bound


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("workloads", nargs="+")
    parser.add_argument("--microbatches", type=int, nargs="*", default=[])
    parser.add_argument("--schedules", nargs="+", default=["1f1b"])
    parser.add_argument("--accelerators", type=int, default=8, help="of 80 GB, for iterations")
    parser.add_argument("--time-limit", type=float, default=60.0)
    args = parser.parse_args()
    print("| workload | problem | gap | search (CPU s) | check (CPU s) | checked |")
    print("|---|---|---|---|---|---|")
    for name, (cluster, problem) in product(args.workloads, cases(args)):
        print(row(name, cluster, problem, args.time_limit), flush=True)


def cases(args: argparse.Namespace) -> Iterator[tuple[Cluster | None, Problem]]:
    """Yield clusters and problems; without microbatches the cluster is the file's own."""
    if not args.microbatches:
        yield None, Throughput(split="contiguous")
    for schedule, microbatches in product(args.schedules, args.microbatches):
        cluster = stagecut.accelerators_and_cpus(args.accelerators, memory_bytes=80 * 2**30)
        yield cluster, PipelineJob(microbatches, schedule)


def row(name: str, cluster: Cluster | None, problem: Problem, seconds: float) -> str:
    """Solve one case and check its bound."""
    workload = stagecut.load(name)
    limits = Limits(seconds=seconds, gap=1e-3)
    begin = time.process_time()
    result = stagecut.solve(
        workload, cluster or workload.cluster, problem, limits=limits, workers=1
    )
    search = time.process_time() - begin
    asked = "max-load"
    if is_iteration(problem):
        asked = f"{problem.schedule}, M = {problem.microbatches}"
    if result.plan is None:
        return f"| {Path(name).stem} | {asked} | {result.status} | {search:.2f} | | |"
    begin = time.process_time()
    try:
        check_bound(workload, result.plan)
        said = "yes"
    except (InputError, VerificationError) as error:
        said = f"no: {error}"
    check = time.process_time() - begin
    gap = f"{100 * result.gap:.2f} %"
    return f"| {Path(name).stem} | {asked} | {gap} | {search:.2f} | {check:.2f} | {said} |"


if __name__ == "__main__":
    main()
