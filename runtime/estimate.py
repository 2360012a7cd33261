"""Seconds of a training iteration under a layout: the longest path of its schedule, and the rest.

Passes run in the order of the runtime's own schedules, by the simulator's rules: a device takes
its actions in turn, and each waits for what it needs and for the message that brings it. Added to
the path are the traffic of gradients and weights that no computation hides, and the optimizer.

Many layouts are priced at once: those that share pipeline, chunks, schedule and number of
microbatches go through the schedule together, one array operation per step.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from ..instances.common.arrays import Floats, Ints
from ..instances.costs.calibration import Calibration
from ..instances.costs.collectives import Group, all_gather, all_reduce, message
from ..instances.costs.description import ModelDescription
from ..instances.costs.hardware import TrainingCluster
from ..instances.costs.layers import LayerPrices, LayerTimes, axis_stride, rank_parameters
from ..instances.costs.layout import Layout
from ..instances.costs.memory import RankStages, stage_kept, stays_gathered
from .schedules import make_schedule
from .schedules.actions import Kind
from .simulate.stages import chain

#: Terms of an iteration's time.
ITERATION_TERMS = (
    "products", "attention", "pointwise", "tensor", "context", "experts", "layers", "recomputation",
    "host", "weights", "offload", "bubble", "gradients", "optimizer",
)  # fmt: skip
#: Microbatches up to which a schedule is followed action by action.
STEPPED = 1024


@dataclass(frozen=True)
class StageTime:
    """Seconds of one model stage for one microbatch.

    Parameters
    ----------
    forward, backward, weights
        Passes; `backward` includes `weights` and recomputation.
    gathered
        Part of both passes that waits for weights (ZeRO-3).
    dense, routed
        Weights of a rank: those that all replicas hold, and routed experts'.
    terms
        Seconds of both passes by term.
    """

    forward: float
    backward: float
    weights: float
    gathered: float
    dense: float
    routed: float
    terms: dict[str, float]


@dataclass(frozen=True)
class IterationTime:
    """Seconds of an iteration, by term of the pipeline rank that has the most to do.

    Parameters
    ----------
    seconds
        All of it.
    terms
        By `ITERATION_TERMS`; they sum to `seconds`.
    stages
        Of one microbatch, by model stage.
    """

    seconds: float
    terms: dict[str, float]
    stages: tuple[StageTime, ...]


def iteration_time(
    model: ModelDescription, layout: Layout, cluster: TrainingCluster, calibration: Calibration
) -> IterationTime:
    """Return the seconds of one iteration and what they are made of."""
    return iteration_times([layout], LayerPrices(model, cluster, calibration))[0]


def iteration_times(layouts: Sequence[Layout], prices: LayerPrices) -> list[IterationTime]:
    """Return the seconds of one iteration under each of many layouts of one model and cluster."""
    stages = [_offloading(layout, prices, stage_times(layout, prices)) for layout in layouts]
    alike: dict[tuple[str, int, int, int, bool], list[int]] = {}
    for i, layout in enumerate(layouts):
        shape = (layout.schedule.value, layout.pipeline, layout.chunks, layout.microbatches)
        alike.setdefault((*shape, layout.overlap.iterations), []).append(i)
    path = np.empty(len(layouts))
    for (schedule, pipeline, chunks, microbatches, apart), group in alike.items():
        forward = np.array([[s.forward for s in stages[i]] for i in group]).T
        backward = np.array([[s.backward for s in stages[i]] for i in group]).T
        weights = np.array([[s.weights for s in stages[i]] for i in group]).T
        sent = np.array([message_time(layouts[i], prices) for i in group])
        blocking = np.array([not layouts[i].overlap.messages for i in group])
        if blocking.any() and pipeline > 1:
            forward = forward + np.where(blocking, sent, 0.0)
            backward = backward + np.where(blocking, sent, 0.0)
        path[group] = longest_path(
            schedule, pipeline, chunks, microbatches, forward, backward, weights, sent, apart
        )
    return [
        _whole(layout, prices, own, float(seconds))
        for layout, own, seconds in zip(layouts, stages, path, strict=True)
    ]


def stage_times(layout: Layout, prices: LayerPrices) -> tuple[StageTime, ...]:
    """Return the passes of each model stage for one microbatch; stages that are alike are one.

    On unequal nodes a stage takes what it takes on the slowest kind that its ranks lie on.
    """
    if len(prices.cluster.nodes) == 1:
        return _stage_times(layout, prices)
    kinds = range(len(prices.cluster.nodes))
    by_kind = [_stage_times(layout, prices.on(kind, layout.software)) for kind in kinds]
    slowest: dict[int, StageTime] = {}
    for rank in range(layout.pipeline):
        own = [by_kind[kind] for kind in _kinds_of(rank, layout, prices.cluster)]
        for stage in layout.rank_stages(rank):
            slowest[stage] = max(
                (times[stage] for times in own), key=lambda one: one.forward + one.backward
            )
    return tuple(slowest[stage] for stage in range(layout.stages))


def _offloading(
    layout: Layout, prices: LayerPrices, stages: tuple[StageTime, ...]
) -> tuple[StageTime, ...]:
    """Return stages that wait for what is kept in host memory, where computation does not hide it.

    Activations leave beside the forward pass and come back beside the backward pass, weights come
    for both, over the device's link to its host.
    """
    if not layout.offload_activations and not layout.offload_weights:
        return stages
    device, hidden = prices.cluster.accelerator, prices.calibration.hidden
    whole = replace(layout, offload_activations=0.0)
    divided = RankStages.of(prices.model, whole)
    shards = layout.shards if layout.zero == 3 else 1
    waiting = []
    for number, stage in enumerate(stages):
        kept = layout.offload_activations * stage_kept(prices.model, whole, number, divided)
        weights = layout.offload_weights * layout.recipe.weight_bytes / shards
        moved = (kept + weights * (stage.dense + stage.routed)) / device.host_bandwidth
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


def _kinds_of(rank: int, layout: Layout, cluster: TrainingCluster) -> list[int]:
    """Return the kinds of nodes that devices of a pipeline rank lie on."""
    stride, found, first = axis_stride(layout, "pipeline"), [], 0
    for kind, nodes in enumerate(cluster.nodes):
        behind = first + nodes.devices
        blocks = range(first // stride, (behind - 1) // stride + 1)
        if len(blocks) >= layout.pipeline or any(b % layout.pipeline == rank for b in blocks):
            found.append(kind)
        first = behind
    return found


def _stage_times(layout: Layout, prices: LayerPrices) -> tuple[StageTime, ...]:
    """Return the passes of each model stage on nodes of the first kind."""
    model, times = prices.model, prices.times(layout)
    held = [rank_parameters(block, model.hidden, layout) for block in model.layer_types]
    stages, start = [], 0
    further = layout.mtp_stage % layout.stages if model.mtp else -1
    known: dict[tuple[object, ...], StageTime] = {}
    for stage, count in enumerate(layout.layers_of_stages(model.layers)):
        own = prices.kinds[start : start + count]
        start += count
        ends = (stage == 0, stage == layout.stages - 1, stage == further)
        if (own, ends) not in known:
            known[own, ends] = _stage(layout, prices, times, held, own, *ends)
        stages.append(known[own, ends])
    return tuple(stages)


def _stage(
    layout: Layout,
    prices: LayerPrices,
    times: LayerTimes,
    held: list[tuple[float, float]],
    own: tuple[int, ...],
    first: bool,
    last: bool,
    further: bool,
) -> StageTime:
    """Return the passes of a stage of blocks of such layer types.

    Parameters
    ----------
    held
        Weights of a rank by layer type: of all replicas, and routed experts'.
    first, last, further
        Whether the stage has the embedding, the head, and the prediction of further tokens.
    """
    model = prices.model
    again = len(own) if layout.recompute_layers is None else min(len(own), layout.recompute_layers)
    counted = Counter(own[:again])
    parts = [(times.recomputed[which], count) for which, count in counted.items()]
    parts += [(times.blocks[which], count) for which, count in Counter(own[again:]).items()]
    dense, routed = sum(held[i][0] for i in own), sum(held[i][1] for i in own)
    if first:
        parts.append((times.embedding, 1))
        dense += model.embedding_parameters / layout.tensor
    if last:
        parts.append((times.head, 1))
        dense += model.head_parameters / layout.tensor
        if model.tied and layout.stages > 1:
            dense += model.vocabulary * model.hidden / layout.tensor
    if further:
        for block in model.mtp:
            which = model.layer_types.index(block)
            parts += [(times.recomputed[which], 1), (times.further, 1)]
            dense += held[which][0] + 2 * model.hidden**2 / layout.tensor
            routed += held[which][1]
    forward = sum(count * part.forward for part, count in parts)
    backward = sum(count * part.backward for part, count in parts)
    weights = sum(count * part.weights for part, count in parts)
    terms: dict[str, float] = {}
    for part, count in parts:
        for term, seconds in part.terms:
            terms[term] = terms.get(term, 0.0) + count * seconds
    units = max(1, len(own))
    if layout.zero and layout.pipeline > 1 and prices.calibration.hooks:
        hooks = prices.calibration.hooks * units
        backward += hooks
        terms["host"] += hooks
    gathered = 0.0
    if layout.zero == 3 and not stays_gathered(layout):
        gather, reduce = _traffic(layout, prices, dense, routed)
        hidden = prices.calibration.hidden
        wait_forward = max(gather - hidden * forward, gather / units)
        again_gathered = gather if layout.reshard_after_forward else 0.0
        wait_backward = max(again_gathered + reduce - hidden * backward, reduce / units)
        gathered = wait_forward + wait_backward
        forward, backward = forward + wait_forward, backward + wait_backward
    terms["weights"] = gathered
    return StageTime(forward, backward, weights, gathered, dense, routed, terms)


def _traffic(
    layout: Layout, prices: LayerPrices, dense: float, routed: float
) -> tuple[float, float]:
    """Return the seconds to gather so many weights of a rank, and to reduce their gradients."""
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


def _whole(
    layout: Layout, prices: LayerPrices, stages: tuple[StageTime, ...], path: float
) -> IterationTime:
    """Return the iteration around a schedule's longest path."""
    alike = {
        tuple(map(id, own)): own
        for own in (
            [stages[s] for s in layout.rank_stages(rank)] for rank in range(layout.pipeline)
        )
    }.values()
    own = max(alike, key=lambda one: sum(stage.forward + stage.backward for stage in one))
    terms = dict.fromkeys(ITERATION_TERMS, 0.0)
    for stage in own:
        for term, seconds in stage.terms.items():
            terms[term] += layout.microbatches * seconds
    busy = layout.microbatches * sum(stage.forward + stage.backward for stage in own)
    terms["bubble"] = path - busy
    terms["gradients"] = max(_gradients(layout, prices, one) for one in alike)
    terms["gradients"] += _tied(layout, prices)
    terms["optimizer"] = max(_optimizer(layout, prices, one) for one in alike)
    terms["host"] += prices.calibration.step
    seconds = path + prices.calibration.step + terms["gradients"] + terms["optimizer"]
    return IterationTime(seconds, terms, stages)


