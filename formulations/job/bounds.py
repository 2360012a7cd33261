"""Bounds of all outer points at once, from memory and work alone.

**Capacity.** With every layer recomputed as far as the point allows, rank k holds at most
(memory − c_k) / (state + x a_k A) layers, a_k of its chunk with the fewest microbatches in flight.
Weighted by what a layer of the heaviest type takes there, all types together:

    Σ_τ L_τ min_k (state_τ + x a_k A_τ) / (state_* + x a_k A_*) ≤ Σ_k (memory − c_k) / (state_* + …)

or nothing fits. What of activations exceeds that sum with nothing recomputed must be recomputed:
the least seconds per unit that recomputation frees, times the excess, join the work. **Work.** W
seconds of one microbatch through all stages, φ the largest part of a stage's seconds that is its
forward pass, φ' the smallest. Rank k cannot begin before the passes of the ranks before it, and
for each schedule a mixture of such paths counts every rank's work alike:

    any order                T ≥ W φ' / (1 − (1 − φ'/M)^p)                                      (12)
    1F1B                     T ≥ W (1 + 1 / Σ_k 1/c_k),  c_k = M − 1 − min(M − 1, p − k) φ      (13)
    interleaved              T ≥ M W / p + mean over k of the first chunks before rank k, at least

for whatever split; with weights sharded (ZeRO-3) the mean rank is busy for M / p times W and what
gathering and reducing slow it at least. To it come the least exposed traffic of gradients, a mean
rank's, and the optimizer's step over a mean rank's weights. (The bubble of equal stages is no bound: a plan with
less work on its last ranks can be below.)
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...instances.common.arrays import Bools, Floats, Ints
from ...instances.costs.activations import fused
from ...instances.costs.layers import LayerPrices
from ...instances.costs.layout import JobSchedule
from ...instances.costs.memory import CONTEXT_BYTES, FRAGMENTATION, stays_gathered
from .memory import in_flight, memory_limit, state_bytes
from .program import LEAST_PIECES, LinearTraffic, point_costs, stage_range
from .rates import Rates, kept_output
from .space import JobSpace

#: Relative margin by which a bound from floating-point sums is lowered.
MARGIN = 1e-9


@dataclass(frozen=True, eq=False)
class FirstBounds:
    """What memory and work say of all points.

    Parameters
    ----------
    seconds
        Shape (points,): no plan at this point is faster; infinite where nothing fits.
    fits
        Shape (points,): whether memory does not rule the point out.
    excess
        Shape (points,): layers that at least must be recomputed.
    """

    seconds: Floats
    fits: Bools
    excess: Floats


def first_bounds(space: JobSpace, rates: Rates, prices: LayerPrices) -> FirstBounds:
    """Return the bounds of all points of a space."""
    count = len(space)
    seconds, excess = np.zeros(count), np.zeros(count)
    beside, everywhere = _beside(space, rates, prices), rates.on_all
    state = state_bytes(space, np.arange(count))
    keys = np.stack((space.schedule, space.pipeline, space.chunks, space.microbatches), axis=1)
    order = np.lexsort(keys.T)
    edges = np.flatnonzero(np.any(np.diff(keys[order], axis=0) != 0, axis=1)) + 1
    for group in np.split(order, edges):
        schedule = space.schedules[space.schedule[group[0]]]
        p, v, m = (int(keys[group[0], k]) for k in (1, 2, 3))
        flight = in_flight(schedule, p, v, m)
        per = np.stack((state.shared[group], state.routed[group]), axis=1)
        excess[group] = _excess(space, rates, group, per, state.gathered[group], flight)
        own = everywhere if p == 1 else rates
        each = Beside(*(part[group] for part in (beside.seconds, beside.hooks, beside.waits)))
        seconds[group] = _work(space, own, group, excess[group], schedule, each)
    seconds = np.where(np.isfinite(excess), (seconds + beside.seconds) * (1 - MARGIN), np.inf)
    return FirstBounds(seconds, np.isfinite(excess), excess)


def _excess(
    space: JobSpace, rates: Rates, group: Ints, per: Floats, gathered: Floats, flight: Ints
) -> Floats:
    """Return the least number of recomputed layers; infinite where even all are too few.

    Parameters
    ----------
    group
        Shape (n,): points of one schedule.
    per
        Shape (n, 2): bytes of state per parameter that all replicas hold, and per routed one.
    gathered
        Shape (n,): per parameter of the ends besides.
    flight
        Shape (p, v): microbatches in flight.
    """
    s = space.setting[group]
    loses, limit = 1 + FRAGMENTATION, memory_limit(space)
    lowest, there = flight.min(axis=1), rates.count > 0
    chunk = int(stage_range(space.model, space.layout(int(group[0])))[0].min())
    state = np.einsum("nkx,nx->nk", rates.held[s], per)  # of a layer of each type
    free = limit - _fixed(space, rates, group, per, gathered, flight)
    kept, saved = loses * rates.kept[s], loses * rates.saved[s]

    def room(kept: Floats) -> tuple[Floats, Floats, Floats]:
        """Layers of the heaviest type that each rank has room for; all layers in units of it."""
        each = state[:, None, :] + lowest[None, :, None] * kept[:, None, :]
        each = np.where(there, each, 0.0)
        heaviest = each.sum(axis=1).argmax(axis=1)
        unit = np.take_along_axis(each, heaviest[:, None, None], axis=2)
        share = (each / unit).min(axis=1)
        # Every chunk has the declared least of layers; those with more in flight keep more of them.
        more = (flight - lowest[:, None]).sum(axis=1) * chunk
        left = free - more * np.where(there, kept, np.inf).min(axis=1)[:, None]
        return left / unit[:, :, 0], share @ rates.count, unit[:, :, 0]

    most, needed, _ = room(kept - saved)
    never = (most < 0).any(axis=1) | (needed > most.sum(axis=1) * (1 + MARGIN))
    fits, needed, unit = room(kept)
    short = needed - fits.sum(axis=1)
    # Recomputing a layer in a chunk frees so much of the room; in the fullest chunks first.
    freed = flight[None] * np.where(there, saved, 0.0).max(axis=1)[:, None, None] / unit[:, :, None]
    highest = np.where(flight == lowest[:, None], most[:, :, None], float(chunk))
    freed, highest = freed.reshape(len(group), -1), highest.reshape(len(group), -1)
    order = np.argsort(-freed, axis=1)
    freed = np.take_along_axis(freed, order, axis=1)
    highest = np.maximum(np.take_along_axis(highest, order, axis=1), 0.0)
    made = np.cumsum(freed * highest, axis=1) - freed * highest  # by those before
    with np.errstate(divide="ignore", invalid="ignore"):
        each = np.clip((short[:, None] - made) / freed, 0.0, highest)
    again = np.where(freed > 0, each, 0.0).sum(axis=1)
    cannot = (short > 0) & ((freed * highest).sum(axis=1) < short * (1 - MARGIN))
    return np.where(never | cannot, np.inf, np.where(short > 0, again, 0.0))


def _fixed(
    space: JobSpace, rates: Rates, group: Ints, per: Floats, gathered: Floats, flight: Ints
) -> Floats:
    """Return the bytes of each rank in any case, shape (n, p); parameters as of `_excess`."""
    s, (p, v) = space.setting[group], flight.shape
    loses = 1 + FRAGMENTATION
    ends = np.einsum("nex,nx->ne", rates.ends_held[s], per)
    ends += gathered[:, None] * rates.ends_gathered[s]
    recipe = space.settings[int(s[0])].recipe
    output = np.array([kept_output(space.settings[i], space.model.hidden) for i in s])
    fixed = np.full((len(group), p), CONTEXT_BYTES + loses * recipe.bucket_bytes)
    kept_ends = loses * (rates.ends_kept[s] - output[:, None])
    fixed[:, 0] += flight[0, 0] * kept_ends[:, 0]
    fixed[:, -1] += flight[-1, -1] * kept_ends[:, 1]
    if p * v == 1:
        fixed[:, 0] += ends.max(axis=1)  # embedding and head may be one
        return fixed
    fixed += loses * (rates.messages[s][:, None] * (p > 1) + output[:, None] * flight.sum(axis=1))
    fixed[:, 0] += ends[:, 0]
    fixed[:, -1] += ends[:, 1] + loses * rates.loss[s]
    return fixed


def _work(
    space: JobSpace,
    rates: Rates,
    group: Ints,
    excess: Floats,
    schedule: JobSchedule,
    beside: Beside,
) -> Floats:
    """Return the least seconds of a schedule's passes for points that share it."""
    s = space.setting[group]
    p, m = int(space.pipeline[group[0]]), int(space.microbatches[group[0]])
    there = rates.count > 0
    layers = rates.passes[s].copy()
    layers[:, :, 1] += beside.hooks[:, None]
    total = np.einsum("nkx,k->nx", layers, rates.count) + rates.ends[s].sum(axis=1)
    again = np.where(there, rates.again[s].sum(axis=2), np.inf).min(axis=1)
    again = np.where(np.isfinite(excess), excess, 0.0) * np.maximum(again, 0.0)
    work = total[:, 0] + total[:, 1] + again
    busiest = m * (work + beside.waits) / p
    if p == 1:
        return np.asarray(busiest)
    parts = layers[:, there, 0] / np.maximum(layers[:, there, :2].sum(axis=2), 1e-300)
    both = rates.ends[s][:, :, :2].sum(axis=2)
    of_ends = np.where(both > 0, rates.ends[s][:, :, 0] / np.maximum(both, 1e-300), parts[:, :1])
    every = np.concatenate((parts, of_ends), axis=1)
    forward = every.max(axis=1)
    # Recomputation only lowers the part that is forward.
    recomputed = layers[:, there, 0] / np.maximum(
        layers[:, there, :2].sum(axis=2) + rates.again[s][:, there].sum(axis=2), 1e-300
    )
    least = np.minimum(recomputed.min(axis=1), of_ends.min(axis=1))
    least = np.maximum(least, 1e-6)
    any_order = work * least / (1 - (1 - least / m) ** p)
    if schedule is JobSchedule.ONE_F_ONE_B and m > 1:
        k = np.arange(1, p + 1)
        counted = m - 1 - np.minimum(m - 1, p - k)[None, :] * forward[:, None]
        down_and_up = work * (1 + 1 / (1 / counted).sum(axis=1))
        return np.asarray(np.maximum.reduce((busiest, any_order, down_and_up)))
    if schedule is JobSchedule.INTERLEAVED:
        least = stage_range(space.model, space.layout(int(group[0])))[0][:p]
        light = layers[:, there, :2].sum(axis=2).min(axis=1)
        before = np.cumsum(least) - least  # layers of the first chunks of the ranks before
        return np.asarray(np.maximum(busiest, m * work / p + before.mean() * light))
    return np.asarray(np.maximum(any_order, busiest))


