"""`stagecut learn`: train a policy that places graphs."""

from __future__ import annotations

import csv
import io
import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TextIO

import typer

from ..instances import InputError, Latency, PipelineJob, Split, Throughput
from ..instances.common.errors import quote
from ..instances.formats.writing import write_whole
from .common import options
from .common.console import ERR, OUT, check_outputs, need, show_count, tell_written
from .common.pose import ProblemOptions, choose_cluster, setting_record

if TYPE_CHECKING:
    from ..api.learn import Update

#: Number of seeds of torch, and largest number of graphs.
MOST_SEEDS, MOST_GRAPHS = 2**32, 10_000
#: Columns of the training curve.
COLUMNS = ("step", "phase", "workload", "mean", "best", "loss")


@dataclass(frozen=True)
class LearnSettings:
    """Options of training that `--set` gives; see `LearnOptions` and `Reward`."""

    reward: str = "objective"
    model: str | None = None
    rounds: int = 5
    schedules: int = 10
    plan_seconds: float = 5.0


def learn(
    output: Annotated[Path, typer.Option("-o", "--output", help="The policy file to write.")],
    family: Annotated[
        str | None,
        typer.Option(
            help="Random graphs: chain, residual, branches, transformer, encoder-decoder, random "
            "(with commas), or all."
        ),
    ] = None,
    count: Annotated[
        int, typer.Option(metavar="<int>", help="Number of graphs.", min=1, max=MOST_GRAPHS)
    ] = 32,
    workloads: Annotated[
        str | None, typer.Option(help="Train on these files or shipped workloads instead.")
    ] = None,
    cluster: options.ClusterFile = None,
    accelerators: options.Accelerators = None,
    cpus: options.Cpus = None,
    memory: options.Memory = None,
    problem: Annotated[str, typer.Option(help="throughput, pipeline or latency.")] = "throughput",
    split: Annotated[
        Split | None,
        typer.Option(
            metavar="NAME", help="contiguous, noncontiguous, per-device; default: the first two."
        ),
    ] = None,
    microbatches: options.Microbatches = None,
    steps: Annotated[int, typer.Option(metavar="<int>", help="Number of updates.", min=1)] = 500,
    imitate: Annotated[
        int, typer.Option(metavar="<int>", help="Updates that imitate certified plans.", min=0)
    ] = 0,
    seconds: Annotated[
        float | None, typer.Option(help="Stop after this many; continue with --resume.")
    ] = None,
    seed: options.Seed = 0,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue the training of the output file.")
    ] = False,
    weights_only: Annotated[
        bool, typer.Option("--weights-only", help="Write no optimizer state, which --resume needs.")
    ] = False,
    log: Annotated[Path | None, typer.Option(help="Write the training curve, as CSV.")] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME=VALUE",
            help="reward=simulated, or measured (under torchrun) with model=FILE.py:FACTORY and "
            "rounds (of each placement, 5); schedules (of each partition, of 20 placements of an "
            "update: 10); plan_seconds (to find each plan to imitate, at most: 5).",
        ),
    ] = None,
) -> None:
    """Train a policy that places graphs, by imitation and PPO.

    Then: stagecut solve WORKLOAD --method learned:FILE. Training that is resumed with the same
    options goes the way of one that was never interrupted.
    """
    need("torch", "learned")
    from ..api.learn import LearnOptions, Reward, TrainingSet, family_set, workload_set
    from ..api.learn import learn as train
    from ..solvers.learned.train import Settings

    check_outputs(output, log)
    rare = setting_record(LearnSettings, settings or ())
    reward = Reward.of("--set reward", rare.reward)
    for option, value in (("--seconds", seconds), ("--set plan_seconds", rare.plan_seconds)):
        if value is not None and not 0 < value < float("inf"):
            raise InputError(f"{option}: {value}; it must be above 0")
    for name, number, most in (("schedules", rare.schedules, 20), ("rounds", rare.rounds, 1000)):
        if not 1 <= number <= most:
            raise InputError(f"--set {name}: {number}; it must be from 1 to {most}")
    if (reward is Reward.MEASURED) != (rare.model is not None):
        raise InputError("--set: reward=measured and model=FILE.py:FACTORY belong together")
    if not 0 <= seed < MOST_SEEDS:
        raise InputError(f"--seed: {quote(str(seed))}; it must be from 0 to {MOST_SEEDS - 1}")
    if (family is None) == (workloads is None):
        raise InputError("learn: give either --family or --workloads")
    if imitate > steps:
        raise InputError(f"--imitate: {imitate}; it must be at most --steps, {steps}")
    if workloads is None:
        if any(given is not None for given in (cluster, accelerators, cpus, memory)):
            raise InputError("--family: its graphs have clusters of their own; leave devices out")
        graphs = family_set(_families(family or ""), count, seed)
    else:
        devices = ProblemOptions(
            cluster=cluster, accelerators=accelerators, cpus=cpus, memory=memory
        )
        graphs = workload_set(
            workloads.split(","), lambda one: choose_cluster(one, devices, problem)
        )
    on = TrainingSet(graphs, _problems(problem, split, microbatches), reward)
    how = LearnOptions(
        steps, imitate, seconds, seed, rare.plan_seconds, Settings(schedules=rare.schedules)
    )

    def learned(on: TrainingSet) -> None:
        with _curve(log, resume=resume) as show_update:
            done = train(
                on,
                output,
                how,
                command=shlex.join(["stagecut", *sys.argv[1:]]),
                resume=resume,
                resumable=not weights_only,
                report=show_update,
            )
        OUT.print_wrapped(
            f"{show_count(done.steps, 'update')} on {show_count(len(on.tasks), 'task')}"
        )
        tell_written(output, log)

    if rare.model is None:
        learned(on)
        return
    if len(graphs) != 1 or (imitate and not resume):
        raise InputError(
            "--set reward=measured: give the one workload of the model; plans are imitated before, "
            "without measuring, and --resume goes on"
        )
    from ..instances.pytorch.factory import make
    from ..runtime.execution.trials import lead_trials

    lead_trials(
        lambda time_plans: learned(replace(on, time_plans=time_plans)),
        make(rare.model),
        graphs[0],
        rounds=rare.rounds,
    )