def _gradients(layout: Layout, prices: LayerPrices, own: list[StageTime]) -> float:
    """Return the traffic of a rank's gradients and weights that nothing hides.

    Reduction can run beside the last microbatch's backward passes, gathering beside the first
    one's forward passes; what the first to be sent and the last to be received wait for stays.
    """
    if layout.zero == 3 and not stays_gathered(layout):
        return 0.0
    gather, reduce = _traffic(layout, prices, sum(s.dense for s in own), sum(s.routed for s in own))
    hidden = prices.calibration.hidden
    if layout.overlap.gradients:
        backward = sum(stage.backward for stage in own)
        reduce = max(reduce - hidden * backward, reduce / max(8, len(own)))
    if layout.overlap.parameters:
        forward = sum(stage.forward for stage in own)
        gather = max(gather - hidden * forward, gather / max(8, len(own)))
    return gather + reduce


def _tied(layout: Layout, prices: LayerPrices) -> float:
    """Return the all-reduce between the first and the last stage's copy of a tied embedding."""
    model = prices.model
    if not model.tied or layout.pipeline == 1:
        return 0.0
    moved = model.vocabulary * model.hidden / layout.tensor * layout.recipe.gradient_bytes
    group = Group(2, axis_stride(layout, "pipeline") * (layout.pipeline - 1))
    return all_reduce(moved, group, prices.cluster, prices.calibration.links)


