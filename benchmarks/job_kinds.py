"""Training jobs on nodes of two kinds: seconds, gap, and the bound proved again.

    python benchmarks/job_kinds.py [--only NAME]

Writes `results/job_kinds.csv`: a row per model and cluster, with the plan beside the best one for
the same batch on the faster nodes alone.
"""

from __future__ import annotations

import argparse
import sys
import time

import results

from stagecut.api.job import describe, solve_job
from stagecut.instances.costs.clusters import training_cluster
from stagecut.instances.job.problem import TrainingJob
from stagecut.runtime.verify.layouts import check_job_bound
from stagecut.solvers import Limits

#: Model, and sequences per iteration for each device.
MODELS = {"llama3-8b": 8, "llama3-70b": 8}
#: Nodes of eight of each kind.
KINDS = (("h100", "a100"), ("b200", "h100"))
NODES = ((2, 2), (4, 4), (2, 4))
LIMITS = Limits(seconds=60.0, gap=1e-3)


def main() -> None:
    """Plan every model on every cluster, and write a row for each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="cases whose model and cluster have this")
    asked = parser.parse_args()
    rows = []
    for model, batch in MODELS.items():
        for fast, slow in KINDS:
            for counts in NODES:
                spec = f"{fast}:8x{counts[0]}+{slow}:8x{counts[1]}"
                if asked.only not in f"{model} {spec}":
                    continue
                cluster = training_cluster(spec)
                job = TrainingJob(global_batch=batch * cluster.devices, sequence=8192)
                wall, begin = time.perf_counter(), time.process_time()
                found = solve_job(model, cluster, job, limits=LIMITS)
                wall, searched = time.perf_counter() - wall, time.process_time()
                assert found.plan is not None, spec
                begun = time.process_time()
                checked = check_job_bound(found.plan)
                check = time.process_time() - begun
                alone = solve_job(model, f"{fast}:8x{counts[0]}", job, limits=LIMITS)
                best = "" if alone.plan is None else f"{alone.plan.seconds:.4f}"
                plan = found.plan
                rows.append({
                    "model": model, "cluster": spec, "global_batch": str(job.global_batch),
                    "iteration_s": f"{plan.seconds:.4f}", "gap": f"{plan.gap:.5f}",
                    "faster_alone_s": best,
                    "layout": describe(plan.layout),
                    "layers": " ".join(map(str, plan.layout.stage_layers)),
                    "wall_s": f"{wall:.2f}", "cpu_s": f"{searched - begin:.2f}",
                    "verify_cpu_s": f"{check:.2f}",
                    "points": str(checked.points), "programs": str(checked.programs),
                })  # fmt: skip
                print(*rows[-1].values(), file=sys.stderr, flush=True)
    if not asked.only:
        results.write("job_kinds", rows, "")


if __name__ == "__main__":
    main()
