"""Seconds of model stages, and of the collectives and optimizer step around a schedule.

A stage's pass is the sum of its layers' passes, with the embedding in the first stage and the head
in the last. With sharded weights, a pass waits if gathering them takes longer than computing; with
activations or weights in host memory, if the link to the host is too slow. The exposed traffic of
data-parallel ranks and the optimizer step are added to the longest path of the schedule, which
`runtime/estimate.py` computes.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from itertools import compress
from typing import NamedTuple

from .activations import element_bytes, fused
from .calibration import Calibration
from .collectives import Group, UsedLinks, all_gather, all_reduce, links_of, message
from .hardware import TrainingCluster
from .layers import LayerPrices, LayerTimes
from .layout import Layout, Recipe, axis_stride
from .memory import Held, RankStages, block_held, stage_held, stage_kept, stays_gathered


@dataclass(frozen=True)
class StageTime:
    """Seconds of one model stage for one microbatch, and its weights."""

    # forward, backward, weights: passes; `backward` includes `weights` and recomputation
    forward: float
    backward: float
    weights: float
    gathered: float  # seconds of both passes that wait for gathered weights (ZeRO 3)
    held: Held  # numbers of parameters on a rank
    terms: dict[str, float]  # seconds of both passes by term
    busy: tuple[float, ...]  # seconds of busy links, as in `LayerTime`


class StageParts(NamedTuple):
    """Contents of a model stage, which determine its times."""

    layers: tuple[int, ...]  # index of the layer type of each of its blocks
    recomputed: int  # number of blocks, counted from the first, that are recomputed
    first: bool  # whether it has the embedding
    last: bool  # whether it has the head
    mtp: bool  # whether it has the blocks of multi-token prediction


def stage_times(layout: Layout, prices: LayerPrices) -> tuple[StageTime, ...]:
    """Return the passes of each model stage for one microbatch.

    They include exposed waits for host memory. Stages with equal contents share one object. On
    unequal nodes each layer is priced on the slowest kind of nodes of its pipeline rank.
    """
    on = prices_of_ranks(layout, prices)
    found = {one: _stage_times(layout, one) for one in set(on)}
    return tuple(found[on[rank]][stage] for stage, rank in enumerate(layout.stage_ranks))


def prices_of_ranks(layout: Layout, prices: LayerPrices) -> tuple[LayerPrices, ...]:
    """Return the prices of layers on the nodes of each pipeline rank."""
    lies_on = (kinds_of_rank(rank, layout, prices.cluster) for rank in range(layout.pipeline))
    return tuple(prices.on(kinds, layout.software) for kinds in lies_on)


def _offloading(
    layout: Layout, prices: LayerPrices, stages: tuple[StageTime, ...]
) -> tuple[StageTime, ...]:
    """Return the stages with the exposed waits for activations and weights in host memory.

    Activations leave during the forward pass and return during the backward pass; weights arrive
    for each pass. All use the device's link to its host.
    """
    if not layout.offload_activations and not layout.offload_weights:
        return stages
    model, hidden = prices.model, prices.calibration.hidden
    divided, each = RankStages.of(model, layout), host_weights(layout)
    whole = replace(layout, offload_activations=0.0)
    waiting = []
    for number, stage in enumerate(stages):
        away = each[0] * stage.held.shared + each[1] * stage.held.routed
        away += stage_kept(model, whole, number, divided)
        away -= stage_kept(model, layout, number, divided)
        moved = away / prices.cluster.accelerator.host_bandwidth
        ahead = max(0.0, moved - hidden * stage.forward)
        behind = max(0.0, moved - hidden * stage.backward)
        waiting.append(
            replace(
                stage,
                forward=stage.forward + ahead,
                backward=stage.backward + behind,
                terms={**stage.terms, "offload": ahead + behind},
            )
        )
    return tuple(waiting)


def host_weights(layout: Layout) -> tuple[float, float]:
    """Return a rank's bytes in host memory per dense weight, and per weight of a routed expert."""
    away = layout.offload_weights * layout.recipe.weight_bytes
    if layout.zero < (3 if fused(layout) else 1):  # as in `rank_memory`
        return away, away
    return away / layout.shards, away / max(1, min(layout.shards, layout.expert_data))


