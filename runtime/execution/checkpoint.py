"""Checkpoints of plans' runs: parameters, buffers, optimizer state and random numbers.

Tensors are kept under the model's names, so that a run can go on with another plan of the same
model. The two newest checkpoints are kept; `checkpoint_folder.py` writes and reads them.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.tensor import DTensor

from ...instances import InputError
from .checkpoint_folder import Checkpoint, keep_newest, write_checkpoint

#: Number of checkpoints that are kept, the newest.
KEPT = 2


@dataclass(frozen=True)
class Trained:
    """Parameters, buffers and optimizers of this rank, by the model's names.

    What pieces share is in it once. Where this rank has parts of tensors, `part` returns its part
    of a whole one, by the name of the parameter or buffer that it has the shape of, and
    `distributed` the DTensor of which it has a part; None if others have it.
    """

    parameters: Mapping[str, nn.Parameter]
    buffers: Mapping[str, Tensor]
    optimizers: Sequence[torch.optim.Optimizer]
    part: Callable[[str, Tensor], Tensor] | None = None
    distributed: Callable[[str, Tensor], Tensor | None] | None = None

    def kept(self, name: str, own: Tensor) -> Tensor | None:
        """Return what a checkpoint has of a tensor that lies as a parameter or buffer does."""
        own = own.detach()
        return own if self.distributed is None else self.distributed(name, own)

    def learned(self) -> Iterator[tuple[str, nn.Parameter, torch.optim.Optimizer, dict[str, Any]]]:
        """Yield what is optimized with its name, its optimizer, and its group there."""
        name_of = {id(x): name for name, x in self.parameters.items()}
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    yield name_of[id(parameter)], parameter, optimizer, group


@dataclass(frozen=True)
class ModelState:
    """The `state_dict` of the whole model: for each name what a checkpoint calls its tensor.

    Tied names share a tensor; `untouched` are those that no piece has, which the forward pass does
    not read.
    """

    tensors: Mapping[str, str]
    untouched: Mapping[str, Tensor]


def named_tensors(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield parameters and buffers with their names."""
    yield from module.named_parameters()
    yield from module.named_buffers()


def state_held(model: nn.Module, named: Iterable[tuple[str, Tensor]]) -> ModelState:
    """Return the state of a model of which tensors are held by these names."""
    held = {id(tensor): name for name, tensor in named}
    tensors: dict[str, str] = {}
    untouched: dict[str, Tensor] = {}
    for name, value in model.state_dict(keep_vars=True).items():
        if id(value) in held:
            tensors[name] = held[id(value)]
        elif isinstance(value, Tensor):
            untouched[name] = value
    return ModelState(tensors, untouched)


def save(
    folder: Path,
    step: int,
    trained: Trained,
    whole: ModelState,
    *,
    microbatches: int,
    plan: str,
    model: str,
) -> None:
    """Write a checkpoint into a folder that is `locked`; all ranks call this together.

    For `microbatches`, `plan` and `model` see `Manifest`. What cannot be written is an
    `InputError`, and the checkpoints before it stay as they are.
    """
    rank = dist.get_rank()
    tensors = _there(trained, {**trained.parameters, **trained.buffers})
    optimizer: dict[str, dict[str, Any]] = {}
    options: dict[str, Any] = {}
    for name, parameter, owner, group in trained.learned():
        if name in tensors:
            options[name] = tuple((key, value) for key, value in group.items() if key != "params")
            own = owner.state.get(parameter, {})
            optimizer[name] = {k: _kept(trained, name, k, value) for k, value in own.items()}
    if rank == 0:
        tensors |= {name: x.detach() for name, x in whole.untouched.items()}
    state = {
        "model": tensors,
        "optimizer": optimizer,
        "options": options,
        "random": {str(rank): _random()},
        "buffers": {str(rank): dict(trained.buffers)},  # of replicas, each has its own
    }
    state_dict = {**whole.tensors, **{name: name for name in whole.untouched}}
    final = folder / f"step-{step:08}"
    write_checkpoint(final, state, state_dict, microbatches=microbatches, plan=plan, model=model)
    keep_newest(folder, KEPT)


