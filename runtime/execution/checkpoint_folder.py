"""Checkpoint folders of runs: written whole or not at all, checked before they are read.

A checkpoint is a folder ``step-00000010`` that `torch.distributed.checkpoint` writes, with a
manifest beside: position, hashes of plan and model, and the SHA-256 of every file. All of it is
written under another name, flushed to disk, and renamed. All ranks must see the folder.

All files are read as `torch.load` reads weights, which runs no code in them.
"""

from __future__ import annotations

import fcntl
import hashlib
import io
import os
import pickle
import shutil
import struct
import warnings
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from math import prod
from pathlib import Path, PosixPath, WindowsPath
from typing import Any

import msgspec
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import metadata as dcp_metadata
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import _load_state_dict

from ...instances import InputError
from ...instances.formats.source import Record
from ...instances.formats.writing import json_text, why_not, write_whole
from ..measure.group import of_all_ranks

#: Exceptions of reading damaged files, of torch's own code too.
UNREADABLE = (
    OSError, RuntimeError, EOFError, ValueError, pickle.UnpicklingError, LookupError, TypeError,
    AttributeError, AssertionError, ArithmeticError, MemoryError, struct.error, zipfile.BadZipFile,
    CheckpointException,
)  # fmt: skip

MANIFEST = "manifest.json"
FORMAT = 6
#: File with the metadata of `torch.distributed.checkpoint` as `torch.save` writes it: its own file
#: is a pickle, which could run code.
METADATA = "metadata.pt"
#: Classes of the metadata.
_CLASSES = [
    *(getattr(dcp_metadata, name) for name in dcp_metadata.__all__),
    dcp_metadata._MEM_FORMAT_ENCODING, _StorageInfo, PosixPath, WindowsPath,
]  # fmt: skip


class _Format(msgspec.Struct):
    """Fields common to all versions of the manifest."""

    format: int


class Manifest(Record):
    """Manifest of a checkpoint.

    `plan` and `model` are hashes of plan and model, of a training job `plan` that of its layout and
    `model` empty. `taken` counts the microbatches before it, of a job the tokens. `files` has the
    SHA-256 of each file, and `state_dict` the name in the checkpoint of each name of the model's.
    """

    format: int
    taken: int
    plan: str
    model: str
    files: dict[str, str]
    state_dict: dict[str, str]


def write_checkpoint(
    final: Path,
    state: dict[str, Any],
    state_dict: Mapping[str, str],
    *,
    taken: int = 0,
    plan: str = "",
    model: str = "",
) -> None:
    """Write a checkpoint; all ranks call this together, each with its own state.

    Of a tensor on several ranks it has the lowest one's; for the other arguments see `Manifest`.
    It replaces a checkpoint of the same name. Raises InputError if it cannot be written; the
    one before then stays.
    """
    unfinished = final.parent / f".{final.name}.unfinished"
    rank = dist.get_rank()
    with _told(final):
        if rank == 0:
            shutil.rmtree(unfinished, ignore_errors=True)
            unfinished.mkdir(parents=True)
    dist.barrier()
    planner = dcp.DefaultSavePlanner(dedup_save_to_lowest_rank=True)
    with _told(final):
        writer = _ExplainingWriter(unfinished, final)
        metadata = dcp.save(state, storage_writer=writer, planner=planner)
    own = list(unfinished.glob(f"__{rank}_*"))
    if rank == 0:
        content = io.BytesIO()
        torch.save(metadata, content)
        write_whole(unfinished / METADATA, content.getvalue())
        own += unfinished.glob("*metadata*")
    everyone = of_all_ranks(({file.name: digest(file) for file in own}, dict(state_dict)))
    if rank == 0:
        files, names = ({k: v for each in all_of for k, v in each.items()}
                        for all_of in zip(*everyone, strict=True))  # fmt: skip
        manifest = Manifest(FORMAT, taken, plan, model, files, names)
        write_whole(unfinished / MANIFEST, json_text(msgspec.to_builtins(manifest)))
        before = final.parent / f".{final.name}.before"
        with _told(final):
            _to_disk(unfinished)
            if final.exists():
                shutil.rmtree(before, ignore_errors=True)
                final.rename(before)
            unfinished.rename(final)
            _to_disk(final.parent)
            shutil.rmtree(before, ignore_errors=True)
    dist.barrier()


