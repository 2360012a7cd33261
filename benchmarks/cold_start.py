"""CPU seconds of the first call on a machine and of later ones, each in its own process.

    PYTHONPATH=.dev python benchmarks/cold_start.py [--case NAME …] [--calls 3]

The last cases compile nothing: they measure imports alone.

The first call begins with an empty cache of compiled kernels, in a folder of its own; each later
call finds the kernels of the calls before. All calls have one worker, since further workers start
by the clock. Prints a Markdown table: user and system seconds of each call, and in the last column
how much more the first call takes than the last.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

LATENCY = ["--problem", "latency"]
GNMT = "{latency}/LayerGraphs/gnmt_inference.json"

#: Cases: name, arguments of the command line.
CASES = {
    "contiguous DP": ["solve", "gpt2-xl", "--split", "contiguous"],
    "contiguous DP, 87 nodes": ["solve", "semantic-fpn", "--split", "contiguous"],
    "set partitioning": ["solve", "gpt2-xl", "--split", "noncontiguous"],
    "set partitioning, 348 nodes": ["solve", "bert-large-operators", "--split", "noncontiguous"],
    "latency": ["solve", "gpt2-xl", *LATENCY],
    "latency, 71 nodes": ["solve", "resnet50", *LATENCY],
    "label DP, 96 nodes": ["solve", GNMT, *LATENCY],
    "label DP, two calls": ["solve", GNMT, *LATENCY, "--set", "calls=2"],
    "label DP, 783 nodes": ["solve", "{latency}/OperatorGraphs/bert_l-12_inference.json", *LATENCY],
    "training": ["solve", "{benchmarks}/piper/bert32a100.json"],
    "latency, 348 nodes": ["solve", "bert-large-operators", *LATENCY],
    "iteration": ["solve", "llama3-8b-training", "--microbatches", "8"],
    "mapping": [
        "solve", "gpt2-xl-training", "--problem", "mapping", "--cluster", "mesh2d:2x4",
        "--set", "stages=4,replicas=2",
    ],
    "`--help`": ["--help"],
    "wrong option": ["solve", "--nope"],
    "missing file": ["solve", "missing.json"],
    "`import stagecut`": [],
}  # fmt: skip


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--case", nargs="+", choices=list(CASES), default=list(CASES))
    parser.add_argument("--calls", type=int, default=2)
    parser.add_argument("--benchmarks", type=Path, default=Path("../shared/benchmarks"))
    options = parser.parse_args()
    numbers = [str(call + 1) for call in range(options.calls)]
    print("| case | " + " | ".join(f"call {n}" for n in numbers) + " | first − last |")
    print("|---" * (options.calls + 2) + "|")
    for name in options.case:
        latency = options.benchmarks / "placement/latency"
        places = {"benchmarks": options.benchmarks, "latency": latency}
        arguments = [word.format(**places) for word in CASES[name]]
        with tempfile.TemporaryDirectory() as folder:
            spent = [cpu_seconds(arguments, folder) for _ in numbers]
        cells = [f"{seconds:.1f}" for seconds in (*spent, spent[0] - spent[-1])]
        print(f"| {name} | {' | '.join(cells)} |", flush=True)


def cpu_seconds(arguments: list[str], cache: str) -> float:
    """Return user and system seconds of one command, with kernels cached in a folder."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    run = ["-m", "stagecut", *arguments, "--time-limit", "120", "--set", "workers.count=1"]
    done = subprocess.run(
        [sys.executable, *(run if arguments else ["-c", "import stagecut"])],
        check=False,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "NUMBA_CACHE_DIR": cache},
    )
    assert done.returncode in (0, 2), arguments
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


if __name__ == "__main__":
    main()
