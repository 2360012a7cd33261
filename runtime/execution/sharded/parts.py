"""Shards of a model's parameters and buffers on one device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Replicate, Shard

from ....instances import Role
from ....instances.model.tensor_program import COPIED, FIRST, Property
from ..stage import named_tensors
from .collectives import MeshPosition, is_elsewhere, part_of, step
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

    def part(self, name: str, whole: Tensor) -> Tensor:
        """Return this device's part of a tensor with the properties of a parameter or buffer."""
        return part_of(whole, self.lying[name], self.place)

    def distributed(self, name: str, part: Tensor) -> Tensor | None:
        """Return the DTensor of such a part; None if the tensor is on another group."""
        mesh, how = self.place.devices, self.lying[name]
        assert mesh is not None
        if is_elsewhere(how, self.place):
            return None
        if how[0] <= FIRST:
            if not how[1:]:
                return part
            mesh, how = mesh[tuple(str(axis) for axis in range(1, len(how)))], how[1:]
        lying = [Shard(one) if one >= 0 else Replicate() for one in how]
        made: Tensor = DTensor.from_local(part, mesh, lying, run_check=False)
        return made

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
