"""FLOPs of ONNX operators: products of matrices, convolutions, recurrent layers; nothing else.

As torch's FlopCounterMode has it; whole numbers of quantised operators count as FLOPs too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

Shapes = Mapping[str, tuple[int, ...]]


def _matmul(node: Any, shapes: Shapes) -> float:
    return 2.0 * math.prod(shapes[node.output[0]]) * shapes[node.input[0]][-1]


def _gemm(node: Any, shapes: Shapes) -> float:
    transposed = any(a.name == "transA" and a.i for a in node.attribute)
    inner = shapes[node.input[0]][0 if transposed else 1]
    return 2.0 * math.prod(shapes[node.output[0]]) * inner


def _conv(node: Any, shapes: Shapes, weight: int = 1) -> float:
    """Each output element sums over a kernel: its weight's shape after the first dimension."""
    return 2.0 * math.prod(shapes[node.output[0]]) * math.prod(shapes[node.input[weight]][1:])


def _conv_transpose(node: Any, shapes: Shapes) -> float:
    return 2.0 * math.prod(shapes[node.input[0]]) * math.prod(shapes[node.input[1]][1:])


def _recurrent(node: Any, shapes: Shapes) -> float:
    """Each step multiplies input and state by the weights of all gates and directions."""
    steps, batch, _ = shapes[node.input[0]]
    weights = math.prod(shapes[node.input[1]]) + math.prod(shapes[node.input[2]])
    return 2.0 * steps * batch * weights


def _einsum(node: Any, shapes: Shapes) -> float:
    """Two operands: one multiplication and one addition for each choice of all indices."""
    equation = next(a.s.decode() for a in node.attribute if a.name == "equation")
    terms = equation.replace(" ", "").split("->")[0].split(",")
    sizes = {
        letter: size
        for term, name in zip(terms, node.input, strict=True)
        for letter, size in zip(term, shapes[name], strict=False)
    }
    return 2.0 * math.prod(sizes.values()) if len(terms) == 2 else 0.0


def _attention(node: Any, shapes: Shapes) -> float:
    """Scores and their product with the values; heads packed into the width cost the same."""
    query, key, value = (shapes[name] for name in node.input[:3])
    if len(query) == 3:
        return 2.0 * query[0] * query[1] * key[1] * (query[2] + value[2])
    batch, heads, rows, width = query
    return 2.0 * batch * heads * rows * key[2] * (width + value[3])


FLOPS: Mapping[str, Callable[[Any, Shapes], float]] = {
    "MatMul": _matmul,
    "MatMulInteger": _matmul,
    "QLinearMatMul": _matmul,
    "Gemm": _gemm,
    "Conv": _conv,
    "ConvInteger": _conv,
    "QLinearConv": partial(_conv, weight=3),
    "ConvTranspose": _conv_transpose,
    "Einsum": _einsum,
    "Attention": _attention,
    "LSTM": _recurrent,
    "GRU": _recurrent,
    "RNN": _recurrent,
}
