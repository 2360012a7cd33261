"""Learned placement against certified bounds over CPU time: tables, and a plot per problem.

    PYTHONPATH=.dev OMP_NUM_THREADS=1 python benchmarks/learned.py measure CASE … --records FILE
        [--seconds 1 2 5] [--seeds 0 1 2 3 4] [--arms zero-shot exact …]
    PYTHONPATH=.dev OMP_NUM_THREADS=1 python benchmarks/learned.py times CASE …
    PYTHONPATH=.dev python benchmarks/learned.py report FILE … [--plots FOLDER]
    PYTHONPATH=.dev python benchmarks/learned.py table FILE …
        | python benchmarks/results.py learned --seed "0 to 2"
    PYTHONPATH=.dev python benchmarks/learned.py curve LOG [--plots FOLDER]
        | python benchmarks/results.py learned_curve

A case is PROBLEM:WORKLOAD, such as noncontiguous:resnet50 or latency:FILE. No policy of the package
was trained on any of the workloads. Each arm is one search, whose trace gives its best plan after
each of the seconds. Seconds are CPU seconds of this process (its clock is replaced). A run on a
small graph comes first, so that imports do not count; kernels that were never compiled are compiled
in the run, so run the exact methods twice. Runs of one workload may differ in length, each measured
by a call of its own. A curve ends where its measurement did, and there is a median only where all
workloads have a value.

The arms: `zero-shot` draws from the policy of the package; `fine-tuned` also lets the policy learn
from its draws all the time; both begin with the plan of `greedy`. `1 steps` is `fine-tuned` with
one step per batch to the end. `scratch` trains a new policy on the one graph by PPO, as the paper
does. Ratios are to the best bound that any arm proves, for which the exact methods get --bound
further CPU seconds.

`table` has a row for each workload, arm and second: median, least and most over the seeds. `times`
gives the CPU time per drawn placement and per update. `curve` plots a log of `stagecut learn`, and
prints medians of 100 updates.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from stagecut import Latency, Limits, PipelineJob, Throughput, Workload, evaluate, load
from stagecut.api.solve import solve
from stagecut.formulations.task import pose
from stagecut.instances import Problem
from stagecut.instances.generate.graph_family import family_graph
from stagecut.solvers import METHODS
from stagecut.solvers.learned import train as fine_tune
from stagecut.solvers.learned.environments import PlacementEnvironment, environment
from stagecut.solvers.learned.method import BATCH
from stagecut.solvers.learned.policy import (
    SampledPlacements,
    draw_placements,
    new_policy,
    one_thread,
)
from stagecut.solvers.learned.policy_file import policy_of, read_policy
from stagecut.solvers.learned.train import FineTuning, Settings, new_training, targets, train_step

PROBLEMS: dict[str, Problem] = {
    "contiguous": Throughput("contiguous"),
    "noncontiguous": Throughput(),
    "iteration": PipelineJob(8, "1f1b"),
    "latency": Latency(),
}
#: Each arm: method by problem (absent: none), options, whether seeds make a difference.
ARMS: dict[str, tuple[Mapping[str, str], dict[str, str], bool]] = {
    "zero-shot": (dict.fromkeys(PROBLEMS, "learned"), {}, True),
    "fine-tuned": (dict.fromkeys(PROBLEMS, "learned"), {"fine-tune": "1e6"}, True),
    "scratch": (dict.fromkeys(PROBLEMS, "learned"), {}, True),
    "random": (dict.fromkeys(("contiguous", "noncontiguous"), "random"), {}, True),
    "greedy": (
        {**dict.fromkeys(PROBLEMS, "greedy"), "iteration": "megatron"},
        {},
        False,
    ),
    "local search": ({"noncontiguous": "local-search", "latency": "lns"}, {}, True),
    "exact": (dict.fromkeys(PROBLEMS, "auto"), {}, False),
}
#: Of the curve of each arm, told apart whatever colours one sees.
COLOURS = dict(
    zip(
        ARMS,
        ("#0072b2", "#d55e00", "#999999", "#cc79a7", "#e69f00", "#009e73", "#000000"),
        strict=True,
    )
)
#: Of an ablation, measured only if named: `fine-tuned` with so many steps of later batches.
STEPS = {f"{steps} steps": steps for steps in (1, 2, 4, 8)}
ARMS |= dict.fromkeys(STEPS, ARMS["fine-tuned"])
COLOURS |= dict(zip(STEPS, ("#f4c7a1", "#d99058", "#8f3f00", "#4a2000"), strict=True))
#: Updates whose median a row of a training curve has.
SHOWN = 100
#: Times the bound that a curve is drawn up to.
MOST_DRAWN = 1.6


def main() -> None:
    """Measure, or report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("measure", "times", "report", "table", "curve"))
    parser.add_argument("given", nargs="+", help="Cases to measure, or records to report.")
    parser.add_argument("--records", type=Path, default=Path("learned.jsonl"))
    parser.add_argument("--seconds", nargs="+", type=float, default=(1.0, 2.0, 5.0))
    parser.add_argument("--bound", type=float, default=6.0)
    parser.add_argument("--seeds", nargs="+", type=int, default=(0, 1, 2, 3, 4))
    usual = tuple(arm for arm in ARMS if arm not in STEPS)
    parser.add_argument("--arms", nargs="+", choices=tuple(ARMS), default=usual)
    parser.add_argument("--plots", type=Path)
    options = parser.parse_args()
    if options.what == "report":
        report([Path(path) for path in options.given], options.plots)
        return
    if options.what == "table":
        print_rows([Path(path) for path in options.given])
        return
    if options.what == "curve":
        draw_training([Path(path) for path in options.given], options.plots or Path("."))
        return
    if options.what == "times":
        with one_thread():
            times(options.given)
        return
    time.monotonic = time.process_time
    for kind in {case.partition(":")[0] for case in options.given}:
        _warm(kind, options.arms)
    for case in options.given:
        for record in measured(case, options.arms, options.seconds, options.seeds, options.bound):
            with options.records.open("a") as stream:
                stream.write(json.dumps(record) + "\n")