def _optimizer(layout: Layout, prices: LayerPrices, own: list[StageTime]) -> float:
    """Return the seconds of clipping and of the optimizer's step on one rank."""
    recipe, device = layout.recipe, prices.cluster.accelerator
    dense, routed = sum(stage.dense for stage in own), sum(stage.routed for stage in own)
    if layout.zero:
        dense /= layout.shards
        routed /= max(1, min(layout.shards, layout.expert_data))
    held = dense + routed
    kept = recipe.master_bytes + recipe.moment_bytes
    # Gradients are read for norm, scaling and step, states read and written, weights written.
    moved = held * (3 * recipe.gradient_bytes + 2 * kept + recipe.weight_bytes)
    here = (
        moved * (1 - layout.offload_optimizer) / (device.bandwidth * prices.calibration.optimizer)
    )
    # The host reads gradients and writes weights over the link, and steps at about its rate.
    sent = held * (recipe.gradient_bytes + recipe.gather_bytes + 2 * kept)
    return here + layout.offload_optimizer * sent / device.host_bandwidth


# The schedule's longest path.


@dataclass(frozen=True)
class _Steps:
    """A schedule in steps of actions that wait for earlier steps only.

    Parameters
    ----------
    start
        First action of each step, and the number of actions.
    task
        Of each action: 3 · stage + 0 forward, 1 backward (whole or by inputs), 2 by weights.
    before, needs
        The action before it on its device, and the one whose result it needs; the number of
        actions where there is none.
    remote
        Whether a message brings what it needs.
    """

    start: Ints
    task: Ints
    before: Ints
    needs: Ints
    remote: Floats


