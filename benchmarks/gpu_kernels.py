"""Kernels of training on a GPU: the arguments of each, and the time that the costs predict.

A kernel is measured as it runs in training: many calls follow each other on one stream, and the
host is ahead of the device, so that a call takes the kernel and the gap to the next one. Inputs are
random. Calls take turns with so many sets of inputs that the device's cache no longer holds a set
when its turn comes again.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from stagecut.instances.costs.activations import activation_bytes, loss_bytes, norm_bytes
from stagecut.instances.costs.calibration import Calibration, fused_attention, pointwise, product
from stagecut.instances.costs.description import Block, Norm
from stagecut.instances.costs.hardware import Accelerator, NumberFormat
from stagecut.instances.costs.layout import RECIPES, Layout, Software
from stagecut.instances.costs.models import shipped_model, shipped_models
from stagecut.instances.costs.stages import clipping_bytes, optimizer_bytes
from stagecut.runtime.execution.job.running import cross_entropy
from stagecut.runtime.execution.job.transformer import _rotated as rotated

#: PyTorch's operations one by one, as they are measured here.
EAGER = Layout(software=Software.STAGECUT)
Shape = Mapping[str, int]
Call = Callable[[], object]
BF16 = NumberFormat.BF16
#: Bytes that calls pass over before one sees its inputs again: over twice the cache of an H100.
ROTATED = 128 << 20
#: Most sets of inputs, groups of calls that are timed, and calls of a group.
SETS, GROUPS, CALLS = 8, 5, 40


@dataclass(frozen=True)
class Kernel:
    """A call to measure: what it is (`KINDS`), and the sizes of what it is called with."""

    what: str
    shape: tuple[tuple[str, int], ...]

    @property
    def sizes(self) -> dict[str, int]:
        """Sizes by name."""
        return dict(self.shape)

    @property
    def text(self) -> str:
        """Sizes as a table shows them."""
        return " ".join(f"{name} {size}" for name, size in self.shape)


@dataclass(frozen=True)
class Kind:
    """A kind of kernel: what draws its inputs and returns the call, and what the costs say."""

    make: Callable[[Shape, torch.device], Call]
    predict: Callable[[Shape, Accelerator, Calibration], float]  # seconds


def kernel(what: str, **sizes: int) -> Kernel:
    return Kernel(what, tuple(sizes.items()))


def parsed(what: str, text: str) -> Kernel:
    """Return the kernel of a row of the table."""
    words = text.split()
    return kernel(what, **dict(zip(words[::2], map(int, words[1::2]), strict=True)))


def predicted(one: Kernel, device: Accelerator, table: Calibration) -> float:
    """Return the seconds of a kernel by a calibration."""
    return KINDS[one.what].predict(one.sizes, device, table)


# What runs.


def drawn(device: torch.device, *shape: int) -> Tensor:
    return torch.randn(shape, device=device, dtype=torch.bfloat16)


def product_call(pass_: str) -> Callable[[Shape, torch.device], Call]:
    """Return what makes a linear layer's product in a pass: m tokens from k to n elements."""

    def make(s: Shape, device: torch.device) -> Call:
        if pass_ == "forward":
            x, weight = drawn(device, s["m"], s["k"]), drawn(device, s["n"], s["k"])
            return lambda: F.linear(x, weight)
        gradient = drawn(device, s["m"], s["n"])
        if pass_ == "inputs":
            weight = drawn(device, s["n"], s["k"])
            return lambda: gradient @ weight
        x = drawn(device, s["m"], s["k"])
        return lambda: gradient.t() @ x

    return make


def grouped_call(pass_: str) -> Callable[[Shape, torch.device], Call]:
    """Return what makes the product of `count` experts of m rows each, from k to n elements."""

    def make(s: Shape, device: torch.device) -> Call:
        count, m = s["count"], s["m"]
        x, gradient = drawn(device, count * m, s["k"]), drawn(device, count * m, s["n"])
        weight = drawn(device, count, s["k"], s["n"])
        if pass_ == "one by one":
            return lambda: [part @ weight[e] for e, part in enumerate(x.split(m))]
        ends = torch.arange(m, count * m + 1, m, device=device, dtype=torch.int32)
        grouped_mm = torch._grouped_mm
        if pass_ == "forward":
            return lambda: grouped_mm(x, weight, ends)
        return lambda: grouped_mm(x.t(), gradient, ends)

    return make


