"""Policy files: NumPy archives (.npz) of weights and a JSON header, without pickled objects."""

from __future__ import annotations

import io
import json
import math
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ...instances import InputError
from ...instances.common.arrays import Floats
from ...instances.common.errors import quote
from ...instances.formats.source import read_bytes
from ...instances.formats.writing import write_whole
from .features import FEATURE_SET
from .policy import new_policy
from .train import Settings, TrainingRun, new_training

FORMAT, VERSION = "stagecut policy", 1
#: File of the policy that the package ships.
SHIPPED = "policy.npz"
#: Largest width of a policy, and largest size of a file's arrays in bytes.
WIDEST, MOST_BYTES = 1024, 5 << 26


@dataclass(frozen=True, eq=False)
class PolicyFile:
    """Contents of a policy file."""

    width: int  # width of the policy's layers
    seed: int  # seed of its first weights
    tensors: Mapping[str, Floats]  # weights, and, under ``adam/``, the optimiser's moments
    about: Mapping[str, object]  # command, training set (names and fingerprints), numbers of steps
    # what resuming the training needs; empty if it was not kept
    state: Mapping[str, Any] = field(default_factory=dict)


def write_policy(
    path: Path, training: TrainingRun, seed: int, about: Mapping[str, object], *, resumable: bool
) -> None:
    """Write a policy, whole or not at all; if resumable, with the state of its training."""
    tensors = {name: value.numpy() for name, value in training.policy.state_dict().items()}
    names = [name for name, _ in training.policy.named_parameters()]
    moments = training.optimiser.state_dict()["state"] if resumable else {}
    for number, own in moments.items():
        for key, value in own.items():
            tensors[f"adam/{names[number]}/{key}"] = value.numpy()
    header = {
        "format": FORMAT,
        "version": VERSION,
        "feature_set": FEATURE_SET,
        "width": training.policy["encoder"]["features"].out_features,
        "seed": seed,
        "about": {**about, "steps": training.steps},
        "state": _state(training) if resumable else {},
    }
    text = np.frombuffer(json.dumps(header).encode(), np.uint8)
    out = io.BytesIO()
    np.savez_compressed(out, header=text, **tensors)
    write_whole(path, out.getvalue())


def _state(training: TrainingRun) -> dict[str, object]:
    return {
        "steps": training.steps,
        "history": {str(number): values for number, values in training.history.items()},
        "rng": training.rng.bit_generator.state,
        "examples": training.examples,
    }


def read_policy(path: str | Path | None) -> PolicyFile:
    """Read a policy file; None for the one that the package brings.

    InputError if it cannot be read, is damaged, or is of another version or feature set.
    """
    name = str(path or f"the policy that the package brings ({SHIPPED})")
    shipped = files(__package__).joinpath(SHIPPED)
    data = shipped.read_bytes() if path is None else read_bytes(path)
    try:
        arrays = _arrays(data)
        header = json.loads(arrays.pop("header").tobytes())
        if header["format"] != FORMAT:
            raise ValueError
    except (ValueError, KeyError, TypeError, OSError, EOFError, AttributeError, zipfile.BadZipFile,
            zlib.error, NotImplementedError, MemoryError, RecursionError):  # fmt: skip
        raise InputError(f"{name}: it is no policy, or damaged; make one: stagecut learn") from None
    for key, own in (("version", VERSION), ("feature_set", FEATURE_SET)):
        if header.get(key) != own:
            raise InputError(
                f"{name}: a policy of {key.replace('_', ' ')} {quote(str(header.get(key)))}, and "
                f"this release knows {own}; make one anew: stagecut learn"
            )
    return _checked(name, header, arrays)


def _arrays(data: bytes) -> dict[str, Any]:
    """Return the arrays of an archive.

    ValueError if they hold more than a policy can, or than the archive says.
    """
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        infos = archive.infolist()
        if sum(info.file_size for info in infos) > MOST_BYTES:
            raise ValueError
        for info in infos:
            with archive.open(info) as stream:
                if np.lib.format.read_magic(stream) != (1, 0):
                    raise ValueError
                shape, _, dtype = np.lib.format.read_array_header_1_0(stream)
            if math.prod(shape) * dtype.itemsize > info.file_size:
                raise ValueError
    with np.load(io.BytesIO(data), allow_pickle=False) as loaded:
        return {key: loaded[key] for key in loaded.files}


def _checked(name: str, header: Mapping[str, Any], arrays: Mapping[str, Floats]) -> PolicyFile:
    """Return the contents of a file, if its arrays are those of a policy of its width."""
    try:
        width, seed = int(header["width"]), int(header["seed"])
        wanted = new_policy(0, width).state_dict() if 0 < width <= WIDEST else {}
        shapes = {key: tuple(value.shape) for key, value in wanted.items()}
        own = {key: array.shape for key, array in arrays.items() if not key.startswith("adam/")}
        numbers = all(
            array.dtype == np.float32 and np.isfinite(array).all() for array in arrays.values()
        )
        if shapes != own or not shapes or not numbers:
            raise ValueError
        return PolicyFile(width, seed, arrays, dict(header["about"]), dict(header["state"]))
    except (KeyError, TypeError, ValueError, OverflowError):
        raise InputError(f"{name}: its weights are not those of a policy; it is damaged") from None


def policy_of(kept: PolicyFile) -> Any:
    """Return the policy of a file."""
    policy = new_policy(kept.seed, kept.width)
    weights = {
        name: torch.from_numpy(array.copy())
        for name, array in kept.tensors.items()
        if not name.startswith("adam/")
    }
    policy.load_state_dict(weights)
    return policy


def training_of(kept: PolicyFile, settings: Settings) -> TrainingRun:
    """Return the training in the state that the file has; InputError if it has none."""
    training = new_training(policy_of(kept), settings, kept.seed)
    try:
        training.steps = int(kept.state["steps"])
        training.history = {
            int(number): [float(value) for value in values]
            for number, values in kept.state["history"].items()
        }
        training.rng.bit_generator.state = kept.state["rng"]
        training.examples = [
            (int(number), [int(g) for g in group], [int(d) for d in device], float(value))
            for number, group, device, value in kept.state["examples"]
        ]
        _restore_moments(training, kept)
    except (KeyError, TypeError, ValueError, OverflowError, AttributeError):
        raise InputError("--resume: the file does not say how training stood; begin anew") from None
    return training


def _restore_moments(training: TrainingRun, kept: PolicyFile) -> None:
    parameters = dict(training.policy.named_parameters())
    names = list(parameters)
    state: dict[int, dict[str, Any]] = {}
    for key, array in kept.tensors.items():
        if key.startswith("adam/"):
            name, moment = key.removeprefix("adam/").rsplit("/", 1)
            if array.shape not in ((), tuple(parameters[name].shape)):
                raise ValueError
            state.setdefault(names.index(name), {})[moment] = torch.from_numpy(array.copy())
    if state:
        whole = training.optimiser.state_dict()
        training.optimiser.load_state_dict({**whole, "state": state})
