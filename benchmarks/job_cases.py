"""Random small training jobs against all their plans one by one, and their bounds proved again.

    python benchmarks/job_cases.py [--count 200] [--kind small]

Writes `results/job_cases.csv`: a row per family of random jobs (tests/support/brute_job.py);
families overlap. For each job with a plan, it checks whether the search's optimum is that of all
plans, whether the bound of an outer point is above one of its plans, whether `verify --bound`
accepts the plan's bound, and how many outer points the check would refute just above the time of
their best plan. Each case is a line of the records file, so that a stopped run continues where it
was. If a usual layout outside the declared space is faster than all layouts in it, that layout is
the plan (`usual_outside`).
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import results

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "support"))

from brute_job import (
    all_layouts,
    best_of_all,
    bytes_needed,
    host_job,
    large_job,
    mixed_job,
    odd_job,
    point_of,
    profiled_job,
    small_job,
)

from stagecut.api.job import job_costs, solve_job
from stagecut.formulations.job.space import job_space
from stagecut.instances import InputError, Status, VerificationError
from stagecut.instances.costs.description import ModelDescription
from stagecut.instances.costs.hardware import TrainingCluster
from stagecut.instances.costs.layout import Layout
from stagecut.instances.job.problem import TrainingJob
from stagecut.runtime.verify.bounds.layout_probes import Probes
from stagecut.runtime.verify.bounds.layout_rows import PointRefutation
from stagecut.runtime.verify.layouts import check_job_bound
from stagecut.solvers import Limits
from stagecut.solvers.job.search import search_job

KINDS = {
    "small": small_job, "odd": odd_job, "profiled": profiled_job, "large": large_job,
    "mixed": mixed_job, "host": host_job,
}  # fmt: skip
#: Share of some plans that fit into the memory given.
FIT = (0.02, 0.2, 0.6, 1.0)
GAP = 1e-4
#: Bounds of single points are above by less than what programs keep rows to.
TOLERANCE = 1e-5
SECONDS = 60.0


#: What a family's jobs have.
FAMILIES = {
    "all": "all", "schedules": "several schedules", "zero": "several ZeRO stages",
    "recomputation": "recomputation in the best plan", "two_kinds": "two kinds of nodes",
    "unlike": "unlike layers",
}  # fmt: skip
COUNTED = (
    "infeasible", "feasible", "open", "usual_outside", "wrong_optimum", "bound_above", "refused",
    "points", "plans_somewhere", "point_above", "wrongly_refuted",
)  # fmt: skip


def one_job(kind: str, seed: int) -> dict[str, Any]:
    """Plan a random job; return its families, what was found, and CPU seconds."""
    draw = random.Random(seed)
    model, cluster, job = KINDS[kind](draw)
    count: Counter[str] = Counter()
    record: dict[str, Any] = {"kind": kind, "seed": seed, "families": ["all"]}
    limit = memory = min(nodes.accelerator.memory_bytes for nodes in cluster.nodes)
    every = list(all_layouts(model, cluster, job))
    if every:
        sizes = [bytes_needed(model, draw.choice(every)) for _ in range(40)]
        limit = min(float(np.quantile(sizes, draw.choice(FIT))), memory)
        job = replace(job, memory_bytes=limit)
    begin = time.process_time()
    try:
        found = solve_job(model, cluster, job, limits=Limits(seconds=SECONDS, gap=GAP))
    except InputError:
        count["wrong_optimum" if every else "infeasible"] += 1
        return record | {"counts": count, "search_s": 0.0, "check_s": 0.0}
    record |= {"search_s": time.process_time() - begin, "check_s": 0.0, "counts": count}
    space = job_space(model, cluster, job)
    layout = found.plan.layout if found.plan is not None else Layout()
    has = {
        "schedules": len(np.unique(space.schedule[space.pipeline > 1])) > 1,
        "zero": len(np.unique(space.zero)) > 1,
        "recomputation": bool(layout.recompute) and layout.recompute_layers != 0,
        "two_kinds": len(cluster.nodes) > 1,
        "unlike": len(set(model.types_of_layers[: model.layers])) > 1,
    }
    record["families"] += [name for name, there in has.items() if there]
    least, by_point = best_of_all(model, cluster, job, limit)
    count["plans_somewhere"] += len(by_point)
    if found.status is Status.NO_SOLUTION:
        count["open"] += 1
        return record
    if found.plan is None or not np.isfinite(least):
        agree = found.plan is None and not np.isfinite(least)
        count["infeasible" if agree else "wrong_optimum"] += 1
        return record
    count["feasible"] += 1
    inside = point_of(found.plan.layout) in {point_of(one) for one in every}
    if not inside and found.plan.seconds < least:  # such as tensor parallelism across nodes
        count["usual_outside"] += 1
    elif not least * (1 - 1e-9) <= found.plan.seconds <= least * (1 + GAP) / (1 - GAP):
        count["open" if found.plan.gap > GAP else "wrong_optimum"] += 1
    if found.plan.bound > least * (1 + TOLERANCE):
        count["bound_above"] += 1
    begin = time.process_time()
    try:
        check_job_bound(found.plan)
    except VerificationError as error:
        count["refused"] += 1
        print(kind, seed, error, file=sys.stderr)
    record["check_s"] = time.process_time() - begin
    _points(model, cluster, job, by_point, count)
    return record


def _points(
    model: ModelDescription,
    cluster: TrainingCluster,
    job: TrainingJob,
    by_point: dict[Layout, float],
    count: Counter[str],
) -> None:
    """Hold every outer point's bound, and its refutation, against the best plan that it has."""
    costs = job_costs(model, cluster, job)
    space = job_space(model, cluster, job)
    deadline = time.monotonic() + SECONDS
    search = search_job(space, costs.prices, costs.judge, gap=1e-6, deadline=deadline)
    probes = Probes(job, costs.prices)
    for point in range(len(space)):
        layout = space.layout(point)
        true = by_point.get(point_of(layout), np.inf)
        if (
            job.counts_layers(layout) and not model.mtp
        ):  # none of them recomputed is one of its plans
            plain = replace(point_of(layout), recompute=frozenset(), recompute_layers=None)
            true = min(true, by_point.get(plain, np.inf))
        count["points"] += 1
        if min(search.bound[point], search.seconds) > true * (1 + TOLERANCE):
            count["point_above"] += 1
        if layout.pipeline == 1 or not np.isfinite(true):
            continue
        if PointRefutation(probes, layout).refuted(true * (1 + TOLERANCE)):
            count["wrongly_refuted"] += 1
            print("wrongly refuted:", model.name, job, layout, file=sys.stderr)


