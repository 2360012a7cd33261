"""Lower bounds on the seconds of all outer points at once, from memory and work alone.

**Capacity.** With every layer recomputed as far as the point allows, rank k holds at most
(memory − c_k) / (state + x a_k A) layers, with a_k of its chunk with the fewest microbatches in
flight. All types together, in units of a layer of the heaviest type *, no plan fits unless

    Σ_τ L_τ min_k (state_τ + x a_k A_τ) / (state_* + x a_k A_*) ≤ Σ_k (memory − c_k) / (state_* + …)

If this fails only without recomputation, the excess must be recomputed: its layers' least seconds
are added to the work. **Work.** Let W be the seconds of one microbatch through all stages, and φ
and φ' the largest and smallest fraction of a stage's seconds that is its forward pass. Rank k
cannot begin before the passes of the ranks before it, and for each schedule a mixture λ of such
paths counts rank j's work w_j with a factor a_j:

    any order       a_j = M λ_j + φ' Σ_{k>j} λ_k                                                (12)
    1F1B            a_j = 1 + λ_j c_j,  c_j = M − 1 − min(M − 1, p − j) φ                       (13)
    interleaved     a_j = M λ_j, and the mean over λ of the first chunks before a rank
    in a V          the same with φ' of the first chunks, since a rank's W may come last

Layers of type τ, which take w_jτ on the nodes of rank j, add at least L_τ min_j a_j w_jτ, whatever
the split. λ is chosen so that all a_j w_j are equal; with one kind of nodes, (13) is then
W (1 + 1 / Σ_j (1 / c_j)).
A single rank with the ends and the fewest layers that it may have is a bound as well. With sharded
weights (ZeRO 3) the mean rank is busy for M / p times W and the least delay by gathering and
reducing. A pass of F seconds that moves D bytes to host memory takes at least F, and at least
D / bandwidth + (1 − hidden) F; both are sums over layers, and the larger sum replaces F. The least
exposed traffic of a mean rank's gradients and the optimizer step over a mean rank's weights are
added. (The bubble of equal stages is not a bound: a plan with less work on its last ranks can be
faster.)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from ...instances.common.arrays import Bools, Floats, Ints
from ...instances.costs.activations import fused
from ...instances.costs.description import block_flops
from ...instances.costs.layers import LayerPrices
from ...instances.costs.layout import V_SCHEDULES, JobSchedule, Layout
from ...instances.costs.stages import kinds_of_rank, layer_hooks, waits_for_weights
from .memory import memory_rows
from .program import LEAST_PIECES, point_costs, stage_range
from .rates import Rates
from .space import JobSpace

#: Relative margin by which a bound from floating-point sums is lowered.
MARGIN = 1e-9


def least_seconds(space: JobSpace) -> float:
    """Return a lower bound on the seconds of every plan: all products at the devices' peak.

    A profiled layer counts with its measured time, at the tensor degree with the fewest
    device-seconds. Cross-attention counts without keys and values, which may have fewer positions.
    """
    model, job = space.model, space.job
    peak = max(n.accelerator.peak[job.template.recipe.compute] for n in space.cluster.nodes)
    each = 0.0  # device-seconds per token
    for block in model.blocks:
        if block.profiled is None:
            each += 3 * block_flops(block, model.hidden, 1, 0) / peak
        else:
            each += min(m.degree * (m.forward + m.backward) for m in block.profiled.measured)
    seconds = job.global_batch * job.sequence * each / space.cluster.devices
    return float(seconds * (1 - MARGIN))


def first_bounds(
    space: JobSpace,
    rates: Rates,
    prices: LayerPrices,
    stopped: Callable[[], bool] = lambda: False,
) -> Floats:
    """Return a lower bound on an iteration's seconds at each point; infinite if no plan fits.

    A point not reached when `stopped` is not ruled out.
    """
    count = len(space)
    seconds, excess = np.zeros(count), np.zeros(count)
    rates, shown = _with_transfers(space, rates, prices)
    outside, hooks, waits = _outside_schedule(space, rates, prices)
    hooks, waits = hooks * shown, waits * shown
    for group in _groups(space, np.arange(count)):
        if stopped():
            break
        schedule = space.schedules[space.schedule[group[0]]]
        excess[group] = _excess(space, rates, group)
        ranks = _of_ranks(space, rates, int(group[0]))
        seconds[group] = _work(
            space, ranks, group, excess[group], schedule, hooks[group], waits[group]
        )
    return np.where(np.isfinite(excess), (seconds + outside) * (1 - MARGIN), np.inf)


def points_that_fit(space: JobSpace, rates: Rates, points: Ints) -> Ints:
    """Return those of some points that memory does not rule out, in ascending order."""
    groups = _groups(space, points)
    return np.sort(np.concatenate([g[np.isfinite(_excess(space, rates, g))] for g in groups]))


def _groups(space: JobSpace, points: Ints) -> list[Ints]:
    """Return points by schedule, pipeline ranks, chunks and microbatches."""
    keys = np.stack((space.schedule, space.pipeline, space.chunks, space.microbatches))[:, points]
    order = np.lexsort(keys)
    edges = np.flatnonzero(np.any(np.diff(keys[:, order]) != 0, axis=0)) + 1
    return np.split(points[order], edges)


def _with_transfers(space: JobSpace, rates: Rates, prices: LayerPrices) -> tuple[Rates, Floats]:
    """Return rates in which passes take at least as long as their transfers to host memory.

    The array, shape (points,), is the fraction of hooks and waits that certainly lengthens passes.
    With several kinds of nodes, transfers are ignored.
    """
    shown = np.ones(len(space))
    if rates.by_kinds or not rates.away.any():
        return rates, shown
    left, second = 1 - prices.calibration.hidden, prices.cluster.accelerator.host_bandwidth
    passes, again, ends = rates.passes.copy(), rates.again.copy(), rates.ends.copy()
    plain = passes[:, :, :2] * left + (rates.away / second)[:, :, None]
    recomputed = plain - (rates.away_saved / second)[:, :, None]
    recomputed[:, :, 1] += again * left
    least = np.minimum(plain, recomputed)
    whole = np.einsum("k,skq->sq", rates.count, passes[:, :, :2]) + ends[:, :, :2].sum(axis=1)
    moved = np.einsum("k,skq->sq", rates.count, least) + left * ends[:, :, :2].sum(axis=1)
    longer = (moved > whole)[:, None]
    passes[:, :, :2] = np.where(longer, least, passes[:, :, :2])
    again = np.where(longer[:, :, 1], np.maximum(recomputed - least, 0.0)[:, :, 1], again)
    ends[:, :, :2] *= np.where(longer, left, 1.0)
    shown[longer.any(axis=(1, 2))[space.setting]] = left
    return replace(rates, passes=passes, again=again, ends=ends), shown


def _excess(space: JobSpace, rates: Rates, group: Ints) -> Floats:
    """Return the least number of recomputed layers of each point; infinite if no plan fits.

    The n points of `group` share a schedule. Only the first of the moments when ranks may hold most
    is considered, so that this is a lower bound.
    """
    layout, rows = space.layout(int(group[0])), memory_rows(space, rates, group)
    flight, there = rows.flight[0], rates.count > 0
    lowest = flight.min(axis=1)
    low, high = _rank_range(space, layout)
    chunk = float(stage_range(space.model, layout)[0].min())
    state, kept, saved = rows.state, rows.kept, rows.saved
    inside = np.maximum(np.where(there, rows.working, np.inf).min(axis=1), rows.last)
    free = rows.limit - rows.fixed[:, 0] - inside[:, None]
    if flight[rows.head, -1]:  # else the loss is at another moment
        free[:, rows.head] -= np.maximum(rows.loss - inside, 0.0)

    def room(kept: Floats) -> tuple[Floats, ...]:
        """Return sizes in layers of the heaviest type: each rank's room; all layers; such a unit in
        bytes; by how much the fewest layers of a rank exceed its room; and its most layers.
        """
        each = state[:, None, :] + lowest[None, :, None] * kept[:, None, :]
        each = np.where(there, each, 0.0)
        heaviest = each.sum(axis=1).argmax(axis=1)
        unit = np.take_along_axis(each, heaviest[:, None, None], axis=2)
        share = (each / unit).min(axis=1)
        # Every chunk has at least the declared number of layers; more microbatches in flight in
        # other chunks need more room.
        more = (flight - lowest[:, None]).sum(axis=1) * chunk
        left = free - more * np.where(there, kept, np.inf).min(axis=1)[:, None]
        over = (_lightest(each, rates.count, low) - left) / unit[:, :, 0]
        most = np.minimum(left / unit[:, :, 0], high)
        lightest = np.where(there, each, np.inf).min(axis=2)
        return most, share @ rates.count, unit[:, :, 0], over, np.minimum(left / lightest, high)

    most, needed, _, over, many = room(kept - saved)
    never = (over > low * MARGIN).any(axis=1)
    never |= needed > most.sum(axis=1) * (1 + MARGIN)
    fits, needed, unit, over, _ = room(kept)
    short = needed - fits.sum(axis=1) * (1 + MARGIN)
    # Room that recomputing a layer of a chunk frees; chunks with most in flight come first.
    freed = flight[None] * np.where(there, saved, 0.0).max(axis=1)[:, None, None] / unit[:, :, None]
    with np.errstate(divide="ignore", invalid="ignore"):
        of_each = np.where(over > low * MARGIN, over / freed.sum(axis=2), 0.0).max(axis=1)
    highest = np.where(flight == lowest[:, None], many[:, :, None], chunk)
    freed, highest = freed.reshape(len(group), -1), highest.reshape(len(group), -1)
    order = np.argsort(-freed, axis=1)
    freed = np.take_along_axis(freed, order, axis=1)
    highest = np.maximum(np.take_along_axis(highest, order, axis=1), 0.0)
    made = np.cumsum(freed * highest, axis=1) - freed * highest  # freed by earlier chunks
    with np.errstate(divide="ignore", invalid="ignore"):
        each = np.clip((short[:, None] - made) / freed, 0.0, highest)
    again = np.where(freed > 0, each, 0.0).sum(axis=1)
    cannot = (short > 0) & ((freed * highest).sum(axis=1) < short * (1 - MARGIN))
    again = np.where(short > 0, again, 0.0)
    if not space.job.settings.recompute_by_stage:
        # All stages recompute equally many layers, no more than the smallest stage has.
        of_each = np.ceil(np.maximum(of_each, again / layout.stages) * (1 - MARGIN))
        cannot |= of_each > space.model.layers // layout.stages
        again = of_each * layout.stages
    return np.where(never | cannot, np.inf, again)


def _rank_range(space: JobSpace, layout: Layout) -> tuple[Ints, Ints]:
    """Return the least number of layers of each rank, with all others full, and the most."""
    ranks = layout.stage_ranks
    low, high = (
        np.bincount(ranks, one).astype(np.int64) for one in stage_range(space.model, layout)
    )
    return np.maximum(low, space.model.layers - (high.sum() - high)), high


def _lightest(each: Floats, count: Floats, least: Ints) -> Floats:
    """Return the sum over the `least` lightest layers of each rank, shape (n, p).

    `each`, shape (n, p, K), is the size of a layer by rank and type; `count`, shape (K,), is the
    number of layers of each type.
    """
    order = np.argsort(each, axis=2, kind="stable")
    there = count[order]
    taken = np.clip(least[:, None] - (np.cumsum(there, axis=2) - there), 0.0, there)
    return np.asarray((np.take_along_axis(each, order, axis=2) * taken).sum(axis=2))


def _of_ranks(space: JobSpace, rates: Rates, point: int) -> tuple[tuple[Rates, ...], Ints]:
    """Return the rates on D combinations of kinds of nodes, and which of these each rank has, (p,).

    All points with as many ranks have the same.
    """
    layout = space.layout(point)
    kinds = [kinds_of_rank(rank, layout, space.cluster) for rank in range(layout.pipeline)]
    sorts = sorted(set(kinds))
    return tuple(map(rates.on, sorts)), np.array([sorts.index(one) for one in kinds])


def _work(
    space: JobSpace,
    ranks: tuple[tuple[Rates, ...], Ints],
    group: Ints,
    excess: Floats,
    schedule: JobSchedule,
    hooks: Floats,
    waits: Floats,
) -> Floats:
    """Return a lower bound on the seconds of a schedule's passes, for points that share it."""
    (on, sort), s = ranks, space.setting[group]
    p, m = int(space.pipeline[group[0]]), int(space.microbatches[group[0]])
    there = on[0].count > 0
    count = on[0].count[there]
    layers, again, ends = _seconds(on, s, there, hooks)
    least, most = _forward_parts(layers, again, ends)
    layout = space.layout(int(group[0]))
    last = layout.stage_ranks[-1]
    ends = ends[:, sort[[0, last]], [0, 1]]
    both, of_ends = layers.sum(axis=3), ends.sum(axis=2)
    forced = np.where(np.isfinite(excess), excess, 0.0)[:, None]
    forced = forced * again.min(axis=2)
    of_rank, _ = _rank_range(space, layout)

    def mixed(factor: Floats) -> Floats:
        """Return seconds of layers, ends and recomputation, weighted with a factor per rank."""
        each = both[:, sort] * factor[:, :, None]
        least = each.min(axis=1)
        more = (each - least[:, None]).min(axis=2) @ of_rank  # for layers not on the cheapest rank
        found = least @ count + more + (forced[:, sort] * factor).min(axis=1)
        return np.asarray(found + of_ends[:, 0] * factor[:, 0] + of_ends[:, 1] * factor[:, last])

    busiest = mixed(np.full((len(group), p), m / p)) + m / p * waits
    if p == 1:
        return np.asarray(busiest)
    alone = (both @ count)[:, sort]  # seconds of a rank that has all layers
    share = 1 / alone / (1 / alone).sum(axis=1)[:, None]
    light = both.min(axis=2)[:, sort]
    own = _lightest(both[:, sort], count, of_rank)  # seconds of a rank with its fewest layers
    own[:, 0] += of_ends[:, 0]
    own[:, last] += of_ends[:, 1]
    busiest = np.maximum(busiest, m * own.max(axis=1))
    if layout.chunks > 1:
        first = stage_range(space.model, layout)[0][:p] * light  # first chunk of each rank
        before = np.cumsum(first, axis=1) - first
        if schedule in V_SCHEDULES:
            before *= least[:, None]
        found = mixed(m * share) + (share * before).sum(axis=1)
        return np.asarray(np.maximum(found, busiest))
    found = mixed(_any_order(alone / alone.mean(axis=1)[:, None], m, np.maximum(least, 1e-6)))
    if schedule is JobSchedule.ONE_F_ONE_B and m > 1:
        k = np.arange(1, p + 1)
        counted = m - 1 - np.minimum(m - 1, p - k)[None, :] * most[:, None]
        factor = 1 + _alike(alone, counted, len(on)) * counted
        found = np.maximum(found, mixed(factor))
        alone_at = mixed(np.ones_like(factor)) + (counted * own).max(axis=1)
        return np.asarray(np.maximum.reduce((found, alone_at, busiest)))
    return np.asarray(np.maximum(found, busiest))


