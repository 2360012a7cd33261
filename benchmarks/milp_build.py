"""Time to state the compact program in Pyomo and hand it to HiGHS, against a tenth of 60 s.

Prints a Markdown table. Needs the published inputs (STAGECUT_BENCHMARKS, or a file to plan for).
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path

import stagecut
from stagecut.formulations.task import pose
from stagecut.formulations.throughput.compact import compact
from stagecut.solvers.core.compiled_model import compile_model
from stagecut.solvers.core.highs import run_highs
from stagecut.solvers.core.search import Search

BERT_12 = "placement/throughput/OperatorGraphs/bert_L-12_training.json"
SPLITS = (
    stagecut.Throughput("noncontiguous"),
    stagecut.Throughput("per-device"),
    stagecut.Throughput("contiguous"),
)


def main() -> None:
    """Time each phase, the best of some repetitions, by wall clock and by CPU."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("workload", nargs="?", help="a file; default: BERT-12 training")
    parser.add_argument("--repeat", type=int, default=3)
    options = parser.parse_args()
    folder = Path(os.environ.get("STAGECUT_BENCHMARKS", "../shared/benchmarks"))
    workload = stagecut.load(options.workload or folder / BERT_12)
    assert workload.cluster is not None
    print("| workload | split | columns | rows | state s | compile s | pass s | sum s | CPU s |")
    print("|---|---|---|---|---|---|---|---|---|")
    for problem in SPLITS:
        task = pose(workload, workload.cluster, problem)
        best: tuple[float, ...] = ()
        for _ in range(options.repeat):
            cpu, begin = time.process_time(), time.perf_counter()
            stated = compact(task, reference=500.0)
            built = time.perf_counter()
            compiled = compile_model(stated.model)
            passed = time.perf_counter()
            assert compiled.linear is not None
            # To load a program and give it no time is to hand it over.
            never: Search[object] = Search(stagecut.Limits(), lambda _: 0.0)
            run_highs(compiled.linear, never, seconds=0.0)
            end = time.perf_counter()
            phases = (built - begin, passed - built, end - passed, end - begin)
            run = (*phases, time.process_time() - cpu)
            best = min(best or run, run, key=lambda times: times[3])
            size = (len(compiled.linear.cost), len(compiled.linear.row_lower))
        numbers = " | ".join([*map(str, size), *(f"{seconds:.2f}" for seconds in best)])
        print(f"| {workload.name} | {problem.split} | {numbers} |", flush=True)


if __name__ == "__main__":
    main()
