"""Training jobs of published models at 8 to 16,384 GPUs: time, gap, and how points were ruled out.

    python benchmarks/jobs.py [--only NAME] [--launcher megatron] [-o results/jobs.csv]

One row per model, cluster and launcher, with the seconds of the search, processes' peak memory, the
plan, its gap over the declared space, and the numbers of outer points by reason.
"""

from __future__ import annotations

import argparse
import csv
import platform
import resource
import subprocess
import sys
import time
from pathlib import Path

import stagecut
from stagecut.api.job import describe, solve_job
from stagecut.instances.costs.clusters import training_cluster
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
    parser.add_argument("-o", "--out", default=str(Path(__file__).parent / "results/jobs.csv"))
    asked = parser.parse_args()
    revision = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    ).stdout.strip()
    with Path(asked.out).open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(
            ["model", "cluster", "launcher", "global_batch", "sequence", "status", "iteration_s",
             "gap", "tokens_per_s_per_gpu", "mfu", "wall_s", "cpu_s", "peak_mib", *REASONS,
             "relaxed", "solved", "layout", "revision", "machine", "python"]
        )  # fmt: skip
        for model, spec, batch, sequence in cases(asked.only):
            job = TrainingJob(global_batch=batch, sequence=sequence, launcher=asked.launcher)
            wall, cpu = time.perf_counter(), time.process_time()
            found = solve_job(
                model, training_cluster(spec), job, limits=Limits(seconds=asked.seconds, gap=1e-3)
            )
            wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
            head = [model, spec, asked.launcher, batch, sequence, found.status]
            if found.plan is None:
                row = [*head, "", "", "", "", f"{wall:.2f}", f"{cpu:.2f}", f"{peak:.0f}"]
                row += [""] * (len(REASONS) + 2) + [found.reason]
            else:
                plan, counts = found.plan, found.plan.certificate.points
                row = [
                    *head, f"{plan.seconds:.4f}", f"{plan.gap:.5f}", f"{plan.tokens_per_s:.1f}",
                    f"{found.estimate.mfu:.3f}", f"{wall:.2f}", f"{cpu:.2f}", f"{peak:.0f}",
                    *(counts.get(reason, 0) for reason in REASONS), *found.programs,
                    describe(plan.layout),
                ]  # fmt: skip
            table.writerow([*row, revision, platform.processor() or platform.machine(),
                            platform.python_version()])  # fmt: skip
            file.flush()
            print(*row, file=sys.stderr)


if __name__ == "__main__":
    print(f"stagecut {stagecut.__version__}", file=sys.stderr)
    main()
