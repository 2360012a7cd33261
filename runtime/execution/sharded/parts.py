"""Shards of a model's parameters and buffers on one device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ....instances import Role
from ....instances.model.tensor_program import COPIED, FIRST, Property
from ..checkpoint import ModelState, Trained, named_tensors
from .collectives import MeshPosition, distributed_as, part_of, step
from .program import PlacedTensor, ShardedProgram


@dataclass(frozen=True, eq=False)
class LocalShards:
    """Parts of parameters and buffers of one device, by the model's names, with properties."""

    parameters: Mapping[str, nn.Parameter]
    buffers: Mapping[str, Tensor]
    lying: Mapping[str, Property]
    place: MeshPosition

    @property
    def tensors(self) -> dict[str, Tensor]:
        """Parameters and buffers."""
        return {**self.parameters, **self.buffers}

    def whole(self, name: str) -> Tensor:
        """Return a whole parameter or buffer; all devices of the mesh call this."""
        how, part = self.lying[name], self.tensors[name].detach()
        for axis in reversed(range(len(how))):
            if how[axis] >= 0 or how[axis] <= FIRST:
                part, _ = step(part, how[axis], COPIED, axis, self.place)
        return part

    def give_back(self, model: nn.Module) -> None:
        """Write whole parameters and buffers to the model; all devices of the mesh call this."""
        with torch.no_grad():
            for name, value in named_tensors(model):
                if name in self.lying:
                    value.copy_(self.whole(name))


def resting_parts(
    sharded: ShardedProgram, module: nn.Module, place: MeshPosition
) -> tuple[dict[str, Property], dict[PlacedTensor, Tensor]]:
    """Return the properties of parameters and buffers between steps, and parts that never change.

    Parts that never change are constants, and buffers as operators read them that do not have them
    with the properties between steps.
    """
    constants = sharded.graph.constants
    lying = sharded.resting() | dict.fromkeys(sharded.graph.counted, (COPIED,) * len(sharded.mesh))
    fixed: dict[PlacedTensor, Tensor] = {}
    for operator, held in sharded.sources(Role.PARAMETER):
        name = str(operator.name)
        if name in constants or held[1] != lying[name]:
            whole = constants[name] if name in constants else module.get_buffer(name)
            fixed[held] = part_of(whole.detach(), held[1], place).clone()
    return {name: how for name, how in lying.items() if name not in constants}, fixed


def parts_of(model: nn.Module, lying: Mapping[str, Property], place: MeshPosition) -> LocalShards:
    """Return this device's parts of the parameters and buffers in `lying`, by their properties."""
    parameters: dict[str, nn.Parameter] = {}
    for name, value in model.named_parameters():
        if name in lying:
            part = part_of(value.detach(), lying[name], place).clone()
            parameters[name] = nn.Parameter(part, requires_grad=value.requires_grad)
    buffers = {
        name: part_of(value.detach(), lying[name], place).clone()
        for name, value in model.named_buffers()
        if name in lying
    }
    return LocalShards(parameters, buffers, lying, place)


def own_parts(
    parts: LocalShards, optimizers: Sequence[torch.optim.Optimizer], whole: ModelState
) -> Trained:
    """Return this device's shards for checkpoints, which keep them as DTensors."""

    def part(name: str, whole: Tensor) -> Tensor:
        return part_of(whole, parts.lying[name], parts.place)

    def distributed(name: str, own: Tensor) -> Tensor | None:
        return distributed_as(own, parts.lying[name], parts.place)

    return Trained(parts.parameters, parts.buffers, optimizers, part, distributed, whole)
