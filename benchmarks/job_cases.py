"""Random small training jobs against all their plans one by one, and their bounds proved again.

    python benchmarks/job_cases.py [--count 250] [--first 0]

Writes `results/job_cases.csv`: a row per kind of random job (tests/support/brute_job.py). Of each
job with a plan: whether the search's optimum is that of all plans, whether a bound of one of its
outer points is above a plan there, whether `verify --bound` accepts the plan's bound, and how many
outer points it would refute below a plan that they have.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import results

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "support"))

from brute_job import (
    all_layouts,
    best_of_all,
    bytes_needed,
    large_job,
    mixed_job,
    odd_job,
    point_of,
    profiled_job,
    small_job,
)

from stagecut.api.job import solve_job
from stagecut.api.job_costs import job_costs
from stagecut.formulations.job.space import job_space
from stagecut.instances import InputError, VerificationError
from stagecut.instances.costs.description import ModelDescription
from stagecut.instances.costs.hardware import TrainingCluster
from stagecut.instances.costs.layout import Layout
from stagecut.instances.job.problem import TrainingJob
from stagecut.runtime.verify.bounds.layout_rows import PointRefutation, Probes
from stagecut.runtime.verify.bounds.layouts import check_job_bound
from stagecut.solvers import Limits
from stagecut.solvers.job.search import search_job

KINDS = {
    "small": small_job, "odd": odd_job, "profiled": profiled_job, "large": large_job,
    "mixed": mixed_job,
}  # fmt: skip
#: Share of some plans that fit into the memory given.
FIT = (0.02, 0.2, 0.6, 1.0)
GAP = 1e-4
#: Bounds of single points are above by less than what programs keep rows to.
TOLERANCE = 1e-5
SECONDS = 60.0


def one_job(kind: str, seed: int, count: Counter[str]) -> None:
    """Plan a random job and add what was found to the counts."""
    draw = random.Random(seed)
    model, cluster, job = KINDS[kind](draw)
    count["jobs"] += 1
    limit = memory = min(nodes.accelerator.memory_bytes for nodes in cluster.nodes)
    every = list(all_layouts(model, cluster, job))
    if every:
        sizes = [bytes_needed(model, draw.choice(every)) for _ in range(40)]
        limit = min(float(np.quantile(sizes, draw.choice(FIT))), memory)
        job = replace(job, memory_bytes=limit)
    try:
        found = solve_job(model, cluster, job, limits=Limits(seconds=SECONDS, gap=GAP))
    except InputError:
        count["wrong_optimum" if every else "empty"] += 1
        return
    least, by_point = best_of_all(model, cluster, job, limit)
    count["plans_somewhere"] += len(by_point)
    if found.plan is None or not np.isfinite(least):
        agree = found.plan is None and not np.isfinite(least)
        count["infeasible" if agree else "wrong_optimum"] += 1
        return
    count["feasible"] += 1
    if not least * (1 - 1e-9) <= found.plan.seconds <= least * (1 + GAP) / (1 - GAP):
        count["open" if found.plan.gap > GAP else "wrong_optimum"] += 1
    if found.plan.bound > least * (1 + TOLERANCE):
        count["bound_above"] += 1
    begin = time.process_time()
    try:
        check_job_bound(found.plan)
    except VerificationError as error:
        count["refused"] += 1
        print(kind, seed, error, file=sys.stderr)
    count["check_ms"] += round(1000 * (time.process_time() - begin))
    _points(model, cluster, job, by_point, count)


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
    probes = Probes(job, costs.prices, job.memory_bytes or np.inf)
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
    """Plan so many jobs of every kind and write a row for each kind."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=250)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--kind", choices=KINDS)
    asked = parser.parse_args()
    rows = []
    for kind in KINDS if asked.kind is None else (asked.kind,):
        count: Counter[str] = Counter()
        for seed in range(asked.first, asked.first + asked.count):
            one_job(kind, seed, count)
        names = (
            "jobs", "empty", "infeasible", "feasible", "open", "wrong_optimum", "bound_above",
            "refused", "points", "plans_somewhere", "point_above", "wrongly_refuted", "check_ms",
        )  # fmt: skip
        row = {"kind": kind, "first_seed": str(asked.first)}
        rows.append(row | {name: str(count[name]) for name in names})
        print(*rows[-1].items(), file=sys.stderr, flush=True)
    if asked.kind is None:
        results.write("job_cases", rows, "")


if __name__ == "__main__":
    main()
