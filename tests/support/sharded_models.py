"""Small models for shardings: with every operator that has a rule."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint


class Block(nn.Module):
    """A block of a transformer, its projections apart."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.q, self.k, self.v, self.o = (nn.Linear(width, width) for _ in range(4))
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        b, n, width = x.shape
        y = self.first(x)
        q, k, v = (
            f(y).view(b, n, self.heads, width // self.heads).transpose(1, 2)
            for f in (self.q, self.k, self.v)
        )
        made = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(made.transpose(1, 2).reshape(b, n, width))
        return x + self.down(F.gelu(self.up(self.second(x))))


class Language(nn.Module):
    """Embeddings, blocks, tied head, loss."""

    def __init__(self, layers: int = 1, width: int = 24, heads: int = 12, words: int = 36) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(12, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, words, bias=False)
        self.head.weight = self.words.weight

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        h = self.words(x) + self.places(torch.arange(x.shape[1], device=x.device))
        for block in self.blocks:
            h = block(h)
        return F.cross_entropy(self.head(self.norm(h)).flatten(0, 1), y.flatten())


class Vision(nn.Module):
    """Convolutions, one of them by channel, batch normalisation, pools."""

    def __init__(self, classes: int = 12) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 12, 3, padding=1), nn.BatchNorm2d(12)
        self.depthwise = nn.Conv2d(12, 12, 3, padding=1, groups=12)
        self.point = nn.Conv2d(12, 24, 1, bias=False)
        self.head = nn.Linear(24, classes)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        x = F.max_pool2d(torch.relu(self.norm(self.conv(x))), 2)
        x = F.silu(self.point(F.relu6(self.depthwise(x))))
        x = F.avg_pool2d(x, 2)
        return F.cross_entropy(self.head(x.mean((2, 3))), y)


class Odds(nn.Module):
    """What the others leave out: products of batches, softmax, slices, parts, stacks, means.

    Also tensors that are no parameters or buffers, a part that is computed twice, and parameters
    that are added up.
    """

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(12, 12))
        self.shift = torch.randn(12)
        self.more = nn.Parameter(0.1 * torch.randn(12, 12))

    def product(self, x: Tensor) -> Tensor:
        return torch.matmul(x, (self.weight + self.more).t()) + self.shift * torch.tensor(0.5)

    def forward(self, x: Tensor) -> Tensor:
        y = checkpoint(self.product, x, use_reentrant=False)
        y = torch.softmax(y + torch.tensor([0.1 * k for k in range(12)]), dim=-1)
        a, b = y.split(6, dim=2)
        z = torch.cat([a * b, torch.where(a > 0.1, a, b)], dim=2)
        z = torch.stack([z, z / 2], dim=1).permute(0, 2, 1, 3)
        z = torch.bmm(z[:, :, 0], z[:, :, 1].transpose(1, 2))
        z = z.unsqueeze(1).expand(-1, 2, -1, -1).squeeze()
        c, d = z.unbind(1)
        return (c.mean(0) + d.sum(0) - c.select(0, 0)).tanh().mean() + z[:, :, 2:8].sigmoid().sum()