@lru_cache(maxsize=512)
def _steps(schedule: str, pipeline: int, chunks: int, microbatches: int) -> _Steps:
    """Return the runtime's own order of passes in steps."""
    stages = pipeline * chunks
    line = chain([1.0] * stages, [2.0] * stages, device=[s % pipeline for s in range(stages)])
    order = make_schedule(schedule, line, microbatches)
    tables = [np.asarray(table, dtype=np.int64).reshape(-1, 3) for table in order.actions]
    stage, kind, which = np.concatenate(tables).T
    count = len(stage)
    role = np.where(kind == Kind.F, 0, np.where(kind == Kind.W, 2, 1))
    found = np.full((stages, 3, microbatches), count)
    found[stage, role, which] = np.arange(count)
    first = np.cumsum([0, *(len(table) for table in tables)])
    before = np.arange(-1, count - 1)
    before[first[:-1]] = count
    needs = np.full(count, count)
    ahead, last = (role == 0) & (stage > 0), (role == 1) & (stage == stages - 1)
    back = (role == 1) & (stage < stages - 1)
    needs[ahead] = found[stage[ahead] - 1, 0, which[ahead]]
    needs[last] = found[stage[last], 0, which[last]]
    needs[back] = found[stage[back] + 1, 1, which[back]]
    remote = (ahead | back).astype(float) * (pipeline > 1)
    step = _step_of(first, needs)
    row = np.argsort(step, kind="stable")
    place = np.empty(count + 1, dtype=np.int64)
    place[row] = np.arange(count)
    place[count] = count
    start = np.searchsorted(step[row], np.arange(step.max() + 2))
    task = 3 * stage + role
    return _Steps(start, task[row], place[before[row]], place[needs[row]], remote[row])


def _step_of(first: Ints, needs: Ints) -> Ints:
    """Return the step of each action if all take one: after its device's last, and what it needs.

    Parameters
    ----------
    first
        First action of each device, and the number of actions.
    needs
        The action that each waits for, or the number of actions.
    """
    count = len(needs)
    step = np.zeros(count, dtype=np.int64)
    done = np.zeros(count + 1, dtype=bool)
    done[count] = True
    at, end = first[:-1].copy(), first[1:]
    now = 0
    while (busy := np.flatnonzero(at < end)).size:
        current = at[busy]
        ready = done[needs[current]]
        ran = current[ready]
        step[ran] = now
        done[ran] = True
        at[busy[ready]] += 1
        now += 1
    return step


def longest_path(
    schedule: str,
    pipeline: int,
    chunks: int,
    microbatches: int,
    forward: Floats,
    backward: Floats,
    weights: Floats,
    sent: Floats,
    apart: bool = False,
) -> Floats:
    """Return the seconds of a schedule for each of L layouts.

    Parameters
    ----------
    forward, backward, weights
        Shape (stages, L): passes of one microbatch; `backward` includes `weights`.
    sent
        Shape (L,): a message between pipeline ranks.
    apart
        Whether a rank goes on when it is through, and not when all are: what counts is then the
        longest time from a rank's first pass to its last, after which it can all begin again.
    """
    if pipeline == 1:
        return np.asarray(microbatches * (forward + backward).sum(axis=0))
    window = 12 * pipeline
    followed = max(STEPPED, 2 * window)
    if microbatches > followed + pipeline:
        # Long before, the pattern repeats itself, every few rounds of microbatches.
        most = followed - followed % pipeline + microbatches % pipeline
        fewer, more = (
            longest_path(schedule, pipeline, chunks, m, forward, backward, weights, sent, apart)
            for m in (most - window, most)
        )
        return np.asarray(more + (microbatches - most) / window * (more - fewer))
    steps = _steps(schedule, pipeline, chunks, microbatches)
    split = bool((steps.task % 3 == 2).any())
    duration = np.empty((3 * len(forward), forward.shape[1]))
    duration[0::3], duration[2::3] = forward, weights
    duration[1::3] = backward - weights if split else backward
    count = len(steps.task)
    end = np.zeros((count + 1, forward.shape[1]))
    for first, last in zip(steps.start[:-1].tolist(), steps.start[1:].tolist(), strict=True):
        arrives = end[steps.needs[first:last]] + steps.remote[first:last, None] * sent
        ready = np.maximum(end[steps.before[first:last]], arrives)
        end[first:last] = ready + duration[steps.task[first:last]]
    if not apart:
        return np.asarray(end.max(axis=0))
    begin = end[:count] - duration[steps.task]
    ranks = [steps.task // 3 % pipeline == rank for rank in range(pipeline)]
    spans = [end[:count][own].max(axis=0) - begin[own].min(axis=0) for own in ranks]
    return np.asarray(np.max(spans, axis=0))
