"""A good file of every format that torch reads, as of `good_files`."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
import torch.distributed as dist
from damage import Sample

from stagecut.instances.common.errors import StagecutError
from stagecut.instances.pytorch.operator_times import Cache
from stagecut.runtime.execution.checkpoint import load_weights, merge_checkpoint
from stagecut.runtime.execution.checkpoint_folder import MANIFEST, write_checkpoint
from stagecut.solvers.learned.policy import new_policy
from stagecut.solvers.learned.policy_file import policy_of, read_policy, training_of, write_policy
from stagecut.solvers.learned.train import Settings, new_training


def torch_samples(folder: Path) -> dict[str, Sample]:
    """Return a good file of each format; they are made in `folder`."""
    kept = _kept(folder)
    torch.save(torch.nn.Linear(1, 1).state_dict(), folder / "weights.pt")
    training = new_training(new_policy(0, 4), Settings(), 0)
    write_policy(folder / "policy.npz", training, 0, {}, resumable=True)
    return {
        **{
            f"checkpoint's {name}": Sample(content, _checkpoint(name, kept))
            for name, content in kept.items()
            if name != ".metadata"  # torch's own copy, which nothing of ours reads
        },
        "weights": Sample((folder / "weights.pt").read_bytes(), _weights),
        "policy": Sample((folder / "policy.npz").read_bytes(), _policy),
        "kernel times": Sample(b'{"mm": [0.001, 0.1, 2e9]}', _times),
    }


def _kept(folder: Path) -> dict[str, bytes]:
    """Return the files of a checkpoint that one rank wrote."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    state = {"model": {"0.weight": torch.ones(2)}}
    path = folder / "step-00000003"
    write_checkpoint(path, state, {"weight": "0.weight"})
    dist.destroy_process_group()
    return {file.name: file.read_bytes() for file in sorted(path.iterdir())}


def _checkpoint(damaged: str, kept: dict[str, bytes]) -> Callable[[Path], str]:
    """Return what merges a checkpoint one of whose files is the one to be read."""

    def read(path: Path) -> str:
        with TemporaryDirectory() as folder:
            content = path.read_bytes()
            manifest = json.loads(kept[MANIFEST])
            if damaged != MANIFEST:  # it hides no damage
                manifest["files"][damaged] = hashlib.sha256(content).hexdigest()
            files = {**kept, MANIFEST: json.dumps(manifest).encode(), damaged: content}
            for name, data in files.items():
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