def _with(method: str, options: dict[str, str]) -> str:
    """Return a method with its options behind colons."""
    return ":".join([method, *(f"{name}={value}" for name, value in options.items())])


def _warm(kind: str, arms: Sequence[str]) -> None:
    """Run the method of every arm once, so that what it imports and compiles first is there."""
    graphs = (family_graph("residual", seed) for seed in range(20))
    small = next(graph for graph in graphs if graph.backward.any() == (kind == "iteration"))
    for methods, options, _ in map(ARMS.__getitem__, arms):
        if methods.get(kind) in METHODS[PROBLEMS[kind].name]:
            solve(
                small, problem=PROBLEMS[kind], method=_with(methods[kind], options),
                limits=Limits(seconds=2.0, nodes=200),
            )  # fmt: skip


def measured(
    case: str, arms: Sequence[str], seconds: Sequence[float], seeds: Sequence[int], more: float
) -> Iterator[dict[str, object]]:
    """Yield a record for each arm and seed: objectives after each of the seconds, and bounds."""
    kind, _, name = case.partition(":")
    workload, problem = load(name), PROBLEMS[kind]
    for arm in arms:
        methods, options, random = ARMS[arm]
        if methods.get(kind) not in METHODS[problem.name]:
            continue
        most = max(seconds) + (more if arm == "exact" else 0)
        for seed in seeds if random else seeds[:1]:
            bound = 0.0
            if arm == "scratch":
                trace = from_scratch(workload, problem, most, seed)
            else:
                with patch.object(fine_tune, "STEPS", STEPS.get(arm, fine_tune.STEPS)):
                    result = solve(
                        workload, problem=problem, method=_with(methods[kind], options),
                        limits=Limits(seconds=most, seed=seed, gap=1e-4),
                    )  # fmt: skip
                bound = result.bound
                trace = [(point.seconds, point.objective) for point in result.trace]
            found = [min((v for at, v in trace if at <= s), default=math.inf) for s in seconds]
            yield {
                "problem": kind, "workload": "/".join(Path(name).with_suffix("").parts[-2:]),
                "arm": arm, "seed": seed, "seconds": list(seconds), "objectives": found,
                "bound": bound,
            }  # fmt: skip


