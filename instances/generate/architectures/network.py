"""Networks of operators, each with FLOPs, weights, inputs, outputs and saved tensors.

A multiply-add counts as two operations; adding a bias is left out, as published counts do.
Elementwise operators are kernels of their own (nothing is fused unless its name says so), and
their few operations per element hardly matter beside the bytes they move. Dropout is left out.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Literal

#: Operations per output element, what the backward pass needs; by kind.
ELEMENTWISE: dict[str, tuple[float, Saves]] = {
    "relu": (1, "output"),
    "gelu": (8, "inputs"),
    "silu": (5, "inputs"),
    "swiglu": (6, "inputs"),
    "geglu": (9, "inputs"),
    "tanh": (5, "output"),
    "softmax": (5, "output"),
    "add": (1, "nothing"),
    "rotary": (3, "nothing"),
    "scale": (1, "inputs"),
}
Saves = Literal["inputs", "output", "both", "nothing"]


@dataclass(frozen=True)
class NetworkTensor:
    """A tensor: its whole shape, batch first, and the number of the operator that makes it.

    `producer` is None for inputs of the network: token numbers, pixels, a text's encoding.
    """

    shape: tuple[int, ...]
    producer: int | None = None

    @property
    def elements(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)


@dataclass(frozen=True)
class NetworkOperator:
    """One operator of the forward pass."""

    name: str  # all different; starts with the layer's
    kind: str  # ``linear``, ``conv``, ``add``, …
    layer: str  # the layer that it belongs to
    inputs: tuple[int, ...]  # operators whose outputs it reads, without repetition
    flops: float  # floating-point operations; a multiply-add counts as two
    parameters: int  # numbers in weights of its own
    shared: int  # numbers in weights that it uses, but `owner` owns
    owner: str  # name of the operator that owns those; empty without
    weights_read: int  # numbers in weights that one pass reads
    input_elements: int  # input_elements, output_elements: numbers that it reads, and writes
    output_elements: int
    saves: Saves  # tensors of the forward pass that its backward pass needs
    # True for matrix products, whose backward pass is two products of the same size; False for
    # elementwise operators
    products: bool
    # floating-point operations of its backward pass, if it has inputs
    backward_flops: float
    # whether its output outlives the pass in inference: keys and values of a decoder
    cached: bool = False


@dataclass(frozen=True)
class Reads:
    """Numbers of elements of the parameters and inputs that an operator reads."""

    parameters: int = 0  # weights of its own
    shared: int = 0  # shared, owner: weights of another operator, and that operator's name
    owner: str = ""
    weights: int | None = None  # weights that a pass reads; default: all
    elements: int | None = None  # elements of inputs that a pass reads; default: all


INPUTS_ALONE = Reads()

#: FLOPs of the backward pass over those of the forward pass, by kind of operator; of others 2 for
#: products, one for each operand's gradient, and else 1. Attention has five products, not two; a
#: loss takes five operations a number, and one for its gradient.
BACKWARD_RATIO = {"attention": 2.5, "loss": 0.2}


@dataclass
class Network:
    """A network under construction."""

    title: str  # name for people
    sample: str  # input of one pass, such as ``batch 8, 512 tokens``
    operators: list[NetworkOperator] = field(default_factory=list)
    _layer: str = field(default="", init=False)

    @contextmanager
    def layer(self, name: str) -> Iterator[None]:
        """Add the operators of the block to layer `name`."""
        before, self._layer = self._layer, name
        try:
            yield
        finally:
            self._layer = before

    def add(
        self,
        kind: str,
        name: str,
        inputs: Sequence[NetworkTensor],
        shape: tuple[int, ...],
        *,
        flops: float,
        saves: Saves,
        reads: Reads = INPUTS_ALONE,
        products: bool = False,
    ) -> NetworkTensor:
        """Add an operator to the current layer, and return its output, of the given shape.

        Names are relative to the layer's, and empty if the layer is one operator.
        """
        producers = [t.producer for t in inputs if t.producer is not None]
        operands = {id(t) if t.producer is None else t.producer: t.elements for t in inputs}
        ratio = BACKWARD_RATIO.get(kind, 2.0 if products else 1.0)
        output = NetworkTensor(shape, len(self.operators))
        self.operators.append(
            NetworkOperator(
                name=f"{self._layer}.{name}" if name else self._layer,
                kind=kind,
                layer=self._layer,
                inputs=tuple(dict.fromkeys(producers)),
                flops=float(flops),
                parameters=reads.parameters,
                shared=reads.shared,
                owner=reads.owner,
                weights_read=reads.parameters + reads.shared
                if reads.weights is None
                else reads.weights,
                input_elements=sum(operands.values()) if reads.elements is None else reads.elements,
                output_elements=output.elements,
                saves=saves,
                products=products,
                backward_flops=ratio * flops,
            )
        )
        return output

    def cache(self, *outputs: NetworkTensor) -> None:
        """Mark outputs as kept after the pass in inference."""
        for output in outputs:
            assert output.producer is not None
            self.operators[output.producer] = replace(self.operators[output.producer], cached=True)


def elementwise(
    net: Network, kind: str, x: NetworkTensor, *others: NetworkTensor, name: str = ""
) -> NetworkTensor:
    """Apply an elementwise function: the output has the shape of `x`; names default to kinds."""
    per_element, saves = ELEMENTWISE[kind]
    flops = per_element * x.elements
    return net.add(kind, name or kind, (x, *others), x.shape, flops=flops, saves=saves)


def linear(
    net: Network,
    x: NetworkTensor,
    width: int,
    name: str,
    *,
    bias: bool = True,
    owner: str = "",
) -> NetworkTensor:
    """Y = X·W + b: 2·rows·in·out operations. With `owner`, W is that operator's and b its own."""
    before = x.shape[-1]
    matrix = before * width
    return net.add(
        "linear",
        name,
        (x,),
        (*x.shape[:-1], width),
        flops=2 * x.elements * width,
        reads=Reads(
            (0 if owner else matrix) + (width if bias else 0), matrix if owner else 0, owner
        ),
        saves="inputs",
        products=True,
    )


