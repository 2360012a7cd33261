"""Seconds of model stages and of what surrounds a schedule: traffic of gradients, optimizer.

A stage's passes are the sums of its layers' parts, of the embedding in the first and the head in
the last stage. With sharded weights a pass waits where gathering them takes longer than computing;
with activations or weights in host memory where the link to the host does. What computation does
not hide of an iteration's reductions and gathers, and the optimizer's step, come on top of the
schedule's longest path, which is not here.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from itertools import compress
from typing import NamedTuple

from .activations import fused
from .calibration import Calibration
from .collectives import Group, UsedLinks, all_gather, all_reduce, links_of, message
from .hardware import TrainingCluster
from .layers import LayerPrices, LayerTimes
from .layout import Layout, Recipe, axis_stride
from .memory import Held, RankStages, block_held, stage_held, stage_kept, stays_gathered


@dataclass(frozen=True)
class StageTime:
    """Seconds of one model stage for one microbatch."""

    # forward, backward, weights: passes; `backward` includes `weights` and recomputation
    forward: float
    backward: float
    weights: float
    gathered: float  # part of both passes that waits for weights (ZeRO-3)
    held: Held  # parameters of a rank
    terms: dict[str, float]  # seconds of both passes by term
    busy: tuple[float, ...]  # of its collectives, as those of a layer


class StageParts(NamedTuple):
    """Blocks of a model stage, and what it has of the model's ends."""

    layers: tuple[int, ...]  # numbers of its blocks' layer types
    recomputed: int  # how many of them, the first ones, are recomputed
    first: bool  # whether it has the embedding
    last: bool  # whether it has the head
    further: bool  # whether it predicts further tokens


def stage_times(layout: Layout, prices: LayerPrices) -> tuple[StageTime, ...]:
    """Return the passes of each model stage for one microbatch; stages that are alike are one.

    Passes wait for what lies in host memory where computation does not hide it.

    On unequal nodes each layer takes what it takes on the slowest kind that its ranks lie on.
    """
    on = prices_of_ranks(layout, prices)
    found = {one: _stage_times(layout, one) for one in set(on)}
    return tuple(found[on[rank]][stage] for stage, rank in enumerate(layout.stage_ranks))


def prices_of_ranks(layout: Layout, prices: LayerPrices) -> tuple[LayerPrices, ...]:
    """Return the prices on the nodes of each pipeline rank."""
    lies_on = (kinds_of_rank(rank, layout, prices.cluster) for rank in range(layout.pipeline))
    return tuple(prices.on(kinds, layout.software) for kinds in lies_on)


def _offloading(
    layout: Layout, prices: LayerPrices, stages: tuple[StageTime, ...]
) -> tuple[StageTime, ...]:
    """Return stages that wait for what is kept in host memory, where computation does not hide it.

    Activations leave beside the forward pass and come back beside the backward pass, weights come
    for both, over the device's link to its host.
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
    """Return a rank's bytes in host memory per weight of all replicas, and per routed one."""
    away = layout.offload_weights * layout.recipe.weight_bytes
    if layout.zero < (3 if fused(layout) else 1):  # as in `rank_memory`
        return away, away
    return away / layout.shards, away / max(1, min(layout.shards, layout.expert_data))


def kinds_of_rank(rank: int, layout: Layout, cluster: TrainingCluster) -> tuple[int, ...]:
    """Return the kinds of nodes that devices of a pipeline rank lie on."""
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
    """Return the bytes of each pipeline rank's smallest device, `most` at most where it is given.

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
    """Return the passes of each model stage at some prices, with their waits."""
    model, times = prices.model, prices.times(layout)
    blocks = [block_held(block, model.hidden, layout) for block in model.layer_types]
    stages, start = [], 0
    further = layout.mtp_stage % layout.stages if model.mtp else -1
    known: dict[StageParts, StageTime] = {}
    for stage, count in enumerate(layout.layers_of_stages(model.layers)):
        own = model.types_of_layers[start : start + count]
        start += count
        again = layout.recomputed_layers(stage, count)
        ends = (stage == 0, stage == layout.stages - 1, stage == further)
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
    """Return the passes of a stage of these parts, of which a rank has the parameters `held`."""
    model, own, again = prices.model, stage.layers, stage.recomputed
    counted = Counter(own[:again])
    parts = [(times.recomputed[which], count) for which, count in counted.items()]
    parts += [(times.blocks[which], count) for which, count in Counter(own[again:]).items()]
    if stage.first:
        parts.append((times.embedding, 1))
    if stage.last:
        parts.append((times.head, 1))
    if stage.further:
        for block in model.mtp:
            which = model.layer_types.index(block)
            parts += [(times.recomputed[which], 1), (times.further, 1)]
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
    """Whether every pass waits for its stage's sharded weights."""
    return layout.zero == 3 and not stays_gathered(layout)


