"""Models for the benchmark of shardings, written out so that they need nothing but torch."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

Made = tuple[nn.Module, tuple[Tensor, ...]]


class Attention(nn.Module):
    """Attention with projections apart; `rotate` turns queries and keys by their places."""

    def __init__(self, width: int, heads: int, *, bias: bool, causal: bool, rotate: bool) -> None:
        super().__init__()
        self.heads, self.causal, self.rotate = heads, causal, rotate
        self.q, self.k, self.v, self.o = (nn.Linear(width, width, bias=bias) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        b, n, width = x.shape
        parts = (f(x).view(b, n, self.heads, width // self.heads) for f in (self.q, self.k, self.v))
        q, k, v = (part.transpose(1, 2) for part in parts)
        if self.rotate:
            q, k = turned(q), turned(k)
        made = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        return self.o(made.transpose(1, 2).reshape(b, n, width))


def turned(x: Tensor) -> Tensor:
    """Return rotary embeddings of (batch, heads, places, width)."""
    half = x.shape[-1] // 2
    places = torch.arange(x.shape[2], device=x.device, dtype=x.dtype)
    angle = places[:, None] * torch.arange(half, device=x.device, dtype=x.dtype)[None] / half
    one, other = x[..., :half], x[..., half:]
    return torch.cat(
        [one * angle.cos() - other * angle.sin(), one * angle.sin() + other * angle.cos()], -1
    )


class Root(nn.Module):
    """Normalisation by the root of the mean square."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.weight


class GatedBlock(nn.Module):
    """A transformer block as of GPT-2 and ViT, or gated as of Llama."""

    def __init__(self, width: int, heads: int, *, gated: bool = False, causal: bool = True) -> None:
        super().__init__()
        norm = Root if gated else nn.LayerNorm
        self.first, self.second = norm(width), norm(width)
        self.attention = Attention(width, heads, bias=not gated, causal=causal, rotate=gated)
        hidden = 8 * width // 3 // 64 * 64 if gated else 4 * width
        self.up = nn.Linear(width, hidden, bias=not gated)
        self.gate = nn.Linear(width, hidden, bias=False) if gated else None
        self.down = nn.Linear(hidden, width, bias=not gated)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.first(x))
        y = self.second(x)
        y = F.gelu(self.up(y)) if self.gate is None else F.silu(self.gate(y)) * self.up(y)
        return x + self.down(y)


class Language(nn.Module):
    """A language model with its loss."""

    def __init__(self, layers: int, width: int, heads: int, words: int, places: int | None) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.places = None if places is None else nn.Embedding(places, width)
        gated = places is None
        self.blocks = nn.ModuleList(GatedBlock(width, heads, gated=gated) for _ in range(layers))
        self.norm = Root(width) if gated else nn.LayerNorm(width)
        self.head = nn.Linear(width, words, bias=False)
        if not gated:
            self.head.weight = self.words.weight

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        h = self.words(x)
        if self.places is not None:
            h = h + self.places(torch.arange(x.shape[1], device=x.device))
        for block in self.blocks:
            h = block(h)
        return F.cross_entropy(self.head(self.norm(h)).flatten(0, 1), y.flatten())


def gpt2(layers: int = 12, batch: int = 32) -> Made:
    """GPT-2 small; its vocabulary filled up to 50304."""
    x = torch.zeros(batch, 1024, dtype=torch.int64)
    return Language(layers, 768, 12, 50304, 1024), (x, x)


def llama(layers: int = 16, batch: int = 32) -> Made:
    """A model of 1.1e9 parameters as Llama's."""
    x = torch.zeros(batch, 1024, dtype=torch.int64)
    return Language(layers, 2048, 32, 32000, None), (x, x)


class Experts(nn.Module):
    """A layer of experts, two of which count for each token; all compute every token."""

    def __init__(self, width: int, hidden: int, count: int) -> None:
        super().__init__()
        self.router = nn.Linear(width, count, bias=False)
        self.up, self.gate = (nn.Parameter(torch.randn(count, width, hidden) / width**0.5)
                              for _ in range(2))  # fmt: skip
        self.down = nn.Parameter(torch.randn(count, hidden, width) / hidden**0.5)

    def forward(self, x: Tensor) -> Tensor:
        tokens = x.flatten(0, 1)
        share = torch.softmax(self.router(tokens), -1)
        least = share.topk(2, -1).values[:, 1:]
        share = torch.where(share >= least, share, torch.zeros_like(share))
        each = tokens.expand(len(self.up), *tokens.shape)
        made = torch.bmm(F.silu(torch.bmm(each, self.gate)) * torch.bmm(each, self.up), self.down)
        return (made * share.t().unsqueeze(-1)).sum(0).view_as(x)


class Mixture(nn.Module):
    """A language model as Mixtral: attention, then experts."""

    def __init__(self, layers: int, width: int, heads: int, words: int, experts: int) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.attention = nn.ModuleList(
            Attention(width, heads, bias=False, causal=True, rotate=True) for _ in range(layers)
        )
        self.experts = nn.ModuleList(Experts(width, 2 * width, experts) for _ in range(layers))
        self.norms = nn.ModuleList(Root(width) for _ in range(2 * layers + 1))
        self.head = nn.Linear(width, words, bias=False)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        h, norms = self.words(x), iter(self.norms)
        for attention, experts in zip(self.attention, self.experts, strict=True):
            h = h + attention(next(norms)(h))
            h = h + experts(next(norms)(h))
        return F.cross_entropy(self.head(next(norms)(h)).flatten(0, 1), y.flatten())