class Mixture(nn.Module):
    """Experts as of Mixtral, two for each token by a router, all computed; a loss of squares."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(12, 12, bias=False)
        self.up = nn.Parameter(torch.randn(12, 12, 24) / 4)
        self.down = nn.Parameter(torch.randn(12, 24, 12) / 4)

    def forward(self, x: Tensor, y: Tensor, order: Tensor) -> Tensor:
        share = torch._safe_softmax(self.gate(x), -1)
        best, place = share.topk(2, -1)
        parts = torch.zeros_like(share).scatter(1, place, best / best.sum(-1, keepdim=True))
        made = F.silu(torch.bmm(x.expand(12, -1, -1), self.up))
        made = (torch.bmm(made, self.down) * parts.t().unsqueeze(-1)).sum(0)
        made = torch.zeros_like(x).index_add(0, order, made)
        even = share.gather(1, place).mean() + F.pad(made[order], (0, 12)).tanh().mean()
        even = even * share.detach().cumsum(0).mean()
        return F.mse_loss(made, y) + even + F.mse_loss(made.index_select(0, order), x).tanh()


class Losses(nn.Module):
    """Losses by sample and by class, sums of products with tensors of any axes, a mask, rounding.

    Words are weighted by how often they occur.
    """

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(24, 12, scale_grad_by_freq=True)
        self.weight, self.shift = nn.Parameter(torch.randn(12, 12)), nn.Parameter(torch.randn(12))
        self.share = 0.5 + torch.rand(12, dtype=torch.float64)
        self.mask = torch.ones(6, 6, dtype=torch.bool).tril()

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        h = self.words(x)
        q = h.view(*x.shape, 4, 3).transpose(1, 2)
        h = h + F.scaled_dot_product_attention(q, q, q, self.mask).transpose(1, 2).flatten(2)
        h = F.max_pool2d(h.sum(1)[None].expand(2, -1, -1), 1).sum(0)
        h = torch.addmm(self.shift, h, self.weight) + torch.addmm(h, h, self.weight, alpha=2)
        logs = h.log_softmax(-1)
        by_class = F.nll_loss(logs, y, weight=self.share.to(h.dtype))
        rounded = torch.div(h.detach() @ self.weight.detach(), 0.5, rounding_mode="floor").mean()
        return F.nll_loss(logs, y, reduction="none").square().mean() + by_class + rounded * by_class


def language(batch: int = 12) -> tuple[nn.Module, tuple[Tensor, ...]]:
    """Return a language model and its inputs."""
    torch.manual_seed(0)
    x = torch.randint(0, 36, (batch, 12))
    y = torch.randint(0, 36, (batch, 12))
    y[0, 0] = -100
    return Language(), (x, y)


def vision(batch: int = 12) -> tuple[nn.Module, tuple[Tensor, ...]]:
    """Return a model of images and its inputs."""
    torch.manual_seed(1)
    return Vision(), (torch.randn(batch, 3, 8, 8), torch.randint(0, 12, (batch,)))


def odds(batch: int = 12) -> tuple[nn.Module, tuple[Tensor, ...]]:
    """Return a model of other operators and its inputs."""
    torch.manual_seed(2)
    return Odds(), (torch.randn(batch, 12, 12),)


def mixture(batch: int = 12) -> tuple[nn.Module, tuple[Tensor, ...]]:
    """Return a model of experts and its inputs."""
    torch.manual_seed(3)
    return Mixture(), (torch.randn(batch, 12), torch.randn(batch, 12), torch.randperm(batch))


def losses(batch: int = 12) -> tuple[nn.Module, tuple[Tensor, ...]]:
    """Return a model of losses and its inputs."""
    torch.manual_seed(5)
    return Losses(), (torch.randint(0, 24, (batch, 6)), torch.randint(0, 12, (batch,)))


class Towers(nn.Module):
    """Pictures and words, each with a module of its own, that are to be alike; a common scale."""

    def __init__(self, width: int = 12) -> None:
        super().__init__()
        self.pictures = nn.Sequential(
            nn.Conv2d(3, 12, 3, padding=1), nn.BatchNorm2d(12), nn.ReLU(), nn.Flatten(),
            nn.Linear(12 * 16, width),
        )  # fmt: skip
        self.words = nn.Sequential(nn.Embedding(24, width), Block(width, 2))
        self.scale = nn.Parameter(torch.tensor(2.0))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        a, b = (F.normalize(z, dim=-1) for z in (self.pictures(x), self.words(y).mean(1)))
        places = torch.arange(len(x), device=x.device)
        return F.cross_entropy(self.scale * a @ b.T, places)


def towers(batch: int = 12) -> tuple[nn.Module, tuple[Tensor, ...]]:
    """Return a model of two modules beside each other and its inputs."""
    torch.manual_seed(4)
    return Towers(), (torch.randn(batch, 3, 4, 4), torch.randint(0, 24, (batch, 4)))


MODELS = {
    "language": language, "vision": vision, "odds": odds, "mixture": mixture, "losses": losses
}  # fmt: skip

#: Models whose modules can be on groups of devices.
GROUPED = {"towers": towers}
