"""Learned plans in training: networks for images on two processes, a core each, asynchronously.

    PYTHONPATH=.dev python benchmarks/learned_run.py measure [NETWORK …] --records FILE
        [--minibatches 120] [--chunk 30]
    PYTHONPATH=.dev python benchmarks/learned_run.py sampled [NETWORK …]
    PYTHONPATH=.dev python benchmarks/learned_run.py report FILE … [--plot FILE]

Each network is profiled here, and the link between two processes is measured. Four ways train it,
from the same weights and on the same minibatches: the learned plan and PipeDream's with
``pipedream`` (an update per minibatch, weight versions), the learned plan with ``2bw``, and data
parallelism, where each process has the whole network and every other minibatch. The last two update
after two minibatches, with twice the learning rate. The ways take turns, a chunk of minibatches
each, so that other load on the machine disturbs all of them; pipelines are emptied between chunks.
The table has medians over chunks: wall time of a minibatch, and CPU time of the busiest process.

`sampled` tells how well max-loads, from which policies learn, stand for measured times. It runs
plans drawn by the policy of the package, which is told to aim at loads up to 1.9 times an even one.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from image_networks import NETWORKS, images, network
from matplotlib.figure import Figure
from ranks import on_ranks
from run_iteration import measured_cluster

import stagecut
from stagecut import Cluster, Limits, PipelineJob, Plan, Throughput, Workload
from stagecut.formulations.task import pose
from stagecut.instances import Placement
from stagecut.instances.model.training_layers import training_layers
from stagecut.instances.pytorch.profile import profile
from stagecut.runtime.execution.options import RunOptions
from stagecut.runtime.execution.prepare import split_model
from stagecut.runtime.execution.trainer import PipelineTrainer
from stagecut.solvers.learned.environments import environment
from stagecut.solvers.learned.policy import draw_placements
from stagecut.solvers.learned.policy_file import policy_of, read_policy

#: Placements that the learned plan is the best of.
DRAWN = 512
LEARNING_RATE, MOMENTUM = 0.01, 0.5
#: Minibatches over which losses are averaged in the plot, and what a network has learned at.
SMOOTHED, LEARNED = 20, 1.0


@dataclass(frozen=True)
class Way:
    """A plan, its schedule, and minibatches of an update."""

    name: str
    workload: Workload
    plan: Plan
    schedule: str
    round: int


def ways_of(workload: Workload, cluster: Cluster) -> tuple[list[Way], float]:
    """Return what trains, and a bound on the max-load of any contiguous plan."""

    def plan(given: Workload, problem: Throughput | PipelineJob, method: str) -> Plan:
        limits = Limits(nodes=DRAWN) if method == "learned" else Limits(seconds=60)
        found = stagecut.solve(given, cluster, problem, method=method, limits=limits).plan
        assert found is not None
        return found

    split, layers = Throughput("contiguous"), training_layers(workload)
    learned, best = plan(workload, split, "learned"), plan(workload, split, "auto")
    return [
        Way("learned", workload, learned, "pipedream", 1),
        Way("learned, 2bw", workload, learned, "2bw", 2),
        Way("PipeDream's", workload, plan(workload, split, "pipedream"), "pipedream", 1),
        Way(
            "data parallel",
            layers,
            plan(layers, PipelineJob(microbatches=2), "data-parallel"),
            "pipedream",
            2,
        ),
    ], best.bound


def split_of(plan: Plan) -> list[int]:
    """Return how many nodes each process has, its smaller part first; of two copies nothing."""
    if isinstance(plan.solution, Placement):
        return sorted(np.bincount(plan.placement, minlength=2).tolist())
    return []


def train(name: str, ways: list[Way], minibatches: int, chunk: int) -> list[dict[str, Any]]:
    """Be a rank: return losses of minibatches, and seconds of each, for each chunk."""
    trainers = []
    for way in ways:
        ready = split_model(way.plan, network(name), images(0), workload=way.workload)

        def optimizer(parameters: Any, rate: float = LEARNING_RATE * way.round) -> Any:
            return torch.optim.SGD(parameters, lr=rate, momentum=MOMENTUM)

        options = RunOptions(
            steps=chunk // way.round, schedule=way.schedule, microbatches=way.round,
            optimizer=optimizer,
        )  # fmt: skip
        trainers.append((ready, PipelineTrainer(ready, options)))
    found: list[dict[str, Any]] = [{"loss": [], "wall": [], "busy": []} for _ in ways]
    for first in range(0, minibatches, chunk):
        given = [images(j) for j in range(first, first + chunk)]
        for own, way, (ready, trainer) in zip(found, ways, trainers, strict=True):
            batches = [ready.inputs(one) for one in given]
            dist.barrier()
            begun, own_begun = time.perf_counter(), time.process_time()
            losses = trainer.run(batches)
            busy = torch.tensor(time.process_time() - own_begun, dtype=torch.float64)
            dist.all_reduce(busy, dist.ReduceOp.MAX)
            own["loss"] += [x for x in losses for _ in range(way.round)]
            own["wall"].append((time.perf_counter() - begun) / chunk)
            own["busy"].append(float(busy) / chunk)
    return found


def measure(names: list[str], records: Path, minibatches: int, chunk: int) -> None:
    """Train each network in each way, and write a record of it."""
    torch.set_num_threads(1)
    for name in names:
        with TemporaryDirectory() as cache:  # measured anew
            done = profile(network(name), images(0), training=True, depth=3, cache=Path(cache))
        workload = done.workload
        ways, bound = ways_of(workload, measured_cluster(workload))
        found = on_ranks(2, train, name, ways, minibatches, chunk)
        record = {
            "network": name,
            "units": workload.n,
            "bound": bound,
            "ways": {
                way.name: {"plan": way.plan.objective, "split": split_of(way.plan), **own}
                for way, own in zip(ways, found, strict=True)
            },
        }
        with records.open("a") as stream:
            stream.write(json.dumps(record) + "\n")


def sampled(names: list[str], count: int = 12) -> None:
    """Print rank correlations of max-loads with measured times, of plans good and bad."""
    torch.set_num_threads(1)
    print("| network | plans | max-loads | busiest, CPU ms | rank correlation | with the clock |")
    print("|---|---|---|---|---|---|")
    for name in names:
        workload = profile(network(name), images(0), training=True, depth=3).workload
        cluster, problem = measured_cluster(workload), Throughput("contiguous")
        of, rng = environment(pose(workload, cluster, problem)), np.random.default_rng(0)
        aims = rng.permutation(np.linspace(1.0, 1.9, 128))  # loads, relative to an even one
        drawn = draw_placements(policy_of(read_policy(None)), of, aims, rng)
        ways: dict[float, Way] = {}
        for group, device in zip(drawn.group, drawn.device, strict=True):
            solution = of.solution(group, device)
            load = stagecut.evaluate(workload, cluster, problem, solution).objective
            plan = Plan(
                workload.name, workload.fingerprint, cluster, problem, solution, load, 0.0, "drawn",
                workload.time_unit,
            )  # fmt: skip
            if all(split_of(plan)) and len(ways) < count:
                ways.setdefault(load, Way(f"{len(ways)}", workload, plan, "pipedream", 1))
        found = on_ranks(2, train, name, list(ways.values()), 40, 10)
        busy, wall = (
            [1e3 * statistics.median(own[what]) for own in found] for what in ("busy", "wall")
        )
        ranks = [np.argsort(np.argsort(values)) for values in (list(ways), busy, wall)]
        alike, clock = (float(np.corrcoef(ranks[0], other)[0, 1]) for other in ranks[1:])
        print(
            f"| {name} | {len(ways)} | {min(ways):.1f}–{max(ways):.1f} "
            f"| {min(busy):.1f}–{max(busy):.1f} | {alike:.2f} | {clock:.2f} |",
            flush=True,
        )


def smooth(losses: list[float]) -> list[float]:
    """Return means over the newest minibatches."""
    sums = np.cumsum([0.0, *losses])
    return [
        float(sums[j] - sums[max(j - SMOOTHED, 0)]) / min(j, SMOOTHED)
        for j in range(1, len(losses) + 1)
    ]


def elapsed(walls: list[float], minibatches: int) -> list[float]:
    """Return seconds after each minibatch: those of a chunk take equally long."""
    each = minibatches // len(walls)
    return np.cumsum(np.repeat(walls, each)).tolist()


def report(files: list[Path], plot_to: Path | None) -> None:
    """Print the table, and draw the plot."""
    records = [json.loads(line) for path in files for line in path.read_text().splitlines()]
    print(
        "| network | way | max-load / bound | ms, median (range) | busiest, CPU ms "
        f"| loss, last {SMOOTHED} | minibatches to {LEARNED} | s to {LEARNED} |\n"
        "|---|---|---|---|---|---|---|---|"
    )
    for record in records:
        for name, way in record["ways"].items():
            walls, busy = ([1e3 * each for each in way[what]] for what in ("wall", "busy"))
            curve = smooth(way["loss"])
            after = next((j for j, x in enumerate(curve) if j >= SMOOTHED and x < LEARNED), None)
            reached = "– | –"
            if after is not None:
                reached = f"{after + 1} | {elapsed(way['wall'], len(curve))[after]:.1f}"
            ratio = "–" if name == "data parallel" else f"{way['plan'] / record['bound']:.3f}"
            print(
                f"| {record['network']} | {name} | {ratio} | {statistics.median(walls):.0f} "
                f"({min(walls):.0f}–{max(walls):.0f}) | {statistics.median(busy):.1f} "
                f"| {curve[-1]:.3f} | {reached} |"
            )
    if plot_to is not None:
        plot(records, plot_to)


#: Colours that are told apart whatever colours one sees, and dashes for where lines meet.
STYLES = {
    "learned": ("#0072b2", "-"),
    "learned, 2bw": ("#56b4e9", (0, (1, 1))),
    "PipeDream's": ("#d55e00", (0, (4, 1.5))),
    "data parallel": ("#000000", (0, (6, 1.5, 1, 1.5))),
}

#: Losses are drawn up to this; chance is at log 10 = 2.3.
MOST_DRAWN = 3.0


def plot(records: list[dict[str, Any]], path: Path) -> None:
    """Draw losses over minibatches and over seconds, a row for each network."""
    figure = Figure(figsize=(7, 1.7 * len(records) + 0.7), layout="constrained")
    grid = figure.subplots(len(records), 2, sharey=True, squeeze=False)
    for record, (left, right) in zip(records, grid, strict=True):
        for name, way in record["ways"].items():
            colour, dashes = STYLES[name]
            curve = smooth(way["loss"])
            style = {"color": colour, "linestyle": dashes, "linewidth": 1.3, "label": name}
            left.plot(range(1, len(curve) + 1), curve, **style)
            right.plot(elapsed(way["wall"], len(curve)), curve, **style)
        left.set_ylabel("loss", fontsize=8)
        for axes in (left, right):
            axes.set_title(record["network"], fontsize=9, loc="left")
            axes.tick_params(labelsize=8)
            axes.grid(alpha=0.3)
            axes.set_ylim(0, MOST_DRAWN)
    grid[-1][0].set_xlabel("minibatches", fontsize=8)
    grid[-1][1].set_xlabel("seconds", fontsize=8)
    handles, labels = grid[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, fontsize=8, ncols=len(labels), loc="outside upper center")
    figure.savefig(path, dpi=110)


def main() -> None:
    """Measure, or report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("measure", "sampled", "report"))
    parser.add_argument("given", nargs="*", help="Networks to train, or records to report.")
    parser.add_argument("--records", type=Path, default=Path("learned_run.jsonl"))
    parser.add_argument("--minibatches", type=int, default=120)
    parser.add_argument("--chunk", type=int, default=30)
    parser.add_argument("--plot", type=Path)
    options = parser.parse_args()
    if options.what == "report":
        report([Path(path) for path in options.given], options.plot)
        return
    if options.what == "sampled":
        sampled(options.given or list(NETWORKS))
        return
    measure(options.given or list(NETWORKS), options.records, options.minibatches, options.chunk)


if __name__ == "__main__":
    main()
