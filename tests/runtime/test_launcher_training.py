"""Launchers train by exported layouts, with the losses that they have on one process."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent.parent
sys.path.append(str(ROOT / "benchmarks"))

pytest.importorskip("torch", reason="the extra `runtime` is not installed")

import launcher_training as training  # noqa: E402

MODULES = {"deepspeed": "deepspeed", "megatron": "megatron.core", "torchtitan": "torchtitan"}
MODULES |= {"accelerate": "accelerate"}


def installed(name: str) -> bool:
    """Whether a launcher is installed; `megatron` alone is a namespace that others have, too."""
    return find_spec(name.partition(".")[0]) is not None and find_spec(name) is not None


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("deepspeed", {"data": 2, "zero": 3, "microbatch": 2}),
        ("accelerate", {"data": 2, "zero": 3, "recompute": "full"}),
        ("megatron", {"pipeline": 2, "stage_layers": (1, 3)}),
        ("torchtitan", {"tensor": 2, "sequence_parallel": True}),
    ],
)
def test_a_launcher_trains_by_what_is_exported(
    name: str, changes: dict[str, Any], tmp_path: Path
) -> None:
    if not installed(MODULES[name]):
        pytest.skip(f"{MODULES[name]} is not installed")
    if name == "torchtitan":  # its first run writes the weights that the others read
        training.losses_of(name, training.layout_of({}), tmp_path)
    wanted, stop = training.losses_of(name, training.layout_of({}), tmp_path)
    assert stop == ""
    found, stop = training.losses_of(name, training.layout_of(changes), tmp_path)
    assert stop == ""
    assert len(found) == training.STEPS
    assert training.difference(found, wanted) < 1e-5
