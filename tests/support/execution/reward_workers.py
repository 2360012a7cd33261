"""Processes that train policies: by measured rewards, on two ranks, and until they are killed."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import torch
from torch import nn

from stagecut import Workload, cli
from stagecut.api import learn
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


def killed_learning(_rank: int, words: list[str]) -> None:
    """Train by a command, with a policy kept every two updates; be killed in the fifth."""
    learn.KEPT_EVERY, step = 2, learn.train_step

    def killed(training: Any, *more: Any) -> Any:
        if training.steps == 4 + 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return step(training, *more)

    learn.train_step = killed
    cli.run_command(words)