class _ExplainingWriter(dcp.FileSystemWriter):  # type: ignore[misc]  # torch is not typed for mypy here
    """Writer of a rank's file whose errors say in one line why it was not written."""

    def __init__(self, path: Path, final: Path) -> None:
        super().__init__(path)
        self._final = final

    def write_data(self, plan: Any, planner: Any) -> Any:
        """Write this rank's file: here an error still has its cause."""
        with _told(self._final), warnings.catch_warnings():
            # torch 2.6 itself asks tensors for storages of the old kind
            warnings.filterwarnings("ignore", message="TypedStorage is deprecated")
            return super().write_data(plan, planner)


@contextmanager
def _told(path: Path) -> Iterator[None]:
    """Raise InputError with the reason in one line if a checkpoint is not written."""
    try:
        yield
    except (OSError, RuntimeError, CheckpointException) as error:
        causes: list[BaseException | None] = [error, error.__context__]
        if isinstance(error, CheckpointException):
            causes = [cause for cause, _ in error.failures.values()]
        for cause in causes:
            if isinstance(cause, InputError):
                raise InputError(str(cause)) from None
            if isinstance(cause, OSError):
                raise InputError(
                    f"{path}: not written: {why_not(cause)}; the checkpoints before it are whole"
                ) from None
        raise


def keep_newest(folder: Path, count: int) -> None:
    """Remove all checkpoints of a folder but the newest; readers see each whole or not at all."""
    if dist.get_rank() == 0:
        for old in checkpoints(folder)[:-count]:
            with _told(old):
                shutil.rmtree(old.rename(folder / f".{old.name}.unfinished"))


def _to_disk(folder: Path) -> None:
    """Flush the names in a folder to disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def step_path(folder: Path, step: int) -> Path:
    """Return the path of the checkpoint after so many steps."""
    return folder / f"step-{step:08}"


def checkpoints(folder: Path) -> list[Path]:
    """Return the checkpoints in a folder, the newest last; raises InputError for a wrong name."""
    found = {}
    for path in folder.glob("step-*"):
        number = path.name.removeprefix("step-")
        if not (path / MANIFEST).is_file():
            continue
        if not (number.isascii() and number.isdecimal()):
            raise InputError(f"{path}: step-00000010 is what a checkpoint is called; rename it")
        found[int(number)] = path
    return [found[step] for step in sorted(found)]


def newest(folder: Path, *, resume: bool = True) -> Checkpoint | None:
    """Return the newest checkpoint in a folder to resume, or None for a new run's folder.

    Raises InputError if there is none to resume or it is damaged, or a new run's folder holds some.
    """
    found = checkpoints(folder)
    if found and not resume:
        raise InputError(
            f"{folder}: it holds checkpoints of a run; add --resume, or name another folder"
        )
    if resume and not found:
        raise InputError(f"{folder}: it holds no checkpoint; leave --resume out to begin")
    return read_checkpoint(found[-1]) if resume else None


def read_checkpoint(path: Path) -> Checkpoint:
    """Return a checkpoint after checking that its manifest is whole and its files are there.

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
    if (
        manifest.taken < 0
        or METADATA not in manifest.files
        or any(Path(name).name != name for name in manifest.files)
    ):
        raise InputError(f"{path / MANIFEST}: {_damaged(path)}")
    for name in manifest.files:
        if not (path / name).is_file():
            raise InputError(f"{path / name}: missing or {_damaged(path)}")
    return Checkpoint(path, manifest)


