"""Attention by PyTorch's kernels that keep no scores: shared heads, masks, and its replacement.

On GPUs, these kernels take shared heads in 16 bits without a mask alone; else PyTorch falls back to
one that keeps all scores.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

#: Name of PyTorch's attention in `torch.nn.functional`.
ATTENTION = "scaled_dot_product_attention"
#: Dimension of the heads of queries, keys and values: batch, heads, tokens, width of a head.
HEADS = 1

Attention = Callable[..., Tensor]


@contextmanager
def replaced(of: Any, name: str, function: Callable[..., Any]) -> Iterator[None]:
    """Replace a function of a module, or a method of one object."""
    own = vars(of).get(name)
    setattr(of, name, function)
    try:
        yield
    finally:
        if own is None:
            delattr(of, name)
        else:
            setattr(of, name, own)


def spread_heads(query: Tensor, *shared: Tensor) -> list[Tensor]:
    """Return keys or values with a copy of each head for every query head that shares it."""
    return [
        x if x.shape[HEADS] == query.shape[HEADS]
        else x.repeat_interleave(query.shape[HEADS] // x.shape[HEADS], HEADS)
        for x in shared
    ]  # fmt: skip


def added_mask(seen: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the addend of scores by which a query sees the keys in `seen` alone.

    Of a mask of truth values PyTorch makes one in every call, and keeps each.
    """
    with torch.inference_mode(False):  # it may serve training afterwards
        return torch.zeros_like(seen, dtype=dtype).masked_fill_(~seen, -torch.inf)


@contextmanager
def copied_heads() -> Iterator[None]:
    """Copy shared heads of keys and values where only copies need no memory for scores.

    On GPUs, PyTorch's kernels that keep no scores take shared heads in 16 bits without a mask
    alone; else it falls back to one that keeps them.
    """
    given: Attention = F.scaled_dot_product_attention

    def attention(
        query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None,
        *args: Any, **options: Any,
    ) -> Tensor:  # fmt: skip
        if attn_mask is not None or query.element_size() > 2:
            key, value = spread_heads(query, key, value)
        return given(query, key, value, attn_mask, *args, **options)

    with replaced(F, ATTENTION, attention):
        yield
