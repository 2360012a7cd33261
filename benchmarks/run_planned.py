"""An uneven model on two processes with one core each: planned split against equal layer counts.

Prints Markdown: seconds per iteration of both splits in five repetitions, the speed-up, and the
error of the simulator's prediction from the profile. Takes about two minutes:
`python benchmarks/run_planned.py`.
"""

from __future__ import annotations

import argparse
import statistics
from dataclasses import replace
from functools import partial

import numpy as np
import torch
from ranks import median_s, on_ranks
from torch import nn
from torch.nn import functional as F

import stagecut
from stagecut import Plan, Workload
from stagecut.instances import Placement
from stagecut.instances.pytorch.profile import profile
from stagecut.runtime.execution.options import RunOptions
from stagecut.runtime.execution.prepare import split_model
from stagecut.runtime.execution.trainer import PipelineTrainer
from stagecut.runtime.simulate.simulator import simulate_stages

WIDTHS = (1024,) * 5 + (256,) * 8
SAMPLES, MICROBATCHES, STEPS, REPETITIONS = 192, 8, 5, 5
SCHEDULE = "1f1b"


class Uneven(nn.Module):
    """Twelve layers, of which four do almost all the work."""

    def __init__(self) -> None:
        super().__init__()
        sizes = zip(WIDTHS[:-1], WIDTHS[1:], strict=True)  # noqa: RUF007
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(a, b), nn.Tanh()) for a, b in sizes)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return F.cross_entropy(x, y)


def uneven() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    torch.manual_seed(0)
    return Uneven(), (torch.randn(SAMPLES, WIDTHS[0]), torch.randint(0, WIDTHS[-1], (SAMPLES,)))


def equal_counts(workload: Workload, planned: Plan) -> Plan:
    """The plan that gives both devices the same number of layers."""
    count = len(WIDTHS) - 1
    device = []
    for node in map(str, workload.ids):
        layer = node.removesuffix(".backward").split(".")
        device.append(int(int(layer[1]) >= count // 2) if layer[0] == "layers" else 1)
    placement = Placement(np.array(device))
    report = stagecut.runtime.evaluate(workload, planned.cluster, planned.problem, placement)
    assert not report.violations, report.violations
    return Plan(
        workload.name, workload.fingerprint, planned.cluster, planned.problem, placement,
        report.objective, 0.0, "equal layer counts", workload.time_unit,
    )  # fmt: skip


def train(workload: Workload, plans: dict[str, Plan]) -> dict[str, list[float]]:
    """Be a rank: return the median iteration of each plan in each repetition, in seconds."""
    runs = {}
    for name, plan in plans.items():
        model, inputs = uneven()
        prepared = split_model(plan, model, inputs, workload=workload)
        options = RunOptions(schedule=SCHEDULE, microbatches=MICROBATCHES, learning_rate=1e-3)
        runs[name] = PipelineTrainer(prepared, options), [prepared.inputs(inputs)] * MICROBATCHES
    seconds: dict[str, list[float]] = {name: [] for name in plans}
    for repetition in range(REPETITIONS + 1):
        for name, (trainer, batch) in runs.items():
            taken = median_s(partial(trainer.run, batch), STEPS)
            if repetition:  # the first one warms up
                seconds[name].append(taken)
    return seconds


def main() -> None:
    argparse.ArgumentParser(description=__doc__).parse_args()
    torch.set_num_threads(1)
    model, inputs = uneven()
    workload = profile(model, inputs, training=True, depth=2).workload
    cluster = workload.cluster
    assert cluster is not None
    cluster = stagecut.Cluster((replace(cluster.kinds[0], count=2),))
    problem = stagecut.Throughput(split="contiguous")
    planned = stagecut.solve(workload, cluster, problem, limits=stagecut.Limits(seconds=30)).plan
    assert planned is not None
    plans = {"planned": planned, "equal layer counts": equal_counts(workload, planned)}
    seconds = on_ranks(2, train, workload, plans)
    print("| split | iteration (ms), five repetitions | median | predicted | error |")
    print("|---|---|---|---|---|")
    for name, plan in plans.items():
        stages = split_model(plan, *uneven(), workload=workload).stages
        predicted = simulate_stages(stages, SCHEDULE, MICROBATCHES).makespan
        measured = 1e3 * statistics.median(seconds[name])
        row = ", ".join(f"{1e3 * s:.1f}" for s in seconds[name])
        error = 100 * (predicted / measured - 1)
        print(f"| {name} | {row} | {measured:.1f} | {predicted:.1f} | {error:+.1f} % |")
    pairs = zip(seconds["equal layer counts"], seconds["planned"], strict=True)
    gains = [100 * (slow / fast - 1) for slow, fast in pairs]
    print(f"\nThe planned split is faster by {min(gains):.0f} % to {max(gains):.0f} %.")


if __name__ == "__main__":
    main()
