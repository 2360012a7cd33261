"""Bounds on training plans that need no evidence: the longest layer, and work over all devices.

Every stage i on a kind k has d_i t_i devices and takes at least Σ_v p_v slowdown_k / d_i, where p
is the time of a layer's configuration. So if T bounds all stages,

1. T ≥ (p_c slowdown_k + synchronising c) / d, for each layer by some c, k and d with room for it,
2. T Σ_k n_k / slowdown_k ≥ Σ_v min_c t_c (p_c + λ size_c) − λ Σ_k n_k M_k   for any λ ≥ 0,

with the bytes of the fewest microbatches in flight. What the user's rules forbid is left aside,
which cannot make a bound too high.
"""

from __future__ import annotations

import math

import numpy as np

from ....instances import TIME_UNITS, Cluster, Layers, TrainingJob, Workload, layers_of
from ....instances.common.arrays import Floats
from ...simulate.job_stages import STATE, microbatches_and_bandwidth
from ..rules import RELATIVE_SLACK, allowed

#: Relative rounding allowance.
ROUNDING = 1e-11

#: Thirds taken off the range of λ.
ROUNDS = 100


def training_bound(workload: Workload, cluster: Cluster, problem: TrainingJob) -> float:
    """Return the best lower bound on the problem's objective, in the time unit."""
    layers = layers_of(workload)
    microbatches, bandwidth = microbatches_and_bandwidth(workload, problem)
    kinds = [kind for kind in cluster.kinds if kind.count and not kind.host]
    devices = sum(kind.count for kind in kinds)
    replicas = devices if problem.in_flight == "pipedream" else min(devices, microbatches)
    least = 1 if problem.in_flight != "gpipe" else math.ceil(microbatches / replicas)
    size = _bytes(layers, problem, least)
    longest = np.full(workload.n, np.inf)
    second = TIME_UNITS.get(workload.time_unit, 1.0)
    in_server = bandwidth
    if problem.server_bandwidth is not None:
        in_server = problem.server_bandwidth * second
    for d in range(1, replicas + 1):
        if microbatches % d and problem.in_flight != "pipedream":
            continue
        near = d * layers.degree <= (problem.server_devices or 0)
        accumulated = d if problem.in_flight == "pipedream" else microbatches
        weight = 4 * (d - 1) / accumulated * layers.weight_bytes
        synchronise = weight / np.where(near, in_server, bandwidth)
        for kind in kinds:
            time = (layers.time * kind.slowdown + synchronise) / d
            able = size <= allowed(kind.memory_bytes)
            able &= d * layers.degree <= kind.count
            np.minimum.at(longest, layers.node[able], time[able])
    if not np.isfinite(longest).all():
        return 0.0
    room = math.fsum(kind.count * kind.memory_bytes for kind in kinds)
    speed = math.fsum(kind.count / kind.slowdown for kind in kinds)
    work = _work(layers, workload.n, size, room * (1 + RELATIVE_SLACK))
    return max(float(longest.max()), work / speed) * (1 - ROUNDING)


def _bytes(layers: Layers, problem: TrainingJob, in_flight: int) -> Floats:
    """Return the bytes of each configuration on one device."""
    state = STATE[problem.optimizer, problem.precision]
    copies = {"pipedream": in_flight - 1, "2bw": 1}.get(problem.in_flight, 0)
    fixed = layers.fixed_bytes + (state + copies) * layers.weight_bytes
    size: Floats = layers.bytes_per_microbatch * in_flight + fixed
    return size


def _work(layers: Layers, nodes: int, size: Floats, room: float) -> float:
    """Return the greatest right side of 2 over the λ that are tried."""

    def dual(price: float) -> float:
        least = np.full(nodes, np.inf)
        np.minimum.at(least, layers.node, layers.degree * (layers.time + price * size))
        return math.fsum(least.tolist()) - (price * room if price else 0.0)

    best = dual(0.0)
    if math.isinf(room) or not size.max(initial=0.0) > 0:
        return best
    low, high = 0.0, float(layers.time.max()) / float(size[size > 0].min())
    for _ in range(ROUNDS):
        third = (high - low) / 3
        left, right = dual(low + third), dual(high - third)
        best = max(best, left, right)
        low, high = (low + third, high) if left < right else (low, high - third)
    return best
