"""Image networks: ResNet-50, ViT-L/16, U-Net, Semantic FPN, Stable Diffusion's U-Net.

Layers are convolutions with their normalisation and activation, and the halves of the transformer
blocks; sums where branches meet are layers of their own. `deeper` multiplies the number of blocks.
Stable Diffusion 1.x denoises by a U-Net with long skips, cross attention, and one shared time
embedding.
"""

from __future__ import annotations

from ...common.errors import InputError
from .network import (
    Network,
    NetworkTensor,
    attention,
    concat,
    conv,
    elementwise,
    first_token,
    flatten,
    image,
    learned,
    linear,
    norm,
    pool,
    resize,
    upconv,
)

HEADS = 8
CHANNELS = (320, 640, 1280, 1280)


def resnet50(batch: int, side: int, deeper: int = 1) -> Network:
    """ResNet-50 for 1000 classes, with the stride in the 3×3 convolutions (version 1.5).

    He et al., "Deep residual learning for image recognition", CVPR 2016, Table 1; count and
    4.09 GMACs at 224² as torchvision's ``resnet50``.
    """
    _multiple(side, 32)
    net = Network("ResNet-50", _sample(batch, side))
    x = _backbone(net, NetworkTensor((batch, 3, side, side)), deeper)[-1]
    with net.layer("head"):
        x = pool(net, "avgpool", x, side // 32, 1)
        linear(net, NetworkTensor((batch, x.shape[1]), x.producer), 1000, "logits")
    return net


def _backbone(net: Network, pixels: NetworkTensor, deeper: int) -> list[NetworkTensor]:
    """Add ResNet-50 up to its last block; return the outputs of its four stages."""
    x = _conv_norm_relu(net, pixels, 64, 7, "stem", stride=2)
    with net.layer("stem.pool"):
        x = pool(net, "maxpool", x, 3, 2, 1)
    stages = []
    for s, (blocks, width) in enumerate(((3, 64), (4, 128), (6, 256), (3, 512))):
        for b in range(blocks * deeper):
            stride = 2 if s > 0 and b == 0 else 1
            name = f"stage.{s}.{b}"
            y = _conv_norm_relu(net, x, width, 1, f"{name}.reduce")
            y = _conv_norm_relu(net, y, width, 3, f"{name}.spatial", stride=stride)
            y = _conv_norm_relu(net, y, 4 * width, 1, f"{name}.expand", relu=False)
            if b == 0:
                x = _conv_norm_relu(
                    net, x, 4 * width, 1, f"{name}.shortcut", stride=stride, relu=False
                )
            with net.layer(f"{name}.sum"):
                x = elementwise(net, "relu", elementwise(net, "add", x, y))
        stages.append(x)
    return stages


def _conv_norm_relu(
    net: Network,
    x: NetworkTensor,
    channels: int,
    kernel: int,
    layer: str,
    *,
    stride: int = 1,
    relu: bool = True,
) -> NetworkTensor:
    with net.layer(layer):
        x = conv(net, x, channels, kernel, "conv", stride=stride)
        x = norm(net, "batchnorm", x, "norm", axis=1)
        return elementwise(net, "relu", x) if relu else x


def semantic_fpn(batch: int, side: int, deeper: int = 1) -> Network:
    """Semantic FPN on ResNet-50 for the 150 classes of ADE20K.

    Four pyramid levels of 256 channels; each is brought to a quarter of the image's side by
    convolutions to 128 channels and doublings; their sum is classified. Kirillov et al.,
    "Panoptic feature pyramid networks", CVPR 2019, section 3, with batch normalisation; 28.5M
    parameters and 45.6 GMACs at 512² are as in Wang et al., "Pyramid vision transformer", ICCV
    2021, Table 4.
    """
    _multiple(side, 32)
    net = Network("Semantic FPN, ResNet-50", _sample(batch, side))
    stages = _backbone(net, NetworkTensor((batch, 3, side, side)), deeper)
    merged: NetworkTensor | None = None
    levels: list[NetworkTensor] = []
    for s in (3, 2, 1, 0):
        with net.layer(f"pyramid.{s}.lateral"):
            x = conv(net, stages[s], 256, 1, "conv", bias=True)
            if merged is not None:
                above = resize(net, "nearest", merged, 2, "enlarge")
                x = elementwise(net, "add", x, above)
        merged = x
        with net.layer(f"pyramid.{s}.output"):
            levels.append(conv(net, x, 256, 3, "conv", bias=True))
    parts = []
    for s, x in zip((3, 2, 1, 0), levels, strict=True):
        for i in range(max(1, s)):
            x = _conv_norm_relu(net, x, 128, 3, f"head.{s}.{i}")
            if s > 0:
                with net.layer(f"head.{s}.{i}"):
                    x = resize(net, "bilinear", x, 2, "enlarge")
        parts.append(x)
    with net.layer("head.sum"):
        x = elementwise(net, "add", *parts)
    with net.layer("classify"):
        x = conv(net, x, 150, 1, "conv", bias=True)
        resize(net, "bilinear", x, 4, "enlarge")
    return net


def unet(batch: int, side: int, deeper: int = 1) -> Network:
    """The original U-Net for one channel and two classes: 23 convolutions, none padded.

    Ronneberger, Fischer and Brox, "U-Net", MICCAI 2015, Figure 1 (572² → 388²); the figure's
    dimensions give 31.03M parameters, the count usually quoted.
    """
    if deeper > 1:
        raise InputError(f"deeper: {deeper}; the U-Net has its figure's depth alone")
    if side < 188 or side % 16 != 12:
        raise InputError(f"size: {side} pixels do not fit; take 188, 204, 220, … 572, …")
    net = Network("U-Net", _sample(batch, side))
    x = NetworkTensor((batch, 1, side, side))
    skips: list[NetworkTensor] = []
    for level, channels in enumerate((64, 128, 256, 512, 1024)):
        for i in range(2):
            with net.layer(f"down.{level}.{i}"):
                if level > 0 and i == 0:
                    x = pool(net, "maxpool", x, 2, 2)
                x = _plain(net, x, channels)
        skips.append(x)
    for level, channels in ((3, 512), (2, 256), (1, 128), (0, 64)):
        with net.layer(f"up.{level}.enlarge"):
            x = upconv(net, x, channels, "upconv")
        for i in range(2):
            with net.layer(f"up.{level}.{i}"):
                x = concat(net, (x, skips[level])) if i == 0 else x
                x = _plain(net, x, channels)
    with net.layer("classify"):
        conv(net, x, 2, 1, "conv", bias=True)
    return net


def _plain(net: Network, x: NetworkTensor, channels: int) -> NetworkTensor:
    return elementwise(net, "relu", conv(net, x, channels, 3, "conv", padding=0, bias=True))


def vit_l16(batch: int, side: int, deeper: int = 1) -> Network:
    """ViT-L/16 for 1000 classes: 24 blocks, width 1024, 16 heads, patches of 16².

    Dosovitskiy et al., "An image is worth 16x16 words", ICLR 2021, Table 1; count and 61.55 GMACs
    at 224² as torchvision's ``vit_l_16``.
    """
    width, heads = 1024, 16
    _multiple(side, 16)
    net = Network("ViT-L/16", _sample(batch, side))
    with net.layer("embedding"):
        pixels = NetworkTensor((batch, 3, side, side))
        x = flatten(conv(net, pixels, width, 16, "patches", stride=16, padding=0, bias=True))
        token = learned(net, (1, width), "class_token")
        rows = x.shape[1] + 1
        shape = (batch, rows, width)
        x = net.add("concat", "concat", (x, token), shape, flops=0, saves="nothing")
        x = elementwise(net, "add", x, learned(net, (rows, width), "positions"))
    for i in range(24 * deeper):
        with net.layer(f"block.{i}.attention"):
            y = norm(net, "layernorm", x, "norm")
            query, key, value = (linear(net, y, width, n) for n in ("query", "key", "value"))
            y = linear(net, attention(net, query, key, value, heads), width, "output")
            x = elementwise(net, "add", x, y, name="residual")
        with net.layer(f"block.{i}.mlp"):
            y = norm(net, "layernorm", x, "norm")
            y = elementwise(net, "gelu", linear(net, y, 4 * width, "expand"))
            x = elementwise(net, "add", x, linear(net, y, width, "contract"), name="residual")
    with net.layer("head"):
        x = norm(net, "layernorm", x, "norm")
        linear(net, first_token(x), 1000, "logits")
    return net


def _sample(batch: int, side: int) -> str:
    return f"batch {batch}, {side}×{side} pixels each"


def _multiple(side: int, of: int) -> None:
    if side % of:
        raise InputError(f"size: {side} pixels; the network needs a multiple of {of}")


def stable_diffusion_unet(batch: int, side: int, deeper: int = 1) -> Network:
    """Stable Diffusion 1.5's U-Net in one denoising step on latents of `side`².

    The image has 8 times that side.

    Rombach et al., "High-resolution image synthesis with latent diffusion models", CVPR 2022;
    dimensions and count (859 520 964) as in the published configuration of version 1.5: channels
    320, 640, 1280, 1280, two residual blocks per level, 8 heads, text of 77 × 768. Layers are
    residual blocks, transformer blocks, and changes of resolution. Every residual block adds a
    projection of the time embedding: one node feeds them all. `deeper` multiplies the
    published number of blocks of a level.
    """
    if side % 8:
        raise InputError(f"size: latents of {side}²; the network needs a multiple of 8")
    net = Network("Stable Diffusion 1.5 U-Net", f"batch {batch}, latents of {side}×{side} each")
    text = NetworkTensor((batch, 77, 768))
    with net.layer("time"):
        clock = linear(net, NetworkTensor((batch, 320)), 1280, "expand")
        clock = linear(net, elementwise(net, "silu", clock), 1280, "mix")
        clock = elementwise(net, "silu", clock, name="activation")
    with net.layer("input"):
        x = conv(net, NetworkTensor((batch, 4, side, side)), CHANNELS[0], 3, "conv", bias=True)
    skips = [x]
    for level, channels in enumerate(CHANNELS):
        for i in range(2 * deeper):
            x = _residual(net, x, clock, channels, f"down.{level}.{i}.residual")
            if level < 3:
                x = _transformer(net, x, text, f"down.{level}.{i}.transformer")
            skips.append(x)
        if level < 3:
            with net.layer(f"down.{level}.shrink"):
                x = conv(net, x, channels, 3, "conv", stride=2, bias=True)
            skips.append(x)
    x = _residual(net, x, clock, 1280, "middle.0.residual")
    x = _transformer(net, x, text, "middle.transformer")
    x = _residual(net, x, clock, 1280, "middle.1.residual")
    for level in (3, 2, 1, 0):
        for i in range(2 * deeper + 1):
            name = f"up.{level}.{i}"
            x = _residual(net, x, clock, CHANNELS[level], f"{name}.residual", skip=skips.pop())
            if level < 3:
                x = _transformer(net, x, text, f"{name}.transformer")
        if level > 0:
            with net.layer(f"up.{level}.enlarge"):
                x = resize(net, "nearest", x, 2, "nearest")
                x = conv(net, x, CHANNELS[level], 3, "conv", bias=True)
    with net.layer("output"):
        x = elementwise(net, "silu", norm(net, "groupnorm", x, "norm", axis=1))
        conv(net, x, 4, 3, "conv", bias=True)
    return net


def _residual(
    net: Network,
    x: NetworkTensor,
    clock: NetworkTensor,
    channels: int,
    layer: str,
    *,
    skip: NetworkTensor | None = None,
) -> NetworkTensor:
    with net.layer(layer):
        if skip is not None:
            x = concat(net, (x, skip))
        y = elementwise(net, "silu", norm(net, "groupnorm", x, "norm", axis=1))
        y = conv(net, y, channels, 3, "conv", bias=True)
        shift = linear(net, clock, channels, "time")
        y = elementwise(net, "add", y, shift, name="shift")
        y = norm(net, "groupnorm", y, "norm_2", axis=1)
        y = conv(net, elementwise(net, "silu", y, name="silu_2"), channels, 3, "conv_2", bias=True)
        if x.shape[1] != channels:
            x = conv(net, x, channels, 1, "shortcut", bias=True)
        return elementwise(net, "add", x, y, name="residual")


def _transformer(net: Network, x: NetworkTensor, text: NetworkTensor, layer: str) -> NetworkTensor:
    _, channels, height, width = x.shape
    with net.layer(layer):
        y = norm(net, "groupnorm", x, "norm", axis=1)
        z = flatten(conv(net, y, channels, 1, "input", bias=True))
        for name, context in (("self", None), ("cross", text)):
            y = norm(net, "layernorm", z, f"{name}.norm")
            query = linear(net, y, channels, f"{name}.query", bias=False)
            key = linear(net, context or y, channels, f"{name}.key", bias=False)
            value = linear(net, context or y, channels, f"{name}.value", bias=False)
            y = attention(net, query, key, value, HEADS, prefix=f"{name}.")
            y = linear(net, y, channels, f"{name}.output")
            z = elementwise(net, "add", z, y, name=f"{name}.residual")
        y = norm(net, "layernorm", z, "mlp.norm")
        gate = linear(net, y, 4 * channels, "mlp.gate")
        up = linear(net, y, 4 * channels, "mlp.up")
        y = linear(net, elementwise(net, "geglu", gate, up, name="mlp.geglu"), channels, "mlp.down")
        z = elementwise(net, "add", z, y, name="mlp.residual")
        y = conv(net, image(z, height, width), channels, 1, "output", bias=True)
        return elementwise(net, "add", x, y, name="residual")
