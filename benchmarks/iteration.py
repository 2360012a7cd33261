"""Iterations: `auto` against the defaults of frameworks and against plans for the max-load.

Each cell is a shipped training workload on K accelerators with M microbatches under a schedule.
Finished cells are appended to a record and not run again, so that a run resumes where it stopped.
Prints the cells in which any plan is ahead of `auto`, and writes a row for each feasible cell to
`results/iteration.csv`, where rows of other cells stay. Max-load plans are simulated under the
schedule. Interleaved schedules have none, since they need a chain with several stages on a device.

    python benchmarks/iteration.py --records iteration.jsonl
    python benchmarks/iteration.py --workloads unet vit-l16 --accelerators 4 --schedules 1f1b gpipe

With `--split noncontiguous`, `auto` plans with that split, all others stay as they are, and no
table is written.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import time
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from results import origin, write

from stagecut import Cluster, Limits, PipelineJob, Plan, Throughput, Workload, evaluate, load, solve
from stagecut.instances import PipelinePlacement, PipelineSchedule, Placement
from stagecut.instances.common.units import TIME_UNITS
from stagecut.instances.model.problem import Split
from stagecut.solvers.job.methods import RULES

WORKLOADS = ("bert-large", "gpt2-xl", "llama3-8b", "mixtral-8x7b", "resnet50", "semantic-fpn",
             "stable-diffusion-unet", "t5-large", "unet", "vit-l16")  # fmt: skip
ACCELERATORS = (4, 8, 16)
#: Microbatches for each accelerator.
FACTORS = (1, 4, 16)
SCHEDULES: tuple[PipelineSchedule, ...] = ("gpipe", "1f1b", "interleaved", "zb-h1")
#: Seconds for a solve: interleaved, and otherwise; and the gap at which it stops.
INTERLEAVED_SECONDS, SECONDS, GAP = 60.0, 20.0, 1e-3
#: Splits of the plans for the max-load, by their names in the table.
MAX_LOAD: dict[str, Split] = {
    "max-load-contiguous": "contiguous",
    "max-load-noncontiguous": "noncontiguous",
}
#: A plan is ahead of `auto` if it is better by more than rounding.
AHEAD = 1e-9

#: A workload, accelerators, microbatches and a schedule, as the columns are called.
Cell = tuple[str, int, int, PipelineSchedule]
KEYS = ("workload", "accelerators", "microbatches", "schedule")


def run(cell: Cell, limits: Limits, split: Split, workers: int) -> dict[str, Any]:
    """Return the row of a cell, whose `auto` plans with a split, in so many processes."""
    name, accelerators, microbatches, schedule = cell
    workload = load(f"{name}-training")
    assert workload.cluster is not None
    cluster = workload.cluster.with_counts(accelerators, 0)
    problem = PipelineJob(microbatches, schedule)
    row: dict[str, Any] = dict(zip(KEYS, cell, strict=True)) | {"unit": workload.time_unit}
    begun, cpu = time.monotonic(), time.process_time()
    asked = replace(problem, split=split)
    ours = solve(workload, cluster, asked, limits=limits, workers=workers)
    row |= {
        "auto": ours.objective,
        "bound": ours.bound,
        "gap": ours.gap,
        "status": ours.status,
        "seconds": time.monotonic() - begun,
        "cpu_seconds": time.process_time() - cpu,
        "limit_seconds": limits.seconds,
        "workers": workers,
    }
    if ours.plan is not None:
        report = evaluate(workload, cluster, asked, ours.plan.solution)
        row["violations"] = "; ".join(report.violations)
        row["peak_bytes"] = max(device.memory_bytes for device in report.devices)
        row["peak_share"] = max(d.memory_bytes / d.capacity_bytes for d in report.devices)
        row["stages"] = int(np.max(ours.plan.solution.stage)) + 1  # type: ignore[union-attr]
    for rule in RULES:
        theirs = solve(workload, cluster, problem, method=rule)
        row[rule] = theirs.objective
        if theirs.plan is None:
            row[f"{rule}: why not"] = theirs.reason or theirs.notes[-1]
    for label, split in MAX_LOAD.items():
        plan = None if schedule == "interleaved" else max_load(name, cluster, split, limits)
        row[label] = simulated(workload, cluster, problem, plan)
    others = [row[other] for other in (*RULES, *MAX_LOAD) if row[other] is not None]
    row["best_other"] = min(others, default=None)
    row["ahead"] = bool(others) and (row["auto"] or math.inf) > min(others) * (1 + AHEAD)
    return row


@cache
def max_load(name: str, cluster: Cluster, split: Split, limits: Limits) -> Plan | None:
    """Return our plan with the least max-load."""
    problem = Throughput(split=split)
    return solve(f"{name}-training", cluster, problem, limits=limits).plan


def simulated(
    workload: Workload, cluster: Cluster, problem: PipelineJob, plan: Plan | None
) -> float | None:
    """Return the makespan of a plan for the max-load, None if it cannot run or does not fit."""
    if plan is None:
        return None
    assert isinstance(plan.solution, Placement)
    device = plan.solution.device
    free = PipelineJob(problem.microbatches, problem.schedule, "noncontiguous")
    objectives = []
    for asked, order in ((problem, in_order(workload, device)), (free, np.unique(device))):
        if order is not None:
            stage = np.argsort(order)[np.searchsorted(np.sort(order), device)]
            report = evaluate(workload, cluster, asked, PipelinePlacement(stage, tuple(order)))
            objectives += [] if report.violations else [report.objective]
    return min(objectives, default=None)


def in_order(workload: Workload, device: np.ndarray) -> np.ndarray | None:
    """Return the devices in the order of their stages, None if they are no chain."""
    import networkx as nx

    graph: nx.DiGraph[int] = nx.DiGraph()
    graph.add_nodes_from(np.unique(device).tolist())
    for u, v in workload.edges.tolist():
        if workload.backward[u] == workload.backward[v] and device[u] != device[v]:
            pair = (int(device[u]), int(device[v]))
            graph.add_edge(*(reversed(pair) if workload.backward[u] else pair))
    if not nx.is_directed_acyclic_graph(graph):
        return None
    return np.array(list(nx.lexicographical_topological_sort(graph)))


def recorded(path: Path) -> dict[str, dict[str, Any]]:
    """Return the rows of a record by key; a last line that was cut off is left out."""
    rows = {}
    for line in path.read_text().splitlines() if path.exists() else []:
        try:
            entry = json.loads(line)
        except json.JSONDecodeError:
            continue
        rows[entry["key"]] = entry["row"]
    return rows


def of_table(row: dict[str, Any]) -> dict[str, str]:
    """Return a cell's row as texts of the table."""
    ours, other = row["auto"], row["best_other"]
    found = {"objective_ms": "", "gap_percent": "", "best_other_plan_percent": ""}
    if ours is not None:
        found["objective_ms"] = f"{1e3 * TIME_UNITS[row['unit']] * ours:.6g}"
        found["gap_percent"] = f"{100 * row['gap']:.2f}"
        if other is not None:
            found["best_other_plan_percent"] = f"{100 * (other / ours - 1):.1f}"
    return {
        **{key: str(row[key]) for key in (*KEYS, "workers")},
        "limit_seconds": f"{row['limit_seconds']:g}",
        "seconds": f"{row['seconds']:.1f}",
        **found,
        **row["origin"],
    }


