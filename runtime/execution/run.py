"""Runs of a plan for a number of steps, with a process for each of its devices."""

from __future__ import annotations

import copy
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch.distributed as dist

from ...instances import InputError, Plan, Problem, Sharding, Workload
from ...instances.formats.outline import placed_ids
from ...instances.formats.source import read_source
from ...instances.pytorch.factory import Made
from ..measure.group import of_all_ranks
from .chain import ASYNCHRONOUS
from .checkpoint import restore
from .checkpoint_folder import Checkpoint, newest
from .guard.failures import guarded
from .guard.identity import random_hash, weights_hash
from .options import RunOptions, StepResult
from .prepare import split_model
from .sharded.prepare import prepare_sharding
from .sharded.trainer import ShardedTrainer
from .steps import RankTraining, by_one_process, check_first_step, joined, take_steps
from .trainer import PipelineTrainer

#: Number of checkpoints that are kept, the newest.
KEPT = 2


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
    the model, with the same weights on every rank, and microbatches, of which each replica takes
    its own in every step; or it is a function that returns these, whose failures are then also
    shown once. For `workload` see `split_model`, for `show` `guarded`; `on_step` is called on
    rank 0. Returns as many steps as were asked for, or as there are microbatches. Raises InputError
    if plan, model, options and number of processes do not fit together.
    """
    if options.record is not None and workload is None:
        raise InputError("record: give the workload, too; the recording is held against it")
    sharded = isinstance(_problem_of(plan), Sharding)
    prepare: Callable[..., Any] = prepare_sharding if sharded else split_model
    with guarded(timeout_s=options.timeout_s, show=show) as guard:
        given = made if isinstance(made, Made) else made()
        prepared = prepare(plan, given.model, given.args, given.kwargs, workload)
        reference = copy.deepcopy(given.model) if options.check else None
        options = _for_remaining_steps(options.settled(prepared.plan, prepared.workload))
        if options.checkpoint is not None and not prepared.training:
            raise InputError("checkpoint: the plan is for inference; there is nothing to keep")
        if options.check and not prepared.training:
            raise InputError("check: the plan is for inference, which has no gradients")
        hashes = prepared.identity()
        alike = {**hashes, "weights": weights_hash(given.model), **options.identity()}
        if sharded or prepared.tensor_groups.members:
            alike["--seed"] = random_hash()
        with joined(guard, options, prepared.processes * options.replicas, alike) as device:
            trainer = (ShardedTrainer if sharded else PipelineTrainer)(prepared, options, device)
            if guard is not None:
                guard.count(trainer.actions)
            zero_s = _common_zero() if options.record is not None else 0.0

            def step(each: Sequence[Any], _: int) -> list[float]:
                return trainer.run([prepared.inputs(args, kwargs) for args, kwargs in each])

            def check(each: Sequence[Any]) -> Callable[[float], None]:
                assert reference is not None
                expected = by_one_process(reference, each, device)
                return lambda loss: check_first_step(loss, trainer.trained(), expected)

            def go_on(found: Checkpoint) -> None:
                restore(found, trainer.trained(), hashes["plan"])

            training = RankTraining(
                run=step, trained=trainer.trained, restore=go_on, **hashes,
                count=trainer.at_once * trainer.per_batch, kept=KEPT,
                check=check if options.check else None,
            )  # fmt: skip
            steps = take_steps(training, given.microbatches, options, guard=guard, on_step=on_step)
            if options.record is not None:
                trainer.save_recording(options.record, zero_s, [step.seconds for step in steps])
            trainer.give_back(prepared.model)
    return steps


def _problem_of(plan: Plan | Path) -> Problem:
    """Return the problem of a plan, or of its file."""
    return plan.problem if isinstance(plan, Plan) else placed_ids(read_source(plan))[0]


def _for_remaining_steps(options: RunOptions) -> RunOptions:
    """Return options by which an asynchronous run with checkpoints ends with an empty pipeline.

    Raises InputError if the remaining steps are no whole number of intervals between checkpoints.
    """
    folder, every = options.checkpoint, options.every
    if options.schedule not in ASYNCHRONOUS or folder is None:
        return options
    assert options.steps is not None
    found = newest(folder, resume=options.resume)
    left = options.steps if found is None else max(options.steps - found.step, 0)
    if every is not None and left % every:
        raise InputError(
            f"every: {every} does not divide the {left} steps that are left, as the schedule "
            f"{options.schedule} needs: the pipeline is emptied for a checkpoint"
        )
    return replace(options, every=every or max(left, 1))


def _common_zero() -> float:
    """Return the time, on this rank's clock, from which recordings of all ranks count."""
    dist.barrier()
    here = (socket.gethostname(), time.perf_counter())
    everywhere = of_all_ranks(here)
    one_host = len({host for host, _ in everywhere}) == 1
    return everywhere[0][1] if one_host else here[1]
