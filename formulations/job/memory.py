"""Bytes of pipeline ranks as linear functions of numbers of layers, for programs and bounds.

If rank k holds n_sτ layers of type τ in each of its stages s, r_sτ of them recomputed, it needs

    c_k + Σ_s Σ_τ [ state_τ n_sτ + x a_s (A_τ n_sτ − A'_τ r_sτ) ]
        + x max(loss_k, X_k) ≤ memory_k                                                          (5)

where memory_k is that of the rank's smallest device, a_s the microbatches of stage s in flight at
each moment when the rank may hold most, x = 1 + `FRAGMENTATION`, c_k a constant, and X_k the bytes
inside a layer's backward pass; for PyTorch's modules, the least bytes inside the layer with which
the backward pass begins. The loss counts only at moments when the last stage has a microbatch in
flight. With Megatron's kernels and ZeRO below 3 this equals `rank_memory`, term by term; with
sharded weights it omits moments of the backward pass, and is a lower bound.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from ...instances.common.arrays import Floats, Ints
from ...instances.costs.activations import fused
from ...instances.costs.layout import JobSchedule, Layout
from ...instances.costs.memory import CONTEXT_BYTES, FRAGMENTATION, kept_output, passes_in_flight
from .rates import Rates
from .space import JobSpace


@dataclass(frozen=True, eq=False)
class MemoryRows:
    """Coefficients of (5) for one outer point; for n points, most have a further first axis."""

    #: Shape (p,), also for n points: bytes of each rank's smallest device.
    limit: Floats
    #: Shape (moments, p): c_k without the loss on the head's rank.
    fixed: Floats
    #: Shape (K,): resident bytes per layer.
    state: Floats
    #: Shape (moments, p, v), also for n points: a_s of rank k's chunk j.
    flight: Ints
    #: Shape (K,): x A and x A'.
    kept: Floats
    saved: Floats
    #: Bytes of the loss on the head's rank, which replace `working` if they are more.
    loss: Floats
    #: Shape (K,): x X.
    working: Floats
    #: x times the least bytes inside the backward pass of a rank's last layer, where PyTorch's
    #: modules free kept tensors one by one; else 0.
    last: Floats
    #: The rank that has the head, also for n points.
    head: int


@lru_cache(maxsize=4096)
def in_flight(schedule: JobSchedule, pipeline: int, chunks: int, microbatches: int) -> Ints:
    """Return the microbatches in flight of each rank's chunks, at moments when it may hold most.

    Returns
    -------
    array, shape (moments, p, v)
        A rank with fewer moments repeats its last one.
    """
    layout = Layout(pipeline=pipeline, chunks=chunks, schedule=schedule, global_batch=microbatches)
    held = [passes_in_flight(layout, rank) for rank in range(pipeline)]
    every = range(max(map(len, held)))
    return np.array(
        [[list(own[min(k, len(own) - 1)].values()) for own in held] for k in every], np.int64
    )


def state_bytes(space: JobSpace, points: Ints) -> tuple[Floats, Floats]:
    """Return the resident bytes per parameter at n points, (n, 2): shared, and of routed experts.

    The second array, shape (n,), is the further bytes per parameter of embedding and head, if
    weights are sharded.
    """
    recipe, template = space.job.template.recipe, space.job.template
    zero, m = space.zero[points], space.microbatches[points]
    own = {name: values[space.setting[points]] for name, values in space.columns.items()}
    replicas = space.data[points] * own["context"]
    copies = own["tensor"] * replicas // (own["expert"] * own["expert_tensor"])
    shards = np.where(zero > 0, replicas, 1)
    routed_shards = np.where(zero > 0, np.maximum(1, np.minimum(shards, copies)), 1)
    sharded = (zero == 3) & (shards > 1)
    stays = sharded & (space.pipeline[points] > 1) & (not fused(template))
    lazily = (not fused(template)) & (m == 1)
    copied = recipe.gather_bytes < recipe.weight_bytes
    once = (zero < 3) & ((shards > 1) | copied) & (not fused(template))
    each = []
    for divisor, unit in ((shards, 1), (routed_shards, copies > 1)):
        whole = np.zeros(len(points))
        for size, stage, there in (
            (recipe.weight_bytes, 3 if fused(template) else 1, 1 - own["offload_weights"]),
            (recipe.gradient_bytes, 2, ~lazily),
            (recipe.master_bytes + recipe.moment_bytes, 1, 1 - own["offload_optimizer"]),
        ):
            whole += there * size / np.where(zero >= stage, divisor, 1)
        whole += stays * recipe.reduce_bytes * ~lazily
        whole += (stays | once) * (1 + FRAGMENTATION) * recipe.gather_bytes * unit
        each.append(whole)
    gathered = sharded * (1 + FRAGMENTATION) * recipe.gather_bytes
    return np.stack(each, axis=1), gathered * ~stays


def memory_rows(space: JobSpace, rates: Rates, points: Ints | int) -> MemoryRows:
    """Return (5) for one point, or for several points with equal schedule, p, v and M."""
    own = np.atleast_1d(np.asarray(points))
    s, layout, loses = space.setting[own], space.layout(int(own[0])), 1 + FRAGMENTATION
    whole, last = fused(layout), layout.stage_ranks[-1]
    per, gathered = state_bytes(space, own)
    flight = in_flight(layout.schedule, layout.pipeline, layout.chunks, layout.microbatches)
    output = np.array([kept_output(space.settings[i], space.model.hidden) for i in s])
    always = layout.recipe.bucket_bytes + rates.messages[s] * (layout.pipeline > 1)
    outputs = output[:, None, None] * flight.sum(axis=2) * (layout.stages > 1)
    fixed = CONTEXT_BYTES + loses * (always[:, None, None] + outputs)
    ends = np.einsum("nex,nx->ne", rates.ends_of(s, layout.stages), per)
    ends += gathered[:, None] * rates.ends_gathered[s]
    ends_kept = loses * (rates.ends_kept[s] - output[:, None])  # without their stages' output
    fixed[:, :, 0] += ends[:, :1] + flight[:, 0, 0] * ends_kept[:, :1]
    fixed[:, :, last] += ends[:, 1:] + flight[:, last, -1] * ends_kept[:, 1:]
    if layout.stages == 1:
        fixed[:, 0, 0] -= rates.copies[s, 0] * gathered
    inside = rates.working[s] + rates.matrix[s] * (layout.microbatches > 1)
    each = {
        "fixed": fixed,
        "state": np.einsum("nkx,nx->nk", rates.held[s], per),
        "kept": loses * rates.kept[s],
        "saved": loses * rates.saved[s],
        "loss": loses * rates.loss[s],
        # Zero with sharded weights: activations are freed before a layer's workspace is needed.
        "working": loses * rates.working[s] * (whole & (space.zero[own] < 3))[:, None],
        "last": loses * inside[:, rates.count > 0].min(axis=1) * (not whole),
    }
    if np.ndim(points) == 0:
        each = {name: values[0] for name, values in each.items()}
    limit = np.array(space.job.memory_limits(layout, space.cluster))
    return MemoryRows(limit=limit, flight=flight, head=last, **each)
