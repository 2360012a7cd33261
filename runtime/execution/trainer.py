"""Trainers of a run: by torch's pipelining, or by our own loop."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Protocol

import torch
import torch.distributed as dist
from torch import nn

from ...instances import InputError
from ..schedules import make_schedule
from .chain import SYNCHRONOUS
from .checkpoint import Trained
from .own_loop.loop import Loop
from .own_loop.teams import join_teams
from .pipeline import RunningPipeline, place
from .prepare import Prepared
from .recorder import Recorder
from .sharded.checkpoint import own_parts, whole_tensors
from .sharded.parts import LocalShards
from .sharded.stage import ShardedStage
from .split import PieceModule
from .stage import Tensors

#: Makes an optimizer of parameters.
MakeOptimizer = Callable[[Iterable[torch.Tensor]], torch.optim.Optimizer]
#: Schedules with weight versions.
ASYNCHRONOUS = ("pipedream", "2bw")


class Trainer(Protocol):
    """Protocol of executors of batches on this rank.

    Parameters
    ----------
    at_once
        Batches that run without a pause: after them the pipeline is empty.
    per_batch
        Microbatches in a batch.
    """

    at_once: int
    per_batch: int

    def run(self, microbatches: Sequence[Tensors]) -> list[float]:
        """Run `at_once` batches; return the mean loss of each. All ranks call this together."""

    def trained(self) -> Trained:
        """Return parameters, buffers and optimizer of this rank."""

    def written(self) -> Trained:
        """Return this rank's content of a checkpoint. All ranks call this together."""

    def actions(self) -> int:
        """Return how many actions this rank has done."""


class Batches:
    """One batch after the other, on torch's pipelining.

    Parameters
    ----------
    optimizer
        None for inference.
    """

    at_once = 1

    def __init__(self, pipeline: RunningPipeline, optimizer: MakeOptimizer | None) -> None:
        self.pipeline, self.device = pipeline, pipeline.device
        self.schedule, self.recorder = pipeline.schedule, pipeline.recorder
        self.per_batch = pipeline.microbatches * (
            dist.get_world_size() // dist.get_world_size(pipeline.group)
        )
        learned = [x for _, x in pipeline.named_parameters() if x.requires_grad]
        self.optimizer = None if optimizer is None or not learned else optimizer(learned)

    def run(self, microbatches: Sequence[Tensors]) -> list[float]:
        """Run a batch; see `Trainer`."""
        begin = self.pipeline.replica * self.pipeline.microbatches
        self.pipeline.step(microbatches[begin : begin + self.pipeline.microbatches])
        if self.optimizer is not None:
            self.optimizer.step()
            self.optimizer.zero_grad()
        return [self.pipeline.mean_loss()]

    def trained(self) -> Trained:
        """Return parameters, buffers and optimizer of this rank."""
        pieces = [stage.piece for stage in self.pipeline.stages]
        return _trained(pieces, [] if self.optimizer is None else [self.optimizer])

    def written(self) -> Trained:
        """Return this rank's content of a checkpoint: its parameters and optimizer."""
        return self.trained()

    def actions(self) -> int:
        """Return how many actions this rank has done."""
        return sum(stage.actions for stage in self.pipeline.stages)