def restore(found: Checkpoint, trained: Trained, plan: str) -> None:
    """Take a checkpoint over; a missing tensor is an `InputError`.

    With the plan that it was written with, everything is as it was, random numbers too; with
    another plan of the same model, each buffer is that of the first rank that had it.
    """
    held = found.contents()
    paths = {name: tuple(path) for name, path in held.planner_data.items()}
    ranks = sum(path[0] == "random" for path in paths.values())
    same = found.manifest.plan == plan and ranks == dist.get_world_size()
    own = str(dist.get_rank())
    tensors = _there(trained, {**trained.parameters, **({} if same else trained.buffers)})
    learned = {name for name, *_ in trained.learned()} & tensors.keys()
    options: dict[str, Any] = {n: () for n in learned if f"options.{n}" in paths}
    optimizer: dict[str, dict[str, Any]] = {name: {} for name in options}
    for flat, path in paths.items():
        if path[0] == "optimizer" and path[1] in options and len(path) == 3:
            value = _room(held.state_dict_metadata[flat], trained.parameters[path[1]], trained)
            optimizer[path[1]][path[2]] = _kept(trained, path[1], path[2], value)
    state = {"model": tensors, "optimizer": optimizer, "options": options}
    if same:
        state |= {"random": {own: ()}, "buffers": {own: dict(trained.buffers)}}
    found.load(state, held)
    for each in trained.optimizers:
        _restore(each, trained, optimizer, options)
    if same:
        _set_random(*state["random"][own])


def _there(trained: Trained, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return what a checkpoint has of tensors, but those that other ranks have."""
    kept = {name: trained.kept(name, x) for name, x in tensors.items()}
    return {name: value for name, value in kept.items() if value is not None}


def _kept(trained: Trained, name: str, key: str, value: Any) -> Any:
    """Return what a checkpoint has of an optimizer's state for a parameter.

    Raises InputError if it cannot be put together from parts, as it has another shape.
    """
    if trained.distributed is None or not isinstance(value, Tensor) or not value.ndim:
        return value
    if value.shape != trained.parameters[name].shape:
        raise InputError(
            f"checkpoint: the optimizer keeps {key} of shape {tuple(value.shape)} for {name}, "
            "which is not that of its parameter: it cannot be put together; leave it out"
        )
    return trained.kept(name, value)


def _room(kept: Any, parameter: Tensor, trained: Trained) -> Any:
    """Return a tensor of this rank for an optimizer's state; None for what is no tensor."""
    if not isinstance(kept, TensorStorageMetadata):
        return None
    parted = trained.distributed is not None and len(kept.size)
    shape = parameter.shape if parted else kept.size
    device = parameter.device if parted else "cpu"  # optimizers move it, but their counts of steps
    return torch.empty(shape, dtype=kept.properties.dtype, device=device)


def _restore(
    optimizer: torch.optim.Optimizer,
    trained: Trained,
    state: Mapping[str, Mapping[str, Any]],
    options: Mapping[str, Any],
) -> None:
    """Give an optimizer its state and options, by the names of its parameters."""
    name_of = {id(x): name for name, x in trained.parameters.items()}
    whole = optimizer.state_dict()
    whole["state"] = {}
    for group, described in zip(optimizer.param_groups, whole["param_groups"], strict=True):
        for parameter, number in zip(group["params"], described["params"], strict=True):
            name = name_of[id(parameter)]
            described.update(options.get(name, ()))
            whole["state"][number] = {
                key: value.to_local() if isinstance(value, DTensor) else value
                for key, value in state.get(name, {}).items()
            }
    optimizer.load_state_dict(whole)


def _random() -> tuple[Any, ...]:
    """Return the states of random numbers: of torch, of Python, and of each GPU."""
    cards = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
    return torch.get_rng_state(), random.getstate(), cards


def _set_random(of_torch: Tensor, of_python: Any, cards: list[Tensor]) -> None:
    torch.set_rng_state(of_torch)
    random.setstate(of_python)
    if cards:
        torch.cuda.set_rng_state_all(cards)
