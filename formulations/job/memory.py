"""Bytes of pipeline ranks as linear functions of layers: what the verifier adds up, for a search.

A rank k that holds n_sτ layers of type τ in its stages s, r_sτ of them recomputed, needs

    c_k + Σ_s Σ_τ [ state_τ n_sτ + x a_s (A_τ n_sτ − A'_τ r_sτ) ]
        + x max(loss_k, X_k) ≤ memory_k                                                          (5)

with memory_k of the smallest device that rank k lies on, a_s microbatches of the stage in flight at
each moment when the rank may hold most, x = 1 + the share that the allocator loses, and c_k what is
there in any case; for PyTorch's modules X_k is the least of the layer that its backward pass begins
with. With Megatron's kernels and ZeRO below 3 this is `rank_memory`, term by term; with sharded
weights it leaves out moments of the backward pass, and is a bound below.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from ...instances.common.arrays import Floats, Ints
from ...instances.costs.activations import fused
from ...instances.costs.layout import JobSchedule, Layout
from ...instances.costs.memory import CONTEXT_BYTES, FRAGMENTATION, passes_in_flight
from .rates import Rates, kept_output
from .space import JobSpace


@dataclass(frozen=True, eq=False)
class MemoryRows:
    """Coefficients of (5) for one outer point."""

    #: Shape (p,): bytes of each rank's smallest device.
    limit: Floats
    #: Shape (moments, p): c_k, with the loss on the head's rank left out.
    fixed: Floats
    #: Shape (K,): bytes per layer.
    state: Floats
    #: Shape (moments, p, v): a_s of rank k's chunk j.
    flight: Ints
    #: Shape (K,): x A and x A'.
    kept: Floats
    saved: Floats
    #: Bytes on the head's rank in place of `working`, if they are more.
    loss: float
    #: Shape (K,): x X.
    working: Floats
    #: x times what is inside the backward pass of a rank's last layer at least, where PyTorch's
    #: modules free what they kept one by one; else 0.
    last: float
    #: The rank that has the head.
    head: int


@lru_cache(maxsize=4096)
def in_flight(schedule: JobSchedule, pipeline: int, chunks: int, microbatches: int) -> Ints:
    """Return the microbatches in flight of rank k's chunk j at each rank's fullest moments.

    Returns
    -------
    array, shape (moments, p, v)
        Ranks of fewer moments have their last one again.
    """
    layout = Layout(pipeline=pipeline, chunks=chunks, schedule=schedule, global_batch=microbatches)
    held = [passes_in_flight(layout, rank) for rank in range(pipeline)]
    every = range(max(map(len, held)))
    return np.array(
        [[list(own[min(k, len(own) - 1)].values()) for own in held] for k in every], np.int64
    )


@dataclass(frozen=True, eq=False)
class StateBytes:
    """Bytes that a parameter takes all the time, for n points."""

    #: Shape (n,): per parameter that all replicas hold, and per routed expert's parameter.
    shared: Floats
    routed: Floats
    #: Shape (n,): per parameter of embedding and head besides, where weights are sharded.
    gathered: Floats


def state_bytes(space: JobSpace, points: Ints) -> StateBytes:
    """Return the bytes per parameter at some points."""
    recipe, template = space.job.template.recipe, space.job.template
    zero, m = space.zero[points], space.microbatches[points]
    tensor, context, e, e_t, weights, optimizer = _columns(space, points)
    replicas = space.data[points] * context
    copies = tensor * context * space.data[points] // (e * e_t)
    shards = np.where(zero > 0, replicas, 1)
    routed_shards = np.where(zero > 0, np.maximum(1, np.minimum(shards, copies)), 1)
    sharded = (zero == 3) & (shards > 1)
    stays = sharded & (space.pipeline[points] > 1) & (not fused(template))
    lazily = (not fused(template)) & (m == 1)
    copied = recipe.gather_bytes < recipe.weight_bytes
    once = (zero < 3) & ((shards > 1) | copied) & (not fused(template))
    each = {}
    for name, divisor in (("shared", shards), ("routed", routed_shards)):
        whole = np.zeros(len(points))
        for size, stage, there in (
            (recipe.weight_bytes, 3 if fused(template) else 1, 1 - weights),
            (recipe.gradient_bytes, 2, ~lazily),
            (recipe.master_bytes + recipe.moment_bytes, 1, 1 - optimizer),
        ):
            whole += there * size / np.where(zero >= stage, divisor, 1)
        unit = np.ones(len(points)) if name == "shared" else (copies > 1)
        whole += stays * recipe.reduce_bytes * ~lazily
        whole += (stays | once) * (1 + FRAGMENTATION) * recipe.gather_bytes * unit
        each[name] = whole
    gathered = sharded * (1 + FRAGMENTATION) * recipe.gather_bytes
    return StateBytes(each["shared"], each["routed"], gathered * ~stays)


def _columns(space: JobSpace, points: Ints) -> tuple[Any, ...]:
    """Return t, c, e, e_t, and which parts of weights and optimizer are in host memory."""
    names = (
        "tensor", "context", "expert", "expert_tensor", "offload_weights", "offload_optimizer",
    )  # fmt: skip
    used, place = np.unique(space.setting[points], return_inverse=True)
    own = [space.settings[i] for i in used]
    return tuple(np.array([getattr(one, name) for one in own])[place.ravel()] for name in names)


def memory_rows(space: JobSpace, rates: Rates, point: int) -> MemoryRows:
    """Return (5) for one point."""
    points = np.array([point])
    setting = space.settings[space.setting[point]]
    i, p, v = int(space.setting[point]), int(space.pipeline[point]), int(space.chunks[point])
    recipe, loses = setting.recipe, 1 + FRAGMENTATION
    state = state_bytes(space, points)
    per = np.array([state.shared[0], state.routed[0]])
    flight = in_flight(space.schedules[space.schedule[point]], p, v, int(space.microbatches[point]))
    always = recipe.bucket_bytes + (rates.messages[i] if p > 1 else 0.0)
    fixed = np.full(flight.shape[:2], CONTEXT_BYTES + loses * always)
    output = kept_output(setting, space.model.hidden)
    if p * v > 1:
        fixed += loses * output * flight.sum(axis=2)
    own = -output  # of the two ends, which have it among what they keep
    ends_state = rates.ends_held[i] @ per + state.gathered[0] * rates.ends_gathered[i]
    layout = space.layout(point)
    last = layout.stage_ranks[-1]
    fixed[:, 0] += ends_state[0] + loses * flight[:, 0, 0] * (rates.ends_kept[i, 0] + own)
    fixed[:, last] += ends_state[1] + loses * flight[:, last, -1] * (rates.ends_kept[i, 1] + own)
    if p * v == 1:
        tied, further = _copies_of_embedding(space, i)
        fixed[:, 0] -= (tied + further) * per[0] + tied * state.gathered[0]
    inside = rates.working[i] + rates.matrix[i] * (space.microbatches[point] > 1)
    return MemoryRows(
        limit=np.array(space.job.memory_limits(layout, space.cluster)),
        fixed=fixed,
        state=rates.held[i] @ per,
        flight=flight,
        kept=loses * rates.kept[i],
        saved=loses * rates.saved[i],
        loss=float(loses * rates.loss[i]),
        # With sharded weights activations are gone by the time that a layer works: left out.
        working=loses * rates.working[i] * (fused(setting) and space.zero[point] < 3),
        last=0.0 if fused(setting) else float(loses * inside[rates.count > 0].min()),
        head=last,
    )


def _copies_of_embedding(space: JobSpace, setting: int) -> tuple[float, float]:
    """Parameters that a pipeline's last rank has besides, being the first one's.

    Those of a tied head, and those for the prediction of further tokens.
    """
    model, tensor = space.model, space.settings[setting].tensor
    table = model.vocabulary * model.hidden / tensor
    return table if model.tied and model.head else 0.0, table if model.mtp else 0.0