def _seconds(
    rates: tuple[Rates, ...], settings: Ints, there: Bools, hooks: Floats
) -> tuple[Floats, Floats, Floats]:
    """Return the seconds of layers, of their recomputation, and of the ends, for n points.

    Shapes (n, D, K, 2), (n, D, K) and (n, D, 2, 2); an axis of 2 at the end is both passes.
    """
    layers = np.stack([one.passes[settings][:, there, :2] for one in rates], axis=1)
    layers[..., 1] += hooks[:, None, None]
    again = np.stack([one.again[settings][:, there] for one in rates], axis=1)
    return layers, again, np.stack([one.ends[settings][..., :2] for one in rates], axis=1)


def _forward_parts(layers: Floats, again: Floats, ends: Floats) -> tuple[Floats, Floats]:
    """Return the least and largest fraction of a stage's seconds that its forward pass takes."""
    both = layers.sum(axis=3)
    parts = layers[..., 0] / np.maximum(both, 1e-300)
    of_ends = ends.sum(axis=3)
    at_ends = np.where(of_ends > 0, ends[..., 0] / np.maximum(of_ends, 1e-300), parts[..., :1])
    # Recomputation can only lower the forward fraction.
    recomputed = layers[..., 0] / np.maximum(both + again, 1e-300)
    least = np.minimum(recomputed.min(axis=(1, 2)), at_ends.min(axis=(1, 2)))
    return least, np.maximum(parts.max(axis=(1, 2)), at_ends.max(axis=(1, 2)))


