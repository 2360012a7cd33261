"""Runs of a plan: every process is one of its devices, for a number of steps."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist

from ...instances import InputError, Plan, StagePlacement, Workload
from ...instances.pytorch.factory import Made
from ..measure.group import process_group
from .guard.failures import guarded
from .guard.identity import graph_hash, plan_hash, random_hash, weights_hash
from .model_state import model_state
from .options import RunOptions
from .pipeline import RunningPipeline
from .prepare import Prepared, split_model
from .recording_file import RankRecording, RunRecording, save_recording
from .sharded.run import is_sharding, run_sharding
from .steps import (
    StepResult,
    alone_if_it_can_be,
    common_zero,
    make_optimizer,
    take_steps,
    threads_per_process,
)
from .trainer import ASYNCHRONOUS, Batches, Stream


def run(
    plan: Plan | Path,
    made: Made | Callable[[], Made],
    options: RunOptions,
    *,
    workload: Workload | None = None,
    on_step: Callable[[StepResult], None] | None = None,
    show: Callable[[str], None] | None = None,
) -> list[StepResult]:
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
    if is_sharding(plan):
        return run_sharding(plan, made, options, workload=workload, on_step=on_step, show=show)
    with guarded(timeout_s=options.timeout_s, show=show) as guard:
        given = made if isinstance(made, Made) else made()
        prepared = split_model(plan, given.model, given.args, given.kwargs, workload)
        options = options.settled(prepared.plan, prepared.workload)
        alone_if_it_can_be(len(prepared.devices) * options.replicas)
        torch.set_num_threads(options.threads or threads_per_process())
        if options.checkpoint is not None and not prepared.training:
            raise InputError("checkpoint: the plan is for inference; there is nothing to keep")
        hashes = {"plan": plan_hash(prepared.plan), "model": graph_hash(prepared.profile.traced)}
        if guard is not None:
            alike = {"weights": weights_hash(given.model)}
            if prepared.teams.members:
                alike["--seed"] = random_hash()
            guard.join({**hashes, **alike, **options.identity()})
        whole = model_state(prepared.model, prepared.pieces)
        with process_group(options.device, guard) as device:
            trainer = _trainer(prepared, options, device)
            if trainer.recorder is not None:
                trainer.recorder.start_s = common_zero()
            if guard is not None:
                guard.count(trainer.actions)
            steps = take_steps(
                trainer, prepared.inputs, given, whole, options, hashes, guard, on_step
            )
            if options.record is not None:
                _save_recording(trainer, prepared, options.record)
            if isinstance(trainer, Stream):
                trainer.give_back(prepared.model)
    return steps


def _trainer(prepared: Prepared, options: RunOptions, device: torch.device) -> Batches | Stream:
    assert options.schedule is not None
    assert options.microbatches is not None
    asynchronous = options.schedule in ASYNCHRONOUS
    if asynchronous or isinstance(prepared.plan.solution, StagePlacement):
        return Stream(
            prepared,
            options.schedule,
            options.microbatches,
            options.every or options.steps if asynchronous else 1,
            make_optimizer(options),
            device,
            recompute=options.recompute,
            record=options.record is not None,
        )
    pipeline = RunningPipeline(
        prepared,
        schedule=options.schedule,
        microbatches=options.microbatches,
        device=device,
        replicas=options.replicas,
        recompute=options.recompute,
        record=options.record is not None,
    )
    return Batches(pipeline, make_optimizer(options) if prepared.training else None)


def _save_recording(trainer: Batches | Stream, prepared: Prepared, path: Path) -> None:
    """Write the recording of the first replica's devices."""
    assert trainer.recorder is not None
    actions = tuple(trainer.recorder.done)
    if isinstance(prepared.plan.solution, StagePlacement):  # pieces have the plan's numbers
        stage = [piece.device for piece in prepared.pieces]
        actions = tuple(
            d._replace(action=d.action._replace(stage=stage[d.action.stage])) for d in actions
        )
    here = (dist.get_rank(), socket.gethostname(), str(trainer.device), actions)
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
        trainer.schedule.name,
        trainer.schedule.microbatches,
        tuple(done.get(d, RankRecording(d, "", "idle", ())) for d in range(size)),
    )
    if dist.get_rank() == 0:
        save_recording(recording, path)
