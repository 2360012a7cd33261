"""Training by a sharding on one device of its mesh."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from math import prod
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ....instances import InputError, Role, Sharding
from ....instances.common.units import show_count
from ...measure.group import of_all_ranks
from ..checkpoint import Trained, state_held
from ..guard.identity import plan_hash
from ..options import RunOptions
from ..recording_file import ShardedRank, ShardedRecording, save_recording
from ..stage import Tensors, named_tensors
from .collectives import MeshPosition, join_mesh, part_of, total
from .operators import Operators
from .parts import parts_of, resting_parts
from .prepare import PreparedSharding
from .program import PlacedTensor


class ShardedDevice:
    """Executor of a sharding's steps on one device, with its `parts` of parameters and buffers."""

    def __init__(
        self, prepared: PreparedSharding, place: MeshPosition, *, record: bool = False
    ) -> None:
        self.prepared, self.place = prepared, place
        sharded, model = prepared.sharded, prepared.model
        self.operators = Operators(sharded, place, record=record)
        lying, self._resting = resting_parts(sharded, model, place)
        self.parts = parts_of(model, lying, place)
        for operator, (t, _) in sharded.sources(Role.PARAMETER):
            name = str(operator.name)
            if name in lying:
                self._resting[t, lying[name]] = self.parts.tensors[name].detach()
        self.losses: dict[PlacedTensor, Tensor] = {}

    def step(self, batch: Sequence[Tensor]) -> None:
        """Compute loss and gradients of a batch; parts of the gradients are then in `.grad`."""
        sharded, operators = self.prepared.sharded, self.operators
        operators.held = dict(self._resting)
        given = {node.name: value for node, value in zip(sharded.graph.inputs, batch, strict=True)}
        placeholder = {label: name for name, label in sharded.graph.names.items()}
        for operator, held in sharded.sources(Role.INPUT):
            value = given[placeholder[str(operator.name)]]
            operators.held[held] = part_of(value.detach(), held[1], self.place)
        with torch.no_grad():
            for held in sharded.early:
                operators.part(held)
            for operation in sharded.operations:
                operators.operate(operation)
            operators.finish()
            given_out: set[PlacedTensor] = set()  # parameters that are added up have one gradient
            for operator, (_, how) in sharded.sources(Role.PARAMETER):
                if operator.gradient is not None:
                    held = operator.gradient, how
                    gradient = operators.part(held)
                    own = gradient.clone() if held in given_out else gradient
                    self.parts.parameters[str(operator.name)].grad = own
                    given_out.add(held)
            for name, more in sharded.graph.counted.items():
                self.parts.buffers[name].add_(more)
        self.losses = {held: operators.held[held] for held in self.prepared.losses}
        operators.held = {}
        operators.steps += 1

    def loss(self) -> float:
        """Return the loss of the last step, or the sum of all outputs of a model without one.

        All devices call this; its collectives are not part of the plan.
        """
        return sum(total(part, held[1], self.place) for held, part in self.losses.items())


class ShardedTrainer:
    """Trainer of a sharding's batches on one device, with the methods of `PipelineTrainer`."""

    at_once = 1
    per_batch = 1

    def __init__(
        self, prepared: PreparedSharding, options: RunOptions, device: torch.device | None = None
    ) -> None:
        mesh = prepared.sharded.mesh
        if dist.get_world_size() != prod(mesh):
            raise InputError(
                f"processes: {dist.get_world_size()}; the plan is for "
                f"{show_count(prod(mesh), 'device')}: start {prod(mesh)}"
            )
        problem = prepared.plan.problem
        if options.record is not None and isinstance(problem, Sharding) and problem.placement:
            raise InputError("record: groups of devices do different things; leave it out")
        place = join_mesh(mesh, device)
        self.device = place.device
        self.sharded = ShardedDevice(prepared, place, record=options.record is not None)
        lying, model = self.sharded.parts.lying, prepared.model
        self.whole = state_held(model, (pair for pair in named_tensors(model) if pair[0] in lying))
        learned = [x for x in self.sharded.parts.parameters.values() if x.requires_grad]
        self.optimizers = [options.make_optimizer(learned)] if learned else []

    def run(self, microbatches: Sequence[Tensors]) -> list[float]:
        """Run a batch; return its loss."""
        (batch,) = microbatches
        for optimizer in self.optimizers:
            optimizer.zero_grad()
        self.sharded.step(batch)
        for optimizer in self.optimizers:
            optimizer.step()
        return [self.sharded.loss()]

    def trained(self) -> Trained:
        """Return parameters, buffers and optimizer of this device."""
        parts = self.sharded.parts
        return Trained(parts.parameters, parts.buffers, self.optimizers, parts, self.whole)

    def actions(self) -> int:
        """Return the number of operators and collectives that this device has done."""
        return self.sharded.operators.done

    def save_recording(self, path: Path, zero_s: float, step_s: Sequence[float]) -> None:
        """Write the recording of all devices, in times from `zero_s` on; all of them call this."""
        own = tuple(
            e._replace(start_s=e.start_s - zero_s, end_s=e.end_s - zero_s)
            for e in self.sharded.operators.events
        )
        here = ShardedRank(dist.get_rank(), socket.gethostname(), own)
        everywhere = of_all_ranks(here)
        if dist.get_rank() == 0:
            prepared = self.sharded.prepared
            recording = ShardedRecording(
                prepared.workload.fingerprint,
                plan_hash(prepared.plan),
                prepared.sharded.mesh,
                tuple(step_s),
                tuple(everywhere),
            )
            save_recording(recording, path)

    def give_back(self, model: nn.Module) -> None:
        """Write whole parameters and buffers to the model; all devices of the mesh call this."""
        self.sharded.parts.give_back(model)