def _any_order(alone: Floats, m: int, forward: Floats) -> Floats:
    """Return the factors (12); `alone`, shape (n, p), is the work of a rank with all layers."""
    share, behind = np.empty_like(alone), np.zeros(len(alone))
    factor = np.empty_like(alone)
    for k in range(alone.shape[1] - 1, -1, -1):
        share[:, k] = np.maximum(0.0, 1 / alone[:, k] - forward * behind) / m
        factor[:, k] = m * share[:, k] + forward * behind
        behind += share[:, k]
    return factor / behind[:, None]


def _alike(alone: Floats, counted: Floats, sorts: int) -> Floats:
    """Return λ of (13) for which a_j w_j is equal on all ranks with λ_j > 0, shape (n, p)."""
    level, has = np.full((len(alone), 1), np.inf), np.ones(alone.shape, bool)
    for _ in range(sorts):
        has &= alone < level
        each = has / counted
        level = (1 + each.sum(axis=1))[:, None] / (each / alone).sum(axis=1)[:, None]
    share = np.maximum(level / alone - 1, 0.0) / counted
    return np.asarray(share / share.sum(axis=1)[:, None])


def _outside_schedule(
    space: JobSpace, rates: Rates, prices: LayerPrices
) -> tuple[Floats, Floats, Floats]:
    """Return lower bounds on seconds outside the passes of layers, those of a mean rank; (points,).

    They are of traffic and optimizer step per iteration, of a sharded optimizer per layer and
    backward pass, and of all stages' waits for sharded weights per microbatch.
    """
    in_v = np.array([schedule in V_SCHEDULES for schedule in space.schedules])
    columns = (
        np.stack([own[space.setting] for own in space.columns.values()]),
        space.pipeline[None],
        space.data[None],
        space.zero[None],
        in_v[space.schedule][None],  # embedding and head on one rank
    )
    keys = np.concatenate(columns).T
    _, first, place = np.unique(keys, axis=0, return_index=True, return_inverse=True)
    place = place.ravel()
    seconds, hooks, waits = np.zeros((3, len(first)))
    pieces = max(LEAST_PIECES, int(space.chunks.max()))
    for k, point in enumerate(first):
        costs = point_costs(space, int(point), prices)
        i, layout = int(space.setting[point]), costs.layout
        held = np.einsum("kx,k->x", rates.held[i], rates.count)
        held += rates.ends_of(i, layout.stages).sum(axis=0)
        on = set(costs.on)
        if waits_for_weights(layout):
            again = _least(costs.gather, held) * layout.reshard_after_forward
            traffic = _least(costs.gather, held) + again + _least(costs.reduce, held)
            waits[k] = traffic * min(one.calibration.slowed for one in on)
        held = held / layout.pipeline
        traffic = 0.0
        if layout.zero < 3 or (layout.pipeline > 1 and not fused(layout)):
            shown = max(1 / pieces, prices.calibration.slowed)
            for lines, hides in (
                (costs.reduce, layout.overlap.gradients),
                (costs.gather, layout.overlap.parameters),
            ):
                traffic += _least(lines, held) * (shown if hides else 1)
        # The step is shortest if weights are distributed so that all ranks take equally long.
        seconds[k] = costs.constant + traffic + float(held @ (1 / (1 / costs.step).mean(axis=0)))
        hooks[k] = min(layer_hooks(layout, one) for one in on)
    return seconds[place], hooks[place], waits[place]


def _least(lines: Floats, held: Floats) -> float:
    """Return the seconds of the parameters `held` on a line below all of `lines`."""
    return float(lines.min(axis=0) @ np.array([1.0, *held]))
