"""Training jobs of published models at 8 to 16,384 GPUs: time, gap, and how points were ruled out.

    python benchmarks/jobs.py [--only NAME] [--launcher megatron]

Writes `results/jobs.csv`: a row per model, cluster and launcher, with the seconds of the search,
the process's peak memory so far, the plan, its gap over the declared space, and the numbers of
outer points by reason.
"""

from __future__ import annotations

import argparse
import resource
import sys
import time

import results

import stagecut
from stagecut.api.job import solve_job
from stagecut.instances.costs.clusters import training_cluster
from stagecut.instances.costs.layout import describe
from stagecut.instances.job.problem import TrainingJob
from stagecut.solvers import Limits

#: Model, sequences per iteration by number of GPUs, tokens per sequence.
MODELS = {
    "llama3-8b": ({8: 128, 64: 512, 512: 1024}, 8192),
    "llama3-70b": ({64: 512, 512: 2048, 4096: 4096}, 8192),
    "llama3.1-405b": ({512: 1024, 1024: 1536, 16384: 2048}, 8192),
    "mixtral-8x7b": ({8: 128, 64: 512, 512: 2048}, 4096),
    "mixtral-8x22b": ({64: 512, 256: 1024, 1024: 4096}, 4096),
    "qwen3-235b-a22b": ({256: 2048, 1024: 8192}, 4096),
    "deepseek-v3": ({256: 4096, 1024: 8192, 2048: 15360, 16384: 16384}, 4096),
    "gpt3-175b": ({64: 1536, 1024: 1536, 4096: 3072}, 2048),
}
#: Kinds of nodes: 8 GPUs of 80 GB with and without FP8, and racks of 72.
KINDS = ("h100:8", "a100:8", "b200:8")
REASONS = ("capacity", "work", "relaxation", "program", "exhausted", "open")


def cases(only: str | None) -> list[tuple[str, str, int, int]]:
    """Return model, cluster, global batch and sequence of each case."""
    found = []
    for model, (batches, sequence) in MODELS.items():
        for gpus, batch in batches.items():
            for kind in KINDS:
                spec = f"{kind}x{gpus // 8}"
                if only is None or only in f"{model} {spec}":
                    found.append((model, spec, batch, sequence))
    return found


def main() -> None:
    """Plan every case and write a row for each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only")
    parser.add_argument("--launcher", default="megatron")
    parser.add_argument("--seconds", type=float, default=60.0)
    asked = parser.parse_args()
    rows = []
    for model, spec, batch, sequence in cases(asked.only):
        job = TrainingJob(global_batch=batch, sequence=sequence, launcher=asked.launcher)
        wall, cpu = time.perf_counter(), time.process_time()
        found = solve_job(
            model, training_cluster(spec), job, limits=Limits(seconds=asked.seconds, gap=1e-3)
        )
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        row: dict[str, object] = {
            "model": model, "cluster": spec, "launcher": asked.launcher, "global_batch": batch,
            "sequence": sequence, "status": found.status, "wall_s": f"{wall:.2f}",
            "cpu_s": f"{cpu:.2f}",
            "peak_mib": f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f}",
        }  # fmt: skip
        counts, plan = {}, found.plan
        if plan is not None:
            counts = plan.certificate.points
            row |= {
                "iteration_s": f"{plan.seconds:.4f}", "gap": f"{plan.gap:.5f}",
                "tokens_per_s_per_gpu": f"{plan.tokens_per_s:.1f}",
                "mfu": f"{found.estimate.mfu:.3f}", "layout": describe(plan.layout),
            }  # fmt: skip
        else:
            row |= dict.fromkeys(("iteration_s", "gap", "tokens_per_s_per_gpu", "mfu"), "")
            row["layout"] = found.reason
        row |= {reason: counts.get(reason, 0) for reason in REASONS}
        row |= dict(zip(("relaxed", "solved"), found.programs, strict=True))
        rows.append({name: str(value) for name, value in row.items()})
        print(*row.values(), file=sys.stderr)
    keys = ("model", "cluster", "launcher") if asked.only else ()
    results.write("jobs", rows, "", keys=keys)


if __name__ == "__main__":
    print(f"stagecut {stagecut.__version__}", file=sys.stderr)
    main()
