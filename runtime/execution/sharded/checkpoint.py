"""Checkpoints of shardings: whole tensors, each written by one process, for any other sharding."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ....instances import InputError
from ..checkpoint import ModelState, Trained, state_held
from .collectives import part_of
from .device import ShardedDevice


def model_state(device: ShardedDevice) -> ModelState:
    """Return where a sharding has the tensors of its model's `state_dict`."""
    model = device.prepared.model
    held = {
        id(value): name
        for name, value in (*model.named_parameters(), *model.named_buffers())
        if name in device.kept
    }
    return state_held(model, held)


def own_parts(device: ShardedDevice, optimizer: torch.optim.Optimizer | None) -> Trained:
    """Return this device's parts, to be given what a checkpoint has."""

    def part(name: str, whole: Tensor) -> Tensor:
        return part_of(whole, device.kept[name][1], device.place)

    buffers = {
        name: device.resting[held]
        for name, held in device.kept.items()
        if name not in device.parameters
    }
    optimizers = [] if optimizer is None else [optimizer]
    return Trained(device.parameters, buffers, optimizers, part)


def whole_tensors(device: ShardedDevice, optimizer: torch.optim.Optimizer | None) -> Trained:
    """Return the tensors that this process writes, put together; all processes call this.

    Each tensor, with the state that the optimizer keeps for it, is written by one process: in turn,
    so that each writes about as much.

    Raises
    ------
    InputError
        If the optimizer keeps tensors of another shape than its parameters.
    """
    rank, size = dist.get_rank(), dist.get_world_size()
    parameters: dict[str, nn.Parameter] = {}
    buffers: dict[str, Tensor] = {}
    groups: list[dict[str, Any]] = []
    states: list[dict[str, Any]] = []
    for k, name in enumerate(device.kept):
        whole, own = device.whole(name), device.parameters.get(name)
        state = {} if optimizer is None or own is None else dict(_states(device, name, optimizer))
        if k % size != rank:
            continue
        if own is None:
            buffers[name] = whole
            continue
        parameters[name] = nn.Parameter(whole, requires_grad=own.requires_grad)
        for group in () if optimizer is None else optimizer.param_groups:
            if any(own is one for one in group["params"]):
                groups.append({**group, "params": [parameters[name]]})
                states.append(state)
    if not groups:
        return Trained(parameters, buffers, [])
    kept = torch.optim.Optimizer(groups, {})
    for group, state in zip(kept.param_groups, states, strict=True):
        kept.state[group["params"][0]] = state
    return Trained(parameters, buffers, [kept])


def _states(
    device: ShardedDevice, name: str, optimizer: torch.optim.Optimizer
) -> Iterator[tuple[str, Any]]:
    """Yield what the optimizer keeps for a parameter, put together."""
    own = device.parameters[name]
    for key, value in optimizer.state.get(own, {}).items():
        if not isinstance(value, Tensor) or value.ndim == 0:
            yield key, value
        elif value.shape == own.shape:
            yield key, device.together(value, device.kept[name][1])
        else:
            raise InputError(
                f"checkpoint: the optimizer keeps {key} of shape {tuple(value.shape)} for {name}, "
                "which is not that of its parameter: it cannot be put together; leave it out"
            )