def attention_call(backward: bool, backend: str = "") -> Callable[[Shape, torch.device], Call]:
    """Return what makes causal attention, by torch's choice of kernel or by cuDNN's."""

    def make(s: Shape, device: torch.device) -> Call:
        q = drawn(device, s["b"], s["h"], s["s"], s["d"]).requires_grad_(backward)
        k = drawn(device, s["b"], s["g"], s["s"], s["d"]).requires_grad_(backward)
        v = drawn(device, s["b"], s["g"], s["s"], s["e"]).requires_grad_(backward)

        def forward() -> Tensor:
            return F.scaled_dot_product_attention(
                q, k, v, is_causal=True, enable_gqa=s["h"] != s["g"]
            )

        def chosen() -> Tensor:
            if not backend:
                return forward()
            with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
                return forward()

        return behind(chosen(), (q, k, v)) if backward else chosen

    return make


def behind(result: Tensor, inputs: Sequence[Tensor]) -> Call:
    """Return the backward pass behind a result."""
    gradient = torch.randn_like(result)
    return lambda: torch.autograd.grad(result, inputs, gradient, retain_graph=True)


def pointwise_call(
    run: Callable[..., Tensor], *inputs: Callable[[Shape], tuple[int, ...]], backward: bool = False
) -> Callable[[Shape, torch.device], Call]:
    """Return what makes a pointwise operation of inputs of these shapes."""

    def make(s: Shape, device: torch.device) -> Call:
        given = [drawn(device, *shape(s)).requires_grad_(backward) for shape in inputs]
        return behind(run(*given), given) if backward else lambda: run(*given)

    return make


def loss_call(backward: bool) -> Callable[[Shape, torch.device], Call]:
    """Return what makes the cross-entropy of 16-bit logits in 32 bits."""

    def make(s: Shape, device: torch.device) -> Call:
        logits = drawn(device, 1, s["tokens"], s["vocabulary"]).requires_grad_(backward)
        targets = torch.randint(s["vocabulary"], (1, s["tokens"]), device=device)
        if backward:
            return behind(cross_entropy(logits, targets), (logits,))
        return lambda: cross_entropy(logits, targets)

    return make


def optimizer_call(s: Shape, device: torch.device) -> Call:
    """Return a step of fused AdamW over 16 tensors in 32 bits, `clipped` or not."""
    each = s["parameters"] // 16
    held = [torch.nn.Parameter(torch.randn(each, device=device)) for _ in range(16)]
    for one in held:
        one.grad = torch.randn_like(one)
    optimizer = torch.optim.AdamW(held, lr=1e-4, fused=True)

    def step() -> None:
        if s["clipped"]:
            torch.nn.utils.clip_grad_norm_(held, 1.0, foreach=True)
        optimizer.step()

    return step


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    return F.silu(gate) * up


def rotary(x: Tensor) -> Tensor:
    return rotated(x, torch.arange(x.shape[2], device=x.device))


def hidden_state(s: Shape) -> tuple[int, ...]:
    return s["tokens"], s["width"]


def row(s: Shape) -> tuple[int, ...]:
    return (s["width"],)


def heads(s: Shape) -> tuple[int, ...]:
    return 1, s["h"], s["tokens"], s["d"]


def rms_norm(x: Tensor, weight: Tensor) -> Tensor:
    return F.rms_norm(x, weight.shape, weight)


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.layer_norm(x, weight.shape, weight, bias)


# What the costs say.


def product_cost(s: Shape, device: Accelerator, table: Calibration) -> float:
    return product(s["m"], s["n"], s["k"], s.get("count", 1), device, BF16, table.kernels)


