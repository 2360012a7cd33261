"""Training jobs by the least mean of layers per chunk from which chunks may be uneven.

    python benchmarks/job_chunks.py

Writes `results/job_chunks.csv`: a row per model, cluster and declared least mean of layers per
chunk (``even``: only numbers of chunks that divide the layers), with points, seconds and gap.
"""

from __future__ import annotations

import sys
import time

import results

from stagecut.api.job import solve_job
from stagecut.formulations.job import space
from stagecut.instances.costs.clusters import training_cluster
from stagecut.instances.costs.layout import describe
from stagecut.instances.job.problem import TrainingJob
from stagecut.solvers import Limits

#: Model, cluster, sequences per iteration and tokens per sequence.
CASES = (
    ("llama3-70b", "h100:8x8", 512, 8192),
    ("llama3-70b", "a100:8x8", 512, 8192),
)
#: Least mean of layers per chunk; a number above that of any model's layers leaves even ones alone.
LEAST = {"even": 1000, "3": 3, "2": 2}


def main() -> None:
    """Plan every case in every space and write a row for each."""
    rows = []
    for model, spec, batch, sequence in CASES:
        job = TrainingJob(global_batch=batch, sequence=sequence)
        for name, least in LEAST.items():
            space.UNEVEN_CHUNK = least
            cpu = time.process_time()
            found = solve_job(
                model, training_cluster(spec), job, limits=Limits(seconds=60.0, gap=1e-3)
            )
            cpu, plan = time.process_time() - cpu, found.plan
            assert plan is not None
            counts = plan.certificate.points
            rows.append({
                "model": model, "cluster": spec, "global_batch": str(batch), "least": name,
                "points": str(sum(counts.values())), "open": str(counts.get("open", 0)),
                "cpu_s": f"{cpu:.2f}", "iteration_s": f"{plan.seconds:.4f}",
                "gap": f"{plan.gap:.5f}", "layout": describe(plan.layout),
                "stages": " ".join(map(str, plan.layout.stage_layers)),
            })  # fmt: skip
            print(*rows[-1].values(), file=sys.stderr)
    results.write("job_chunks", rows, "")


if __name__ == "__main__":
    main()
