"""Pipelines of a graph before and after they became one problem: optima, bounds and seconds.

    python benchmarks/pipeline_versions.py BEFORE AFTER

BEFORE and AFTER are checkouts, each with the package in `.dev`. Before revision de0bf537, streams
were the problem `Training`, and iterations were `Iteration`. Both versions solve each cell in turn,
in a process of its own, on one core with the kernels compiled. Short solves run `REPEATS` times,
and the fastest counts. Limits count CPU seconds. Published inputs are read from the folder
that STAGECUT_BENCHMARKS names. Writes `results/pipeline_versions.csv`.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import results

import stagecut
from stagecut import Limits, accelerators_and_cpus, load, solve

GIB = 2.0**30
REPEATS, SHORT_S = 2, 5.0
TABLE = "pipeline_versions"
#: CPU seconds of a solve at most, and published files.
SECONDS = 20.0
PUBLISHED = Path(os.environ.get("STAGECUT_BENCHMARKS", "../shared/benchmarks"))

SERVERS: dict[str, Any] = {
    "bandwidth": 1.25e9, "in_flight": "pipedream", "server_devices": 4, "server_bandwidth": 12e9,
}  # fmt: skip
#: Streams: file, devices, GiB, fields.
STREAMS: tuple[tuple[str, int, float, dict[str, Any]], ...] = (
    ("piper/bert32a100.json", 64, 8, {"bandwidth": 25 * GIB}),
    ("piper/bert32a100.json", 512, 2, {"bandwidth": 25 * GIB}),
    ("piper/bert32a100.json", 512, 80, {"bandwidth": 25 * GIB}),
    ("piper/bert32a100.json", 64, 8, {"bandwidth": 25 * GIB, "recomputation": "off"}),
    ("piper/gnmt.json", 4, 1, {"replicas": (1,)}),
    ("pipedream/gnmt.txt", 16, 80, SERVERS),
    ("pipedream/vgg16.txt", 16, 80, SERVERS),
    ("pipedream/resnet50.txt", 16, 80, SERVERS),
)
#: Iterations: shipped workload, devices, microbatches, schedule, gap at which to stop.
ITERATIONS: tuple[tuple[str, int, int, str, float], ...] = (
    ("bert-large-training", 8, 32, "1f1b", 1e-3),
    ("gpt2-xl-training", 8, 32, "1f1b", 1e-3),
    ("vit-l16-training", 8, 8, "gpipe", 1e-3),
    ("unet-training", 4, 16, "1f1b", 1e-2),
    ("resnet50-training", 8, 32, "zb-h1", 3e-2),
    ("t5-large-training", 8, 32, "interleaved", 3e-2),
    ("llama3-8b-training", 8, 32, "interleaved", 3e-2),
    ("stable-diffusion-unet-training", 4, 16, "gpipe", 1e-2),
)


def measure(cell: int) -> dict[str, float | None]:
    """Return objective, bound and CPU seconds of a cell; a small case compiles kernels before."""
    stream = getattr(stagecut, "PipelineJob", None) or stagecut.Training  # type: ignore[attr-defined]
    iteration = getattr(stagecut, "PipelineJob", None) or stagecut.Iteration  # type: ignore[attr-defined]
    if cell < len(STREAMS):
        name, devices, memory, fields = STREAMS[cell]
        workload, small = load(PUBLISHED / name), load(PUBLISHED / "piper" / "bert32a100.json")
        cluster, gap = accelerators_and_cpus(devices, 0, memory * GIB), 0.0
        if stream.__name__ == "Training" and "in_flight" in fields:  # as it was called then
            fields = {key: value for key, value in fields.items() if key != "in_flight"}
            fields["schedule"] = "pipedream"
        problem, tiny = stream(**fields), stream(bandwidth=25 * GIB)
        solve(small, accelerators_and_cpus(4, 0, 8 * GIB), tiny, method="dp", workers=1)
        method = "dp"
    else:
        name, devices, microbatches, schedule, gap = ITERATIONS[cell - len(STREAMS)]
        workload, method = load(name), "auto"
        assert workload.cluster is not None
        cluster = workload.cluster.with_counts(devices, 0)
        problem = iteration(microbatches, schedule)
        small = load("unet-training")
        few = Limits(seconds=600, gap=0.1, nodes=10)
        tiny = iteration(2, schedule)
        solve(small, accelerators_and_cpus(2, 0, 80 * GIB), tiny, limits=few, workers=1)
    time.monotonic = time.process_time
    limits = Limits(seconds=SECONDS, gap=gap)
    begin = time.process_time()
    found = solve(workload, cluster, problem, method=method, limits=limits, workers=1)
    return {
        "objective": found.objective,
        "bound": found.bound,
        "seconds": time.process_time() - begin,
    }


def measured_in(checkout: Path, cell: int) -> dict[str, Any]:
    """Return what `measure` says in a process that imports the package of a checkout."""
    environment = {**os.environ, "PYTHONPATH": str((checkout / ".dev").resolve())}
    command = [sys.executable, __file__, "--cell", str(cell)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def label(cell: int) -> str:
    """Return what a cell is called."""
    if cell < len(STREAMS):
        name, devices, memory, fields = STREAMS[cell]
        more = [f"{key} {value}" for key, value in fields.items() if not key.endswith("width")]
        return ", ".join([name, f"K {devices}", f"{memory:g} GiB", "stream", *more])
    name, devices, microbatches, schedule, _ = ITERATIONS[cell - len(STREAMS)]
    return f"{name}, K {devices}, M {microbatches}, {schedule}"


def main() -> None:
    """Measure all cells in both checkouts, and write a row for each."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("checkouts", nargs="*", type=Path, metavar="CHECKOUT")
    parser.add_argument("--cell", type=int, help="measure this one here, and print it")
    parser.add_argument("--cells", type=int, nargs="+", help="numbers of cells; default: all")
    options = parser.parse_args()
    if options.cell is not None:
        print(json.dumps(measure(options.cell)))
        return
    before, after = options.checkouts
    cells = options.cells or range(len(STREAMS) + len(ITERATIONS))
    for cell in cells:
        runs = [(measured_in(before, cell), measured_in(after, cell))]
        while len(runs) < REPEATS and runs[0][0]["seconds"] < SHORT_S:
            runs.append((measured_in(before, cell), measured_in(after, cell)))
        old, new = (min(side, key=lambda one: one["seconds"]) for side in zip(*runs, strict=True))
        row = {"cell": label(cell)}
        for name, one in (("before", old), ("after", new)):
            row |= {f"{name}_{key}": "" if one[key] is None else f"{one[key]:.7g}" for key in one}
        print(row, flush=True)
        results.write(TABLE, [row], "0", add=(results.RESULTS / f"{TABLE}.csv").exists())


if __name__ == "__main__":
    main()