def alone_cost(s: Shape, device: Accelerator, table: Calibration) -> float:
    return s["count"] * product(s["m"], s["n"], s["k"], 1, device, BF16, table.kernels)


def inputs_cost(s: Shape, device: Accelerator, table: Calibration) -> float:
    return product(s["m"], s["k"], s["n"], 1, device, BF16, table.kernels)


def weights_cost(s: Shape, device: Accelerator, table: Calibration) -> float:
    count = s.get("count", 1)
    return product(s["n"], s["k"], s["m"], count, device, BF16, table.kernels, turned=True)


def attention_cost(backward: bool) -> Callable[[Shape, Accelerator, Calibration], float]:
    def cost(s: Shape, device: Accelerator, table: Calibration) -> float:
        operations = 2.0 * s["b"] * s["h"] * s["s"] * s["s"] / 2 * (s["d"] + s["e"])
        operations *= 2.5 if backward else 1.0
        return fused_attention(operations, backward, device, BF16, table.kernels)

    return cost


def pointwise_cost(
    each: float, *names: str, kernels: int = 1
) -> Callable[[Shape, Accelerator, Calibration], float]:
    """Return the cost of so many bytes for each element of sizes of these names."""

    def cost(s: Shape, device: Accelerator, table: Calibration) -> float:
        moved = each * math.prod(s[name] for name in names)
        return pointwise(moved, kernels, device, table.kernels)

    return cost


def optimizer_cost(s: Shape, device: Accelerator, table: Calibration) -> float:
    recipe = RECIPES["fsdp-bf16"]
    moved = optimizer_bytes(recipe) + s["clipped"] * clipping_bytes(recipe)
    return s["parameters"] * moved / (device.bandwidth * table.optimizer)


KINDS = {
    "launch": Kind(pointwise_call(torch.neg, hidden_state), pointwise_cost(0)),
    "copy": Kind(
        pointwise_call(torch.clone, hidden_state),
        lambda s, device, table: pointwise(
            4.0 * s["tokens"] * s["width"], 1, device, table.kernels
        ),
    ),
    "product, forward": Kind(product_call("forward"), product_cost),
    "product, inputs": Kind(product_call("inputs"), inputs_cost),
    "product, weights": Kind(product_call("weights"), weights_cost),
    "experts, forward": Kind(grouped_call("forward"), product_cost),
    "experts, weights": Kind(grouped_call("weights"), weights_cost),
    "experts, one by one": Kind(grouped_call("one by one"), alone_cost),
    "attention, forward": Kind(attention_call(False), attention_cost(False)),
    "attention, backward": Kind(attention_call(True), attention_cost(True)),
    "attention by cuDNN, forward": Kind(attention_call(False, "cudnn"), attention_cost(False)),
    "attention by cuDNN, backward": Kind(attention_call(True, "cudnn"), attention_cost(True)),
    "RMS norm, forward": Kind(
        pointwise_call(rms_norm, hidden_state, row),
        pointwise_cost(norm_bytes(EAGER, Norm.RMS, 2)[0], "tokens", "width"),
    ),
    "RMS norm, backward": Kind(
        pointwise_call(rms_norm, hidden_state, row, backward=True),
        pointwise_cost(norm_bytes(EAGER, Norm.RMS, 2)[1], "tokens", "width"),
    ),
    "layer norm, forward": Kind(
        pointwise_call(layer_norm, hidden_state, row, row),
        pointwise_cost(norm_bytes(EAGER, Norm.LAYER, 2)[0], "tokens", "width"),
    ),
    "layer norm, backward": Kind(
        pointwise_call(layer_norm, hidden_state, row, row, backward=True),
        pointwise_cost(norm_bytes(EAGER, Norm.LAYER, 2)[1], "tokens", "width"),
    ),
    "SwiGLU, forward": Kind(
        pointwise_call(swiglu, hidden_state, hidden_state),
        pointwise_cost(activation_bytes(EAGER, True, 2)[0], "tokens", "width"),
    ),
    "SwiGLU, backward": Kind(
        pointwise_call(swiglu, hidden_state, hidden_state, backward=True),
        pointwise_cost(activation_bytes(EAGER, True, 2)[1], "tokens", "width"),
    ),
    "GELU, forward": Kind(
        pointwise_call(F.gelu, hidden_state),
        pointwise_cost(activation_bytes(EAGER, False, 2)[0], "tokens", "width"),
    ),
    "GELU, backward": Kind(
        pointwise_call(F.gelu, hidden_state, backward=True),
        pointwise_cost(activation_bytes(EAGER, False, 2)[1], "tokens", "width"),
    ),
    "residual": Kind(
        pointwise_call(torch.add, hidden_state, hidden_state), pointwise_cost(6, "tokens", "width")
    ),
    "rotary, forward": Kind(
        pointwise_call(rotary, heads), pointwise_cost(30, "tokens", "h", "d", kernels=2)
    ),
    "rotary, backward": Kind(
        pointwise_call(rotary, heads, backward=True),
        pointwise_cost(31, "tokens", "h", "d", kernels=2),
    ),
    "cross-entropy, forward": Kind(
        loss_call(False), pointwise_cost(loss_bytes(EAGER, 1)[0], "tokens", "vocabulary", kernels=6)
    ),
    "cross-entropy, backward": Kind(
        loss_call(True), pointwise_cost(loss_bytes(EAGER, 1)[1], "tokens", "vocabulary", kernels=6)
    ),
    "AdamW": Kind(optimizer_call, optimizer_cost),
}


