"""Shards of a model's parameters and buffers on one device; whole tensors in checkpoints."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ....instances import InputError
from ....instances.model.sharding.program import COPIED, FIRST, Property
from ..checkpoint import ModelState, Trained, state_held
from .collectives import Place, part_of, step


@dataclass(frozen=True, eq=False)
class LocalShards:
    """This device's parts of parameters and buffers, and how each lies, by the model's names."""

    parameters: Mapping[str, nn.Parameter]
    buffers: Mapping[str, Tensor]
    lying: Mapping[str, Property]
    place: Place

    @property
    def tensors(self) -> dict[str, Tensor]:
        """Parameters and buffers."""
        return {**self.parameters, **self.buffers}

    def whole(self, name: str) -> Tensor:
        """Return a parameter or buffer put together; all devices of the mesh call this."""
        return self.together(name, self.tensors[name].detach())

    def together(self, name: str, part: Tensor) -> Tensor:
        """Return a tensor of which each device has a part, as it has of a parameter or buffer."""
        how = self.lying[name]
        for axis in reversed(range(len(how))):
            if how[axis] >= 0 or how[axis] <= FIRST:
                part, _ = step(part, how[axis], COPIED, axis, self.place)
        return part

    def give_back(self, model: nn.Module) -> None:
        """Write all of it, put together, into the model; all devices of the mesh call this."""
        with torch.no_grad():
            for name, value in (*model.named_parameters(), *model.named_buffers()):
                if name in self.lying:
                    value.copy_(self.whole(name))


def parts_of(model: nn.Module, lying: Mapping[str, Property], place: Place) -> LocalShards:
    """Return this device's parts of those parameters and buffers of a model that `lying` names."""
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


def model_state(model: nn.Module, parts: LocalShards) -> ModelState:
    """Return where a sharding has the tensors of its model's `state_dict`."""
    held = {
        id(value): name
        for name, value in (*model.named_parameters(), *model.named_buffers())
        if name in parts.lying
    }
    return state_held(model, held)


def own_parts(parts: LocalShards, optimizers: Sequence[torch.optim.Optimizer]) -> Trained:
    """Return this device's shards, to be filled from a checkpoint."""

    def part(name: str, whole: Tensor) -> Tensor:
        return part_of(whole, parts.lying[name], parts.place)

    return Trained(parts.parameters, parts.buffers, optimizers, part)


def whole_tensors(parts: LocalShards, optimizers: Sequence[torch.optim.Optimizer]) -> Trained:
    """Return the tensors that this process writes, put together; all of its mesh call this.

    Each tensor, with the state that the optimizer keeps for it, is written by one process: in turn,
    so that each writes about as much. State of another shape than its parameter is refused.
    """
    place = parts.place
    number, size = int(np.ravel_multi_index(place.at, place.mesh)), prod(place.mesh)
    of = {id(x): (o, g) for o in optimizers for g in o.param_groups for x in g["params"]}
    parameters: dict[str, nn.Parameter] = {}
    buffers: dict[str, Tensor] = {}
    groups: list[dict[str, Any]] = []
    states: list[dict[str, Any]] = []
    for k, (name, part) in enumerate(parts.tensors.items()):
        whole = parts.whole(name)
        optimizer, group = of.get(id(part), (None, {}))
        state = (
            {} if optimizer is None else dict(_states(parts, name, optimizer.state.get(part, {})))
        )
        if k % size != number:
            continue
        if name in parts.buffers:
            buffers[name] = whole
            continue
        parameters[name] = nn.Parameter(whole, requires_grad=part.requires_grad)
        if optimizer is not None:
            groups.append({**group, "params": [parameters[name]]})
            states.append(state)
    if not groups:
        return Trained(parameters, buffers, [])
    kept = torch.optim.Optimizer(groups, {})
    for group, state in zip(kept.param_groups, states, strict=True):
        kept.state[group["params"][0]] = state
    return Trained(parameters, buffers, [kept])


def _states(parts: LocalShards, name: str, kept: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the optimizer's state of a parameter as whole tensors."""
    own = parts.parameters[name]
    for key, value in kept.items():
        if not isinstance(value, Tensor) or value.ndim == 0:
            yield key, value
        elif value.shape == own.shape:
            yield key, parts.together(name, value)
        else:
            raise InputError(
                f"checkpoint: the optimizer keeps {key} of shape {tuple(value.shape)} for {name}, "
                "which is not that of its parameter: it cannot be put together; leave it out"
            )