def main() -> None:
    """Plan so many jobs of every kind and write a row for each family."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=200, help="jobs of each kind")
    parser.add_argument("--kind", choices=KINDS, action="append", help="these alone, and no table")
    parser.add_argument("--records", type=Path, default=Path("job-cases.jsonl"))
    asked = parser.parse_args()
    records: list[dict[str, Any]] = []
    if asked.records.exists():
        records = [json.loads(line) for line in asked.records.read_text().splitlines()]
    known = {(record["kind"], record["seed"]) for record in records}
    cases = [(kind, seed) for seed in range(asked.count) for kind in asked.kind or KINDS]
    with asked.records.open("a", encoding="utf-8") as file:
        for case in cases:
            if case not in known:
                records.append(one_job(*case))
                file.write(json.dumps(records[-1]) + "\n")
                file.flush()
    if asked.kind is None:
        results.write("job_cases", table(records), f"0 to {asked.count - 1} of each kind")


def table(records: list[dict[str, Any]]) -> list[dict[str, str]]:
    """Return a row for each family."""
    rows = []
    for name, said in FAMILIES.items():
        own = [record for record in records if name in record["families"]]
        count: Counter[str] = Counter()
        for record in own:
            count.update(record["counts"])
        row = {"family": said, "jobs": str(len(own))}
        row |= {counted: str(count[counted]) for counted in COUNTED}
        row |= {part: f"{sum(one[part] for one in own):.0f}" for part in ("search_s", "check_s")}
        rows.append(row)
    return rows


if __name__ == "__main__":
    main()
