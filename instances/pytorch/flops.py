"""FLOPs of operators: torch's own formulas, and those that it lacks or that differ.

FlopCounterMode counts attention by the fused kernels of GPUs, though as if a causal mask saved
nothing, but not by that of CPUs; no product of grouped matrices, as of mixtures of experts; and no
layer of oneDNN's LSTM.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch.utils.flop_counter import flop_registry


def attention(name: str, *args: Any, **kwargs: Any) -> float:
    """FLOPs of Q·Kᵀ and weights·V, each 2·pairs·width, over all heads.

    Pairs are rows times columns; under a causal mask, which kernels skip above the diagonal, row i
    has i of them. A mask that is a tensor saves nothing. Backward there are five products instead
    of two, as the scores are computed again (Dao et al., NeurIPS 2022).
    """
    schema = getattr(torch.ops.aten, name).default._schema
    named = dict(zip((argument.name for argument in schema.arguments), args, strict=False)) | kwargs
    *heads, rows, width = named["query"].shape
    columns, depth = named["key"].shape[-2], named["value"].shape[-1]
    pairs = rows * columns
    if named.get("is_causal", False):
        square = min(rows, columns)
        pairs = square * (square + 1) // 2 + (rows - square) * columns
    products = 2 * torch.Size(heads).numel() * pairs * (width + depth)
    return float(products) * (2.5 if name.endswith("_backward") else 1.0)


def grouped_product(rows: Any, weights: Any, *_: Any, **__: Any) -> float:
    """FLOPs of a product of each row with its group's matrix: 2·rows·in·out."""
    return float(2 * rows.numel() * weights.shape[-1])


def grouped_product_backward(first: Any, second: Any, *_: Any, **__: Any) -> float:
    """FLOPs of the products for the gradient of the rows and for that of the weights."""
    a, b = (first, second) if second.dim() == 3 else (second, first)
    return 2.0 * grouped_product(a, b)


def recurrent(rows: Any, first: Any, second: Any, *_: Any, **__: Any) -> float:
    """FLOPs of an LSTM's layer: each row times the weights of input and state of all gates."""
    return float(2 * rows.numel() // rows.shape[-1] * (first.numel() + second.numel()))


def recurrent_backward(*args: Any, **kwargs: Any) -> float:
    """FLOPs of an LSTM layer's backward pass, twice the forward pass's: of input and of weights."""
    return 2.0 * recurrent(*args, **kwargs)


def flops_of(func: Any, args: Any, kwargs: Any, out: Any) -> float:
    """Return the FLOPs of a call of an operator that returned `out`; 0 of what is not counted."""
    if not isinstance(func, torch._ops.OpOverload):
        return 0.0
    if func._schema.name in FORMULAS:
        return FORMULAS[func._schema.name](*args, **kwargs)
    count = flop_registry.get(func.overloadpacket)
    return 0.0 if count is None else float(count(*args, **kwargs, out_val=out))


#: Formulas of operations by the operator's name, as its package may not be installed.
FORMULAS: Mapping[str, Callable[..., float]] = {
    **{
        f"aten::_scaled_dot_product_{kernel}{end}": partial(
            attention, f"_scaled_dot_product_{kernel}{end}"
        )
        for kernel in (
            "flash_attention_for_cpu",
            "flash_attention",
            "efficient_attention",
            "cudnn_attention",
        )
        for end in ("", "_backward")
    },
    "aten::mkldnn_rnn_layer": recurrent,
    "aten::mkldnn_rnn_layer_backward": recurrent_backward,
    "aten::_grouped_mm": grouped_product,
    "transformers::grouped_mm_fallback": grouped_product,
    "transformers::grouped_mm_fallback_backward": grouped_product_backward,
}
