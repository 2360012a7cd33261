"""The denoising U-Net of Stable Diffusion 1.x: long skips, cross attention, one shared clock."""

from __future__ import annotations

from ...common.errors import InputError
from .network import Network, NetworkTensor
from .operators import (
    attention,
    concat,
    conv,
    elementwise,
    flatten,
    image,
    linear,
    norm,
    resize,
)

HEADS = 8
CHANNELS = (320, 640, 1280, 1280)


def stable_diffusion_unet(batch: int, side: int, deeper: int = 1) -> Network:
    """One denoising step on latents of `side`² (an image of 8 times that side).

    Rombach et al., "High-resolution image synthesis with latent diffusion models", CVPR 2022;
    dimensions and count (859 520 964) as in the published configuration of version 1.5: channels
    320, 640, 1280, 1280, two residual blocks per level, 8 heads, text of 77 × 768. Layers are
    residual blocks, transformer blocks, and changes of resolution. Every residual block adds a
    projection of the time embedding: one node feeds them all. `deeper` is how many times as many
    blocks a level has as published.
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
