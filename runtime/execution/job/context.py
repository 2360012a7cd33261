"""Context parallelism: attention over sequences of which each rank has a part of the tokens.

During a step, `torch.nn.functional.scaled_dot_product_attention` is replaced by one that gathers
keys and values (each rank has the queries of its tokens), passes them around a ring of the ranks
while attention to those present is computed, or exchanges tokens for heads, so that each rank has
some heads of whole sequences.

References
----------
Grattafiori et al., "The Llama 3 Herd of Models", 2024, section 3.3.2 (keys and values gathered).
Liu et al., "Ring Attention with Blockwise Transformers for Near-Infinite Context", 2023 (the ring).
Jacobs et al., "DeepSpeed Ulysses", 2023 (tokens exchanged for heads).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, cast

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch.distributed._functional_collectives import all_to_all_single_autograd
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

from ....instances import InputError
from ....instances.costs.layout import ContextKind, Layout
from ..attention import ATTENTION, HEADS, Attention, added_mask, replaced, spread_heads

#: Dimension of queries, keys and values that runs over the tokens of a sequence.
_TOKENS = 2

_ATEN = torch.ops.aten


def positions_of(layout: Layout, part: int) -> Tensor:
    """Return the positions of the tokens of one of the ranks that share a sequence.

    With gathered keys and around a ring, a rank has one part from the front and one from the back,
    since causal attention is more work for later tokens.
    """
    count = layout.context
    if count == 1:
        return torch.arange(layout.sequence)
    parts = count if layout.context_kind is ContextKind.ALL_TO_ALL else 2 * count
    own = torch.arange(layout.sequence).chunk(parts)
    return own[part] if parts == count else torch.cat([own[part], own[parts - 1 - part]])


@contextmanager
def divided_attention(layout: Layout, mesh: DeviceMesh, *, needed: bool) -> Iterator[None]:
    """Replace attention by one over the whole sequences of which the ranks of `mesh` have parts.

    Raises InputError if attention has a mask of its own, if heads do not divide among the ranks, or
    if it was not called where it is `needed`: a model that does not call it by
    ``torch.nn.functional`` would not see whole sequences.
    """
    given: Attention = F.scaled_dot_product_attention
    calls = 0
    order = torch.cat([positions_of(layout, part) for part in range(layout.context)]).argsort()
    halves = positions_of(layout, mesh.get_local_rank()).chunk(2)

    @cache
    def mask(half: int, dtype: torch.dtype, device: torch.device) -> Tensor:
        own = halves[half].to(device)
        keys = torch.arange(int(halves[half][-1]) + 1, device=device)
        return added_mask(own[:, None] >= keys, dtype)

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
            heads = min(query.shape[HEADS], key.shape[HEADS])
            if heads % layout.context:
                raise InputError(f"context: {layout.context} does not divide {heads} heads")
            query, key, value = (_moved(x, mesh, HEADS, _TOKENS) for x in (query, key, value))
            made = given(query, key, value, None, dropout_p, is_causal, **options)
            return _moved(made, mesh, _TOKENS, HEADS)
        if layout.context_kind is ContextKind.RING:
            if dropout_p:
                raise InputError("context_kind: ring has no dropout; plan with all-gather")
            scale = options.get("scale") or query.shape[-1] ** -0.5
            return cast(Tensor, _RingAttention.apply(query, key, value, mesh, is_causal, scale))
        both = _gathered(torch.cat([key, value], -1), mesh)  # in one collective
        both = both.index_select(_TOKENS, order.to(both.device))
        key, value = both.split([key.shape[-1], value.shape[-1]], -1)
        if not is_causal:
            return given(query, key, value, None, dropout_p, False, **options)
        made = []
        for half, part in enumerate(query.chunk(2, _TOKENS)):  # which sees no keys behind it
            hidden = mask(half, query.dtype, query.device)
            seen = (x[:, :, : hidden.shape[1]] for x in (key, value))
            made.append(given(part, *seen, hidden, dropout_p, False, **options))
        return torch.cat(made, _TOKENS)

    with replaced(F, ATTENTION, attention):
        yield
    if needed and not calls:
        raise InputError(
            "context: the model called no torch.nn.functional.scaled_dot_product_attention, which "
            "would see whole sequences; call it, or plan with context 1"
        )


def _gathered(x: Tensor, mesh: DeviceMesh) -> Tensor:
    """Return all tokens; gradients are summed over the ranks and divided again."""
    parts = DTensor.from_local(x, mesh, (Shard(_TOKENS),), run_check=False)
    whole = parts.redistribute(placements=(Replicate(),))
    made: Tensor = whole.to_local(grad_placements=(Partial(),))
    return made


def _moved(x: Tensor, mesh: DeviceMesh, split: int, joined: int) -> Tensor:
    """Exchange parts: dimension `joined` becomes whole, and each rank has a part of `split`."""
    parts, each = torch.stack(x.chunk(mesh.size(), split)), [1] * mesh.size()
    moved = all_to_all_single_autograd(parts, each, each, mesh.get_group())
    return torch.cat(moved.unbind(), joined)


class _RingAttention(torch.autograd.Function):  # type: ignore[misc]  # torch is not typed here
    """Attention to keys and values that pass each rank once; their gradients follow them.

    Blocks are combined by the logarithms of their sums of exponentials. A rank has a front and a
    back half (`positions_of`): all its tokens see the front halves of earlier ranks, and its back
    half sees both halves of later ones.
    """

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, mesh: DeviceMesh, causal: bool,
        scale: float,
    ) -> Tensor:  # fmt: skip
        ctx.mesh, ctx.causal, ctx.scale, ctx.width = mesh, causal, scale, key.shape[-1]
        rank = mesh.get_local_rank()
        for source, both in _around(torch.cat([key, value], -1), mesh):
            begin, end = _seen(rank, source, query.shape[_TOKENS], causal=causal)
            k, v = both[:, :, :end].tensor_split([ctx.width], -1)
            made, logs, rest = _block(query[:, :, begin:], k, v, causal and source == rank, scale)
            if source == rank:
                wide = torch.promote_types(made.dtype, torch.float32)
                total, sums, ctx.rest = made.to(wide, copy=True), logs.to(wide, copy=True), rest
                continue
            known = sums[:, :, begin:]
            total[:, :, begin:].lerp_(made.to(wide), (logs - known).sigmoid()[..., None])
            known.copy_(torch.logaddexp(known, logs))
        total = total.to(query.dtype)
        ctx.save_for_backward(query, key, value, total, sums)
        return total

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, total, sums = ctx.saved_tensors
        rank, of_query = ctx.mesh.get_local_rank(), torch.zeros_like(query)
        own = coming = None
        for source, both in _around(torch.cat([key, value], -1), ctx.mesh):
            begin, end = _seen(rank, source, query.shape[_TOKENS], causal=ctx.causal)
            seen = both[:, :, :end].tensor_split([ctx.width], -1)
            arriving, q, made, logs = (x[:, :, begin:] for x in (gradient, query, total, sums))
            causal = ctx.causal and source == rank
            q, *of_kv = _block_backward(arriving, q, seen, made, logs, causal, ctx.scale, ctx.rest)
            of_query[:, :, begin:] += q
            of_both = F.pad(torch.cat(of_kv, -1), (0, 0, 0, both.shape[_TOKENS] - end))
            if source == rank:
                own = of_both
            else:
                coming = _passed_on(of_both if coming is None else coming() + of_both, ctx.mesh)
        assert own is not None
        own = own if coming is None else own + coming()
        return of_query, *own.tensor_split([ctx.width], -1), None, None, None


def _around(x: Tensor, mesh: DeviceMesh) -> Iterator[tuple[int, Tensor]]:
    """Yield each rank and its tensor, this one's first, while the next one is received."""
    for step in range(mesh.size()):
        coming = _passed_on(x, mesh) if step < mesh.size() - 1 else None
        yield (mesh.get_local_rank() - step) % mesh.size(), x
        x = x if coming is None else coming()


