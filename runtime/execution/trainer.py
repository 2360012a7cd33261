"""Batches through the pieces of a plan on one rank."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

from ...instances import InputError, StagePlacement
from ...instances.common.units import show_count
from ..measure.group import of_all_ranks, rank_device
from ..schedules import Action, Schedule, make_schedule
from ..schedules.actions import schedule_of
from ..simulate.plan_stages import named_schedule
from .chain import ASYNCHRONOUS, executed_schedule
from .checkpoint import Trained, state_held
from .options import RunOptions
from .own_loop.loop import Loop
from .own_loop.tensor_groups import join_tensor_group
from .own_loop.transport import Ranks
from .prepare import Prepared
from .recording_file import RankRecording, RecordedAction, RunRecording, save_recording
from .sharded.parts import LocalShards
from .sharded.stage import ShardedStage
from .split import PieceModule
from .stage import Recorder, Tensors, named_tensors, place


class PipelineTrainer:
    """Trainer of a plan's pieces on this rank, which is one of the plan's devices in use.

    Every rank makes it at the same time, from the same plan, model and settled options, and then
    runs the same batches. With `replicas` of the whole pipeline, rank r is device r modulo the
    number of devices, and microbatch j runs on replica j modulo the number of replicas. `at_once`
    batches of `per_batch` microbatches run without a pause; after them the pipeline is empty.
    `whole` maps names of the model's `state_dict` to those in a checkpoint. Raises InputError if
    the number of ranks is not that of the plan's devices, or the schedule does not fit.
    """

    def __init__(
        self, prepared: Prepared, options: RunOptions, device: torch.device | None = None
    ) -> None:
        name, replicas, used = options.schedule, options.replicas, prepared.devices
        assert name is not None
        assert options.microbatches is not None
        self.prepared, self.device = prepared, device or rank_device()
        _check_asynchronous(prepared, name)
        if dist.get_world_size() != replicas * len(used):
            raise InputError(
                f"processes: {dist.get_world_size()}; the plan uses "
                f"{show_count(len(used), 'device')}"
                f"{f', {replicas} times' * (replicas > 1)}: start {replicas * len(used)}"
            )
        asynchronous = name in ASYNCHRONOUS
        self.at_once = (options.every or options.steps or 1) if asynchronous else 1
        self.per_batch = options.microbatches * replicas
        self.schedule = _schedule(prepared, name, options.microbatches * self.at_once)
        self.recorder = Recorder(self.device) if options.record is not None else None
        whole, ranks = _replicated(self.schedule, prepared.ranks, replicas)
        first = prepared.tensor_groups.of(dist.get_rank())[0]
        own = [p for p, ring in enumerate(ranks) if first in ring]
        held = (named_tensors(piece.module) for piece in prepared.pieces)
        self.whole = state_held(prepared.model, chain.from_iterable(held))
        pieces = _placed(prepared, own, self.device)
        again = frozenset(range(len(ranks))) if options.recompute else prepared.recompute
        self.loop = Loop(
            pieces,
            ranks,
            whole,
            training=prepared.training,
            optimizer=options.make_optimizer if prepared.training else None,
            microbatches=self.per_batch,
            recompute=again,
            device=self.device,
            recorder=self.recorder,
            tensor_groups=prepared.tensor_groups,
        )
        self.pieces = [pieces[p] for p in own]

    def run(self, microbatches: Sequence[Tensors]) -> list[float]:
        """Run `at_once` batches; return the mean loss of each. All ranks call this together.

        The gradients of the last one stay in the parameters until the next call.
        """
        self.loop.run(lambda j: tuple(x.to(self.device) for x in microbatches[j]))
        if self.recorder is not None:
            self.recorder.step += 1
        losses = torch.zeros(len(microbatches), device=self.device)
        for j, loss in self.loop.losses.items() if self.loop.first else ():
            losses[j] = loss
        dist.all_reduce(losses)
        means: list[float] = losses.view(self.at_once, self.per_batch).mean(1).tolist()
        return means

    def trained(self) -> Trained:
        """Return parameters, buffers and optimizer of this rank."""
        optimizers, parts = list(self.loop.optimizers.values()), self.parts
        if parts is not None:
            return Trained(parts.parameters, parts.buffers, optimizers, parts, self.whole)
        parameters: dict[str, nn.Parameter] = {}
        buffers: dict[str, torch.Tensor] = {}
        for piece in self.pieces:
            parameters |= piece.parameters
            buffers |= dict(piece.module.named_buffers())
        return Trained(parameters, buffers, optimizers, whole=self.whole)

    def actions(self) -> int:
        """Return how many actions this rank has done."""
        return sum(stage.actions for stage in self.loop.stages.values())

    def save_recording(self, path: Path, zero_s: float, _step_s: Sequence[float]) -> None:
        """Write the first replica's recording, in times from `zero_s` on; all ranks call this."""
        assert self.recorder is not None
        prepared, replicas = self.prepared, self.per_batch // self.schedule.microbatches
        staged = isinstance(prepared.plan.solution, StagePlacement)
        number = [piece.device if staged else piece.index for piece in prepared.pieces]
        actions = tuple(
            RecordedAction(
                d.step,
                str(Action(number[stage], kind, microbatch // replicas)),
                d.start_s - zero_s,
                d.end_s - zero_s,
            )
            for d in self.recorder.done
            for stage, kind, microbatch in [d.action]
        )
        here = (dist.get_rank(), socket.gethostname(), str(self.device), actions)
        done = {
            prepared.devices[rank]: RankRecording(prepared.devices[rank], host, device, actions)
            for rank, host, device, actions in of_all_ranks(here)[: len(prepared.devices)]
        }
        recording = RunRecording(
            prepared.workload.fingerprint,
            prepared.plan.placement.tolist(),
            self.schedule.name,
            self.schedule.microbatches,
            tuple(
                done.get(d, RankRecording(d, "", "idle", ()))
                for d in range(prepared.plan.cluster.size)
            ),
        )
        if dist.get_rank() == 0:
            save_recording(recording, path)

    def give_back(self, model: nn.Module) -> None:
        """Write parameters of tensor degrees above 1, whole, to the model; all ranks call this."""
        parts = self.parts
        if parts is not None:
            parts.give_back(model)

    @property
    def parts(self) -> LocalShards | None:
        """Return this rank's parts if it is in a tensor group, where it has one piece."""
        (module, *_) = [piece.module for piece in self.pieces]
        return module.parts if isinstance(module, ShardedStage) else None


def _check_asynchronous(prepared: Prepared, schedule: str) -> None:
    if schedule not in ASYNCHRONOUS:
        return
    if not prepared.training:
        raise InputError(f"schedule: {schedule} is for training, and the plan for inference")
    for piece in prepared.pieces:
        for n in piece.module.graph.nodes:
            if getattr(n.target, "recomputes", False):
                raise InputError(
                    f"schedule {schedule}: {n.name} would compute its activations again with "
                    "weights that have changed meanwhile; use 1f1b, or recompute in its place"
                )


def _schedule(prepared: Prepared, name: str, microbatches: int) -> Schedule:
    """Return the schedule of one pipeline, a row per device in use."""
    planned = named_schedule(prepared.plan, name)
    if planned not in ASYNCHRONOUS:
        return executed_schedule(planned, prepared.stages, microbatches, prepared.devices)
    free = replace(prepared.stages, all_reduce=np.zeros(prepared.stages.count))  # no link is known
    whole = make_schedule(name, free, microbatches)
    return replace(whole, actions=tuple(whole.actions[d] for d in prepared.devices), engines=())


def _replicated(schedule: Schedule, ranks: Ranks, replicas: int) -> tuple[Schedule, Ranks]:
    """Return the schedule of several pipelines side by side, and the ranks of each piece."""
    if replicas == 1:
        return schedule, ranks
    size = len(schedule.actions)
    rows = [
        [a._replace(microbatch=a.microbatch * replicas + r) for a in schedule.of(i)]
        for r in range(replicas)
        for i in range(size)
    ]
    everywhere = [[r * size + i for r in range(replicas) for i in ring] for ring in ranks]
    microbatches = schedule.microbatches * replicas
    return schedule_of(rows, name=schedule.name, microbatches=microbatches), everywhere


def _placed(prepared: Prepared, own: Sequence[int], device: torch.device) -> list[PieceModule]:
    """Return the pieces: this rank's own ones on its device, or of a tensor group its part."""
    here = join_tensor_group(prepared.tensor_groups, device)
    pieces = list(prepared.pieces)
    for p in own:
        if here is None:
            place(pieces[p].module, device)
            continue
        stage = ShardedStage(pieces[p], prepared.layers[p], prepared.tensor_groups.tied, here)
        pieces[p] = replace(pieces[p], module=stage, parameters=stage.parts.parameters)
    return pieces
