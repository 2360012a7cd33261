"""Merging of stage checkpoints into the `state_dict` of the whole model."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.metadata import TensorStorageMetadata

from ...instances import InputError
from .checkpoint_folder import MANIFEST, UNREADABLE, checkpoints, load_tensors, read_checkpoint


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
    stagecut.instances.common.errors.InputError: kept: no such folder
    """
    path = Path(folder)
    try:
        there = path.is_dir()
    except (OSError, ValueError):  # no name that a folder could have
        there = False
    if not there:
        raise InputError(f"{str(folder)[:200]}: no such folder")
    if not (path / MANIFEST).exists() and not path.name.startswith("step-"):
        found = checkpoints(path)
        if not found:
            raise InputError(f"{path}: it holds no checkpoint")
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
