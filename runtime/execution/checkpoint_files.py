"""Checkpoint files: manifests, completeness and checksums."""

from __future__ import annotations

import fcntl
import hashlib
import struct
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import msgspec
import torch
import torch.distributed as dist

from ...instances import InputError
from ...instances.formats.source import Record
from ...instances.formats.writing import why_not

#: What ``torch.load`` raises of files that are damaged: whatever its own code then meets.
UNREADABLE = (
    OSError, RuntimeError, EOFError, ValueError, UnpicklingError, LookupError, TypeError,
    AttributeError, AssertionError, ArithmeticError, MemoryError, struct.error, zipfile.BadZipFile,
)  # fmt: skip

MANIFEST = "manifest.json"
FORMAT = 3


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
