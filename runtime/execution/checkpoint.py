"""Checkpoints of runs: parameters, buffers, optimizer state and states of random numbers.

Tensors have the model's names, so that another plan or layout of the same model can resume from
them. `checkpoint_folder.py` writes and reads the files.
"""

from __future__ import annotations

import copy
import os
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.tensor import DTensor

from ...instances import InputError
from .checkpoint_folder import (
    MANIFEST,
    UNREADABLE,
    Checkpoint,
    checkpoints,
    load_tensors,
    read_checkpoint,
    write_checkpoint,
)
from .sharded.parts import LocalShards


@dataclass(frozen=True)
class ModelState:
    """Names of the whole model's `state_dict`, each with the tensor's name in a checkpoint.

    Tied names share a tensor; `untouched` are tensors of no piece, which the forward pass does not
    read.
    """

    tensors: Mapping[str, str]
    untouched: Mapping[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class Trained:
    """Parameters and buffers of this rank by the model's names, and its optimizers.

    Tensors that pieces share are in it once. Copies of a weight in several stages of a job have a
    name each, and one in a checkpoint, by `whole`. Parts of a sharding, which are no DTensors, are
    those of `shards`.
    """

    parameters: Mapping[str, nn.Parameter]
    buffers: Mapping[str, Tensor]
    optimizers: Sequence[torch.optim.Optimizer]
    shards: LocalShards | None = None
    whole: ModelState = ModelState({})

    def called(self, name: str) -> str:
        """Return the name of a parameter or buffer in a checkpoint."""
        return self.whole.tensors.get(name, name)

    def kept(self, name: str, own: Tensor) -> Tensor | None:
        """Return a tensor, placed as the parameter or buffer `name`, as a checkpoint keeps it."""
        own = own.detach()
        return own if self.shards is None else self.shards.distributed(name, own)

    def learned(self) -> Iterator[tuple[str, nn.Parameter, torch.optim.Optimizer, dict[str, Any]]]:
        """Yield each optimized parameter: name, parameter, optimizer, and parameter group."""
        name_of = {id(x): name for name, x in self.parameters.items()}
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    yield name_of[id(parameter)], parameter, optimizer, group


def state_held(model: nn.Module, named: Iterable[tuple[str, Tensor]]) -> ModelState:
    """Return the state of a model some tensors of which a run has under these names."""
    held = {id(tensor): name for name, tensor in named}
    tensors: dict[str, str] = {}
    untouched: dict[str, Tensor] = {}
    for name, value in model.state_dict(keep_vars=True).items():
        if id(value) in held:
            tensors[name] = held[id(value)]
        elif isinstance(value, Tensor):
            untouched[name] = value
    return ModelState(tensors, untouched)


def save(path: Path, trained: Trained, **manifest: Any) -> None:
    """Write a checkpoint into a folder that is `locked`; all ranks call this together.

    `manifest` has fields of `Manifest`. Raises InputError if it cannot be written; the checkpoints
    before it stay as they are.
    """
    rank = str(dist.get_rank())
    there = _there(trained, {**trained.parameters, **trained.buffers})
    tensors = {trained.called(name): value for name, value in there.items()}
    optimizer: dict[str, dict[str, Any]] = {}
    options: dict[str, Any] = {}
    for name, parameter, owner, group in trained.learned():
        if name in there:
            called, own = trained.called(name), owner.state.get(parameter, {})
            pairs = tuple((key, value) for key, value in group.items() if key != "params")
            options[called] = type(owner).__name__, pairs
            optimizer[called] = {k: _kept(trained, name, k, value) for k, value in own.items()}
    whole = trained.whole
    if rank == "0":
        tensors |= {name: x.detach() for name, x in whole.untouched.items()}
    state = {
        "model": tensors,
        "optimizer": optimizer,
        "options": options,
        "random": {rank: random_state()},
        "buffers": {rank: dict(trained.buffers)},  # of replicas, each has its own
    }
    write_checkpoint(
        path, state, {**whole.tensors, **{name: name for name in whole.untouched}}, **manifest
    )


def restore(found: Checkpoint, trained: Trained, plan: str) -> None:
    """Restore a checkpoint; raises InputError if it lacks a tensor.

    With the same plan and number of ranks all state is restored, also of random numbers; else each
    buffer is that of the first rank that had it, and random numbers begin anew.
    """
    held = found.contents()
    paths = {name: tuple(path) for name, path in held.planner_data.items()}
    ranks = sum(path[0] == "random" for path in paths.values())
    same = found.manifest.plan == plan and ranks == dist.get_world_size()
    own = str(dist.get_rank())
    there = _there(trained, {**trained.parameters, **({} if same else trained.buffers)})
    tensors = {trained.called(name): value for name, value in there.items()}
    learned = {trained.called(n): n for n, *_ in trained.learned() if n in there}
    options: dict[str, Any] = {n: () for n in learned if f"options.{n}" in paths}
    optimizer: dict[str, dict[str, Any]] = {name: {} for name in options}
    for flat, path in paths.items():
        if path[0] == "optimizer" and path[1] in options and len(path) == 3:
            name = learned[path[1]]
            value = _room(held.state_dict_metadata[flat], trained.parameters[name], trained)
            optimizer[path[1]][path[2]] = _kept(trained, name, path[2], value)
    state = {"model": tensors, "optimizer": optimizer, "options": options}
    if same:
        state |= {"random": {own: ()}, "buffers": {own: dict(trained.buffers)}}
    found.load(state, held)
    for name, value in there.items():
        if value is not tensors[trained.called(name)]:  # another copy on this rank
            value.copy_(tensors[trained.called(name)])
    for each in trained.optimizers:
        _restore(each, trained, optimizer, options)
    if same:
        set_random_state(*state["random"][own])


def _there(trained: Trained, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return tensors as a checkpoint keeps them, without those that other ranks have."""
    kept = {name: trained.kept(name, x) for name, x in tensors.items()}
    return {name: value for name, value in kept.items() if value is not None}


def _kept(trained: Trained, name: str, key: str, value: Any) -> Any:
    """Return a value of an optimizer's state for a parameter as a checkpoint keeps it.

    Raises InputError if the parameter is sharded and the value has another shape.
    """
    parameter = trained.parameters[name]
    if not isinstance(value, Tensor) or not value.ndim or not _is_parted(trained, parameter):
        return value
    if value.shape != parameter.shape:
        raise InputError(
            f"checkpoint: the optimizer keeps {key} of shape {tuple(value.shape)} for {name}, "
            "which is not that of its parameter: it cannot be put together; leave it out"
        )
    return trained.kept(name, value)


def _is_parted(trained: Trained, parameter: Tensor) -> bool:
    return trained.shards is not None or isinstance(parameter, DTensor)


def _room(kept: Any, parameter: Tensor, trained: Trained) -> Any:
    """Return an empty tensor to load an optimizer's state into; None if that is no tensor."""
    if not isinstance(kept, TensorStorageMetadata):
        return None
    if len(kept.size) and _is_parted(trained, parameter):
        return torch.empty_like(parameter.detach(), dtype=kept.properties.dtype)
    return torch.empty(kept.size, dtype=kept.properties.dtype)  # optimizers move it


def _restore(
    optimizer: torch.optim.Optimizer,
    trained: Trained,
    state: Mapping[str, Mapping[str, Any]],
    options: Mapping[str, Any],
) -> None:
    """Give an optimizer its state and options, by the names of its parameters.

    Raises InputError if they are those of an optimizer of another kind.
    """
    own_kind = type(optimizer).__name__
    name_of = {id(x): name for name, x in trained.parameters.items()}
    whole = optimizer.state_dict()
    whole["state"] = {}
    for group, described in zip(optimizer.param_groups, whole["param_groups"], strict=True):
        for parameter, number in zip(group["params"], described["params"], strict=True):
            name = name_of[id(parameter)]
            called = trained.called(name)
            kind, pairs = options.get(called, (own_kind, ()))
            if kind != own_kind:
                raise InputError(
                    f"checkpoint: it has the state of {kind} for {name}, and is of another model "
                    f"or optimizer; go on with {kind}"
                )
            described.update(pairs)
            own = {
                key: x.to_local() if isinstance(x, DTensor) and trained.shards else x
                for key, x in state.get(called, {}).items()
            }
            whole["state"][number] = own if name == called else copy.deepcopy(own)
    optimizer.load_state_dict(whole)


def random_state() -> tuple[Any, ...]:
    """Return the states of random numbers: of torch, of Python, and of this rank's GPU, if any."""
    cards = [torch.cuda.get_rng_state()] if torch.cuda.is_initialized() else []
    return torch.get_rng_state(), random.getstate(), cards


def set_random_state(of_torch: Tensor, of_python: Any, cards: list[Tensor]) -> None:
    """Set the states of random numbers; `cards` may be of all GPUs that a host had."""
    torch.set_rng_state(of_torch)
    random.setstate(of_python)
    if cards and torch.cuda.is_initialized():
        torch.cuda.set_rng_state(cards[torch.cuda.current_device() % len(cards)])


def merge_checkpoint(folder: str | Path) -> dict[str, Tensor]:
    """Return the model's `state_dict` from the checkpoint files of all ranks.

    Parameters
    ----------
    folder
        That of ``--checkpoint``, for its newest one; or one of the checkpoints in it.

    Returns
    -------
    dict
        The tensors on the CPU, under the model's names: ``model.load_state_dict`` takes it.
        Tied weights share their memory; of replicas it is the first one's copy.

    Raises
    ------
    InputError
        If there is no checkpoint, or a file of it is missing or damaged.

    Examples
    --------
    >>> import stagecut
    >>> stagecut.merge_checkpoint("kept")
    Traceback (most recent call last):
    stagecut.instances.common.errors.InputError: kept: no such folder; check the path
    """
    path = Path(folder)
    if not os.path.isdir(path):  # unlike `Path`, it takes names that no folder could have
        raise InputError(f"{str(folder)[:200]}: no such folder; check the path")
    if not (path / MANIFEST).exists() and not path.name.startswith("step-"):
        found = checkpoints(path)
        if not found:
            raise InputError(f"{path}: it holds no checkpoint; name the folder that a run wrote")
        path = found[-1]
    checkpoint = read_checkpoint(path)
    held, names = checkpoint.contents(), checkpoint.manifest.state_dict
    kept = {name: held.state_dict_metadata.get(f"model.{name}") for name in names.values()}
    whole = {
        name: torch.empty(tensor.size, dtype=tensor.properties.dtype)
        if isinstance(tensor, TensorStorageMetadata) else torch.empty(0)
        for name, tensor in kept.items()
    }  # fmt: skip
    checkpoint.load({"model": whole}, held, alone=True)
    return {name: whole[tensor] for name, tensor in names.items()}


def load_weights(model: nn.Module, file: Path) -> None:
    """Give a model the weights of a file that holds its `state_dict`.

    Raises InputError if the file is none of ``torch.save``, or its names or shapes are not the
    model's.
    """
    try:
        state = load_tensors(file)
    except FileNotFoundError:
        raise InputError(f"{file}: no such file") from None
    except UNREADABLE:
        raise InputError(
            f"{str(file)[:200]}: it is no state_dict that torch.save wrote; let the "
            "model's factory load it"
        ) from None
    if not isinstance(state, Mapping) or not all(isinstance(name, str) for name in state):
        raise InputError(f"{file}: it is no state_dict; write torch.save(model.state_dict(), …)")
    try:
        model.load_state_dict(state)
    except RuntimeError as error:
        lines = [line.strip() for line in str(error).splitlines()]
        raise InputError(
            f"{file}: not this model's weights: {lines[min(1, len(lines) - 1)]}"
        ) from None
