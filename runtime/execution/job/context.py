"""Context parallelism: attention over sequences of which each rank has a part of the tokens.

While a job takes a step, `torch.nn.functional.scaled_dot_product_attention` is replaced by one that
either gathers keys and values (each rank has the queries of its tokens), or exchanges tokens for
heads, so that each rank has some heads of whole sequences.

References
----------
Grattafiori et al., "The Llama 3 Herd of Models", 2024, section 3.3.2 (keys and values gathered).
Jacobs et al., "DeepSpeed Ulysses", 2023 (tokens exchanged for heads).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.distributed._functional_collectives import all_to_all_single_autograd
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

from ....instances import InputError
from ....instances.costs.layout import ContextKind, Layout

#: Dimensions of queries, keys and values: batch, heads, tokens, width of a head.
_HEADS, _TOKENS = 1, 2

_Attention = Callable[..., Tensor]


def positions_of(layout: Layout, part: int) -> Tensor:
    """Return the positions of the tokens of one of the ranks that share a sequence.

    Where keys and values are gathered, a rank has one part from the front and one from the back,
    as causal attention to the back is more work.

    Raises
    ------
    InputError
        If the sequence does not divide, or keys and values are to move around a ring.
    """
    count = layout.context
    if count == 1:
        return torch.arange(layout.sequence)
    if layout.context_kind is ContextKind.RING:
        raise InputError(
            "context_kind: ring; jobs gather keys and values here, or exchange heads; plan with "
            "all-gather or all-to-all"
        )
    parts = 2 * count if layout.context_kind is ContextKind.ALL_GATHER else count
    if layout.sequence % parts:
        raise InputError(f"sequence: {layout.sequence} tokens do not divide into {parts} parts")
    own = torch.arange(layout.sequence).chunk(parts)
    return own[part] if parts == count else torch.cat([own[part], own[parts - 1 - part]])


@contextmanager
def divided_attention(layout: Layout, mesh: DeviceMesh) -> Iterator[None]:
    """Let attention see the whole sequences of which the ranks of `mesh` have parts.

    Raises
    ------
    InputError
        If attention has a mask of its own or more ranks than heads, or no attention was called: a
        model that does not call it by ``torch.nn.functional`` would not see whole sequences.
    """
    given: _Attention = F.scaled_dot_product_attention
    calls = 0
    whole = torch.cat([positions_of(layout, part) for part in range(layout.context)])
    own = positions_of(layout, mesh.get_local_rank())

    def attention(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        **options: Any,
    ) -> Tensor:
        nonlocal calls
        calls += 1
        if attn_mask is not None:
            raise InputError("context: attention has a mask of its own; plan with context 1")
        if layout.context_kind is ContextKind.ALL_TO_ALL:
            heads = min(query.shape[_HEADS], key.shape[_HEADS])
            if heads % layout.context:
                raise InputError(f"context: {layout.context} does not divide {heads} heads")
            query, key, value = (_moved(x, mesh, _HEADS, _TOKENS) for x in (query, key, value))
            made = given(query, key, value, None, dropout_p, is_causal, **options)
            return _moved(made, mesh, _TOKENS, _HEADS)
        both = _gathered(torch.cat([key, value], -1), mesh)  # in one collective
        key, value = both.split([key.shape[-1], value.shape[-1]], -1)
        mask = own[:, None] >= whole if is_causal else None
        mask = mask if mask is None else mask.to(query.device)
        return given(query, key, value, mask, dropout_p, False, **options)

    F.scaled_dot_product_attention = attention  # type: ignore[assignment]  # it replaces it
    try:
        yield
    finally:
        F.scaled_dot_product_attention = given
    if not calls:
        raise InputError(
            "context: the model called no torch.nn.functional.scaled_dot_product_attention, which "
            "is what sees whole sequences; call it so, or plan with context 1"
        )


def _gathered(x: Tensor, mesh: DeviceMesh) -> Tensor:
    """Return all tokens; gradients are added up and parted again."""
    parts = DTensor.from_local(x, mesh, (Shard(_TOKENS),), run_check=False)
    whole = parts.redistribute(placements=(Replicate(),))
    made: Tensor = whole.to_local(grad_placements=(Partial(),))
    return made


def _moved(x: Tensor, mesh: DeviceMesh, split: int, joined: int) -> Tensor:
    """Return a part of one dimension with the whole of another, of which each rank has a part."""
    parts, each = torch.stack(x.chunk(mesh.size(), split)), [1] * mesh.size()
    moved = all_to_all_single_autograd(parts, each, each, mesh.get_group())
    return torch.cat(moved.unbind(), joined)
