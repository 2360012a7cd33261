"""More models, small and with random weights, beside those of `models.py`: what no exported graph
holds, compiled ones, dictionary outputs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from models import WIDTH, Loss, Made, rows, stack
from torch import nn
from torch.nn import functional as F


class Settles(nn.Module):
    """Repeats its layer until little changes: numbers say how often."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layer = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(4):
            new = 0.5 * x + 0.1 * torch.tanh(self.layer(x))
            if (new - x).abs().mean() < 0.05:
                return new
            x = new
        return x


def control() -> Made:
    width = 512
    layers = [m for _ in range(4) for m in (nn.Linear(width, width), nn.GELU(), Settles(width))]
    return Loss(nn.Sequential(*layers, nn.Linear(width, 10))), rows(width)


class SwishFunction(torch.autograd.Function):
    """Keeps its input alone, and computes the gate again."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x * torch.sigmoid(x)

    @staticmethod
    def backward(ctx: Any, given: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        gate = torch.sigmoid(x)
        return given * gate * (1 + x * (1 - gate))


class Swish(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return SwishFunction.apply(x)


def autograd() -> Made:
    layers = [m for _ in range(8) for m in (nn.Linear(512, 512), Swish())]
    return Loss(nn.Sequential(*layers, nn.Linear(512, 10))), rows()


class Routed(nn.Module):
    """Each row goes through one expert alone: numbers say how many through which."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(WIDTH, 4)
        self.experts = nn.ModuleList(stack(2, WIDTH)[:-1] for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        share, chosen = self.gate(x).softmax(-1).max(-1)
        out = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            (at,) = torch.where(chosen == number)
            out = out.index_add(0, at, share[at, None] * expert(x[at]))
        return x + out


def routed() -> Made:
    layers = [m for _ in range(4) for m in (Routed(), nn.LayerNorm(WIDTH))]
    return Loss(nn.Sequential(*layers, nn.Linear(WIDTH, 10))), rows(WIDTH)


def compiled() -> Made:
    return torch.compile(Loss(stack())), rows()


class Dictionary(nn.Module):
    """Loss, logits and hidden states in a dictionary."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = stack(8)[:-1], nn.Linear(512, 10)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> dict[str, Any]:
        hidden = self.body(x)
        logits = self.head(hidden)
        return {"hidden": [hidden], "loss": F.cross_entropy(logits, y), "logits": logits}


def dictionary() -> Made:
    return Dictionary(), rows()


#: Factory → library that it needs besides torch.
MORE: dict[Callable[[], Made], str] = {
    control: "", autograd: "", routed: "", compiled: "", dictionary: "",
}  # fmt: skip