def matmul(
    net: Network, a: NetworkTensor, b: NetworkTensor, shape: tuple[int, ...], inner: int, name: str
) -> NetworkTensor:
    """Multiply two tensors; `inner` is the dimension that is summed over."""
    output = NetworkTensor(shape).elements
    return net.add(
        "matmul", name, (a, b), shape, flops=2 * output * inner, saves="inputs", products=True
    )


def norm(net: Network, kind: str, x: NetworkTensor, name: str, *, axis: int = -1) -> NetworkTensor:
    """Normalise: ``layernorm``, ``groupnorm``, ``batchnorm`` (scale and shift), or ``rmsnorm``."""
    weights = x.shape[axis] * (1 if kind == "rmsnorm" else 2)
    return net.add(
        kind, name, (x,), x.shape, flops=5 * x.elements, reads=Reads(weights), saves="inputs"
    )


def embedding(
    net: Network, tokens: NetworkTensor, rows: int, width: int, name: str, *, owner: str = ""
) -> NetworkTensor:
    """Look up rows of a table, possibly `owner`'s: reads only these, computes nothing."""
    return net.add(
        "embedding",
        name,
        (tokens,),
        (*tokens.shape, width),
        flops=0,
        reads=Reads(
            parameters=0 if owner else rows * width,
            shared=rows * width if owner else 0,
            owner=owner,
            weights=tokens.elements * width,
        ),
        saves="nothing",
    )