class Stream:
    """Training on our own loop: many batches without a pause, and stages with replicas.

    Parameters
    ----------
    schedule
        Of `ASYNCHRONOUS`, or of `chain.SYNCHRONOUS`, which pauses after every batch.
    microbatches
        In a batch, over all replicas.
    at_once
        Batches until the pipeline is emptied; 1 for synchronous schedules.
    recompute
        Every piece computes its activations again, not only those that the plan names.
    record
        Note when each action began and ended, in `recorder`; not of asynchronous schedules.

    Raises
    ------
    InputError
        See `Loop`; and if the number of ranks is not that of the plan's devices.
    """

    def __init__(
        self,
        prepared: Prepared,
        schedule: str,
        microbatches: int,
        at_once: int,
        optimizer: MakeOptimizer,
        device: torch.device,
        *,
        recompute: bool = False,
        record: bool = False,
    ) -> None:
        used = prepared.devices
        again = [
            n.name
            for piece in prepared.pieces
            for n in piece.module.graph.nodes
            if getattr(n.target, "recomputes", False)
        ]
        if schedule in ASYNCHRONOUS and again:
            raise InputError(
                f"schedule {schedule}: {again[0]} would compute its activations again with weights "
                "that have changed meanwhile; use 1f1b, or --recompute in its place"
            )
        if dist.get_world_size() != len(used):
            raise InputError(
                f"the plan uses {len(used)} devices, and {dist.get_world_size()} processes run; "
                f"start {len(used)}"
            )
        if not prepared.training:
            raise InputError(f"schedule: {schedule} is for training, and the plan for inference")
        self.at_once, self.per_batch, self.device = at_once, microbatches, device
        if schedule not in (*SYNCHRONOUS, *ASYNCHRONOUS):
            known = ", ".join((*SYNCHRONOUS, *ASYNCHRONOUS))
            raise InputError(f"schedule: {schedule!r} is not one of {known}")
        whole = make_schedule(schedule, prepared.stages, microbatches * at_once)
        rows = replace(whole, actions=tuple(whole.actions[d] for d in used), engines=())
        ranks = [[used.index(d) for d in ring] for ring in prepared.stages.replicas]
        first = prepared.teams.of(dist.get_rank())[0]
        own = [p for p, ring in enumerate(ranks) if first in ring]
        pieces = _placed(prepared, own, device)
        self.schedule, self.recorder = rows, Recorder(device) if record else None
        self.loop = Loop(
            pieces,
            ranks,
            rows,
            optimizer=optimizer,
            microbatches=microbatches,
            recompute=frozenset(range(len(ranks))) if recompute else prepared.recompute,
            device=device,
            recorder=self.recorder,
            teams=prepared.teams,
        )
        self.pieces = [pieces[p] for p in own]

    def run(self, microbatches: Sequence[Tensors]) -> list[float]:
        """Run all batches; see `Trainer`."""
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
        return _trained(self.pieces, optimizers) if parts is None else own_parts(parts, optimizers)

    def written(self) -> Trained:
        """Return this rank's content of a checkpoint: its share of the team's parameters."""
        parts = self.parts
        if parts is None:
            return self.trained()
        return whole_tensors(parts, list(self.loop.optimizers.values()))

    def actions(self) -> int:
        """Return how many actions this rank has done."""
        return sum(stage.actions for stage in self.loop.stages.values())

    def give_back(self, model: nn.Module) -> None:
        """Write the teams' parameters, as whole tensors, into the model; all ranks call this."""
        parts = self.parts
        if parts is not None:
            parts.give_back(model)

    @property
    def parts(self) -> LocalShards | None:
        """Return this rank's parts, if it is in a team: then it has one piece."""
        (module, *_) = [piece.module for piece in self.pieces]
        return module.parts if isinstance(module, ShardedStage) else None


def _placed(prepared: Prepared, own: Sequence[int], device: torch.device) -> list[PieceModule]:
    """Return the pieces, those of this rank on its device, or its part of them."""
    here = join_teams(prepared.teams)
    pieces = list(prepared.pieces)
    for p in own:
        if here is None:
            place(pieces[p].module, device)
            continue
        if device.type != "cpu":
            raise InputError("device: tensor degrees above 1 run on CPUs alone; use --device cpu")
        stage = ShardedStage(pieces[p], prepared.layers[p], prepared.teams.tied, here)
        pieces[p] = replace(pieces[p], module=stage, parameters=stage.parts.parameters)
    return pieces


def _trained(pieces: Sequence[PieceModule], optimizers: list[torch.optim.Optimizer]) -> Trained:
    parameters: dict[str, nn.Parameter] = {}
    buffers: dict[str, torch.Tensor] = {}
    for piece in pieces:
        parameters |= piece.parameters
        buffers |= dict(piece.module.named_buffers())
    return Trained(parameters, buffers, optimizers)
