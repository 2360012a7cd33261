"""A good file of every format that torch reads, as of `good_files`."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from damage import Sample

from stagecut.instances.common.errors import StagecutError
from stagecut.instances.pytorch.prices import Cache
from stagecut.runtime.execution.checkpoint import FORMAT, MANIFEST
from stagecut.runtime.execution.model_state import load_weights, merge_checkpoint
from stagecut.solvers.learned.policy import new_policy
from stagecut.solvers.learned.policy_file import policy_of, read_policy, training_of, write_policy
from stagecut.solvers.learned.train import Settings, new_training

RANK = "rank-0.pt"


def torch_samples(folder: Path) -> dict[str, Sample]:
    """Return a good file of each format; they are made in `folder`."""
    torch.save({"tensors": {"0.weight": torch.ones(2)}}, folder / RANK)
    kept = (folder / RANK).read_bytes()
    manifest = {
        "format": FORMAT, "step": 3, "microbatches": 6, "plan": "ab", "model": "cd",
        "files": {RANK: hashlib.sha256(kept).hexdigest()}, "tensors": {"0.weight": RANK},
        "state_dict": {"weight": "0.weight"},
    }  # fmt: skip
    torch.save(torch.nn.Linear(1, 1).state_dict(), folder / "weights.pt")
    training = new_training(new_policy(0, 4), Settings(), 0)
    write_policy(folder / "policy.npz", training, 0, {}, resumable=True)
    return {
        "checkpoint": Sample(kept, _checkpoint(RANK, manifest, kept)),
        "manifest": Sample(json.dumps(manifest).encode(), _checkpoint(MANIFEST, manifest, kept)),
        "weights": Sample((folder / "weights.pt").read_bytes(), _weights),
        "policy": Sample((folder / "policy.npz").read_bytes(), _policy),
        "kernel times": Sample(b'{"mm": [0.001, 0.1, 2e9]}', _times),
    }


def _checkpoint(damaged: str, manifest: dict[str, object], kept: bytes) -> Callable[[Path], str]:
    """Return what merges a checkpoint one of whose files is the one to be read."""

    def read(path: Path) -> str:
        with TemporaryDirectory() as folder:
            content = path.read_bytes()
            hashed = hashlib.sha256(content if damaged == RANK else kept).hexdigest()
            whole = json.dumps({**manifest, "files": {RANK: hashed}})  # it hides no damage
            files = {RANK: kept, MANIFEST: whole.encode()}
            for name, data in {**files, damaged: content}.items():
                Path(folder, name).write_bytes(data)
            try:
                return repr(sorted(merge_checkpoint(folder)))
            except StagecutError as error:
                raise StagecutError(str(error).replace(folder, str(path))) from None

    return read


def _weights(path: Path) -> str:
    load_weights(torch.nn.Linear(1, 1), path)
    return ""


def _policy(path: Path) -> str:
    kept = read_policy(path)
    policy_of(kept)
    if kept.state:
        try:
            training_of(kept, Settings())
        except StagecutError as error:
            raise StagecutError(f"{path}: {error}") from None
    return repr(kept.width)


def _times(path: Path) -> str:
    """Read times of kernels: a damaged file is set aside with a note."""
    cache = Cache(path.parent, "cpu")
    assert cache.path is not None
    cache.path.write_bytes(path.read_bytes())
    cache = Cache(path.parent, "cpu")
    if cache.notes:
        raise StagecutError(f"{path}: {cache.notes[0]}")
    return ""