# Which are measured.


def linear_layers(block: Block, hidden: int, tensor: int) -> Iterator[tuple[int, int]]:
    """Yield outputs and inputs of a block's linear layers on one of `tensor` ranks."""
    attention, layer = block.attention, block.feed_forward
    if attention is not None and attention.heads % tensor == 0 and not attention.latent:
        q = attention.heads // tensor * attention.key_width
        kv = max(attention.kv_heads // tensor, 1) * (attention.key_width + attention.value_width)
        yield q + kv, hidden
        yield hidden, attention.heads // tensor * attention.value_width
    if layer is not None and layer.width % tensor == 0:
        yield layer.width // tensor * (2 if layer.gated else 1), hidden
        yield hidden, layer.width // tensor


def products(count: int, seed: int) -> list[Kernel]:
    """Return products of the shipped descriptions, drawn from all at four degrees and sizes."""
    found: set[tuple[str, int, int, int]] = set()
    passes = ("forward", "inputs", "weights")
    for name in shipped_models():
        model = shipped_model(name)
        for tensor in (1, 2, 4, 8):
            sizes = {one for b in model.blocks for one in linear_layers(b, model.hidden, tensor)}
            if model.head and model.vocabulary:
                sizes.add((-(-model.vocabulary // tensor), model.hidden))
            for tokens in (2048, 4096, 8192, 16384):
                found |= {(one, tokens, n, k) for n, k in sizes for one in passes}
    drawn_ones = random.Random(seed).sample(sorted(found), min(count, len(found)))
    return [kernel(f"product, {one}", m=m, n=n, k=k) for one, m, n, k in drawn_ones]


def attentions() -> Iterator[Kernel]:
    """Yield attentions of eight thousand tokens or one sequence."""
    shapes = {
        (32, 8, 128, 128): (2048, 4096, 8192, 16384, 32768),
        (8, 1, 128, 128): (2048, 8192, 32768),
        (12, 12, 128, 128): (2048, 8192, 32768),
        (32, 8, 64, 64): (2048, 8192),
        (16, 8, 256, 256): (2048, 8192),
        (16, 16, 192, 128): (4096,),
    }
    for (h, g, d, e), lengths in shapes.items():
        for s in lengths:
            sizes = {"b": max(1, 8192 // s), "h": h, "g": g, "s": s, "d": d, "e": e}
            for one in ("forward", "backward"):
                yield kernel(f"attention, {one}", **sizes)
                if (h, d) in ((32, 128), (16, 192)):
                    yield kernel(f"attention by cuDNN, {one}", **sizes)


def others() -> Iterator[Kernel]:
    """Yield all that are neither attention nor products of linear layers."""
    yield kernel("launch", tokens=1, width=128)
    for tokens in (1024, 65536):
        yield kernel("copy", tokens=tokens, width=8192)
    for tokens, width in ((2048, 4096), (8192, 4096), (8192, 8192), (16384, 12288)):
        for what in ("RMS norm", "layer norm"):
            yield kernel(f"{what}, forward", tokens=tokens, width=width)
            yield kernel(f"{what}, backward", tokens=tokens, width=width)
        yield kernel("residual", tokens=tokens, width=width)
    for tokens, width in ((2048, 3584), (8192, 3584), (8192, 14336), (8192, 28672)):
        for what in ("SwiGLU", "GELU"):
            yield kernel(f"{what}, forward", tokens=tokens, width=width)
            yield kernel(f"{what}, backward", tokens=tokens, width=width)
    for tokens, h in ((8192, 8), (8192, 32), (8192, 64)):
        for what in ("rotary, forward", "rotary, backward"):
            yield kernel(what, tokens=tokens, h=h, d=128)
    for vocabulary in (32000, 128256):
        for what in ("cross-entropy, forward", "cross-entropy, backward"):
            yield kernel(what, tokens=8192, vocabulary=vocabulary)
    for millions in (64, 512):
        for clipped in (0, 1):
            yield kernel("AdamW", parameters=millions << 20, clipped=clipped)
    for count, m, n, k in (
        (8, 2048, 28672, 4096), (8, 2048, 4096, 14336), (128, 512, 1536, 2048),
        (16, 512, 1536, 2048), (64, 768, 2816, 2048), (32, 256, 4096, 7168),
    ):  # fmt: skip
        for what in ("experts, forward", "experts, weights", "experts, one by one"):
            yield kernel(what, count=count, m=m, n=n, k=k)


def kernels(seed: int, small: bool) -> list[Kernel]:
    """Return the kernels to measure; with `small` a few of small sizes, for a CPU."""
    found = [*others(), *attentions(), *products(200, seed)]
    if not small:
        return found
    first = {one.what: one for one in reversed(found)}
    large = ("m", "n", "k", "s", "tokens", "width", "parameters", "vocabulary")
    return [
        Kernel(one.what, tuple((n, min(v, 64) if n in large else v) for n, v in one.shape))
        for one in first.values()
    ]


# How they are measured.


def measured(one: Kernel, device: torch.device, limit: float) -> float:
    """Return the seconds of a kernel, measured for at most about `limit` seconds."""
    make = KINDS[one.what].make
    before = _allocated(device)
    calls = [make(one.sizes, device)]
    size = max(1, _allocated(device) - before)
    while len(calls) < SETS and size * len(calls) < ROTATED:
        calls.append(make(one.sizes, device))
    held = [call() for call in calls]  # outputs stay until the same call's next turn
    once = _timed(calls, held, len(calls), device, ahead=0.0)
    count = max(1, min(CALLS, int(limit / GROUPS / once)))
    ahead = 2e-4 * count if once < 3e-4 else 0.0  # so long the host takes for the calls
    return median(_timed(calls, held, count, device, ahead) for _ in range(GROUPS))


def _allocated(device: torch.device) -> int:
    return torch.cuda.memory_allocated(device) if device.type == "cuda" else 0


def _timed(
    calls: Sequence[Call], held: list[Any], count: int, device: torch.device, ahead: float
) -> float:
    """Return the seconds of a call of so many behind each other, the host being `ahead`."""
    if device.type != "cuda":
        start = time.perf_counter()
        for n in range(count):
            held[n % len(calls)] = calls[n % len(calls)]()
        return (time.perf_counter() - start) / count
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    if ahead:
        torch.cuda._sleep(int(ahead * 2e9))
    first.record()
    for n in range(count):
        held[n % len(calls)] = calls[n % len(calls)]()
    last.record()
    torch.cuda.synchronize()
    return float(first.elapsed_time(last)) * 1e-3 / count