def _passed_on(x: Tensor, mesh: DeviceMesh) -> Callable[[], Tensor]:
    """Send a tensor to the next rank; return a function that waits for the previous rank's."""
    x, group = x.contiguous(), mesh.get_group()
    made, rank = torch.empty_like(x), mesh.get_local_rank()
    works = dist.batch_isend_irecv([
        dist.P2POp(dist.isend, x, group=group, group_peer=(rank + 1) % mesh.size()),
        dist.P2POp(dist.irecv, made, group=group, group_peer=(rank - 1) % mesh.size()),
    ])  # fmt: skip

    def wait() -> Tensor:
        for work in works:
            work.wait()
        return made

    return wait


def _seen(rank: int, source: int, tokens: int, *, causal: bool) -> tuple[int, int]:
    """Return the first query of a rank that sees tokens of `source`, and the end of these."""
    if not causal or source == rank:
        return 0, tokens
    return (0, tokens // 2) if source < rank else (tokens // 2, tokens)


def _block(
    query: Tensor, key: Tensor, value: Tensor, causal: bool, scale: float
) -> tuple[Tensor, Tensor, list[Any]]:
    """Return attention, logarithms of sums of exponentials, and values for the backward pass."""
    if query.is_cuda and query.dtype not in (torch.float16, torch.bfloat16):
        raise InputError("context_kind: ring runs in 16 bits on GPUs; plan with all-gather")
    kernel = (
        _ATEN._scaled_dot_product_flash_attention
        if query.is_cuda
        else _ATEN._scaled_dot_product_flash_attention_for_cpu
    )
    made, logs, *rest = kernel(*_alike(query, key, value), 0.0, causal, scale=scale)
    return made[..., : value.shape[-1]], logs, rest


def _block_backward(
    gradient: Tensor, query: Tensor, key_value: tuple[Tensor, ...], made: Tensor, logs: Tensor,
    causal: bool, scale: float, rest: list[Any],
) -> tuple[Tensor, ...]:  # fmt: skip
    """Return the gradients of query, key and value, by statistics over all keys."""
    key, value = key_value
    kernel = (
        _ATEN._scaled_dot_product_flash_attention_backward
        if query.is_cuda
        else _ATEN._scaled_dot_product_flash_attention_for_cpu_backward
    )
    rest = rest[:6]  # sums and lengths of sequences, and the state of random numbers
    q, k, v = _alike(query, key, value)
    gradient, made = (_padded(x, q.shape[-1]) for x in (gradient, made))
    gradients = kernel(
        gradient, q, k, v, made, logs.contiguous(), *rest[:4], 0.0, causal, *rest[4:], scale=scale
    )
    return tuple(
        found.unflatten(HEADS, (x.shape[HEADS], -1)).sum(HEADS + 1)[..., : x.shape[-1]]
        for found, x in zip(gradients, (query, key, value), strict=True)
    )


def _alike(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, ...]:
    """Return them with equally many heads of equal width, a multiple of 8, as kernels need it."""
    width = -(-max(query.shape[-1], value.shape[-1]) // 8) * 8
    return tuple(_padded(x, width) for x in (query, *spread_heads(query, key, value)))


def _padded(x: Tensor, width: int) -> Tensor:
    return F.pad(x, (0, width - x.shape[-1])).contiguous()
