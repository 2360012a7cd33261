"""FLOPs of operators that torch's FlopCounterMode of today leaves out.

It counts attention on GPUs, not by the fused kernel for CPUs; and no product of grouped matrices,
which mixtures of experts come down to. `custom_mapping` hands the same formulas to FlopCounterMode.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch


def attention(query: Any, key: Any, value: Any, *_: Any, **__: Any) -> float:
    """Q·Kᵀ and weights·V, each 2·rows·columns·width, over all heads; masks save nothing."""
    *heads, rows, width = query.shape
    columns, depth = key.shape[-2], value.shape[-1]
    return float(2 * torch.Size(heads).numel() * rows * columns * (width + depth))


def attention_backward(_: Any, query: Any, key: Any, value: Any, *__: Any, **___: Any) -> float:
    """Five products instead of two: the scores are computed again (Dao et al., NeurIPS 2022)."""
    return 2.5 * attention(query, key, value)


def grouped_product(rows: Any, weights: Any, *_: Any, **__: Any) -> float:
    """Every row by the matrix of its group: 2·rows·in·out, whatever the groups."""
    return float(2 * rows.numel() * weights.shape[-1])


def grouped_product_backward(first: Any, second: Any, *_: Any, **__: Any) -> float:
    """A product for the gradient of the rows, and one for that of the weights."""
    a, b = (first, second) if second.dim() == 3 else (second, first)
    return 2.0 * grouped_product(a, b)


#: By name, as packages that are not installed may define the operator.
FORMULAS: Mapping[str, Callable[..., float]] = {
    "aten::_scaled_dot_product_flash_attention_for_cpu": attention,
    "aten::_scaled_dot_product_flash_attention_for_cpu_backward": attention_backward,
    "aten::_grouped_mm": grouped_product,
    "transformers::grouped_mm_fallback": grouped_product,
    "transformers::grouped_mm_fallback_backward": grouped_product_backward,
}


def custom_mapping() -> dict[Any, Callable[..., float]]:
    """Return the formulas as FlopCounterMode's `custom_mapping` takes them."""
    found: dict[Any, Callable[..., float]] = {}
    for name, formula in FORMULAS.items():
        space, operator = name.split("::")
        packet = getattr(getattr(torch.ops, space), operator, None)
        if packet is not None:
            found[packet] = _raw(formula)
    return found


def _raw(formula: Callable[..., float]) -> Callable[..., float]:
    def count(*args: Any, out_val: Any = None, **kwargs: Any) -> float:  # noqa: ARG001
        return formula(*args, **kwargs)

    count._get_raw = True  # type: ignore[attr-defined]  # tensors, not their shapes
    return count