def learned(
    net: Network, shape: tuple[int, ...], name: str, *, rows: int | None = None
) -> NetworkTensor:
    """Read a learned tensor (positions, a class token) of which the first of `rows` are used."""
    size = NetworkTensor(shape).elements
    return net.add(
        "learned",
        name,
        (),
        shape,
        flops=0,
        reads=Reads(size if rows is None else size // shape[-2] * rows, weights=size),
        saves="nothing",
    )


def conv(
    net: Network,
    x: NetworkTensor,
    channels: int,
    kernel: int,
    name: str,
    *,
    stride: int = 1,
    padding: int | None = None,
    bias: bool = False,
) -> NetworkTensor:
    """Convolve: 2·k²·c_in operations per output element; padding keeps the size by default."""
    batch, before, height, width = x.shape
    pad = kernel // 2 if padding is None else padding
    sides = [(side + 2 * pad - kernel) // stride + 1 for side in (height, width)]
    shape = (batch, channels, *sides)
    return net.add(
        "conv",
        name,
        (x,),
        shape,
        flops=2 * NetworkTensor(shape).elements * kernel**2 * before,
        reads=Reads(kernel**2 * before * channels + (channels if bias else 0)),
        saves="inputs",
        products=True,
    )


def upconv(net: Network, x: NetworkTensor, channels: int, name: str) -> NetworkTensor:
    """Convolve transposed, 2×2 with stride 2: doubles both sides; 2·c_in per output element."""
    batch, before, height, width = x.shape
    shape = (batch, channels, 2 * height, 2 * width)
    return net.add(
        "upconv",
        name,
        (x,),
        shape,
        flops=2 * NetworkTensor(shape).elements * before,
        reads=Reads(4 * before * channels + channels),
        saves="inputs",
        products=True,
    )


def pool(
    net: Network, kind: str, x: NetworkTensor, kernel: int, stride: int, padding: int = 0
) -> NetworkTensor:
    """Pool: ``maxpool`` or ``avgpool``; k² operations per output element."""
    batch, channels, height, width = x.shape
    sides = [(side + 2 * padding - kernel) // stride + 1 for side in (height, width)]
    shape = (batch, channels, *sides)
    flops = kernel**2 * NetworkTensor(shape).elements
    return net.add(
        kind, kind, (x,), shape, flops=flops, saves="inputs" if kind == "maxpool" else "nothing"
    )


def resize(net: Network, kind: str, x: NetworkTensor, factor: int, name: str) -> NetworkTensor:
    """Enlarge an image: ``nearest`` copies, ``bilinear`` takes 7 operations per element."""
    batch, channels, height, width = x.shape
    shape = (batch, channels, factor * height, factor * width)
    per_element = 7 if kind == "bilinear" else 0
    flops = per_element * NetworkTensor(shape).elements
    return net.add(kind, name, (x,), shape, flops=flops, saves="nothing")


def concat(net: Network, parts: Sequence[NetworkTensor]) -> NetworkTensor:
    """Concatenate channels; other sides are cropped to those of the first part."""
    batch, _, *sides = parts[0].shape
    shape = (batch, sum(part.shape[1] for part in parts), *sides)
    return net.add("concat", "concat", parts, shape, flops=0, saves="nothing")


def flatten(x: NetworkTensor) -> NetworkTensor:
    """Return an image as a sequence (batch, pixels, channels): a view, no operator."""
    batch, channels, height, width = x.shape
    return NetworkTensor((batch, height * width, channels), x.producer)


def image(x: NetworkTensor, height: int, width: int) -> NetworkTensor:
    """Return a sequence (batch, pixels, channels) as an image: a view, no operator."""
    return NetworkTensor((x.shape[0], x.shape[2], height, width), x.producer)


def first_token(x: NetworkTensor) -> NetworkTensor:
    """Return the first token of each sequence: a view, no operator."""
    return NetworkTensor((x.shape[0], x.shape[2]), x.producer)


def attention(
    net: Network,
    query: NetworkTensor,
    key: NetworkTensor,
    value: NetworkTensor,
    heads: int,
    *,
    bias: NetworkTensor | None = None,
    prefix: str = "",
) -> NetworkTensor:
    """Attention in three operators: QKᵀ, softmax, and product with V; products 2·S·T·width each."""
    batch, rows, width = query.shape
    columns = key.shape[1]
    shape = (batch, heads, rows, columns)
    scores = matmul(net, query, key, shape, width // heads, f"{prefix}scores")
    if bias is not None:
        scores = elementwise(net, "add", scores, bias, name=f"{prefix}biased")
    weights = elementwise(net, "softmax", scores, name=f"{prefix}softmax")
    return matmul(net, weights, value, query.shape, columns, f"{prefix}context")


def fused_attention(
    net: Network, query: NetworkTensor, key: NetworkTensor, value: NetworkTensor, *, causal: bool
) -> NetworkTensor:
    """Attention in one kernel that writes no scores and, if causal, skips those above the diagonal.

    4·S·T·width operations, half of that if causal; the backward pass computes the scores again,
    five products instead of two (Dao et al., "FlashAttention", NeurIPS 2022).
    """
    return net.add(
        "attention",
        "attention",
        (query, key, value),
        query.shape,
        flops=4 * query.elements * key.shape[1] * (0.5 if causal else 1.0),
        saves="both",
    )
