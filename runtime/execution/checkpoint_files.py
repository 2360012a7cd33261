"""Checkpoints on the disk: which there are, and whether they are whole."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import msgspec
import torch

from ...instances import InputError
from ...instances.formats.source import Record

#: What ``torch.load`` raises of files that are damaged: whatever its own code then meets.
UNREADABLE = (
    OSError, RuntimeError, EOFError, ValueError, UnpicklingError, LookupError, TypeError,
    AttributeError, AssertionError, ArithmeticError, MemoryError, struct.error,
)  # fmt: skip

MANIFEST = "manifest.json"
FORMAT = 2


@dataclass(frozen=True)
class Position:
    """How far training has come: steps done, and microbatches taken from the data."""

    step: int
    microbatches: int


def checkpoints(folder: Path) -> list[Path]:
    """Return the checkpoints in a folder, the newest last.

    Raises
    ------
    InputError
        If the name of one is damaged.
    """
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
    """What every version of the manifest says."""

    format: int


class Manifest(Record):
    """What the manifest of a checkpoint says."""

    format: int
    step: int
    microbatches: int
    ranks: int
    plan: str
    model: str
    files: dict[str, int]
    tensors: dict[str, str]
    state_dict: dict[str, str]


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint on the disk.

    Parameters
    ----------
    plan, model
        Hashes of those that it was written with.
    ranks
        How many wrote it.
    tensors
        For each tensor the first file that has it.
    state_dict
        See `ModelState`.
    """

    path: Path
    position: Position
    plan: str
    model: str
    ranks: int
    tensors: Mapping[str, str]
    state_dict: Mapping[str, str]

    def load(self, file: str) -> dict[str, Any]:
        """Return what a rank wrote.

        Raises
        ------
        InputError
            If the file is damaged.
        """
        try:
            state = torch.load(self.path / file, map_location="cpu", weights_only=True)
        except UNREADABLE:
            raise InputError(f"{self.path / file}: {_damaged(self.path)}") from None
        if not isinstance(state, dict) or not isinstance(state.get("tensors"), dict):
            raise InputError(f"{self.path / file}: {_damaged(self.path)}")
        return state


def newest(folder: Path, model: str) -> Checkpoint:
    """Return the newest checkpoint in a folder.

    Raises
    ------
    InputError
        If there is none, or it is damaged or of another model than that with the hash `model`.
    """
    found = checkpoints(folder)
    if not found:
        raise InputError(f"{folder}: it holds no checkpoint; leave --resume out to begin")
    checkpoint = read_checkpoint(found[-1])
    if checkpoint.model != model:
        raise InputError(f"{found[-1]}: it is of another model; give the model that was trained")
    return checkpoint


def read_checkpoint(path: Path) -> Checkpoint:
    """Return a checkpoint whose files are all there.

    Raises
    ------
    InputError
        If it is damaged, or of another version of Stagecut.
    """
    damaged = _damaged(path)
    try:
        content = (path / MANIFEST).read_bytes()
        known = msgspec.json.decode(content, type=_Format).format
        if known != FORMAT:
            raise InputError(f"{path}: its format is {known}; {FORMAT} is known")
        manifest = msgspec.json.decode(content, type=Manifest)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        raise InputError(f"{path / MANIFEST}: {damaged}") from None
    if min(manifest.step, manifest.microbatches) < 0 or any("/" in n for n in manifest.files):
        raise InputError(f"{path / MANIFEST}: {damaged}")
    for name, size in manifest.files.items():
        file = path / name
        if not file.is_file() or file.stat().st_size != size:
            missing = "" if file.exists() else "missing or "
            raise InputError(f"{file}: {missing}{damaged}")
    return Checkpoint(
        path,
        Position(manifest.step, manifest.microbatches),
        manifest.plan,
        manifest.model,
        manifest.ranks,
        manifest.tensors,
        manifest.state_dict,
    )


def _damaged(path: Path) -> str:
    return f"damaged; delete {path} to go on from the one before"