@dataclass(frozen=True)
class Checkpoint:
    """Checkpoint on disk."""

    path: Path
    manifest: Manifest

    @property
    def step(self) -> int:
        """Number of steps before it."""
        return int(self.path.name.removeprefix("step-"))

    def contents(self) -> Metadata:
        """Return its metadata, checked: of files of the manifest, and not larger than these."""
        self._check(METADATA, ())
        with self._reading(METADATA), torch.serialization.safe_globals(_CLASSES):
            found = load_tensors(self.path / METADATA)
            sizes = {name: (self.path / name).stat().st_size for name in self.manifest.files}
            tensors = [
                (tensor.size, tensor.properties.dtype)
                for tensor in found.state_dict_metadata.values()
                if isinstance(tensor, TensorStorageMetadata)
            ]
            for size, dtype in tensors:
                if not (isinstance(size, torch.Size) and isinstance(dtype, torch.dtype)):
                    raise TypeError
                if min(size, default=0) < 0:
                    raise ValueError
            claimed = sum(prod(size) * dtype.itemsize for size, dtype in tensors)
            places = {place.relative_path for place in found.storage_data.values()}
            if claimed > sum(sizes.values()) or not places <= sizes.keys():
                raise ValueError
            assert isinstance(found, Metadata)
            assert found.planner_data.keys() == found.state_dict_metadata.keys()
            assert all(isinstance(p, tuple) and len(p) > 1 for p in found.planner_data.values())
            return found

    def load(self, state: dict[str, Any], held: Metadata, *, alone: bool = False) -> None:
        """Load tensors and other values into `state`; all ranks call this together.

        `held` are its `contents`. Every file is checked, each by one rank. `alone` is for a process
        that loads by itself, in a group or not. Raises InputError if there is no tensor of a name
        and shape.
        """
        for area, values in state.items():
            for name, own in values.items():
                kept = held.state_dict_metadata.get(f"{area}.{name}")
                shapes = getattr(kept, "size", None), getattr(own, "shape", None)
                if not isinstance(own, dict) and (kept is None or shapes[0] != shapes[1]):
                    raise InputError(
                        f"{self.path}: {name} is not in it as it is here; it is of another model "
                        "or optimizer"
                    )
        first, step = (0, 1) if alone else (dist.get_rank(), dist.get_world_size())
        for name in sorted(self.manifest.files)[first::step]:
            self._check(name, [p for p in held.storage_data.values() if p.relative_path == name])
        reader = _CheckedReader(self.path, held)
        with self._reading() as _:  # of torch's own `load`, that of 2.6 asks all ranks
            _load_state_dict(state, reader, no_dist=alone, planner=_DataPlanner())

    def _check(self, name: str, places: Iterable[Any]) -> None:
        with self._reading(name) as file:
            if digest(self.path / name) != self.manifest.files[name]:
                raise ValueError
            for place in places:
                file.seek(place.offset)
                check_unpacked(io.BytesIO(file.read(place.length)), place.length)

    @contextmanager
    def _reading(self, name: str = "") -> Iterator[io.BufferedReader]:
        """Open one of its files; errors of reading become an InputError."""
        try:
            with (self.path / (name or MANIFEST)).open("rb") as file:
                yield file
        except UNREADABLE:
            raise InputError(f"{self.path / name}: {_damaged(self.path)}") from None


class _CheckedReader(dcp.FileSystemReader):  # type: ignore[misc]
    """Reader of files whose metadata is read already."""

    def __init__(self, path: Path, held: Metadata) -> None:
        super().__init__(path)
        self._held = held

    def read_metadata(self) -> Metadata:
        """Return the metadata."""
        return self._held


class _DataPlanner(dcp.DefaultLoadPlanner):  # type: ignore[misc]
    """Planner that reads values other than tensors as data, too."""

    def load_bytes(self, read_item: Any, value: io.BytesIO) -> None:
        """Store a value under its path in the state."""
        *path, last = self.mappings[read_item.dest_index.fqn]
        within = self.original_state_dict
        for key in path:
            within = within[key]
        within[last] = torch.load(value, map_location="cpu", weights_only=True)


def digest(file: Path) -> str:
    """Return the SHA-256 of a file."""
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def check_unpacked(content: Any, size: int) -> None:
    """Raise ValueError if an archive is compressed: a small file could fill any memory."""
    if zipfile.is_zipfile(content):
        with zipfile.ZipFile(content) as archive:
            if sum(part.file_size for part in archive.infolist()) > size:
                raise ValueError


def load_tensors(file: Path) -> Any:
    """Return the content of a ``torch.save`` file as data, without running code in it.

    Raises one of UNREADABLE if it is damaged, or compressed.
    """
    if file.exists() and not file.is_file():
        raise OSError(f"{file} is no file")
    check_unpacked(file, file.stat().st_size)
    return torch.load(file, map_location="cpu", weights_only=True, mmap=True)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Make a folder, and lock it against other runs where its file system has locks.

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
    """Lock a run's folder of checkpoints on rank 0, if it has one; all ranks enter together.

    Unfinished checkpoints of earlier runs are removed.
    """
    with ExitStack() as held:
        if folder is not None:
            if dist.get_rank() == 0 and (folder.is_dir() or not resume):
                held.enter_context(locked(folder))
                for path in folder.glob(".step-*.unfinished"):
                    shutil.rmtree(path, ignore_errors=True)
            dist.barrier()
        yield


def _damaged(path: Path) -> str:
    if not path.is_dir():
        return "gone: a run that keeps its checkpoints there has removed it; begin again"
    return f"damaged; delete {path} to go on from the one before"