def mixtral(layers: int = 8, batch: int = 32) -> Made:
    """A model of 5e8 parameters as Mixtral's, with 8 experts."""
    x = torch.zeros(batch, 1024, dtype=torch.int64)
    return Mixture(layers, 1024, 16, 32000, 8), (x, x)


class Vit(nn.Module):
    """ViT-B/16, its tokens averaged."""

    def __init__(self, layers: int = 12, width: int = 768) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 16, 16)
        self.places = nn.Parameter(torch.zeros(1, 196, width))
        self.blocks = nn.ModuleList(GatedBlock(width, 12, causal=False) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 1000)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        h = self.patches(x).flatten(2).transpose(1, 2) + self.places
        for block in self.blocks:
            h = block(h)
        return F.cross_entropy(self.head(self.norm(h).mean(1)), y)


def vit(batch: int = 64) -> Made:
    """ViT-B/16."""
    return Vit(), (torch.zeros(batch, 3, 224, 224), torch.zeros(batch, dtype=torch.int64))


class Bottleneck(nn.Module):
    """Three convolutions around which the input goes."""

    def __init__(self, before: int, width: int, stride: int) -> None:
        super().__init__()
        convs = [(before, width, 1, 1), (width, width, 3, stride), (width, 4 * width, 1, 1)]
        self.convs = nn.ModuleList(
            nn.Conv2d(a, b, k, s, k // 2, bias=False) for a, b, k, s in convs
        )
        self.norms = nn.ModuleList(nn.BatchNorm2d(b) for _, b, _, _ in convs)
        self.short = None
        if stride > 1 or before != 4 * width:
            short = nn.Conv2d(before, 4 * width, 1, stride, bias=False)
            self.short = nn.Sequential(short, nn.BatchNorm2d(4 * width))

    def forward(self, x: Tensor) -> Tensor:
        y = x
        for k, (conv, norm) in enumerate(zip(self.convs, self.norms, strict=True)):
            y = norm(conv(y))
            y = torch.relu(y) if k < 2 else y
        return torch.relu(y + (x if self.short is None else self.short(x)))


class ResNet(nn.Module):
    """ResNet-50."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64)
        blocks, before = [], 64
        for stage, count in enumerate((3, 4, 6, 3)):
            for k in range(count):
                width = 64 << stage
                blocks.append(Bottleneck(before, width, 2 if stage and not k else 1))
                before = 4 * width
        self.blocks, self.head = nn.Sequential(*blocks), nn.Linear(2048, 1000)

    def features(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(torch.relu(self.norm(self.stem(x))), 3, 2, 1)
        return self.head(self.blocks(x).mean((2, 3)))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(self.features(x), y)


def resnet50(batch: int = 64) -> Made:
    """ResNet-50."""
    return ResNet(), (torch.zeros(batch, 3, 224, 224), torch.zeros(batch, dtype=torch.int64))


class Answers(nn.Module):
    """BERT, Base by default, that marks where an answer begins and ends."""

    def __init__(self, layers: int = 12, width: int = 768, heads: int = 12, words: int = 30522):
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(512, width)
        self.blocks = nn.ModuleList(GatedBlock(width, heads, causal=False) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 2)

    def forward(self, x: Tensor, begin: Tensor, end: Tensor) -> Tensor:
        h = self.words(x) + self.places(torch.arange(x.shape[1], device=x.device))
        for block in self.blocks:
            h = block(h)
        found = self.head(self.norm(h))
        return F.cross_entropy(found[:, :, 0], begin) + F.cross_entropy(found[:, :, 1], end)


def bert(batch: int = 128) -> Made:
    """BERT-Base for questions and answers, 384 tokens."""
    place = torch.zeros(batch, dtype=torch.int64)
    return Answers(), (torch.zeros(batch, 384, dtype=torch.int64), place, place)


class FaceNet(nn.Module):
    """A face recogniser: ResNet-50 on 112 × 112 pixels, 512 features, a layer of classes."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.backbone = ResNet()
        self.backbone.head = nn.Linear(2048, 512)
        self.classes = nn.Linear(512, classes, bias=False)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(self.classes(self.backbone.features(x)), y)


def face_net(classes: int, batch: int) -> Made:
    """A face recogniser as a whole."""
    with torch.device("meta"):
        model = FaceNet(classes)
        return model, (torch.zeros(batch, 3, 112, 112), torch.zeros(batch, dtype=torch.int64))


class Classifier(nn.Module):
    """VGG16's three fully connected layers, or a layer of classes alone, with the loss."""

    def __init__(self, *widths: int) -> None:
        super().__init__()
        pairs = itertools.pairwise(widths)
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in pairs)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        for k, layer in enumerate(self.layers):
            x = layer(x) if k == len(self.layers) - 1 else torch.relu(layer(x))
        return F.cross_entropy(x, y)


def vgg_head(batch: int = 64) -> Made:
    """VGG16's three fully connected layers."""
    model = Classifier(25088, 4096, 4096, 1000)
    return model, (torch.zeros(batch, 25088), torch.zeros(batch, dtype=torch.int64))


def faces(classes: int, batch: int) -> Made:
    """The last layer of a face recogniser: 512 features, many classes."""
    with torch.device("meta"):
        model = Classifier(512, classes)
        return model, (torch.zeros(batch, 512), torch.zeros(batch, dtype=torch.int64))


MODELS: dict[str, Callable[[], Made]] = {
    "gpt2": gpt2, "llama": llama, "mixtral": mixtral, "resnet50": resnet50, "vit": vit,
    "vgg-head": vgg_head,
}  # fmt: skip
