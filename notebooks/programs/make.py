"""Trace the models of the notebooks on sharding; needs PyTorch: ``python make.py [FOLDER]``.

The notebooks read what this writes, so that they need no PyTorch.
"""

from __future__ import annotations

import sys
from itertools import pairwise
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F

import stagecut

WIDTH, HEADS, BATCH, LENGTH = 1024, 16, 16, 512


class LanguageBlock(nn.Module):
    """A block of a transformer, with a head and its loss."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, 8 * WIDTH, bias=False)

    def forward(self, x: torch.Tensor, words: torch.Tensor) -> torch.Tensor:
        b, n, w = x.shape
        y = self.first(x)
        q, k, v = (
            f(y).view(b, n, HEADS, w // HEADS).transpose(1, 2) for f in (self.q, self.k, self.v)
        )
        made = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(made.transpose(1, 2).reshape(b, n, w))
        x = x + self.down(F.gelu(self.up(self.second(x))))
        return F.cross_entropy(self.head(x).flatten(0, 1), words.flatten())


def perceptron() -> nn.Module:
    """Return three linear layers, pointwise functions between them."""
    widths = (WIDTH, 4 * WIDTH, 4 * WIDTH, WIDTH)
    layers = [nn.Linear(a, b) for a, b in pairwise(widths)]
    return nn.Sequential(layers[0], nn.ReLU(), layers[1], nn.ReLU(), layers[2])


def convolutions() -> nn.Module:
    """Return two convolutions with what follows them in an image classifier."""
    return nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(64 * 64, 256),
    )  # fmt: skip


def models() -> dict[str, tuple[nn.Module, tuple[torch.Tensor, ...]]]:
    """Return model and inputs by name."""
    words = torch.zeros(BATCH, LENGTH, dtype=torch.int64)
    two = nn.Sequential(nn.Linear(1024, 4096), nn.ReLU(), nn.Linear(4096, 1024))
    return {
        "perceptron": (perceptron(), (torch.zeros(BATCH * 4, WIDTH),)),
        "convolutions": (convolutions(), (torch.zeros(BATCH * 4, 3, 32, 32),)),
        "block": (LanguageBlock(), (torch.zeros(BATCH, LENGTH, WIDTH), words)),
        "two_layers": (two, (torch.zeros(2048, 1024),)),
    }


if __name__ == "__main__":
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parent)
    for name, (model, inputs) in models().items():
        program = stagecut.tensor_program(model, inputs, estimate="h100", name=name)
        stagecut.save(program, folder / f"{name}.json")
