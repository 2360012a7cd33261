"""A plan runs: every process is one of its devices, for a number of steps."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import psutil
import torch
import torch.distributed as dist

from ...instances import InputError, Plan, StagePlacement, Workload
from ...instances.pytorch.factory import Made
from ..measure.group import process_group
from .checkpoint import ModelState, restore, save
from .checkpoint_files import Position, checkpoints, newest
from .guard.failures import Guard, guarded
from .guard.identity import graph_hash, plan_hash, weights_hash
from .model_state import model_state
from .options import OPTIMIZERS, Options
from .pipeline import Pipeline
from .prepare import Prepared, split_model
from .recording_file import RankRecording, RunRecording, save_recording
from .trainer import ASYNCHRONOUS, Batches, MakeOptimizer, Stream, Trainer


@dataclass(frozen=True)
class Step:
    """What a step gave: its number from 0 on, the mean loss, and the time it took."""

    number: int
    loss: float
    seconds: float


def run(
    plan: Plan | Path,
    made: Made | Callable[[], Made],
    options: Options,
    *,
    workload: Workload | None = None,
    on_step: Callable[[Step], None] | None = None,
    show: Callable[[str], None] | None = None,
) -> list[Step]:
    """Run a plan as one of its processes; all of them call this with the same arguments.

    `torchrun` starts them; without it, a plan for one device runs in this process alone.

    Parameters
    ----------
    made
        The model, the same numbers in it on every rank, and its microbatches: every replica of
        a step takes its own ones, in order. Or what makes that: then its failures, too, are
        shown once.
    workload
        What the plan was made for; see `split_model`.
    on_step
        Called on rank 0 after every step.
    show
        See `failures.guarded`.

    Returns
    -------
    list of Step
        As many as were asked for, or as there are microbatches.

    Raises
    ------
    InputError
        If plan, model, options and number of processes do not fit together.
    """
    if options.record is not None and workload is None:
        raise InputError("record: give the workload, too; the recording is held against it")
    with guarded(timeout_s=options.timeout_s, show=show) as guard:
        given = made if isinstance(made, Made) else made()
        prepared = split_model(plan, given.model, given.args, given.kwargs, workload)
        options = options.settled(prepared.plan, prepared.workload)
        _alone_if_it_can_be(len(prepared.devices) * options.replicas)
        torch.set_num_threads(options.threads or _threads())
        if options.checkpoint is not None and not prepared.training:
            raise InputError("checkpoint: the plan is for inference; there is nothing to keep")
        hashes = {"plan": plan_hash(prepared.plan), "model": graph_hash(prepared.profile.traced)}
        if guard is not None:
            weights = {"weights": weights_hash(given.model)}
            guard.join({**hashes, **weights, **options.identity()})
        whole = model_state(prepared.model, prepared.pieces)
        with process_group(options.device, guard) as device:
            trainer = _trainer(prepared, options, device)
            if guard is not None:
                guard.count(trainer.actions)
            steps = _steps(trainer, prepared, given, whole, options, hashes, guard, on_step)
            if isinstance(trainer, Batches) and options.record is not None:
                _save_recording(trainer.pipeline, prepared, options.record)
    return steps


def _trainer(prepared: Prepared, options: Options, device: torch.device) -> Trainer:
    assert options.schedule is not None
    assert options.microbatches is not None
    asynchronous = options.schedule in ASYNCHRONOUS
    if asynchronous or isinstance(prepared.plan.solution, StagePlacement):
        return Stream(
            prepared,
            options.schedule,
            options.microbatches,
            options.every or options.steps if asynchronous else 1,
            _optimizer(options),
            device,
            recompute=options.recompute,
        )
    pipeline = Pipeline(
        prepared,
        schedule=options.schedule,
        microbatches=options.microbatches,
        device=device,
        replicas=options.replicas,
        recompute=options.recompute,
        record=options.record is not None,
    )
    if pipeline.recorder is not None:
        pipeline.recorder.start_s = _zero()
    return Batches(pipeline, _optimizer(options) if prepared.training else None)


def _steps(
    trainer: Trainer,
    prepared: Prepared,
    made: Made,
    whole: ModelState,
    options: Options,
    hashes: Mapping[str, str],
    guard: Guard | None,
    on_step: Callable[[Step], None] | None,
) -> list[Step]:
    at = Position(0, 0)
    if options.checkpoint is not None:
        at = _begin(options.checkpoint, trainer, made, options.resume, hashes)
    steps: list[Step] = []
    count = trainer.at_once * trainer.per_batch
    while at.step < options.steps:
        each = list(islice(made.microbatches, count))
        if len(each) < count:
            break
        batches = [prepared.inputs(args, kwargs) for args, kwargs in each]
        dist.barrier()
        begun = time.perf_counter()
        losses = trainer.run(batches)
        seconds = (time.perf_counter() - begun) / trainer.at_once
        for loss in losses:
            steps.append(Step(at.step, loss, seconds))
            at = Position(at.step + 1, at.microbatches + trainer.per_batch)
            if on_step is not None and dist.get_rank() == 0:
                on_step(steps[-1])
        if guard is not None:
            guard.tick()
        last = at.step == options.steps
        if options.checkpoint is not None and (
            last or at.step % (options.every or at.step + 1) == 0
        ):
            save(options.checkpoint, at, trainer.trained(), whole, **hashes)
    return steps


def _begin(
    folder: Path, trainer: Trainer, made: Made, go_on: bool, hashes: Mapping[str, str]
) -> Position:
    """Return where to begin: at the newest checkpoint, or at 0 in a folder without any."""
    if not go_on:
        if checkpoints(folder):
            raise InputError(
                f"{folder}: it holds checkpoints of a run; add --resume, or name another folder"
            )
        return Position(0, 0)
    found = newest(folder, hashes["model"])
    skipped = sum(1 for _ in islice(made.microbatches, found.position.microbatches))
    if skipped < found.position.microbatches:
        raise InputError(f"{folder}: the inputs end before {found.path.name} does")
    restore(found, trainer.trained(), hashes["plan"])  # after the inputs, which may draw numbers
    return found.position


def _optimizer(options: Options) -> MakeOptimizer:
    if not isinstance(options.optimizer, str):
        return options.optimizer
    kind = OPTIMIZERS[options.optimizer]
    return lambda parameters: kind(parameters, lr=options.learning_rate)


def _alone_if_it_can_be(processes: int) -> None:
    """Set up a group of one process where torchrun did not, or say how to start."""
    if "RANK" in os.environ:
        return
    if processes > 1:
        raise InputError(
            f"the plan runs on {processes} processes; start it with: "
            f"torchrun --nproc-per-node {processes} -m stagecut run …"
        )
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK="0", WORLD_SIZE="1")


def _threads() -> int:
    cores = len(psutil.Process().cpu_affinity()) if psutil.LINUX else os.cpu_count() or 1
    return max(1, cores // int(os.environ.get("LOCAL_WORLD_SIZE", "1")))


def _zero() -> float:
    """Return this rank's time of the begin that all ranks share."""
    dist.barrier()
    here = (socket.gethostname(), time.perf_counter())
    everywhere: list[tuple[str, float]] = [here] * dist.get_world_size()
    dist.all_gather_object(everywhere, here)
    one_host = len({host for host, _ in everywhere}) == 1
    return everywhere[0][1] if one_host else here[1]


def _save_recording(pipeline: Pipeline, prepared: Prepared, path: Path) -> None:
    """Write what the devices of the first replica did; idle ones did nothing."""
    assert pipeline.recorder is not None
    recorder = pipeline.recorder
    here = (dist.get_rank(), socket.gethostname(), str(pipeline.device), tuple(recorder.done))
    everywhere = [here] * dist.get_world_size()
    dist.all_gather_object(everywhere, here)
    done = {
        prepared.devices[rank]: RankRecording(prepared.devices[rank], host, device, actions)
        for rank, host, device, actions in everywhere[: len(prepared.devices)]
    }
    size = prepared.plan.cluster.size
    recording = RunRecording(
        prepared.workload.fingerprint,
        prepared.plan.placement,
        pipeline.schedule.name,
        pipeline.microbatches,
        tuple(done.get(d, RankRecording(d, "", "idle", ())) for d in range(size)),
    )
    if dist.get_rank() == 0:
        save_recording(recording, path)
