"""Parts of networks on groups of devices beside each other, against all devices for everything.

    python benchmarks/sharding_placement.py [--only towers] [--seconds 60]

Times are an H100's roofline, on 2 × 4 devices, with 20 µs and 50 GB/s between the two groups, and
10 µs and 450 GB/s within each. Batch normalisation takes the statistics of each device's own
samples. `all` may divide everything over all 8 devices. Both are planned twice, with gradients
converted beside the backward pass and without. Towers are ViT-B/16 and a text encoder like CLIP's,
which meet in the loss. The second group has GoogLeNet's branches of 3 × 3 (the network is a quarter
as wide), and the second half of the blocks of ResNet-50 and BERT-Base. Replaces rows of
`results/sharding_placement.csv`.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import replace

import torch
from image_networks import googlenet
from results import Row, write
from sharding_models import GatedBlock, Made, Vit, bert, resnet50
from sharding_scaling import local_statistics
from torch import Tensor, nn
from torch.nn import functional as F

import stagecut
from stagecut import DeviceMesh, Limits, Link, Sharding, Workload, solve

MESH = DeviceMesh((2, 4), (Link(20e-6, 50e9), Link(10e-6, 450e9)))

Placement = tuple[tuple[str, int], ...]


class Texts(nn.Module):
    """A text encoder of 12 blocks, 512 wide, its tokens averaged."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(49408, 512), nn.Embedding(77, 512)
        self.blocks = nn.Sequential(*(GatedBlock(512, 8) for _ in range(12)))
        self.norm, self.head = nn.LayerNorm(512), nn.Linear(512, 512, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        h = self.words(x) + self.places(torch.arange(x.shape[1], device=x.device))
        return self.head(self.norm(self.blocks(h)).mean(1))


class Pictures(Vit):
    """ViT-B/16 that makes 512 features."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(768, 512, bias=False)

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        h = self.patches(x).flatten(2).transpose(1, 2) + self.places
        for block in self.blocks:
            h = block(h)
        return self.head(self.norm(h).mean(1))


class Towers(nn.Module):
    """Pictures and texts that are to be alike."""

    def __init__(self) -> None:
        super().__init__()
        self.pictures, self.texts = Pictures(), Texts()

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        a, b = (F.normalize(z, dim=-1) for z in (self.pictures(x), self.texts(y)))
        return F.cross_entropy(10 * a @ b.T, torch.arange(len(x), device=x.device))


def towers(batch: int) -> Made:
    """Towers with their inputs."""
    return Towers(), (torch.zeros(batch, 3, 224, 224), torch.zeros(batch, 77, dtype=torch.int64))


def branches(batch: int) -> tuple[Made, Placement]:
    """GoogLeNet with the branches of 3 × 3 on the second group, others on the first."""
    model = googlenet()
    placed = {
        f"{name.rsplit('.', 1)[0]}.{branch}": int(branch == "three")
        for name, _ in model.named_modules()
        if name.endswith(".pooled")
        for branch in ("one", "three", "five", "pooled")
    }
    samples = torch.zeros(batch, 3, 32, 32), torch.zeros(batch, dtype=torch.int64)
    return (model, samples), tuple(placed.items())


def halves(made: Made, first: tuple[str, ...], blocks: int) -> tuple[Made, Placement]:
    """A chain of blocks with its second half on the second group."""
    parts = [(f"blocks.{k}", int(2 * k >= blocks)) for k in range(blocks)]
    return made, (*((name, 0) for name in first), *parts, ("head", 1))


NETWORKS: dict[str, Callable[[], tuple[Made, Placement]]] = {
    "towers, 64": lambda: (towers(64), (("pictures", 0), ("texts", 1))),
    "towers, 512": lambda: (towers(512), (("pictures", 0), ("texts", 1))),
    "GoogLeNet, 256": lambda: branches(256),
    "ResNet-50, 256": lambda: halves(resnet50(256), ("stem", "norm"), 16),
    "BERT-Base, 128": lambda: halves(bert(128), ("words", "places"), 12),
}


def cells(workload: Workload, placement: Placement, limits: Limits) -> Row:
    """Return the time of a step with all devices for everything, overlapped, and placed."""
    found: dict[str, str] = {}
    problem = Sharding(MESH)
    placed = replace(problem, placement=placement)
    for name, one in (
        ("all", problem),
        ("placed", placed),
        ("all_overlapped", replace(problem, overlap=True)),
        ("placed_overlapped", replace(placed, overlap=True)),
    ):
        began = time.process_time()
        result = solve(workload, problem=one, limits=limits, workers=1)
        assert result.objective is not None
        found[f"{name}_ms"] = f"{result.objective:.5g}"
        found[f"{name}_bound_ms"] = f"{result.bound:.5g}"
        found[f"{name}_cpu_seconds"] = f"{time.process_time() - began:.1f}"
    return found


def main() -> None:
    """Measure the networks asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", action="append", choices=NETWORKS)
    parser.add_argument("--seconds", type=float, default=60.0)
    given = parser.parse_args()
    for name in given.only or NETWORKS:
        (model, inputs), placement = NETWORKS[name]()
        traced = stagecut.tensor_program(model, inputs, estimate="h100", name=name)
        limits = Limits(seconds=given.seconds, gap=0.005)
        row = {"network": name} | cells(local_statistics(traced), placement, limits)
        print(*row.values(), flush=True)
        write("sharding_placement", [row], "0", keys=("network",))


if __name__ == "__main__":
    main()
