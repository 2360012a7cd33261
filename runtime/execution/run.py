"""Runs of a plan: every process is one of its devices, for a number of steps."""

from __future__ import annotations

import copy
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from ...instances import InputError, Plan, Sharding, Workload
from ...instances.formats.outline import placed_ids
from ...instances.formats.source import read_source
from ...instances.pytorch.factory import Made
from ..measure.group import alone_if_it_can_be, of_all_ranks, process_group, threads_per_process
from .chain import ASYNCHRONOUS
from .checkpoint import restore, save
from .checkpoint_folder import keep_newest, newest, sole_writer, step_path
from .first_step import by_one_process, check_first_step
from .guard.failures import Guard, guarded
from .guard.identity import random_hash, weights_hash
from .options import RunOptions, StepResult
from .prepare import split_model
from .sharded.prepare import PreparedSharding, prepare_sharding
from .sharded.trainer import ShardedTrainer
from .stage import Tensors
from .trainer import PipelineTrainer

#: Number of checkpoints that are kept, the newest.
KEPT = 2
#: Trainer that runs batches on this rank.
Trainer = PipelineTrainer | ShardedTrainer


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

    `torchrun` starts them; without it, a plan for one device runs in this process alone. `made` has
    the model, the same numbers in it on every rank, and its microbatches, of which every replica of
    a step takes its own ones, in order; or it makes that, and then its failures, too, are shown
    once. For `workload` see `split_model`, for `show` `guarded`; `on_step` is called on rank 0.
    Returns as many steps as were asked for, or as there are microbatches. Raises InputError if
    plan, model, options and number of processes do not fit together.
    """
    if options.record is not None and workload is None:
        raise InputError("record: give the workload, too; the recording is held against it")
    prepare, trainer_of = _ways(plan)
    with guarded(timeout_s=options.timeout_s, show=show) as guard:
        given = made if isinstance(made, Made) else made()
        prepared = prepare(plan, given.model, given.args, given.kwargs, workload)
        reference = copy.deepcopy(given.model) if options.check else None
        options = _for_remaining_steps(options.settled(prepared.plan, prepared.workload))
        alone_if_it_can_be(prepared.processes * options.replicas)
        torch.set_num_threads(options.threads or threads_per_process())
        if options.checkpoint is not None and not prepared.training:
            raise InputError("checkpoint: the plan is for inference; there is nothing to keep")
        if options.check and not prepared.training:
            raise InputError("check: the plan is for inference, which has no gradients")
        hashes = prepared.identity()
        if guard is not None:
            alike = {"weights": weights_hash(given.model)}
            if isinstance(prepared, PreparedSharding) or prepared.teams.members:
                alike["--seed"] = random_hash()
            guard.join({**hashes, **alike, **options.identity()})
        with process_group(options.device, guard) as device:
            trainer = trainer_of(prepared, options, device)
            if guard is not None:
                guard.count(trainer.actions)
            zero_s = _common_zero() if options.record is not None else 0.0
            steps = _take_steps(
                trainer, prepared.inputs, given, reference, options, hashes, guard, on_step
            )
            if options.record is not None:
                trainer.save_recording(options.record, zero_s, [step.seconds for step in steps])
            trainer.give_back(prepared.model)
    return steps


def _ways(plan: Plan | Path) -> tuple[Callable[..., Any], Callable[..., Trainer]]:
    """Return how a plan is prepared, and what runs it: a sharding, or pieces of a pipeline."""
    if isinstance(plan, Plan):
        sharding = isinstance(plan.problem, Sharding)
    else:
        sharding = isinstance(placed_ids(read_source(plan))[0], Sharding)
    if sharding:
        return prepare_sharding, ShardedTrainer
    return split_model, PipelineTrainer


def _for_remaining_steps(options: RunOptions) -> RunOptions:
    """Return options by which a resumed asynchronous run empties its pipeline at the last step.

    Raises InputError if an asynchronous run that goes on cannot end there.
    """
    folder, every = options.checkpoint, options.every
    if options.schedule not in ASYNCHRONOUS or folder is None or not options.resume:
        return options
    found = newest(folder)
    left = 0 if found is None else max(options.steps - found.step, 0)
    if every is not None and left % every:
        raise InputError(
            f"every: {every} does not divide the {left} steps that are left, as the schedule "
            f"{options.schedule} needs: the pipeline is emptied for a checkpoint"
        )
    return replace(options, every=every or max(left, 1))


def _take_steps(
    trainer: Trainer,
    inputs: Callable[[tuple[Any, ...], Mapping[str, Any]], Tensors],
    made: Made,
    reference: nn.Module | None,
    options: RunOptions,
    hashes: Mapping[str, str],
    guard: Guard | None,
    on_step: Callable[[StepResult], None] | None,
) -> list[StepResult]:
    """Run until there are as many steps as asked for, or the inputs end; keep checkpoints.

    The first step is checked against the `reference`, a model of the same numbers, if given.
    """
    with sole_writer(options.checkpoint, resume=options.resume):
        folder = options.checkpoint
        done, taken = (0, 0) if folder is None else _begin(folder, trainer, made, options, hashes)
        steps: list[StepResult] = []

        def keep() -> int:
            if folder is not None:
                save(step_path(folder, done), trainer.trained(), microbatches=taken, **hashes)
                keep_newest(folder, KEPT)
            return done

        kept = done
        count = trainer.at_once * trainer.per_batch
        while done < options.steps:
            each = list(islice(made.microbatches, count))
            if len(each) < count:
                break
            batches = [inputs(args, kwargs) for args, kwargs in each]
            expected = None
            if reference is not None and not steps:
                expected = by_one_process(reference, each, trainer.device)
            dist.barrier()
            begun = time.perf_counter()
            losses = trainer.run(batches)
            seconds = (time.perf_counter() - begun) / trainer.at_once
            if expected is not None:
                check_first_step(losses[0], trainer.trained(), expected)
            for loss in losses:
                steps.append(StepResult(done, loss, seconds))
                done, taken = done + 1, taken + trainer.per_batch
                if on_step is not None and dist.get_rank() == 0:
                    on_step(steps[-1])
            if guard is not None:
                guard.tick()
            if options.is_due(done):
                kept = keep()
        if kept < done:  # the inputs may have ended early
            keep()
        return steps


def _begin(
    folder: Path, trainer: Trainer, made: Made, options: RunOptions, hashes: Mapping[str, str]
) -> tuple[int, int]:
    """Return the steps and microbatches that are done: those of the newest checkpoint, or none."""
    found = newest(folder, resume=options.resume)
    if found is None:
        return 0, 0
    if found.manifest.model != hashes["model"]:
        raise InputError(f"{found.path}: it is of another model; give the model that was trained")
    taken = found.manifest.microbatches
    if sum(1 for _ in islice(made.microbatches, taken)) < taken:
        raise InputError(f"{folder}: the inputs end before {found.path.name} does")
    restore(found, trainer.trained(), hashes["plan"])  # after the inputs, which may draw numbers
    return found.step, taken


def _common_zero() -> float:
    """Return this rank's time of the begin that all ranks share."""
    dist.barrier()
    here = (socket.gethostname(), time.perf_counter())
    everywhere = of_all_ranks(here)
    one_host = len({host for host, _ in everywhere}) == 1
    return everywhere[0][1] if one_host else here[1]