def layer_hooks(layout: Layout, prices: LayerPrices) -> float:
    """Return the seconds that a sharded optimizer adds to a layer's backward pass."""
    return prices.calibration.hooks if layout.zero and layout.pipeline > 1 else 0.0


def exposed(moved: float, computes: float, least: float, table: Calibration) -> float:
    """Return what replicas' traffic adds to a pass that computes beside it: (4) of docs/job.md.

    What does not fit beside the computation stays, and `least`, which nothing is beside; what fits
    slows the computation.
    """
    return max(moved - table.hidden * computes, table.slowed * moved, least)


def blocked(layout: Layout, prices: LayerPrices) -> tuple[bool, bool, bool]:
    """Return which collectives keep links busy that replicas' traffic needs.

    Those on peer links alone, on the network alone, and on both; of two transfers on one link
    neither hides the other.
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
    """Return the seconds to gather so many weights of a rank, and to reduce their gradients.

    On several kinds of nodes the most of each.
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
    """Return the seconds of a message between pipeline ranks.

    Each tensor-parallel rank sends its part; without sequence parallelism the parts are gathered
    again on arrival.
    """
    if layout.pipeline == 1:
        return 0.0
    cluster, links = prices.cluster, prices.calibration.links
    moved = 2.0 * layout.tokens * prices.model.hidden
    stride = axis_stride(layout, "pipeline")
    seconds = message(moved / layout.tensor, stride, cluster, links)
    if layout.tensor > 1 and not layout.sequence_parallel:
        group = Group(layout.tensor, axis_stride(layout, "tensor"))
        seconds += all_gather(moved, group, cluster, links)
    return seconds


def exposed_traffic(layout: Layout, prices: LayerPrices, own: list[StageTime]) -> float:
    """Return the traffic of a rank's gradients and weights that nothing hides.

    Reduction can run beside the last microbatch's backward passes, gathering beside the first
    one's forward passes; what the first to be sent and the last to be received wait for stays.
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
    """Return the host's seconds of each iteration, on the kind of nodes where they are most."""
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
    """Return the bytes that an optimizer's step reads and writes of a weight.

    Its gradient is read, its states are read and written; the weight is written, and read where it
    has no copy to be updated.
    """
    states = recipe.master_bytes + recipe.moment_bytes
    weight = recipe.weight_bytes * (1 if recipe.master_bytes else 2)
    return recipe.gradient_bytes + 2 * states + weight


def clipping_bytes(recipe: Recipe) -> float:
    """Return the bytes of clipping: a gradient is read for the norm, read again and written."""
    return 3 * recipe.gradient_bytes


def optimizer_rates(layout: Layout, prices: LayerPrices) -> list[tuple[float, float]]:
    """Return each rank's seconds of clipping and of the optimizer's step per weight that it holds.

    Of those that all replicas hold, and of routed ones; on the slowest kind that it lies on.
    """
    shards, routed = layout.shards, max(1, min(layout.shards, layout.expert_data))
    on = prices_of_ranks(layout, prices)
    slowest = {own: max(_seconds_per_weight(layout, one) for one in own.each) for own in set(on)}
    return [(slowest[own] / shards, slowest[own] / routed) for own in on]


def _seconds_per_weight(layout: Layout, prices: LayerPrices) -> float:
    """Return the seconds of clipping and stepping on a device of the first kind."""
    recipe, device = layout.recipe, prices.cluster.accelerator
    kept = recipe.master_bytes + recipe.moment_bytes
    moved = optimizer_bytes(recipe) + clipping_bytes(recipe)
    here = moved / (device.bandwidth * prices.calibration.optimizer)
    # The host reads gradients and writes weights over the link, and steps at about its rate.
    sent = recipe.gradient_bytes + recipe.gather_bytes + 2 * kept
    away = layout.offload_optimizer
    return here * (1 - away) + away * sent / device.host_bandwidth
