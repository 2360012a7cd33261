"""Checkpoints: parameters, optimizer state, buffers, random numbers, and the position in the data.

A checkpoint is a folder ``step-00000010`` with a file per rank and, written last, a manifest. All
of it is made under another name, brought to the disk, and renamed: it is there whole or not at all.
Tensors are kept under the model's names, so that a run can go on with another plan of the same
model. The folder must be one that all ranks see. The two newest checkpoints are kept.
"""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ...instances import InputError
from ...instances.formats.writing import why_not
from ..measure.group import of_all_ranks
from .checkpoint_files import FORMAT, MANIFEST, Checkpoint, Position, checkpoints, digest

KEPT = 2


@dataclass(frozen=True)
class Trained:
    """Parameters, buffers and optimizers of this rank, by the model's names.

    What pieces share is in it once. `part` returns this rank's part of a whole tensor, by the name
    of the parameter or buffer that it has the shape of; None if that is all of it.
    """

    parameters: Mapping[str, nn.Parameter]
    buffers: Mapping[str, Tensor]
    optimizers: Sequence[torch.optim.Optimizer]
    part: Callable[[str, Tensor], Tensor] | None = None


@dataclass(frozen=True)
class ModelState:
    """The `state_dict` of the whole model: for each name what a checkpoint calls its tensor.

    Tied names share a tensor; `untouched` are those that no piece has, which the forward pass does
    not read.
    """

    tensors: Mapping[str, str]
    untouched: Mapping[str, Tensor]


def state_held(model: nn.Module, held: Mapping[int, str]) -> ModelState:
    """Return the state of a model, its tensors named by their `id`."""
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
    position: Position,
    trained: Trained,
    whole: ModelState,
    *,
    plan: str,
    model: str,
) -> None:
    """Write a checkpoint into a folder that is `locked`; all ranks call this together.

    `plan` and `model` are hashes. What cannot be written is an `InputError`, and the checkpoints
    before it stay as they are.
    """
    final = folder / f"step-{position.step:08}"
    unfinished = folder / f".{final.name}.unfinished"
    rank = dist.get_rank()
    state = _state_of(trained)
    if rank == 0:
        state["untouched"] = {name: x.detach() for name, x in whole.untouched.items()}
    with _told(final):
        if rank == 0:
            unfinished.mkdir(parents=True)
    dist.barrier()
    file = unfinished / f"rank-{rank}.pt"
    with _told(final), file.open("wb") as out:
        torch.save(state, out)
        out.flush()
        os.fsync(out.fileno())
    mine = (file.name, digest(file), sorted([*trained.parameters, *trained.buffers]))
    everyone = of_all_ranks(mine)
    if rank == 0:
        where: dict[str, str] = {}
        for name, _, held in everyone:
            where = dict.fromkeys(held, name) | where
        manifest = {
            "format": FORMAT,
            "step": position.step,
            "microbatches": position.microbatches,
            "plan": plan,
            "model": model,
            "files": {name: sha256 for name, sha256, _ in everyone},
            "tensors": where,
            "state_dict": dict(whole.tensors),
        }
        with _told(final):
            with (unfinished / MANIFEST).open("w", encoding="utf-8") as out:
                json.dump(manifest, out, indent=1)
                out.flush()
                os.fsync(out.fileno())
            _to_disk(unfinished)
            if not (final / MANIFEST).is_file():  # what lost its manifest is no checkpoint any more
                shutil.rmtree(final, ignore_errors=True)
            unfinished.rename(final)
            _to_disk(folder)
            for old in checkpoints(folder)[:-KEPT]:
                shutil.rmtree(old.rename(folder / f".{old.name}.unfinished"))  # at once for readers
    dist.barrier()


def remove_unfinished(folder: Path) -> None:
    """Remove unfinished checkpoints of ended runs; the folder must be `locked`."""
    for path in folder.glob(".step-*.unfinished"):
        shutil.rmtree(path, ignore_errors=True)


@contextmanager
def _told(path: Path) -> Iterator[None]:
    """Return the reason for an unwritten checkpoint in one line."""
    try:
        yield
    except (OSError, RuntimeError) as error:
        cause = error if isinstance(error, OSError) else error.__context__
        if not isinstance(cause, OSError):
            raise
        raise InputError(
            f"{path}: not written: {why_not(cause)}; the checkpoints before it are whole"
        ) from None


def restore(found: Checkpoint, trained: Trained, plan: str) -> None:
    """Take a checkpoint over; a missing tensor is an `InputError`.

    With the plan that it was written with, everything is as it was, random numbers too; with
    another plan of the same model, each tensor is that of the first rank that had it.
    """
    same = found.plan == plan and len(found.files) == dist.get_world_size()
    own = f"rank-{dist.get_rank()}.pt"
    loaded: dict[str, dict[str, Any]] = {}

    def read(file: str) -> dict[str, Any]:
        if file not in loaded:
            loaded[file] = found.load(file)
        return loaded[file]

    def state(name: str) -> dict[str, Any]:
        if same and name in read(own)["tensors"]:
            return read(own)
        file = found.tensors.get(name)
        if file is None or name not in read(file)["tensors"]:
            raise InputError(f"{found.path}: {name} is not in it; it is of another model")
        return read(file)

    with torch.no_grad():
        for name, tensor in [*trained.parameters.items(), *trained.buffers.items()]:
            tensor.copy_(_part(trained, name, state(name)["tensors"][name]))
    for optimizer in trained.optimizers:
        _restore(optimizer, trained, state)
    if same:
        _set_random(read(own)["random"])


def _part(trained: Trained, name: str, whole: Tensor) -> Tensor:
    return whole if trained.part is None else trained.part(name, whole)


def _state_of(trained: Trained) -> dict[str, Any]:
    name_of = {id(x): name for name, x in trained.parameters.items()}
    kept: dict[str, Any] = {}
    for optimizer in trained.optimizers:
        for group in optimizer.param_groups:
            options = {key: value for key, value in group.items() if key != "params"}
            for parameter in group["params"]:
                state = optimizer.state.get(parameter, {})
                kept[name_of[id(parameter)]] = {"options": options, "state": dict(state)}
    tensors = {**trained.parameters, **trained.buffers}
    return {
        "tensors": {name: tensor.detach() for name, tensor in tensors.items()},
        "optimizer": kept,
        "random": _random(),
    }


def _restore(optimizer: torch.optim.Optimizer, trained: Trained, state: Any) -> None:
    name_of = {id(x): name for name, x in trained.parameters.items()}
    whole = optimizer.state_dict()
    whole["state"] = {}
    for group, described in zip(optimizer.param_groups, whole["param_groups"], strict=True):
        for parameter, number in zip(group["params"], described["params"], strict=True):
            name = name_of[id(parameter)]
            kept = state(name)["optimizer"].get(name)
            if kept is not None:
                described.update(kept["options"])
                shape = state(name)["tensors"][name].shape
                whole["state"][number] = {
                    key: _part(trained, name, value)
                    if isinstance(value, Tensor) and value.shape == shape
                    else value
                    for key, value in kept["state"].items()
                }
    optimizer.load_state_dict(whole)


def _random() -> dict[str, Any]:
    cards = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
    return {"torch": torch.get_rng_state(), "python": random.getstate(), "cuda": cards}


def _set_random(state: dict[str, Any]) -> None:
    torch.set_rng_state(state["torch"])
    version, numbers, gauss = state["python"]
    random.setstate((version, tuple(numbers), gauss))
    if state["cuda"]:
        torch.cuda.set_rng_state_all(state["cuda"])


def _to_disk(folder: Path) -> None:
    """Bring the names in a folder to the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
