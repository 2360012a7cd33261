"""What ranks do in the test of measured rewards: a small model is placed on two processes."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from torch import nn

from stagecut import Workload, cli
from stagecut.instances.pytorch.profile import profile

MODEL = """
import torch
from reward_workers import Net


def make():
    return Net(), (torch.zeros(4, 8),)
"""
CLUSTER = json.dumps(
    {
        "format": "stagecut-cluster",
        "version": 1,
        "kinds": [
            {"name": "accelerator", "count": 2, "link": {"latency_s": 1e-5, "bytes_per_s": 1e9}}
        ],
    }
)


class Net(nn.Module):
    """Layers and their loss."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(nn.Linear(8, 8) for _ in range(6)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x).square().mean()


def profiled() -> Workload:
    """Return the workload of the model, by an estimate of its times."""
    return profile(Net(), (torch.zeros(4, 8),), training=True, estimate="h100").workload


def learn_measured(_rank: int, folder: str) -> None:
    """Train a policy by measured rewards, as a user does."""
    here = Path(folder)
    given = [
        "learn",
        "--workloads",
        str(here / "net.json"),
        "--cluster",
        str(here / "cluster.json"),
    ]
    given += ["--split", "contiguous", "--steps", "2", "--log", str(here / "curve.csv")]
    given += ["--set", f"reward=measured,model={here / 'model.py'}:make,rounds=2,schedules=5"]
    assert cli.run_command([*given, "-o", str(here / "measured.npz")]) == 0
