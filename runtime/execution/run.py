"""Runs of a plan: every process is one of its devices, for a number of steps."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from ...instances import InputError, Plan, Sharding, Workload
from ...instances.formats.outline import placed_ids
from ...instances.formats.source import read_source
from ...instances.pytorch.factory import Made
from ..measure.group import process_group
from .guard.failures import guarded
from .guard.identity import random_hash, weights_hash
from .options import RunOptions
from .prepare import split_model
from .sharded.prepare import PreparedSharding, prepare_sharding
from .sharded.trainer import ShardedTrainer
from .steps import StepResult, alone_if_it_can_be, common_zero, take_steps, threads_per_process
from .trainer import PipelineTrainer, Trainer


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
        options = options.settled(prepared.plan, prepared.workload)
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
            zero_s = common_zero() if options.record is not None else 0.0
            steps = take_steps(
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