def _families(text: str) -> list[str]:
    from ..instances.generate.graph_family import FAMILIES

    return list(FAMILIES) if text == "all" else text.split(",")


def _problems(
    problem: str, split: Split | None, microbatches: int | None
) -> tuple[Throughput | PipelineJob | Latency, ...]:
    if problem == "latency":
        if split is not None or microbatches is not None:
            raise InputError("--problem latency: has no --split and no --microbatches; leave out")
        return (Latency(),)
    if problem == "pipeline":
        if split not in (None, "contiguous"):
            raise InputError("--split: plans for iterations are learned contiguous alone")
        return (PipelineJob(8 if microbatches is None else microbatches, "1f1b"),)
    if problem != "throughput":
        raise InputError(f"--problem: {quote(problem)}; use throughput, pipeline or latency")
    if microbatches is not None:
        raise InputError("--microbatches: only for --problem pipeline; leave it out")
    splits = [Split.CONTIGUOUS, Split.NONCONTIGUOUS] if split is None else [split]
    return tuple(Throughput(split=one) for one in splits)


@contextmanager
def _curve(log: Path | None, *, resume: bool) -> Iterator[Callable[[Update], None]]:
    """Yield a function that shows updates and writes them to a file, to which resuming appends."""
    stream: TextIO | None = None
    with ERR.status("plans to imitate …") as status:

        def show_update(update: Update) -> None:
            nonlocal stream
            numbers = [f"{value:.6g}" for value in (update.mean, update.best, update.loss)]
            if log is not None:
                stream = stream or _begun(log, update.step if resume else 1)
                row = [update.step, update.phase, update.workload, *numbers]
                csv.writer(stream).writerow(row)
            status.update(
                f"{update.phase} {update.step}: {update.workload} mean {numbers[0]}, "
                f"best {numbers[1]}, loss or entropy {numbers[2]}"
            )

        try:
            yield show_update
        finally:
            if stream is not None:
                stream.close()


def _begun(log: Path, step: int) -> TextIO:
    """Open a curve from a step on, without later rows, which a killed training wrote."""
    earlier, kept = set(map(str, range(1, step))), io.StringIO(newline="")
    csv.writer(kept).writerow(COLUMNS)
    if earlier and log.is_file():
        with log.open(encoding="utf-8", errors="replace", newline="") as before:
            whole = (line for line in before if line.endswith("\n"))
            kept.writelines(line for line in whole if line.partition(",")[0] in earlier)
    write_whole(log, kept.getvalue())
    return log.open("a", buffering=1, encoding="utf-8", newline="")