def from_scratch(
    workload: Workload, problem: Problem, seconds: float, seed: int
) -> list[tuple[float, float]]:
    """Train a new policy on one graph; return when each plan better than all before was drawn."""
    begun, settings = time.process_time(), Settings()
    assert workload.cluster is not None
    of = environment(pose(workload, workload.cluster, problem))
    training = new_training(new_policy(seed), settings, seed)
    trace: list[tuple[float, float]] = []
    best = math.inf
    while time.process_time() - begun < seconds:
        drawn = train_step(training, [of], settings).drawn
        i = int(drawn.values.argmin())
        if drawn.values[i] >= best:
            continue
        best = float(drawn.values[i])
        solution = of.solution(drawn.group[i], drawn.device[i])
        told = evaluate(workload, workload.cluster, problem, solution)
        if not told.violations:
            trace.append((time.process_time() - begun, told.objective))
    return trace


def times(cases: Sequence[str]) -> None:
    """Print what drawing and updates take: the median of five, in CPU time, in one thread."""
    print("| case | units | ms per placement | ms per step of fine-tuning | ms per update of PPO |")
    print("|---|---|---|---|---|")
    settings, rng = Settings(), np.random.default_rng(0)
    for case in cases:
        kind, _, name = case.partition(":")
        workload = load(name)
        assert workload.cluster is not None
        of = environment(pose(workload, workload.cluster, PROBLEMS[kind]))
        policy = policy_of(read_policy(None))
        training, tuning = new_training(policy, settings, 0), FineTuning(policy, of)

        def drawn(policy: Any = policy, of: PlacementEnvironment = of) -> SampledPlacements:
            return draw_placements(policy, of, targets(of, BATCH, rng), rng)

        given = drawn()  # compiles, too
        cells = [
            _median_ms(drawn) / BATCH,
            _median_ms(partial(tuning.learn_from, given)),
            _median_ms(partial(train_step, training, [of], settings)),
        ]
        units = of.observation.graph.size
        print(f"| {case} | {units} |", " | ".join(f"{cell:.3g}" for cell in cells), "|", flush=True)


def _median_ms(step: Callable[[], object], repetitions: int = 5) -> float:
    taken = []
    for _ in range(repetitions):
        begun = time.process_time()
        step()
        taken.append(1e3 * (time.process_time() - begun))
    return statistics.median(taken)


def report(files: Sequence[Path], plots: Path | None) -> None:
    """Print a table of each problem, and write its plot."""
    records = records_of(files)
    for kind in PROBLEMS:
        own = [record for record in records if record["problem"] == kind]
        if not own:
            continue
        ratios = ratios_of(own)
        names = sorted({name for _, name in ratios})
        arms = [arm for arm in ARMS if any(arm == measured for measured, _ in ratios)]
        print(
            f"\n{kind}\n\n| workload | after | {' | '.join(arms)} |\n|---|---{'|---' * len(arms)}|"
        )
        for s in sorted({s for record in own for s in record["seconds"]}):
            for name in names:
                row = [shown(after(ratios[arm, name], s)) for arm in arms]
                print(f"| {name} | {s:g} s | {' | '.join(row)} |")
            row = [shown(medians(ratios, arm, names, s)) for arm in arms]
            print(f"| median | {s:g} s | {' | '.join(row)} |")
        if plots is not None:
            plot(plots / f"learned_{kind}.png", arms, names, ratios)


def records_of(files: Sequence[Path]) -> list[dict[str, Any]]:
    """Return the records of all files."""
    return [json.loads(line) for path in files for line in path.read_text().splitlines()]


def print_rows(files: Sequence[Path]) -> None:
    """Print a row for each problem, workload, arm and second."""
    records = records_of(files)
    print("| problem | workload | arm | after | median | least | most |")
    print("|---|---|---|---|---|---|---|")
    for kind in PROBLEMS:
        for (arm, name), runs in ratios_of([r for r in records if r["problem"] == kind]).items():
            for s in sorted({s for run in runs for s in run}):
                values = after(runs, s)
                cells = [f"{of(values):.3f}" for of in (statistics.median, min, max)]
                said = kind.replace("noncontiguous", "non-contiguous")
                print(f"| {said} | {name} | {arm} | {s:g} | {' | '.join(cells)} |")


#: By arm and workload, a curve of each run: ratios to the best bound by seconds.
Ratios = Mapping[tuple[str, str], Sequence[Mapping[float, float]]]


def ratios_of(records: Sequence[Mapping[str, Any]]) -> Ratios:
    """Return the curves of all runs of one problem; each ends where its measuring did."""
    bound: dict[str, float] = defaultdict(float)
    for record in records:
        bound[record["workload"]] = max(bound[record["workload"]], record["bound"])
    found: dict[tuple[str, str], list[Mapping[float, float]]] = defaultdict(list)
    for record in records:
        curve = zip(record["seconds"], record["objectives"], strict=True)
        own = bound[record["workload"]]
        found[record["arm"], record["workload"]].append({s: value / own for s, value in curve})
    return found


