"""Small models of every kind that the runtime must run, with inputs of one microbatch."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

Made = tuple[nn.Module, tuple[torch.Tensor, ...]]


class Mlp(nn.Module):
    """Layers of uneven width, with its loss."""

    def __init__(self, widths: tuple[int, ...] = (12, 24, 8, 16, 16, 4)) -> None:
        super().__init__()
        pairs = pairwise(widths)
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in pairs)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        for layer in self.layers[:-1]:
            x = torch.relu(layer(x))
        return F.cross_entropy(self.layers[-1](x), y)


class Block(nn.Module):
    """A transformer block."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        b, s, w = x.shape
        q, k, v = self.qkv(self.ln_1(x)).view(b, s, 3, 2, w // 2).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        x = x + self.proj(y.transpose(1, 2).reshape(b, s, w))
        return x + self.down(F.gelu(self.up(self.ln_2(x))))


class Gpt(nn.Module):
    """Like GPT-2: the embedding tied to the head, a mask of who sees whom, its own loss."""

    def __init__(self, width: int = 16, vocabulary: int = 40, blocks: int = 3) -> None:
        super().__init__()
        self.token = nn.Embedding(vocabulary, width)
        self.place = nn.Embedding(32, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(blocks))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.token.weight

    def forward(self, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        length = ids.shape[1]
        past = torch.ones(length, length, dtype=torch.bool, device=ids.device).tril()
        seen = past & (ids != 0)[:, None, None, :]
        seen = seen | torch.eye(length, dtype=torch.bool, device=ids.device)
        x = self.token(ids) + self.place(torch.arange(length, device=ids.device))
        for block in self.blocks:
            x = block(x, seen)
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten()), logits


class Bottleneck(nn.Module):
    """Convolutions around which a skip leads, in-place functions, batch norm."""

    def __init__(self, width: int, out: int, stride: int) -> None:
        super().__init__()
        self.conv_1 = nn.Conv2d(width, out, 3, stride, 1, bias=False)
        self.conv_2 = nn.Conv2d(out, out, 3, 1, 1, bias=False)
        self.bn_1, self.bn_2 = nn.BatchNorm2d(out), nn.BatchNorm2d(out)
        self.skip: nn.Module = nn.Identity()
        if stride != 1 or width != out:
            self.skip = nn.Conv2d(width, out, 1, stride)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.relu(self.bn_1(self.conv_1(x)), inplace=True)
        y = self.bn_2(self.conv_2(y))
        y += self.skip(x)
        return F.relu(y, inplace=True)


class ResNet(nn.Module):
    """A residual network that gives logits; the mean stands for its loss."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, 1, 1)
        self.body = nn.Sequential(Bottleneck(8, 8, 1), Bottleneck(8, 16, 2), Bottleneck(16, 16, 1))
        self.head = nn.Linear(16, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(self.stem(x)).mean((2, 3))).square()


class UNet(nn.Module):
    """Down and up again, with skips from each depth to its counterpart."""

    def __init__(self, widths: tuple[int, ...] = (4, 8, 12)) -> None:
        super().__init__()
        ins = (3, *widths[:-1])
        pairs = list(zip(ins, widths, strict=True))
        self.down = nn.ModuleList(nn.Conv2d(a, b, 3, padding=1) for a, b in pairs)
        self.middle = nn.Conv2d(widths[-1], widths[-1], 3, padding=1)
        self.up = nn.ModuleList(nn.Conv2d(2 * b, a, 3, padding=1) for a, b in reversed(pairs))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        target, kept = x, []
        for layer in self.down:
            x = torch.relu(layer(x))
            kept.append(x)
            x = F.max_pool2d(x, 2)
        x = torch.relu(self.middle(x))
        for layer, skip in zip(self.up, reversed(kept), strict=True):
            x = F.interpolate(x, scale_factor=2.0)
            x = layer(torch.cat((x, skip), 1))
        return F.mse_loss(x, target)


class Experts(nn.Module):
    """Each token goes to the two experts that a router likes best."""

    def __init__(self, width: int, experts: int) -> None:
        super().__init__()
        self.router = nn.Linear(width, experts)
        self.experts = nn.ModuleList(nn.Linear(width, width) for _ in range(experts))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight, chosen = self.router(x).softmax(-1).topk(2)
        result = torch.zeros_like(x)
        for i, expert in enumerate(self.experts):
            share = (weight * (chosen == i)).sum(-1, keepdim=True)
            result += share * expert(x)
        return x + torch.tanh(result)


class Mixture(nn.Module):
    """A mixture of experts in two layers."""

    def __init__(self, width: int = 12, experts: int = 4) -> None:
        super().__init__()
        self.first, self.second = Experts(width, experts), Experts(width, experts)
        self.head = nn.Linear(width, 5)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(self.head(self.second(self.first(x))), y)


class Swish(torch.autograd.Function):
    """With a backward pass of its own."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, slope: float) -> torch.Tensor:
        ctx.save_for_backward(x)
        ctx.slope = slope
        return x * torch.sigmoid(slope * x)

    @staticmethod
    def backward(ctx: Any, given: torch.Tensor) -> tuple[torch.Tensor, None]:
        (x,) = ctx.saved_tensors
        gate = torch.sigmoid(ctx.slope * x)
        return given * gate * (1 + ctx.slope * x * (1 - gate)), None


class Routed(nn.Module):
    """Each row goes through one expert alone, whatever their number; and says how many went."""

    def __init__(self, width: int, experts: int) -> None:
        super().__init__()
        self.router = nn.Linear(width, experts)
        self.experts = nn.ModuleList(nn.Linear(width, width) for _ in range(experts))

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        share, chosen = self.router(x).softmax(-1).max(-1)
        result = torch.zeros_like(x)
        for i, expert in enumerate(self.experts):
            (rows,) = torch.where(chosen == i)
            if len(rows):
                result = result.index_add(0, rows, expert(x[rows]))
        return {"rows": x + share[:, None] * result, "counts": chosen.bincount(minlength=3)}


class Picks(nn.Module):
    """Gives the rows that it likes; numbers say how many."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        liked = x[x[:, 0] > x[:, 1]]
        return liked if len(liked) > 1 else x


class Parted(nn.Module):
    """Parts that no graph of operators holds: they run as they are."""

    def __init__(self, width: int = 12) -> None:
        super().__init__()
        self.first = nn.Linear(width, width)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 2 * width), nn.Tanh(), nn.Linear(2 * width, width))
            for _ in range(3)
        )
        self.routed = nn.ModuleList(Routed(width, 3) for _ in range(2))
        self.picks = Picks()
        self.gain = nn.Parameter(torch.ones(width))
        self.last = nn.Linear(width, 5)
        self.tied = nn.Linear(width, width)
        self.tied.weight = self.first.weight

    def scaled(self, x: torch.Tensor) -> torch.Tensor:
        return self.gain * torch.relu(self.tied(x))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x = Swish.apply(self.first(x), 1.5)
        for block in self.blocks:
            x = x + checkpoint(block, x, use_reentrant=False)
        for routed in self.routed:
            x = routed(x)["rows"]
        x = x + self.picks(x).exp().mean(0)
        x = checkpoint(self.scaled, x, use_reentrant=True)
        return F.cross_entropy(self.last(x), y)


class Mixed(nn.Module):
    """Layers in bfloat16, and numbers that are made without a gradient."""

    def __init__(self, width: int = 12) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(4))
        self.last = nn.Linear(width, 5)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            scale = (x.abs().mean(-1, keepdim=True) + 1).sqrt()
        with torch.autocast("cpu", torch.bfloat16):
            for layer in self.layers:
                x = torch.relu(layer(x)) * scale
        return F.cross_entropy(self.last(x.float()), y)


def mixed() -> Made:
    torch.manual_seed(0)
    return Mixed(), (torch.randn(8, 12), torch.randint(0, 5, (8,)))


def parted() -> Made:
    torch.manual_seed(0)
    return Parted(), (torch.randn(8, 12), torch.randint(0, 5, (8,)))


def mlp() -> Made:
    torch.manual_seed(0)
    return Mlp(), (torch.randn(6, 12), torch.randint(0, 4, (6,)))


def gpt() -> Made:
    torch.manual_seed(0)
    return Gpt(), (torch.randint(0, 40, (2, 12)),)


def resnet() -> Made:
    torch.manual_seed(0)
    return ResNet(), (torch.randn(4, 3, 8, 8),)


def unet() -> Made:
    torch.manual_seed(0)
    return UNet(), (torch.randn(2, 3, 16, 16),)


def mixture() -> Made:
    torch.manual_seed(0)
    return Mixture(), (torch.randn(8, 12), torch.randint(0, 5, (8,)))


MODELS: dict[str, Callable[[], Made]] = {
    "mlp": mlp,
    "gpt": gpt,
    "resnet": resnet,
    "unet": unet,
    "mixture": mixture,
    "mixed": mixed,
    "parted": parted,
}
