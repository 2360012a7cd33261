"""Non-contiguous splits with certificates: objective, bound, gap, and seconds to a gap of 1 %.

The method `column-generation` plans each workload in a process of its own, one after the other.
Seconds count from the start of that process. Run it twice: the first run compiles. Prints Markdown.

    python benchmarks/noncontiguous.py ../shared/benchmarks/placement/throughput/*/*.json
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path


def one(path: str, gap: float, seconds: float, seed: int, check: bool, begun: float) -> None:
    """Plan one workload and print its row as JSON."""
    import stagecut
    from stagecut.api.solve import solve
    from stagecut.runtime.verify.bounds.check import check_bound

    workload = stagecut.load(path)
    result = solve(
        workload,
        method="column-generation",
        limits=stagecut.Limits(
            seconds=seconds, gap=gap, seed=seed, since=time.monotonic() - (time.time() - begun)
        ),
    )
    assert result.plan is not None, result.reason
    stagecut.verify(workload, result.plan)
    checked = None
    if check:
        before = time.monotonic()
        check_bound(workload, result.plan)
        checked = time.monotonic() - before

    def until(wanted: float) -> float | None:
        return next((p.seconds for p in result.trace if p.gap <= wanted), None)

    row = {
        "objective": result.plan.objective,
        "bound": result.bound,
        "gap": result.plan.gap,
        "seconds": result.seconds,
        "to_1": until(0.01),
        "to_gap": until(gap),
        "checked": checked,
    }
    print(json.dumps(row))


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("workloads", nargs="+", help="files")
    parser.add_argument("--gap", type=float, default=0.01, help="stop at this relative gap")
    parser.add_argument("--time-limit", type=float, default=300.0, help="seconds per workload")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--check", action="store_true", help="check each certificate")
    parser.add_argument("--begun", type=float, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.begun is not None:
        arguments = (options.gap, options.time_limit, options.seed, options.check, options.begun)
        one(options.workloads[0], *arguments)
        return
    print(f"| workload | objective | bound | gap | s to 1 % | s to {options.gap:.2%} | check (s) |")
    print("|---|---|---|---|---|---|---|")
    for path in options.workloads:
        shared = ["--gap", options.gap, "--time-limit", options.time_limit, "--seed", options.seed]
        command = [sys.executable, __file__, path, "--begun", time.time(), *shared]
        command += ["--check"] if options.check else []
        run = subprocess.run([str(x) for x in command], capture_output=True, text=True, check=False)
        name = f"{Path(path).parent.name}/{Path(path).stem}"
        if run.returncode:
            print(f"| {name} | failed: {run.stderr.strip().splitlines()[-1]} | | | | | |")
            continue
        row = json.loads(run.stdout)
        cells = [
            name,
            f"{row['objective']:.6f}",
            f"{row['bound']:.6f}",
            f"{row['gap']:.3%}",
            *("—" if row[key] is None else f"{row[key]:.1f}" for key in ("to_1", "to_gap")),
            "" if row["checked"] is None else f"{row['checked']:.1f}",
        ]
        print("| " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