def main() -> None:
    """Run the cells that are not in the record, and write their rows."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workloads", nargs="+", default=WORKLOADS, help="without -training")
    parser.add_argument("--accelerators", nargs="+", type=int, default=ACCELERATORS)
    parser.add_argument("--factors", nargs="+", type=int, default=FACTORS, help="M / K")
    parser.add_argument(
        "--schedules", nargs="+", default=SCHEDULES, choices=tuple(PipelineSchedule)
    )
    parser.add_argument("--split", choices=tuple(Split), default=Split.CONTIGUOUS)
    parser.add_argument(
        "--time-limit", type=float,
        help=f"seconds for a solve; default: {SECONDS:g}, interleaved {INTERLEAVED_SECONDS:g}",
    )  # fmt: skip
    parser.add_argument("--gap", type=float, default=GAP, help="auto stops at this gap")
    parser.add_argument("--records", type=Path, default=Path("iteration.jsonl"))
    parser.add_argument(
        "--cpu-time", action="store_true", help="limits count CPU seconds, for a loaded machine"
    )
    parser.add_argument("--workers", type=int, default=1, help="processes of auto")
    options = parser.parse_args()
    if options.cpu_time:
        time.monotonic = time.process_time
    cells: list[Cell] = [
        (name, k, k * factor, schedule)
        for name, k, factor, schedule in itertools.product(
            options.workloads, options.accelerators, options.factors, options.schedules
        )
    ]
    here = origin(str(Limits().seed))  # before the table is written, which changes a file
    known = recorded(options.records)
    rows = []
    for schedule in options.schedules:  # compiled code must not count
        run(("unet", 2, 2, schedule), Limits(seconds=600, gap=0.1, nodes=10), options.split, 1)
    for cell in cells:
        seconds = INTERLEAVED_SECONDS if cell[3] == PipelineSchedule.INTERLEAVED else SECONDS
        seconds = options.time_limit or seconds
        key = json.dumps([*cell, options.split, seconds, options.gap, options.workers])
        if key not in known:
            limits = Limits(seconds=seconds, gap=options.gap)
            known[key] = run(cell, limits, options.split, options.workers) | {"origin": here}
            with options.records.open("a") as file:
                file.write(json.dumps({"key": key, "row": known[key]}) + "\n")
        row = known[key]
        rows.append(row)
        if options.split == Split.CONTIGUOUS and row["status"] != "infeasible":
            write("iteration", [of_table(row)], "0", keys=KEYS)
        ours, best = (f"{row[key]:.6g}" if row[key] is not None else "—"
                      for key in ("auto", "best_other"))  # fmt: skip
        gap = "—" if row["gap"] is None else f"{row['gap']:.2%}"
        ahead = ", AHEAD" if row["ahead"] else ""
        name = " ".join(map(str, cell))
        print(f"{name}: auto {ours}, gap {gap}, best other {best}{ahead}, {row['seconds']:.1f} s",
              flush=True)  # fmt: skip
    for schedule, own in itertools.groupby(
        sorted(rows, key=lambda row: row["schedule"]), lambda row: row["schedule"]
    ):
        part = list(own)
        gaps = [row["gap"] for row in part if row["gap"] is not None]
        print(f"{schedule}: {len(part)} cells, auto behind in {sum(r['ahead'] for r in part)}, "
              f"largest gap {max(gaps, default=math.nan):.2%}, longest "
              f"{max(row['seconds'] for row in part):.1f} s")  # fmt: skip


if __name__ == "__main__":
    main()
