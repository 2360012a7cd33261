"""Learned placement against the certified optimum: ratios after 1, 5 and 30 s, as a Markdown table.

    PYTHONPATH=.dev OMP_NUM_THREADS=1 python benchmarks/learned.py [--workloads NAME …]
        [--split contiguous] [--seconds 1 5 30] [--seeds 0] [--benchmarks FOLDER]

Each arm is one search with the longest limit; its trace says what it had after each of the seconds.
They count what loading takes. `zero-shot` draws from the policy of the package, that has seen none
of the workloads; `fine-tuned` trains it on the workload half of the time; `from scratch` does so
with a policy of random weights. The ratio is to the best bound that any arm proves, or to the best
known plan of the catalogue.
"""

from __future__ import annotations

import argparse
import math
import statistics
import tempfile
from collections.abc import Iterator
from pathlib import Path

from stagecut import Limits, Result, Throughput, load
from stagecut.api.solve import solve_with
from stagecut.instances.generate.catalogue import CATALOGUE
from stagecut.solvers.learned.policy import new_policy
from stagecut.solvers.learned.policy_file import write_policy
from stagecut.solvers.learned.ppo import Settings
from stagecut.solvers.learned.train import new_training

#: Shipped workloads that are asked by default.
WORKLOADS = ("gpt2-xl", "resnet50", "bert-large", "unet", "resnet50-training", "gpt2-xl-training")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workloads", nargs="+", default=WORKLOADS)
    parser.add_argument("--benchmarks", type=Path, help="Published workloads in it are asked too.")
    parser.add_argument("--split", default="contiguous")
    parser.add_argument("--seconds", nargs="+", type=float, default=(1.0, 5.0, 30.0))
    parser.add_argument("--seeds", nargs="+", type=int, default=(0,))
    options = parser.parse_args()
    names = [*options.workloads]
    if options.benchmarks is not None:
        names += sorted(map(str, options.benchmarks.rglob("*.json")))
    columns = [f"{arm} {s:g} s" for arm in arms("", 0.0) for s in options.seconds]
    print("| workload | " + " | ".join(columns) + " |\n|---" + "|---" * len(columns) + "|")
    ratios: list[list[float]] = []
    with tempfile.TemporaryDirectory() as folder:
        random_policy = Path(folder) / "policy.npz"
        for name in names:
            for seed in options.seeds:
                training = new_training(new_policy(seed), Settings(), seed)
                write_policy(random_policy, training, seed, {}, resumable=False)
                row = list(measured(name, options.split, options.seconds, seed, random_policy))
                ratios.append(row)
                print(f"| {name} | {' | '.join(shown(ratio) for ratio in row)} |", flush=True)
    medians = [statistics.median(column) for column in zip(*ratios, strict=True)]
    print(f"| median | {' | '.join(shown(ratio) for ratio in medians)} |")


def arms(policy: str, seconds: float) -> dict[str, tuple[str, dict[str, str]]]:
    """Return each arm: method and options."""
    half = f"{seconds / 2:g}"
    return {
        "zero-shot": ("learned", {}),
        "fine-tuned": ("learned", {"fine-tune": half}),
        "from scratch": ("learned", {"policy": policy, "fine-tune": half}),
        "random": ("random", {}),
        "local search": ("local-search", {}),
        "exact": ("auto", {}),
    }


def measured(
    name: str, split: str, seconds: tuple[float, ...], seed: int, policy: Path
) -> Iterator[float]:
    """Yield ratios to the bound, for each arm after each of the seconds; `inf` without a plan."""
    workload = load(name)
    problem = Throughput(split=split)
    limits = Limits(seconds=max(seconds), seed=seed, gap=1e-4)
    results: list[Result] = [
        solve_with(workload, problem=problem, method=method, limits=limits, options=options)
        for method, options in arms(str(policy), max(seconds)).values()
    ]
    bound = max(result.bound for result in results)
    if name in CATALOGUE and split == "contiguous":
        bound = max(bound, CATALOGUE[name].bound_ms or -math.inf)
    for result in results:
        for s in seconds:
            found = [point.objective for point in result.trace if point.seconds <= s]
            yield min(found, default=math.inf) / bound


def shown(ratio: float) -> str:
    """Return a ratio as the table has it."""
    return "–" if math.isinf(ratio) else f"{ratio:.3f}"


if __name__ == "__main__":
    main()
