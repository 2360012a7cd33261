"""Mapping as arrays: every message is a route's latency and inverse bandwidth, times factors.

A stage's time is a constant plus the longest of some messages, plus the longest of others:

    T_s = base_s + max_{(a,b) on boundary s} (α_s·lat_ab + β_s·inv_ab)
                 + max_{(a,b) on ring s}     (γ_s·lat_ab + δ_s·inv_ab)

With overlap base_s is 0, and the objective is at least the longest compute. Where devices are of
unlike speed, base_s is the compute of the fastest, and `own` has what the others take besides.
Devices are the usable ones, numbered 0 … D−1; all times are in seconds per batch.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...instances import DeviceMapping, ReplicaPlacement, StageCosts
from ...instances.common.arrays import Bools, Floats, Ints, frozen

#: Least ratio of the cheapest route across to the dearest inside.
MIN_STEP_RATIO = 1.5

#: Levels of the spanning tree that are tried, widest step first.
MAX_LEVELS = 8


@dataclass(frozen=True, eq=False)
class MappingCosts:
    """Costs of mapping S stages × R replicas onto D devices, in seconds per batch."""

    stages: int  # stages, replicas: S and R
    replicas: int
    devices: Ints  # (D,): number of each usable device in the topology
    # latency, inverse: (D, D): latency of each route, and 1 / bandwidth; 0 on the diagonal
    latency: Floats
    inverse: Floats
    island: Ints  # (D,): fast island of each device
    # shape, wraps: sides of the grid, if the topology is one and no device is excluded
    shape: tuple[int, ...]
    wraps: bool
    base: Floats  # (S,): compute, m·t, on the fastest device
    # (S, D): what a stage computes longer on a device than on the fastest, or, where messages run
    # beside, all that it computes; 0 if devices are of one speed
    own: Floats
    overlap: bool
    boundary: Floats  # (S, 2): α and β; 0 where nothing is sent or counted
    ring: Floats  # (S, 2): γ and δ; 0 where nothing is reduced or counted
    # (S,): lower bound of every all-reduce other than a ring, in seconds; `inf` if only rings are
    # allowed
    non_ring_lower_bound: Floats
    fits: Bools  # (S, D): whether the stage's memory fits the device
    # lower bound of the objective: with overlap the longest compute, else 0
    lower_bound: float = 0.0

    @property
    def size(self) -> int:
        """Number of usable devices, D."""
        return len(self.devices)

    @property
    def spare(self) -> int:
        """Number of devices that stay unused."""
        return self.size - self.stages * self.replicas

    @property
    def unlike(self) -> bool:
        """Whether devices are of unlike speed."""
        return bool(self.own.any())

    def boundary_costs(self, s: int) -> Floats:
        """Return the seconds of a message over boundary s by pair of devices; shape (D, D)."""
        alpha, beta = self.boundary[s]
        return _factors(self, float(alpha), float(beta))

    def ring_costs(self, s: int) -> Floats:
        """Return the seconds of a ring message of stage s by pair of devices; shape (D, D)."""
        gamma, delta = self.ring[s]
        return _factors(self, float(gamma), float(delta))

    def reduced_bytes(self, s: int) -> float:
        """Return the bytes of the all-reduce of stage s; a ring has 2(R−1) messages of 1/R each."""
        steps, by_bytes = self.ring[s]
        return float(self.replicas * by_bytes / max(steps, 1.0))

    def numbers(self, slots: Ints) -> Ints:
        """Return the numbers of usable devices in each slot of a solution; undoes `read_back`."""
        where = np.full(int(self.devices.max()) + 1, -1)
        where[self.devices] = np.arange(self.size)
        return np.asarray(where[slots])

    def read_back(self, stage: Ints, slots: Ints, sends_to: Ints) -> ReplicaPlacement:
        """Return the solution, given the numbers of usable devices in each slot."""
        return ReplicaPlacement(stage, self.devices[slots], sends_to)


def mapping_costs(
    costs: StageCosts,
    problem: DeviceMapping,
    fits: Bools | None = None,
    slow: Floats | None = None,
) -> MappingCosts:
    """Return the costs of mapping given stages; by default every stage fits every device.

    `slow`, shape (D,), is how many times each usable device takes the seconds of the stages; by
    default all take these.
    """
    topology, routes = problem.topology, problem.topology.routes
    s, r, m = problem.stages, problem.replicas, problem.microbatches
    devices = topology.usable
    if len(devices) == topology.size:  # no copy of a large table
        latency, bandwidth = routes.latency_s, routes.bytes_per_s
    else:
        among = np.ix_(devices, devices)
        latency, bandwidth = frozen(routes.latency_s[among], np.float64), routes.bytes_per_s[among]
    inverse = 1.0 / bandwidth
    boundary, ring = np.zeros((s, 2)), np.zeros((s, 2))
    if problem.mode != "allr" and s > 1:
        back = costs.backward_bytes * problem.gradients
        boundary[:-1, 0] = m * ((costs.forward_bytes > 0).astype(float) + (back > 0))
        boundary[:-1, 1] = m * (costs.forward_bytes + back)
    size = costs.parameter_bytes
    counted = (size > 0) & (problem.mode != "p2p" and r > 1)
    ring[:, 0] = np.where(counted, 2.0 * (r - 1), 0.0)
    ring[:, 1] = np.where(counted, 2.0 * (r - 1) / r * size, 0.0)
    non_ring_lower_bound = np.full(s, np.inf)
    if problem.collective == "cheapest" and counted.any():
        non_ring_lower_bound = _non_ring_lower_bound(
            topology.island[devices], latency, inverse, r, size
        )
    untouched = len(devices) == topology.size
    factor = np.ones(len(devices)) if slow is None else slow
    compute = m * costs.compute_s * factor.min()
    more = factor - (0.0 if problem.overlap else factor.min())
    own = np.outer(m * costs.compute_s, more if (factor > factor.min()).any() else 0 * factor)
    return MappingCosts(
        stages=s,
        replicas=r,
        devices=devices,
        latency=latency,
        inverse=frozen(inverse, np.float64),
        island=topology.island[devices],
        shape=topology.shape if untouched else (),
        wraps=topology.wraps,
        base=np.zeros(s) if problem.overlap else compute,
        own=own,
        overlap=problem.overlap,
        boundary=boundary,
        ring=ring,
        non_ring_lower_bound=non_ring_lower_bound,
        fits=np.ones((s, len(devices)), np.bool_) if fits is None else fits,
        lower_bound=float(compute.max()) if problem.overlap else 0.0,
    )


def _non_ring_lower_bound(
    island: Ints, latency: Floats, inverse: Floats, replicas: int, size: Floats
) -> Floats:
    """Lower bound of tree and hierarchical all-reduce: as if all messages took the best route."""
    near = island[:, None] == island[None, :]
    others = near & ~np.eye(len(near), dtype=np.bool_)
    best = np.array(  # latency and inverse, across islands and inside
        [[of.min(where=w, initial=np.inf) for of in (latency, inverse)] for w in (~near, others)]
    )
    any_pair = best.min(axis=0)
    least = 2 * (replicas.bit_length() - 1) * (any_pair[0] + size * any_pair[1])
    counts = np.bincount(island)
    for k in range(2, replicas // 2 + 1):
        g = replicas // k
        if replicas % k or (counts >= k).sum() < g:
            continue
        inside = 2 * (k - 1) * (best[1, 0] + size / k * best[1, 1])
        across = 2 * (g - 1) * (best[0, 0] + size / (k * g) * best[0, 1])
        least = np.minimum(least, inside + across)
    return np.where(size > 0, least, 0.0)


def _factors(costs: MappingCosts, by_latency: float, by_inverse: float) -> Floats:
    if by_latency == 0 and by_inverse == 0:
        return np.zeros(costs.latency.shape)
    return by_latency * costs.latency + by_inverse * costs.inverse


def stage_times(costs: MappingCosts, slots: Ints, sends_to: Ints) -> Floats:
    """Return T_s with rings, shape (S,)."""

    def longest(factors: Floats, senders: Ints, receivers: Ints) -> Floats:
        pairs = senders, receivers
        by_latency = factors[:, :1] * costs.latency[pairs]
        found: Floats = (by_latency + factors[:, 1:] * costs.inverse[pairs]).max(axis=1)
        return found

    times = costs.base.copy()
    if costs.stages > 1:
        receivers = np.take_along_axis(slots[1:], sends_to, axis=1)
        times[:-1] += longest(costs.boundary[:-1], slots[:-1], receivers)
    times += longest(costs.ring, slots, np.roll(slots, -1, axis=1))
    own = np.take_along_axis(costs.own, slots, axis=1).max(axis=1)
    whole: Floats = np.maximum(times, own) if costs.overlap else times + own
    return whole


def find_blocks(costs: MappingCosts) -> Ints:
    """Return the number of each device's block, shape (D,); all 0 if there is no structure.

    Every route inside a block is cheaper than every route between two blocks, by what all messages
    of a batch would cost on them. Single linkage finds all such partitions: the levels of a minimum
    spanning tree at which no component holds a route as long as the next level. The one with the
    widest step between inside and across is taken. O(D²) time.
    """
    alpha, beta = costs.boundary.sum(axis=0) + costs.ring.sum(axis=0)
    whole = np.zeros(costs.size, np.int64)
    if costs.size < 3 or alpha + beta == 0:
        return whole
    from scipy.cluster.hierarchy import fcluster, linkage  # takes 0.3 CPU s to import
    from scipy.spatial.distance import squareform

    cost = alpha * costs.latency + beta * costs.inverse
    tree = linkage(squareform(np.minimum(cost, cost.T), checks=False), "single")
    distance = tree[:, 2]
    step = distance[1:] / np.maximum(distance[:-1], 1e-300)
    for level in np.argsort(-step, kind="stable")[:MAX_LEVELS].tolist():
        if step[level] < MIN_STEP_RATIO:
            return whole
        label = fcluster(tree, distance[level], "distance")
        inside = float(cost.max(where=label[:, None] == label[None, :], initial=0.0))
        if inside * MIN_STEP_RATIO <= distance[level + 1]:
            _, first, named = np.unique(label, return_index=True, return_inverse=True)
            block: Ints = np.argsort(np.argsort(first))[named]  # numbered by first device
            return block
    return whole
