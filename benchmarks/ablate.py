"""The worth of each strategy, bound and neighbourhood of an `auto`: what is lost without it.

    python benchmarks/ablate.py throughput                        run what the table lacks
    python benchmarks/ablate.py throughput --report               the table as Markdown
    python benchmarks/ablate.py mapping --only random_blk_2 --parts layouts descents

`ablations.py` lists the cells and parts of each problem. Each run is a process of its own. Limits
count CPU seconds instead of wall time, inside HiGHS too, so that other load changes little. With
`--compile`, an unmeasured run of each cell compiles the kernels first. The whole strategy runs with
three seeds, which show the noise. A part is left out only in cells where the whole strategy reaches
it. Each row has the revision that it was measured with.

A part stays if the gap without it is worse by more than the noise, or the time to 1 % by a tenth,
on two workloads of different families.
"""

from __future__ import annotations

import argparse
import csv
import multiprocessing
import os
import platform
import subprocess
import time
import traceback
from collections.abc import Callable
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from unittest.mock import patch

import pandas as pd
from ablations import PROBLEMS, Cell, Part, nothing
from clocks import cpu_clock

RESULTS = Path(__file__).parent / "results"
COLUMNS = ("workload", "strategy", "seed", "gap", "seconds", "to_1", "objective", "bound",
           "reached", "revision", "machine")  # fmt: skip
WHOLE = "whole strategy"


def machine() -> str:
    """Return the processor and its cores."""
    names = [
        x for x in Path("/proc/cpuinfo").read_text().splitlines() if x.startswith("model name")
    ]
    name = names[0].split(":")[1].strip() if names else platform.processor()
    return f"{os.cpu_count()} x {name}"