@dataclass(frozen=True, eq=False)
class Beside:
    """Least seconds besides layers' own; shape (points,)."""

    seconds: Floats  # beside the schedule
    hooks: Floats  # of a sharded optimizer, per layer
    waits: Floats  # of all stages for sharded weights, per microbatch


def _beside(space: JobSpace, rates: Rates, prices: LayerPrices) -> Beside:
    """Return the least seconds of traffic and optimizer, at a mean rank."""
    names = ("tensor", "context", "expert", "expert_tensor")
    degrees = np.array([[getattr(one, name) for name in names] for one in space.settings])
    columns = (
        degrees[space.setting].T,
        space.pipeline[None],
        space.data[None],
        space.zero[None],
    )
    keys = np.concatenate(columns).T
    _, first, place = np.unique(keys, axis=0, return_index=True, return_inverse=True)
    place = place.ravel()
    seconds, hooks, waits = np.zeros((3, len(first)))
    pieces = max(LEAST_PIECES, int(space.chunks.max()))
    for k, point in enumerate(first):
        costs = point_costs(space, int(point), prices)
        i, layout = int(space.setting[point]), costs.layout
        held = np.einsum("kx,k->x", rates.weights[i], rates.count) + rates.ends_weights[i].sum(0)
        if layout.zero == 3 and not stays_gathered(layout):
            again = _at(costs.gather, held) * layout.reshard_after_forward
            traffic = _at(costs.gather, held) + again + _at(costs.reduce, held)
            waits[k] = traffic * costs.slowed
        held = held / layout.pipeline
        traffic = 0.0
        if layout.zero < 3 or (layout.pipeline > 1 and not fused(layout)):
            for line, hides in (
                (costs.reduce, layout.overlap.gradients),
                (costs.gather, layout.overlap.parameters),
            ):
                traffic += _at(line, held) * (max(1 / pieces, costs.slowed) if hides else 1)
        seconds[k] = costs.constant + traffic + float(held @ np.array(costs.step))
        hooks[k] = costs.hooks
    return Beside(seconds[place], hooks[place], waits[place])


def _at(line: LinearTraffic, held: Floats) -> float:
    return float(line.constant + line.shared * held[0] + line.routed * held[1])