def after(runs: Sequence[Mapping[float, float]], seconds: float) -> list[float]:
    """Return the ratios after so many seconds, of the runs that were measured for so long."""
    return [run[seconds] for run in runs if seconds in run]


def medians(ratios: Ratios, arm: str, names: Sequence[str], seconds: float) -> list[float]:
    """Return the median of the workloads' medians, none if one was not measured for so long."""
    found = [after(ratios[arm, name], seconds) for name in names]
    return [statistics.median(map(statistics.median, found))] if all(found) else []


def shown(values: Sequence[float]) -> str:
    """Return the median of some ratios, and their spread if there is one; – is no plan."""
    if not values:
        return ""
    if math.isinf(statistics.median(values)):
        return "–"
    low, middle, high = min(values), statistics.median(values), max(values)
    spread = f" ({low:.3f}–{high:.3f})" if high - low > 5e-4 and not math.isinf(high) else ""
    return f"{middle:.3f}{spread}"


def plot(path: Path, arms: Sequence[str], names: Sequence[str], ratios: Ratios) -> None:
    """Draw a panel for each workload: medians over time, as far as they are near the bound."""
    figure = Figure(figsize=(1.5 + 3.2 * len(names), 3), layout="constrained")
    for axes, name in zip(figure.subplots(1, len(names), squeeze=False)[0], names, strict=True):
        for arm in arms:
            runs = ratios[arm, name]
            times = sorted({s for run in runs for s in run})
            curve = [statistics.median(after(runs, s)) for s in times]
            if min(curve, default=math.inf) >= MOST_DRAWN:
                continue
            near = [y if y < MOST_DRAWN else math.nan for y in curve]
            axes.plot(times, near, marker="o", markersize=4, color=COLOURS[arm], label=arm)
        axes.set_xscale("log")
        last = max(s for arm in arms for run in ratios[arm, name] for s in run)
        ticks = [s for s in (1, 2, 5, 10, 30, 100, 300) if s <= last]
        axes.set_xticks(ticks, [str(s) for s in ticks], fontsize=8)
        axes.minorticks_off()
        axes.set_xlabel("CPU seconds")
        axes.set_title(name, fontsize=9)
    figure.axes[0].set_ylabel("objective / proven bound")
    drawn = {line.get_label(): line for axes in figure.axes for line in axes.lines}
    figure.legend(drawn.values(), drawn.keys(), fontsize=7, loc="outside right upper")
    figure.savefig(path, dpi=90)


def draw_training(files: Sequence[Path], folder: Path) -> None:
    """Draw the loss of imitation, and what PPO drew, smoothed over updates."""
    log = pd.concat([pd.read_csv(path) for path in files])
    figure = Figure(figsize=(7, 2.8), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(2, 1))
    imitation, ppo = log[log.phase == "imitation"], log[log.phase == "ppo"]
    left.plot(imitation.step, imitation.loss.rolling(100).mean(), color=COLOURS["zero-shot"])
    left.set_ylabel("cross-entropy of a decision")
    left.set_title("imitation, mean of 100 updates", fontsize=10)
    for column, name in (("mean", "mean of those drawn"), ("best", "best of them")):
        right.plot(ppo.step, ppo[column].rolling(40).median(), label=name)
    right.set_ylabel("objective / even load")
    right.set_title("PPO, median of 40 updates", fontsize=10)
    right.set_ylim(bottom=1)
    right.legend(fontsize=7)
    for axes in (left, right):
        axes.set_xlabel("update")
    figure.savefig(folder / "learned_training.png", dpi=90)
    print(
        "| phase | updates to | loss or entropy | mean drawn | best drawn |\n|---|---|---|---|---|"
    )
    log["to"] = -(-log.step // SHOWN) * SHOWN
    for (phase, to), some in log.groupby(["phase", "to"], sort=False):
        cells = [some[column].median() for column in ("loss", "mean", "best")]
        shown = ["–" if math.isnan(cell) else f"{cell:.3f}" for cell in cells]
        print(f"| {phase} | {to} | {' | '.join(shown)} |")


if __name__ == "__main__":
    main()