@cache
def revision() -> str:
    """Return the revision that is checked out."""
    command = ["git", "rev-parse", "--short", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def counted(stack: ExitStack, part: Part) -> list[int]:
    """Count the calls of a part while the stack is open."""
    calls: list[int] = []
    for module, name in part.entries or part.sites:
        original = getattr(module, name)

        def counting(
            *args: object, original: Callable[..., object] = original, **options: object
        ) -> object:
            if part.counts(*args, **options):
                calls.append(1)
            return original(*args, **options)

        counting.__name__ = name
        stack.enter_context(patch.object(module, name, counting))
    return calls


def in_a_process(solve: Callable[..., dict], *arguments: object) -> dict:
    """Return what a function returns in a process of its own, which begins as this one is now."""
    receive, send = multiprocessing.Pipe(duplex=False)
    child = os.fork()
    if child == 0:
        try:
            send.send(solve(*arguments))
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(0)  # a thread of HiGHS may go on
    send.close()
    with receive:
        try:
            return receive.recv()
        except EOFError:
            raise SystemExit("a run failed, as is told above") from None
        finally:
            os.waitpid(child, 0)


def solve_cell(cell: Cell, part: str, parts: dict[str, Part], seed: int, seconds: float) -> dict:
    """Solve a cell, without a part if it is one, and return the row."""
    from stagecut import Limits
    from stagecut.api.solve import solve

    workload, cluster, problem = cell.make()
    with ExitStack() as stack:
        stack.enter_context(cpu_clock())
        if cell.ties:
            stack.enter_context(patch.object(*cell.ties, nothing))
        calls = {}
        if part in parts:
            for module, name in parts[part].sites:
                stack.enter_context(patch.object(module, name, parts[part].instead))
        else:
            calls = {name: counted(stack, each) for name, each in parts.items()}
        limits = Limits(seconds=seconds, seed=seed, gap=0.0, since=time.process_time())
        result = solve(workload, cluster, problem, method=cell.method, limits=limits, workers=1)
    return {
        "seconds": round(result.seconds, 3),
        "objective": result.objective,
        "bound": result.bound,
        "gap": 1.0 if result.plan is None else result.plan.gap,
        "to_1": next((round(p.seconds, 3) for p in result.trace if p.gap <= 0.01), ""),
        "reached": "; ".join(name for name, found in calls.items() if found),
    }


def run(args: argparse.Namespace, table: Path) -> None:
    """Run what the table does not have."""
    cells, parts = PROBLEMS[args.problem]()
    known = pd.read_csv(table) if table.exists() else pd.DataFrame(columns=list(COLUMNS))
    done = {tuple(row) for row in known[["workload", "strategy", "seed"]].itertuples(index=False)}
    first = known[known["strategy"].eq(WHOLE) & known["seed"].eq(0)]
    reached = {row.workload: str(row.reached).split("; ") for row in first.itertuples()}
    table.parent.mkdir(exist_ok=True)
    with table.open("a", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        if file.tell() == 0:
            writer.writeheader()

        def measure(cell: str, part: str, seed: int) -> None:
            if (cell, part, seed) in done or not any(name in f"{cell}$" for name in args.only):
                return
            for _ in range(1 + (args.compile and part == WHOLE and seed == 0)):
                solved = in_a_process(solve_cell, cells[cell], part, parts, seed, args.seconds)
            row = {"workload": cell, "strategy": part, "seed": seed, **solved}
            writer.writerow(row | {"revision": revision(), "machine": machine()})
            file.flush()
            print(*row.values(), sep=", ", flush=True)
            if part == WHOLE and seed == 0:
                reached[cell] = str(row["reached"]).split("; ")

        for seed in range(args.seeds):
            for cell in cells:
                measure(cell, WHOLE, seed)
        for part in parts if args.parts is None else args.parts:
            for seed in range(args.part_seeds):
                for cell in cells:
                    if part in reached.get(cell, ()):
                        measure(cell, part, seed)


def report(table: Path) -> str:
    """Return the table as Markdown: a row per part, with the cells where leaving it out shows."""
    found = pd.read_csv(table)
    whole = found[found["strategy"].eq(WHOLE)].groupby("workload")
    noise = pd.DataFrame(
        {
            "gap": whole["gap"].median(),
            "worst": whole["gap"].max(),
            "to_1": whole["to_1"].median(),
            "slowest": whole["to_1"].max(),
        }
    )
    lines = ["| left out | cells | worse without it: gap, s to 1 % (with it) |", "|---|---|---|"]
    for part, rows in found[~found["strategy"].eq(WHOLE)].groupby("strategy", sort=False):
        told = []
        for row in rows.itertuples():
            of = noise.loc[row.workload]
            if row.gap > 1.05 * of.worst + 1e-4:
                told.append(f"{row.workload}: {100 * row.gap:.2g} % ({100 * of.gap:.2g} %)")
            elif of.slowest == of.slowest and not row.to_1 <= 1.1 * of.slowest + 0.1:
                told.append(f"{row.workload}: {row.to_1:.1f} s ({of.to_1:.1f} s)")
        lines.append(f"| {part} | {len(rows)} | {'; '.join(told) or 'none'} |")
    return "\n".join(lines)


def main() -> None:
    """Run what was asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("problem", choices=PROBLEMS)
    parser.add_argument("--csv", type=Path, help="default: results/ablation-PROBLEM.csv")
    parser.add_argument("--seconds", type=float, default=20.0, help="CPU seconds of a run")
    parser.add_argument("--seeds", type=int, default=3, help="of the whole strategy")
    parser.add_argument("--part-seeds", type=int, default=1, help="with each part left out")
    parser.add_argument(
        "--only", nargs="*", default=[""], help="parts of names of cells; $ ends one"
    )
    parser.add_argument("--compile", action="store_true", help="run each cell once before")
    parser.add_argument("--parts", nargs="*", help="to leave out; default: each in turn")
    parser.add_argument("--report", action="store_true", help="print the table")
    args = parser.parse_args()
    table = args.csv or RESULTS / f"ablation-{args.problem}.csv"
    if args.report:
        print(report(table))
    else:
        run(args, table)


if __name__ == "__main__":
    main()
