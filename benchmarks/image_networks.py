"""Five networks for images at reduced size, and a task that they learn, in plain torch.

Widths are a quarter of the published ones (MobileNetV2: a half), and images have 32 × 32 points.
All networks have batch norm, without which VGG16 and AlexNet hardly learn; dropout is left out.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

CLASSES, POINTS, SAMPLES = 10, 32, 16
#: Standard deviation of the noise on an image, whose own is 1.
NOISE = 1.5


class Classifier(nn.Module):
    """A network and its loss."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.Sequential(*layers)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(self.layers(x), y)


def conv(
    before: int, after: int, size: int = 3, stride: int = 1, groups: int = 1, *, last: bool = False
) -> nn.Sequential:
    """Return a convolution with batch norm, and ReLU unless it is the last of a block."""
    made = [
        nn.Conv2d(before, after, size, stride, size // 2, groups=groups, bias=False),
        nn.BatchNorm2d(after),
    ]
    return nn.Sequential(*made, *([] if last else [nn.ReLU()]))


def head(width: int) -> list[nn.Module]:
    return [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, CLASSES)]


def vgg16() -> Classifier:
    layers: list[nn.Module] = []
    before = 3
    for width, count in ((16, 2), (32, 2), (64, 3), (128, 3), (128, 3)):
        for _ in range(count):
            layers.append(conv(before, width))
            before = width
        layers.append(nn.MaxPool2d(2))
    layers += [nn.Flatten(), nn.Linear(128, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU()]
    return Classifier(*layers, nn.Linear(1024, CLASSES))


def alexnet() -> Classifier:
    return Classifier(
        conv(3, 16, 5), nn.MaxPool2d(2), conv(16, 48, 5), nn.MaxPool2d(2), conv(48, 96),
        conv(96, 64), conv(64, 64), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(1024, 1024),
        nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, CLASSES),
    )  # fmt: skip


class Residual(nn.Module):
    """Convolutions with an input that is added; where shapes differ, a convolution of it."""

    def __init__(self, inner: nn.Module, beside: nn.Module, after: nn.Module) -> None:
        super().__init__()
        self.inner, self.beside, self.after = inner, beside, after

    def forward(self, x: Tensor) -> Tensor:
        return self.after(self.inner(x) + self.beside(x))


def resnet50() -> Classifier:
    layers: list[nn.Module] = [conv(3, 16, stride=2)]
    before = 16
    for width, count, stride in ((16, 3, 1), (32, 4, 2), (64, 6, 2), (128, 3, 2)):
        for block in range(count):
            step, after = 1 if block else stride, 4 * width
            inner = nn.Sequential(
                conv(before, width, 1), conv(width, width, 3, step),
                conv(width, after, 1, last=True),
            )  # fmt: skip
            beside = nn.Identity() if block else conv(before, after, 1, step, last=True)
            layers.append(Residual(inner, beside, nn.ReLU()))
            before = after
    return Classifier(*layers, *head(before))


class Inception(nn.Module):
    """Four branches, put side by side."""

    def __init__(self, before: int, *widths: int) -> None:
        super().__init__()
        one, three_in, three, five_in, five, pooled = widths
        self.one = conv(before, one, 1)
        self.three = nn.Sequential(conv(before, three_in, 1), conv(three_in, three))
        self.five = nn.Sequential(conv(before, five_in, 1), conv(five_in, five))
        self.pooled = nn.Sequential(nn.MaxPool2d(3, 1, 1), conv(before, pooled, 1))

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.one(x), self.three(x), self.five(x), self.pooled(x)], 1)


def googlenet() -> Classifier:
    layers = [conv(3, 16), nn.MaxPool2d(2), conv(16, 48), nn.MaxPool2d(2)]
    before = 48
    for widths in (
        (64, 96, 128, 16, 32, 32), (128, 128, 192, 32, 96, 64), (), (192, 96, 208, 16, 48, 64),
        (160, 112, 224, 24, 64, 64), (128, 128, 256, 24, 64, 64), (112, 144, 288, 32, 64, 64),
        (256, 160, 320, 32, 128, 128), (), (256, 160, 320, 32, 128, 128),
        (384, 192, 384, 48, 128, 128),
    ):  # fmt: skip
        if not widths:
            layers.append(nn.MaxPool2d(2))
            continue
        quarter = [width // 4 for width in widths]
        layers.append(Inception(before, *quarter))
        before = quarter[0] + quarter[2] + quarter[4] + quarter[5]
    return Classifier(*layers, *head(before))


def mobilenet_v2() -> Classifier:
    layers: list[nn.Module] = [conv(3, 16, stride=2)]
    before = 16
    for times, width, count, stride in (
        (1, 8, 1, 1), (6, 12, 2, 1), (6, 16, 3, 2), (6, 32, 4, 2), (6, 48, 3, 1), (6, 80, 3, 2),
        (6, 160, 1, 1),
    ):  # fmt: skip
        for block in range(count):
            wide = times * before
            inner = nn.Sequential(
                conv(before, wide, 1), conv(wide, wide, 3, 1 if block else stride, wide),
                conv(wide, width, 1, last=True),
            )  # fmt: skip
            layers.append(Residual(inner, nn.Identity(), nn.Identity()) if block else inner)
            before = width
    return Classifier(*layers, conv(before, 640, 1), *head(640))


NETWORKS: dict[str, Callable[[], Classifier]] = {
    "VGG16": vgg16, "AlexNet": alexnet, "ResNet-50": resnet50, "GoogLeNet": googlenet,
    "MobileNetV2": mobilenet_v2,
}  # fmt: skip


def network(name: str) -> Classifier:
    """Return a network; the same numbers each time."""
    torch.manual_seed(0)
    return NETWORKS[name]()


def images(minibatch: int) -> tuple[Tensor, Tensor]:
    """Return images and classes of a minibatch: the pattern of the class, shifted, and noise."""
    always, own = torch.Generator().manual_seed(0), torch.Generator().manual_seed(1 + minibatch)
    coarse = torch.randn(CLASSES, 3, 4, 4, generator=always)
    patterns = F.interpolate(coarse, size=(POINTS, POINTS), mode="bicubic")
    y = torch.randint(0, CLASSES, (SAMPLES,), generator=own)
    shifts = torch.randint(-4, 5, (SAMPLES, 2), generator=own).tolist()
    x = torch.stack([patterns[c].roll(s, (1, 2)) for c, s in zip(y, shifts, strict=True)])
    return x / x.std() + NOISE * torch.randn(x.shape, generator=own), y
