"""Checkpoints: parameters, optimizer state, buffers, random numbers, and the position in the data.

A checkpoint is a folder ``step-00000010`` with a file per rank and, written last, a manifest. All
of it is made under another name, brought to the disk, and renamed: it is there whole or not at all.
Tensors are kept under the model's names, so that a run can go on with another plan of the same
model. The folder must be one that all ranks see. The two newest checkpoints are kept.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import random
import shutil
import struct
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import msgspec
import torch
import torch.distributed as dist
from torch import Tensor, nn

from ...instances import InputError
from ...instances.formats.source import Record
from ...instances.formats.writing import why_not
from ..measure.group import of_all_ranks

#: What ``torch.load`` raises of files that are damaged: whatever its own code then meets.
UNREADABLE = (
    OSError, RuntimeError, EOFError, ValueError, UnpicklingError, LookupError, TypeError,
    AttributeError, AssertionError, ArithmeticError, MemoryError, struct.error, zipfile.BadZipFile,
)  # fmt: skip

MANIFEST = "manifest.json"
FORMAT = 3
#: How many are kept, the newest.
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


@dataclass(frozen=True)
class Position:
    """Position in training: steps done, and microbatches taken from the data."""

    step: int
    microbatches: int


def checkpoints(folder: Path) -> list[Path]:
    """Return the checkpoints in a folder, the newest last; a damaged name is an InputError."""
    found = {}
    for path in folder.glob("step-*"):
        number = path.name.removeprefix("step-")
        if not (path / MANIFEST).is_file():
            continue
        if not (number.isascii() and number.isdecimal()):
            raise InputError(f"{path}: step-00000010 is what a checkpoint is called; rename it")
        found[int(number)] = path
    return [found[step] for step in sorted(found)]


class _Format(msgspec.Struct):
    """Fields common to all versions of the manifest."""

    format: int


class Manifest(Record):
    """Manifest of a checkpoint, with the SHA-256 of each file."""

    format: int
    step: int
    microbatches: int
    plan: str
    model: str
    files: dict[str, str]
    tensors: dict[str, str]
    state_dict: dict[str, str]


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint on the disk, with hashes of the plan and model that it was written with.

    `files` are what the ranks wrote, with their SHA-256; `tensors` has the first file that has a
    tensor; for `state_dict` see `ModelState`.
    """

    path: Path
    position: Position
    plan: str
    model: str
    files: Mapping[str, str]
    tensors: Mapping[str, str]
    state_dict: Mapping[str, str]

    def load(self, file: str) -> dict[str, Any]:
        """Return the content of a rank's file; one that was changed is an InputError."""
        try:
            if digest(self.path / file) != self.files[file]:
                raise ValueError
            state = load_tensors(self.path / file)
        except UNREADABLE:
            raise InputError(f"{self.path / file}: {_damaged(self.path)}") from None
        if not isinstance(state, dict) or not isinstance(state.get("tensors"), dict):
            raise InputError(f"{self.path / file}: {_damaged(self.path)}")
        return state


def digest(file: Path) -> str:
    """Return the SHA-256 of a file."""
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def load_tensors(file: Path, *, mmap: bool = False) -> Any:
    """Return the content of a ``torch.save`` file as data, without running code in it.

    Raises one of UNREADABLE if it is damaged; or packed, as a small file could then have any size
    in memory.
    """
    if file.exists() and not file.is_file():
        raise OSError(f"{file} is no file")
    if zipfile.is_zipfile(file):
        with zipfile.ZipFile(file) as archive:
            if sum(part.file_size for part in archive.infolist()) > file.stat().st_size:
                raise ValueError
    return torch.load(file, map_location="cpu", weights_only=True, mmap=mmap)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Make a folder, and keep other runs from writing into it, where its file system has locks.

    Raises InputError if it cannot be made, or another run writes into it.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / ".lock").open("a")
    except OSError as error:
        raise InputError(f"{folder}: no checkpoints can be kept there: {why_not(error)}") from None
    with lock as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InputError(
                f"{folder}: another run writes its checkpoints there; end it, or give another"
            ) from None
        except OSError:  # there are no locks
            pass
        yield


@contextmanager
def sole_writer(folder: Path | None, *, resume: bool) -> Iterator[None]:
    """Lock a run's folder of checkpoints on rank 0, if it has one; all ranks enter together."""
    with ExitStack() as held:
        if folder is not None:
            if dist.get_rank() == 0 and (folder.is_dir() or not resume):
                held.enter_context(locked(folder))
            dist.barrier()
        yield


def none_before(folder: Path, found: Sequence[Path]) -> None:
    """Raise InputError if a folder for the checkpoints of a new run holds some."""
    if found:
        raise InputError(
            f"{folder}: it holds checkpoints of a run; add --resume, or name another folder"
        )


def newest(folder: Path, model: str) -> Checkpoint:
    """Return the newest checkpoint in a folder.

    Raises InputError if there is none, or it is damaged or of another model than that with the
    hash `model`.
    """
    found = checkpoints(folder)
    if not found:
        raise InputError(f"{folder}: it holds no checkpoint; leave --resume out to begin")
    checkpoint = read_checkpoint(found[-1])
    if checkpoint.model != model:
        raise InputError(f"{found[-1]}: it is of another model; give the model that was trained")
    return checkpoint


def read_checkpoint(path: Path) -> Checkpoint:
    """Return a checkpoint after checking that it is complete.

    Raises InputError if it is damaged, or of another version of Stagecut.
    """
    try:
        content = (path / MANIFEST).read_bytes()
        known = msgspec.json.decode(content, type=_Format).format
        if known != FORMAT:
            raise InputError(f"{path}: its format is {known}; {FORMAT} is known")
        manifest = msgspec.json.decode(content, type=Manifest)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        raise InputError(f"{path / MANIFEST}: {_damaged(path)}") from None
    files = {f"rank-{rank}.pt" for rank in range(len(manifest.files))}
    if (
        min(manifest.step, manifest.microbatches) < 0
        or not files
        or files != manifest.files.keys()
        or not files.issuperset(manifest.tensors.values())
        or not manifest.tensors.keys() >= set(manifest.state_dict.values())
    ):
        raise InputError(f"{path / MANIFEST}: {_damaged(path)}")
    for name in manifest.files:
        if not (path / name).is_file():
            raise InputError(f"{path / name}: missing or {_damaged(path)}")
    return Checkpoint(
        path,
        Position(manifest.step, manifest.microbatches),
        manifest.plan,
        manifest.model,
        manifest.files,
        manifest.tensors,
        manifest.state_dict,
    )


def _damaged(path: Path) -> str:
    if not path.is_dir():
        return "gone: a run that keeps its checkpoints there has removed it; begin again"
    return f"damaged; delete {path} to go on from the one before"
