"""Collectives of an iteration on one rank: their numbers and bytes, by axis and kind.

All collectives count, also those that computation hides; their seconds are in `layers.py` and in
the estimate of the iteration. Bytes are those of the whole tensor: of the result of an all-gather,
and of each rank's input to a reduce-scatter or an all-reduce. Checked against torch's
CommDebugMode.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from .activations import element_bytes, fused
from .description import Block, ModelDescription
from .experts import routed_rows
from .layout import ContextKind, Layout, Recompute
from .memory import RankStages, ends_held, rank_held, stays_gathered, unit_held


@dataclass(frozen=True)
class CollectiveTraffic:
    """Collectives of one kind over one axis, in one iteration of one rank."""

    axis: str  # ``tensor``, ``context``, ``data``, ``expert`` or ``pipeline``
    kind: str  # ``all-gather``, ``reduce-scatter``, ``all-reduce``, ``all-to-all`` or ``message``
    count: int  # number of collectives
    size: float  # bytes of all these collectives together


def collectives(
    model: ModelDescription, layout: Layout, rank: int = 0
) -> tuple[CollectiveTraffic, ...]:
    """Return the collectives of an iteration on a pipeline rank, summed by axis and kind."""
    found: dict[tuple[str, str], tuple[int, float]] = {}
    for axis, kind, count, size in _all(model, layout, rank):
        before = found.get((axis, kind), (0, 0.0))
        found[axis, kind] = before[0] + count, before[1] + count * size
    return tuple(CollectiveTraffic(*key, *of) for key, of in found.items() if of[0])


def _all(
    model: ModelDescription, layout: Layout, rank: int
) -> Iterator[tuple[str, str, int, float]]:
    """Yield axis, kind, number and bytes per collective, of all collectives of a rank."""
    own, stages = layout.rank_stages(rank), RankStages.of(model, layout)
    plain = replace(layout, recompute=frozenset())
    for stage in own:
        layers = stages.stages[stage]
        again = layout.recomputed_layers(stage, len(layers))
        for number, place in enumerate(layers):
            block, as_run = model.layer_types[place], layout if number < again else plain
            for axis, kind, count, size in _of_block(block, model.hidden, as_run):
                yield axis, kind, layout.microbatches * count, size
    if layout.tensor > 1:
        whole = element_bytes(layout) * layout.tokens * model.hidden
        for stage, there in ((0, model.vocabulary), (layout.stages - 1, model.head)):
            if stage in own and there:
                # The output of the embedding is summed; the input of the head is gathered.
                yield from (
                    ("tensor", kind, layout.microbatches * count, whole)
                    for kind, count in _border(layout, 1, 1)
                )
    yield from _of_data(model, layout, rank, stages)
    if layout.pipeline > 1:
        part = layout.tensor if layout.sequence_parallel else 1
        size = element_bytes(layout) * layout.tokens / part * model.hidden
        for stage in own:
            # Activations go to the next stage and gradients to the previous one, if on other ranks.
            near = {stage - 1, stage + 1} - set(own)
            count = len(near & set(range(layout.stages)))
            yield "pipeline", "message", layout.microbatches * count, size


def _border(layout: Layout, forward: int, backward: int) -> Iterator[tuple[str, int]]:
    """Yield kind and number of the collectives at the border of a tensor-parallel region."""
    if not layout.sequence_parallel:
        yield "all-reduce", forward
        return
    yield "all-gather", forward
    yield "reduce-scatter", backward


def _of_block(block: Block, hidden: int, layout: Layout) -> Iterator[tuple[str, str, int, float]]:
    """Yield axis, kind, number and bytes per collective, for a block's passes of a microbatch."""
    each, full = element_bytes(layout), Recompute.FULL in layout.recompute
    whole = each * layout.tokens * hidden
    attentions = (block.attention is not None) + (block.cross_attention is not None)
    layer = block.feed_forward
    shared = block.experts is not None and block.experts.shared is not None
    regions = attentions + (layer is not None) + shared
    if layout.tensor > 1 and regions:
        again = regions if full or (Recompute.MLP in layout.recompute and layer) else 0
        again = again if full else min(again, 1)
        if layout.sequence_parallel:
            regathered = regions if fused(layout) else 0
            # PyTorch stops recomputing at the last saved tensor, before the last reduce-scatter.
            yield "tensor", "all-gather", 2 * regions + again + regathered, whole
            summed = again if fused(layout) else max(0, again - 1)
            yield "tensor", "reduce-scatter", 2 * regions + summed, whole
        else:
            yield "tensor", "all-reduce", 2 * regions + again, whole
    if layout.context > 1 and block.attention is not None:
        attention = block.attention
        kv = max(attention.kv_heads / layout.tensor, 1.0)
        width = kv * (attention.key_width + attention.value_width)
        passes = 2 + full
        if layout.context_kind is ContextKind.ALL_TO_ALL:
            heads = attention.heads / layout.tensor
            both = heads * (attention.key_width + attention.value_width) + width
            yield "context", "all-to-all", passes, each * layout.tokens * both
        else:
            part = each * layout.tokens * width
            if layout.context_kind is ContextKind.RING:  # keys, values, and their gradients
                yield "context", "message", (passes + 1) * (layout.context - 1), part
            else:
                yield "context", "all-gather", passes, layout.context * part
                yield "context", "reduce-scatter", 1, layout.context * part
    if layout.expert > 1 and block.experts is not None:
        rows = routed_rows(block.experts, layout)
        again = full or Recompute.MOE in layout.recompute
        yield "expert", "all-to-all", 4 + 2 * again, each * rows * hidden


def _of_data(
    model: ModelDescription, layout: Layout, rank: int, stages: RankStages
) -> Iterator[tuple[str, str, int, float]]:
    """Yield axis, kind, number and bytes per collective, over data-parallel ranks."""
    recipe, own = layout.recipe, layout.rank_stages(rank)
    if layout.replicas == 1:
        return
    held = unit_held(rank_held(model, layout, rank, stages), layout)
    if layout.zero < 3:
        if layout.zero == 0:
            yield "data", "all-reduce", 1, recipe.reduce_bytes * held
            return
        times = layout.microbatches if layout.zero == 2 else 1
        yield "data", "reduce-scatter", times, recipe.reduce_bytes * held
        yield "data", "all-gather", 1, recipe.gather_bytes * held
        return
    times = 1 if stays_gathered(layout) else layout.microbatches
    gathers = 1 if stays_gathered(layout) or not layout.reshard_after_forward else 2
    for layer in stages.of_rank(layout, rank):
        unit = unit_held(layer.held, layout)
        yield "data", "all-gather", gathers * times, recipe.gather_bytes * unit
        yield "data", "reduce-scatter", times, recipe.reduce_bytes * unit
    ends = sum(ends_held(model, layout, stage) for stage in own)
    if ends:
        yield "data", "all-gather", times, recipe.gather_bytes * ends
        yield "data", "reduce-scatter", times, recipe.reduce_bytes * ends
