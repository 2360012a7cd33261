"""Small models of several families that processes of one machine can train by a sharding."""

from __future__ import annotations

from collections.abc import Callable

import torch
from sharding_models import (
    Answers,
    Bottleneck,
    Classifier,
    GatedBlock,
    Language,
    Made,
    Mixture,
    Vit,
)
from torch import Tensor, nn
from torch.nn import functional as F


class Convolutions(nn.Module):
    """Convolutions with pools between, then a classifier: LeNet, AlexNet, VGG16, narrower."""

    def __init__(self, before: int, layers: str, widths: tuple[int, ...]) -> None:
        super().__init__()
        made: list[nn.Module] = []
        for word in layers.split():
            if word == "M":
                made.append(nn.MaxPool2d(2))
                continue
            after, kernel = map(int, word.split("k"))
            made += [nn.Conv2d(before, after, kernel, padding=kernel // 2), nn.ReLU()]
            before = after
        self.features, self.head = nn.Sequential(*made), Classifier(*widths)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.head(self.features(x).flatten(1), y)


class Inverted(nn.Module):
    """A block of MobileNetV2."""

    def __init__(self, before: int, after: int, stride: int, times: int) -> None:
        super().__init__()
        width = before * times
        self.same = stride == 1 and before == after
        self.parts = nn.Sequential(
            nn.Conv2d(before, width, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU6(),
            nn.Conv2d(width, width, 3, stride, 1, groups=width, bias=False),
            nn.BatchNorm2d(width), nn.ReLU6(),
            nn.Conv2d(width, after, 1, bias=False), nn.BatchNorm2d(after),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        return x + self.parts(x) if self.same else self.parts(x)


class Mobile(nn.Module):
    """MobileNetV2 at half width and of fewer blocks."""

    def __init__(self) -> None:
        super().__init__()
        blocks = [(16, 8, 1, 1), (8, 12, 2, 6), (12, 12, 1, 6), (12, 16, 2, 6), (16, 16, 1, 6),
                  (16, 32, 2, 6), (32, 48, 1, 6)]  # fmt: skip
        self.stem = nn.Sequential(
            nn.Conv2d(3, 16, 3, 2, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU6()
        )
        self.blocks = nn.Sequential(*(Inverted(*block) for block in blocks))
        self.head = nn.Linear(48, 100)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(self.head(self.blocks(self.stem(x)).mean((2, 3))), y)


class SmallResNet(nn.Module):
    """ResNet's bottlenecks, a few of them."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16)
        self.blocks = nn.Sequential(
            Bottleneck(16, 8, 1), Bottleneck(32, 8, 1), Bottleneck(32, 16, 2)
        )
        self.head = nn.Linear(64, 16)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        x = torch.relu(self.norm(self.stem(x)))
        return F.cross_entropy(self.head(self.blocks(x).mean((2, 3))), y)


class SmallVit(Vit):
    """ViT on 4 × 4 patches of 16 × 16 pixels."""

    def __init__(self) -> None:
        super().__init__(layers=0, width=64)
        self.places = nn.Parameter(torch.zeros(1, 4, 64))
        self.blocks = nn.ModuleList(GatedBlock(64, 4, causal=False) for _ in range(2))
        self.head = nn.Linear(64, 16)


def _images(model: nn.Module, batch: int, size: int, classes: int, channels: int = 3) -> Made:
    return model, (torch.randn(batch, channels, size, size), torch.randint(0, classes, (batch,)))


def _words(model: nn.Module) -> Made:
    x = torch.randint(0, 128, (8, 16))
    return model, (x, x.roll(-1, 1))


def _answers() -> Made:
    place = torch.randint(0, 64, (32,))
    return Answers(2, 128, 4, 1000), (torch.randint(0, 1000, (32, 64)), place, place.clone())


def classifier(*widths: int, batch: int = 64) -> Made:
    """Fully connected layers, or a layer of classes alone."""
    model = Classifier(*widths)
    return model, (torch.randn(batch, widths[0]), torch.randint(0, widths[-1], (batch,)))


VGG = "8k3 8k3 M 16k3 16k3 M 32k3 32k3 32k3 M 64k3 64k3 64k3 M 64k3 64k3 64k3 M"

#: For bytes: of each family that is planned at full size.
FAMILIES: dict[str, Callable[[], Made]] = {
    "gpt2": lambda: _words(Language(2, 64, 4, 128, 16)),
    "llama": lambda: _words(Language(2, 96, 4, 128, None)),
    "mixtral": lambda: _words(Mixture(1, 96, 4, 128, 4)),
    "resnet": lambda: _images(SmallResNet(), 8, 16, 16),
    "vit": lambda: _images(SmallVit(), 8, 32, 16),
}

#: For beta: convolutional networks, narrower than published, on smaller images.
NETWORKS: dict[str, Callable[[], Made]] = {
    "lenet": lambda: _images(
        Convolutions(1, "6k5 M 16k5 M", (784, 120, 84, 16)), 64, 28, 16, 1
    ),
    "alexnet": lambda: _images(
        Convolutions(3, "16k5 M 48k5 M 96k3 64k3 64k3 M", (4096, 1024, 1024, 128)), 32, 64, 128
    ),
    "vgg16": lambda: _images(Convolutions(3, VGG, (256, 1024, 1024, 128)), 32, 64, 128),
    "mobilenetv2": lambda: _images(Mobile(), 32, 64, 100),
}  # fmt: skip

#: For more and more devices: small ones of the two networks that DistPar's figure 2 has.
SCALED: dict[str, Callable[[], Made]] = {
    "ResNet, 3 blocks": lambda: _images(SmallResNet(), 64, 32, 16),
    "BERT, 2 blocks": _answers,
}