def kinds_of_rank(rank: int, layout: Layout, cluster: TrainingCluster) -> tuple[int, ...]:
    """Return the kinds of nodes, as indices, on which the devices of a pipeline rank lie."""
    if len(cluster.nodes) == 1:
        return (0,)
    stride, found, first = axis_stride(layout, "pipeline"), [], 0
    for kind, nodes in enumerate(cluster.nodes):
        behind = first + nodes.devices
        blocks = range(first // stride, (behind - 1) // stride + 1)
        if len(blocks) >= layout.pipeline or any(b % layout.pipeline == rank for b in blocks):
            found.append(kind)
        first = behind
    return tuple(found)


def device_memory(
    layout: Layout, cluster: TrainingCluster, most: float | None = None
) -> tuple[float, ...]:
    """Return the memory of each pipeline rank's smallest device, bytes, at most `most`.

    Examples
    --------
    >>> from stagecut.instances.costs.clusters import training_cluster
    >>> unlike = training_cluster("h100:8+a100-40gb:8x2")
    >>> [round(size / 2**30) for size in device_memory(Layout(pipeline=3, data=8), unlike)]
    [80, 40, 40]
    """
    own = [nodes.accelerator.memory_bytes for nodes in cluster.nodes]
    least = [
        min(own[kind] for kind in kinds_of_rank(rank, layout, cluster))
        for rank in range(layout.pipeline)
    ]
    return tuple(least if most is None else (min(size, most) for size in least))


def _stage_times(layout: Layout, prices: LayerPrices) -> tuple[StageTime, ...]:
    """Return the passes of each model stage at the given prices, including waits."""
    model, times = prices.model, prices.times(layout)
    blocks = [block_held(block, model.hidden, layout) for block in model.layer_types]
    stages, start = [], 0
    mtp = layout.mtp_stage % layout.stages if model.mtp else -1
    known: dict[StageParts, StageTime] = {}
    for stage, count in enumerate(layout.layers_of_stages(model.layers)):
        own = model.types_of_layers[start : start + count]
        start += count
        again = layout.recomputed_layers(stage, count)
        ends = (stage == 0, stage == layout.stages - 1, stage == mtp)
        parts = StageParts(own, again, *ends)
        if parts not in known:
            held = stage_held(model, layout, stage, own, blocks)
            known[parts] = stage_time(layout, prices, times, held, parts)
        stages.append(known[parts])
    return _offloading(layout, prices, tuple(stages))


def stage_time(
    layout: Layout,
    prices: LayerPrices,
    times: LayerTimes,
    held: Held,
    stage: StageParts,
) -> StageTime:
    """Return the passes of a stage with these contents; `held` are its parameters on a rank."""
    model, own, again = prices.model, stage.layers, stage.recomputed
    counted = Counter(own[:again])
    parts = [(times.recomputed[which], count) for which, count in counted.items()]
    parts += [(times.blocks[which], count) for which, count in Counter(own[again:]).items()]
    if stage.first:
        parts.append((times.embedding, 1))
    if stage.last:
        parts.append((times.head, 1))
    if stage.mtp:
        for block in model.mtp:
            which = model.layer_types.index(block)
            parts += [(times.recomputed[which], 1), (times.mtp, 1)]
    forward = sum(count * part.forward for part, count in parts)
    backward = sum(count * part.backward for part, count in parts)
    weights = sum(count * part.weights for part, count in parts)
    busy = tuple(sum(count * part.busy[k] for part, count in parts) for k in range(6))
    terms: dict[str, float] = {}
    for part, count in parts:
        for term, seconds in part.terms:
            terms[term] = terms.get(term, 0.0) + count * seconds
    units = max(1, len(own))
    if hooks := units * layer_hooks(layout, prices):
        backward += hooks
        terms["host"] += hooks
    gathered = 0.0
    if waits_for_weights(layout):
        gather, reduce = replica_traffic(layout, prices, held.shared, held.routed)
        table, both = prices.calibration, reduce + gather * layout.reshard_after_forward
        taken = blocked(layout, prices)
        computes = forward - sum(compress(busy[::2], taken))
        wait_forward = exposed(gather, computes, gather / units, table)
        computes = backward - sum(compress(busy[1::2], taken))
        wait_backward = exposed(both, computes, reduce / units, table)
        gathered = wait_forward + wait_backward
        forward, backward = forward + wait_forward, backward + wait_backward
    terms["weights"] = gathered
    return StageTime(forward, backward, weights, gathered, held, terms, busy)


def waits_for_weights(layout: Layout) -> bool:
    """Whether every pass gathers its stage's sharded weights anew."""
    return layout.zero == 3 and not stays_gathered(layout)


def layer_hooks(layout: Layout, prices: LayerPrices) -> float:
    """Return the seconds that a sharded optimizer adds to a layer's backward pass."""
    return prices.calibration.hooks if layout.zero and layout.pipeline > 1 else 0.0


def exposed(moved: float, computes: float, least: float, table: Calibration) -> float:
    """Return the seconds that `moved` seconds of collectives add to a pass: (4) of docs/job.md.

    The pass has `computes` seconds of computation, which hides collectives but is slowed by them.
    `least` is the first or last piece of the traffic, which has no computation beside it.
    """
    return max(moved - table.hidden * computes, table.slowed * moved, least)


def blocked(layout: Layout, prices: LayerPrices) -> tuple[bool, bool, bool]:
    """Return which collectives of layers compete for links with the traffic of replicas.

    The three entries are those of collectives on peer links only, on the network only, and on both.
    Two transfers on one link do not hide each other.
    """
    dense = Group(layout.replicas, axis_stride(layout, "context"))
    routed = Group(layout.expert_data, layout.expert * layout.expert_tensor)
    sparse = any(block.experts for block in prices.model.layer_types)
    used = UsedLinks.NONE
    for one in prices.each:
        used |= links_of(dense, one.cluster)
        used |= links_of(routed, one.cluster) if sparse else UsedLinks.NONE
    return UsedLinks.PEER in used, UsedLinks.NETWORK in used, bool(used)


def replica_traffic(
    layout: Layout, prices: LayerPrices, dense: float, routed: float
) -> tuple[float, float]:
    """Return the seconds to gather a rank's weights, and to reduce their gradients.

    `dense` and `routed` are numbers of weights. Of several kinds of nodes the slowest counts.
    """
    if len(prices.each) > 1:
        every = [replica_traffic(layout, one, dense, routed) for one in prices.each]
        return max(gather for gather, _ in every), max(reduce for _, reduce in every)
    cluster, links, recipe = prices.cluster, prices.calibration.links, layout.recipe
    gather = reduce = 0.0
    experts = layout.expert * layout.expert_tensor
    for held, ranks, stride in (
        (dense, layout.replicas, axis_stride(layout, "context")),
        (routed, layout.expert_data, experts),
    ):
        shards = min(layout.shard_group or ranks, ranks) if layout.zero else 1
        inner = Group(shards, stride)
        whole = Group(ranks, stride)
        if shards > 1:
            gather += all_gather(held * recipe.gather_bytes, inner, cluster, links)
            if held and layout.zero < 3:
                gather += shards * prices.calibration.broadcast
            reduce += all_gather(held * recipe.reduce_bytes, inner, cluster, links)
            copies = Group(ranks // shards, stride * shards)
            reduce += all_reduce(held * recipe.reduce_bytes / shards, copies, cluster, links)
        else:
            reduce += all_reduce(held * recipe.reduce_bytes, whole, cluster, links)
    return gather, reduce


def message_time(layout: Layout, prices: LayerPrices) -> float:
    """Return the seconds of one message between pipeline ranks.

    Each tensor-parallel rank sends its shard; without sequence parallelism, the receivers gather
    the shards again.
    """
    if layout.pipeline == 1:
        return 0.0
    cluster, links = prices.cluster, prices.calibration.links
    moved = element_bytes(layout) * layout.tokens * prices.model.hidden
    stride = axis_stride(layout, "pipeline")
    seconds = message(moved / layout.tensor, stride, cluster, links)
    if layout.tensor > 1 and not layout.sequence_parallel:
        group = Group(layout.tensor, axis_stride(layout, "tensor"))
        seconds += all_gather(moved, group, cluster, links)
    return seconds


def exposed_traffic(layout: Layout, prices: LayerPrices, own: list[StageTime]) -> float:
    """Return the exposed seconds of reducing a rank's gradients and gathering its weights.

    Reduction can overlap with the backward passes of the last microbatch, gathering with the
    forward passes of the first; the last gradients and the first weights are always exposed.
    """
    if waits_for_weights(layout):
        return 0.0
    every = sum((stage.held for stage in own), Held(0.0, 0.0))
    gather, reduce = replica_traffic(layout, prices, every.shared, every.routed)
    held, table, pieces = blocked(layout, prices), prices.calibration, max(8, len(own))
    if layout.overlap.gradients:
        computes = sum(stage.backward - sum(compress(stage.busy[1::2], held)) for stage in own)
        reduce = exposed(reduce, computes, reduce / pieces, table)
    if layout.overlap.parameters:
        computes = sum(stage.forward - sum(compress(stage.busy[::2], held)) for stage in own)
        gather = exposed(gather, computes, gather / pieces, table)
    return gather + reduce


def host_step(layout: Layout, prices: LayerPrices) -> float:
    """Return the host's fixed seconds per iteration, on the slowest kind of nodes."""
    return max(one.calibration.step for one in prices.by_kind(layout.software))


def tied_all_reduce(layout: Layout, prices: LayerPrices) -> float:
    """Return the seconds of the all-reduce between the two copies of a tied embedding."""
    model = prices.model
    if not model.tied or layout.stage_ranks[-1] == 0:  # both are on one rank
        return 0.0
    moved = model.vocabulary * model.hidden / layout.tensor * layout.recipe.gradient_bytes
    group = Group(2, axis_stride(layout, "pipeline") * (layout.pipeline - 1))
    return all_reduce(moved, group, prices.cluster, prices.calibration.links)


def optimizer_bytes(recipe: Recipe) -> float:
    """Return the bytes per weight that an optimizer step reads and writes.

    It reads the gradient, reads and writes the states, and writes the weight, which it also reads
    if there is no master copy.
    """
    states = recipe.master_bytes + recipe.moment_bytes
    weight = recipe.weight_bytes * (1 if recipe.master_bytes else 2)
    return recipe.gradient_bytes + 2 * states + weight


def clipping_bytes(recipe: Recipe) -> float:
    """Return the bytes per weight of gradient clipping: two reads and a write of the gradient."""
    return 3 * recipe.gradient_bytes


def optimizer_rates(layout: Layout, prices: LayerPrices) -> list[tuple[float, float]]:
    """Return each pipeline rank's seconds of clipping and optimizer step, per weight that it holds.

    The two numbers are for dense weights and for weights of routed experts, on the rank's slowest
    kind of nodes.
    """
    shards, routed = layout.shards, max(1, min(layout.shards, layout.expert_data))
    on = prices_of_ranks(layout, prices)
    slowest = {own: max(_seconds_per_weight(layout, one) for one in own.each) for own in set(on)}
    return [(slowest[own] / shards, slowest[own] / routed) for own in on]


def _seconds_per_weight(layout: Layout, prices: LayerPrices) -> float:
    """Return the seconds of clipping and optimizer step per weight that a device updates."""
    recipe, device = layout.recipe, prices.cluster.accelerator
    kept = recipe.master_bytes + recipe.moment_bytes
    moved = optimizer_bytes(recipe) + clipping_bytes(recipe)
    here = moved / (device.bandwidth * prices.calibration.optimizer)
    # Gradients and weights cross the link to the host, which updates at about the link's rate.
    sent = recipe.gradient_bytes + recipe.gather_bytes + 2 * kept
    away = layout.offload_optimizer
    return here * (1 - away) + away * sent / device.host_bandwidth
