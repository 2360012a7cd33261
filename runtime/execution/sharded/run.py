"""Runs of a sharding: every process is a device of its mesh, for a number of steps."""

from __future__ import annotations

import math
import socket
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
import torch.distributed as dist

from ....instances import InputError, Plan, Sharding, Workload
from ....instances.formats.outline import placed_ids
from ....instances.formats.source import read_source
from ....instances.pytorch.factory import Made
from ...measure.group import process_group
from ..checkpoint import Trained
from ..guard.failures import guarded
from ..guard.identity import plan_hash, random_hash, training_graph_hash, weights_hash
from ..options import RunOptions
from ..stage import Tensors
from ..steps import (
    StepResult,
    alone_if_it_can_be,
    common_zero,
    make_optimizer,
    take_steps,
    threads_per_process,
)
from ..trainer import MakeOptimizer
from .checkpoint import model_state, own_parts, whole_tensors
from .collectives import join_mesh
from .device import ShardedDevice
from .prepare import PreparedSharding, prepare_sharding
from .recording import ShardedRank, ShardedRecording, save_sharded_recording


class ShardedTrainer:
    """Batches on one device of a sharding, one after the other; see `Trainer`."""

    at_once = 1
    per_batch = 1

    def __init__(self, device: ShardedDevice, optimizer: MakeOptimizer) -> None:
        self.device = device
        learned = [x for x in device.parts.parameters.values() if x.requires_grad]
        self.optimizers = [optimizer(learned)] if learned else []

    def run(self, microbatches: Sequence[Tensors]) -> list[float]:
        """Run a batch; see `Trainer`."""
        (batch,) = microbatches
        self.device.step(batch)
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad()
        return [self.device.loss()]

    def trained(self) -> Trained:
        """Return this device's parts."""
        return own_parts(self.device.parts, self.optimizers)

    def written(self) -> Trained:
        """Return the whole tensors that this device writes; see `Trainer`."""
        return whole_tensors(self.device.parts, self.optimizers)

    def actions(self) -> int:
        """Return how much this device has done."""
        return self.device.operators.done


def is_sharding(plan: Plan | Path) -> bool:
    """Whether a plan, or the plan in a file, is a sharding.

    Raises
    ------
    InputError
        If the file breaks the format.
    """
    if isinstance(plan, Plan):
        return isinstance(plan.problem, Sharding)
    return isinstance(placed_ids(read_source(plan))[0], Sharding)


def run_sharding(
    plan: Plan | Path,
    made: Made | Callable[[], Made],
    options: RunOptions,
    *,
    workload: Workload | None = None,
    on_step: Callable[[StepResult], None] | None = None,
    show: Callable[[str], None] | None = None,
) -> list[StepResult]:
    """Run a sharding as one of its processes; see `run`.

    After the last step the model has what was trained, put together, on every process.

    Raises
    ------
    InputError
        If plan, model, options and number of processes do not fit together.
    """
    _check_options(options)
    with guarded(timeout_s=options.timeout_s, show=show) as guard:
        given = made if isinstance(made, Made) else made()
        prepared = prepare_sharding(plan, given.model, given.args, given.kwargs, workload)
        sharded = prepared.sharded
        size = math.prod(sharded.mesh)
        alone_if_it_can_be(size)
        torch.set_num_threads(options.threads or threads_per_process())
        hashes = {"plan": plan_hash(prepared.plan), "model": training_graph_hash(sharded.graph)}
        if guard is not None:
            alike = {"weights": weights_hash(given.model), "--seed": random_hash()}
            guard.join({**hashes, **alike, **options.identity()})
        with process_group("cpu", guard):
            if dist.get_world_size() != size:
                raise InputError(
                    f"the plan is for {size} devices, and {dist.get_world_size()} processes run; "
                    f"start {size}"
                )
            device = ShardedDevice(
                prepared, join_mesh(sharded.mesh), record=options.record is not None
            )
            trainer = ShardedTrainer(device, make_optimizer(options))
            if guard is not None:
                guard.count(trainer.actions)
            zero = common_zero()
            whole = model_state(prepared.model, device.parts)
            steps = take_steps(
                trainer, prepared.inputs, given, whole, options, hashes, guard, on_step
            )
            if options.record is not None:
                _save_recording(prepared, device, steps, zero, options.record)
            device.parts.give_back(prepared.model)
    return steps


def _check_options(options: RunOptions) -> None:
    """Raise InputError about options without meaning for a sharding."""
    given = {
        "schedule": options.schedule is not None,
        "microbatches": options.microbatches is not None,
        "replicas": options.replicas > 1,
        "recompute": options.recompute,
    }
    for option, is_given in given.items():
        if is_given:
            raise InputError(
                f"{option}: a sharding runs each batch as a whole on all devices; leave it out"
            )
    if options.device == "cuda":
        raise InputError("device: shardings run on CPUs alone; use --device cpu")


def _save_recording(
    prepared: PreparedSharding,
    device: ShardedDevice,
    steps: Sequence[StepResult],
    zero: float,
    path: Path,
) -> None:
    own = tuple(
        e._replace(start_s=e.start_s - zero, end_s=e.end_s - zero) for e in device.operators.events
    )
    here = ShardedRank(dist.get_rank(), socket.gethostname(), own)
    everywhere = [here] * dist.get_world_size()
    dist.all_gather_object(everywhere, here)
    if dist.get_rank() == 0:
        recording = ShardedRecording(
            prepared.workload.fingerprint,
            plan_hash(prepared.plan),
            prepared.sharded.mesh,
            tuple(step.seconds for step in steps),
            tuple(everywhere),
        )
        save_sharded_recording(recording, path)
