"""Time, memory and gap by size of the graph, each solved by the command line in its own process.

Prints a Markdown table. CPU seconds and peak memory are those of the whole process, which loads,
plans, checks, prints and writes the plan's file.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

#: Workloads by size: architecture, and how many times deeper for about 10, 30 and 100 thousand.
NAMES = [
    f"{architecture}-operators-training@{option}={times}"
    for architecture, option, sizes in (
        ("gpt2-xl", "deeper", (1, 7, 22, 74)),
        ("bert-large", "deeper", (15, 43, 143)),
        ("llama3-8b", "microbatches", (10, 31, 103)),
        ("stable-diffusion-unet", "deeper", (10, 30, 100)),
        ("t5-large", "deeper", (5, 16, 53)),
        ("mixtral-8x7b", "deeper", (3, 9)),
    )
    for times in sizes
]


def main() -> None:
    """Solve each workload for each split and print a row."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=NAMES, help="workloads; default: a table")
    parser.add_argument("--split", action="append", help="default: contiguous, noncontiguous")
    parser.add_argument("--time-limit", type=float, default=60.0)
    options = parser.parse_args()
    print("| workload | operators | devices | split | CPU s | wall s | peak GiB "
          "| objective ms | bound ms | gap |")  # fmt: skip
    print("|---|---|---|---|---|---|---|---|---|---|")
    for name in options.names:
        for split in options.split or ["contiguous", "noncontiguous"]:
            print(_row(name, split, options.time_limit), flush=True)


def _row(name: str, split: str, seconds: float) -> str:
    with tempfile.TemporaryDirectory() as folder:
        plan = Path(folder) / "plan.json"
        command = [sys.executable, "-m", "stagecut", "solve", name, "--split", split]
        command += ["--time-limit", str(seconds), "--output", str(plan), "--json"]
        before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
        done = subprocess.run(
            [sys.executable, "-c", _MEASURED, *command], capture_output=True, text=True, check=False
        )
        wall, after = time.monotonic() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        if not plan.exists():
            return f"| {name} | | | {split} | {cpu:.1f} | {wall:.1f} | | no plan | | |"
        said = json.loads(plan.read_text(encoding="utf-8"))
        peak = int(done.stderr.split()[-1]) / 2**20
    devices = sum(kind["count"] for kind in said["cluster"]["kinds"])
    operators = sum(len(device["nodes"]) for device in said["solution"]["devices"])
    objective, bound = said["objective"], said["bound"]
    return (
        f"| {name} | {operators} | {devices} | {split} | {cpu:.1f} | {wall:.1f} "
        f"| {peak:.2f} | {objective:.3f} | {bound:.3f} | {100 * (1 - bound / objective):.3f} % |"
    )


#: Runs a command and says its peak of memory, in KiB, last on the error stream.
_MEASURED = """
import resource, subprocess, sys
subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL, check=False)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss, file=sys.stderr)
"""


if __name__ == "__main__":
    main()
