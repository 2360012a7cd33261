"""Brute force over mappings: all sets of devices, all orders of rings, all matchings.

A stage's messages depend on two sets of devices and a matching between them, its all-reduce on one
set and its order; both are tried in full by the verifier's own prices, then all sets of devices.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from functools import cache

import numpy as np

from stagecut import Workload
from stagecut.instances import DeviceMapping, StageCosts, Topology, topology
from stagecut.runtime.verify.mapping import allreduce, busiest_link

KINDS = ("uniform_dist", "random_blk_1", "random_blk_2", "ring", "islands", "mesh2d", "graph")


def stages_of(rng: np.random.Generator, stages: int, *, free: bool = True) -> Workload:
    """A chain of one node per stage, very unequal; some send nothing, some have no weights.

    Without `free` every stage has something of everything.
    """
    some = (rng.random((2, stages)) < 0.8) | (not free)
    return Workload(
        name="chain",
        ids=tuple(range(stages)),
        edges=np.array([(v, v + 1) for v in range(stages - 1)]).reshape(-1, 2),
        times={"accelerator": rng.lognormal(0.0, rng.choice([0.1, 1.0]), stages)},
        memory_bytes=np.zeros(stages),
        transfer=None,
        output_bytes=rng.lognormal(16.0, 1.0, stages) * some[0],
        time_unit="ms",
        extra={"weight_bytes": rng.lognormal(17.0, 1.0, stages) * some[1]},
    )


def place_for(rng: np.random.Generator, used: int, most: int) -> Topology:
    """A random topology with at least `used` usable devices, at most `most` in all."""
    size = used + int(rng.integers(0, max(1, min(3, most - used + 1))))
    kind = str(rng.choice(KINDS))
    if kind in ("islands", "mesh2d") and size + size % 2 <= most:
        place = topology(f"{kind}:{(size + 1) // 2}x2")
    elif kind == "graph":
        place = random_graph(rng, size)
    elif kind == "ring":
        place = topology(f"ring:{size}")
    else:
        kind = kind if kind in KINDS[:3] else "uniform_dist"
        place = topology(f"{kind}:{size}@seed={int(rng.integers(1000))}")
    out = rng.permutation(place.size)[: place.size - used].tolist()
    if out and rng.random() < 0.5:
        place = place.without(out[: int(rng.integers(1, len(out) + 1))])
    return replace(place, routing=str(rng.choice(["hops", "widest"])))  # type: ignore[arg-type]


def random_graph(rng: np.random.Generator, size: int) -> Topology:
    """Devices and two switches joined by a random tree and some more links."""
    nodes = size + 2
    links = [(int(rng.integers(v)), v) for v in range(1, nodes)]
    links += [(a, b) for a, b in rng.integers(nodes, size=(size, 2)).tolist() if a != b]
    return Topology(
        name="graph",
        devices=tuple(f"gpu {d}" for d in range(size)),
        links=np.array(links),
        latency_s=rng.choice([1e-6, 5e-6, 1e-3], len(links)),
        bytes_per_s=rng.choice([1e9, 10e9, 300e9], len(links)),
        switches=2,
        island=rng.integers(3, size=size),
    )


def least_stage_time(
    costs: StageCosts, problem: DeviceMapping, fits: np.ndarray | None = None
) -> float:
    """Return the least max stage time over all mappings, in seconds per batch.

    `fits`, shape (S, devices of the topology), says which devices a stage may be on; `inf` if no
    mapping keeps to it. Devices are as slow as the topology says.
    """
    s, r, m = problem.stages, problem.replicas, problem.microbatches
    devices = frozenset(problem.topology.usable.tolist())
    routes = problem.topology.routes
    base = m * costs.compute_s
    slow = problem.topology.slowdown

    def counted(t: int, members: frozenset[int], sent: float) -> float:
        compute = float(base[t] * slow[list(members)].max())
        return max(compute, sent) if problem.overlap else compute + sent

    @cache
    def message(a: int, b: int, size: float) -> float:
        return float(routes.latency_s[a, b] + size / routes.bytes_per_s[a, b]) if size > 0 else 0.0

    @cache
    def reduces(size: float, members: frozenset[int]) -> float:
        if problem.mode == "p2p":
            return 0.0
        orders = itertools.permutations(members)
        if problem.collective == "ring":  # it may begin anywhere
            first, *others = members
            orders = ((first, *order) for order in itertools.permutations(others))
        return min(allreduce(message, problem, list(order), size)[0] for order in orders)

    @cache
    def sends(t: int, members: frozenset[int], following: frozenset[int]) -> float:
        if problem.mode == "allr":
            return 0.0
        there, back = float(costs.forward_bytes[t]), float(costs.backward_bytes[t])
        back = back if problem.gradients else 0.0
        row = tuple(members)
        return m * min(
            max(message(a, b, there) + message(b, a, back) for a, b in zip(row, other, strict=True))
            for other in itertools.permutations(following)
        )

    @cache
    def least(t: int, members: frozenset[int], used: frozenset[int]) -> float:
        """Least max over stages t … S−1, if stage t has `members`."""
        time = reduces(float(costs.parameter_bytes[t]), members)
        if t + 1 == s:
            return counted(t, members, time)
        best = math.inf
        for chosen in itertools.combinations(sorted(devices - used), r):
            if fits is not None and not fits[t + 1, list(chosen)].all():
                continue
            following = frozenset(chosen)
            here = counted(t, members, time + sends(t, members, following))
            if here < best:
                best = min(best, max(here, least(t + 1, following, used | following)))
        return best

    firsts = (
        frozenset(chosen)
        for chosen in itertools.combinations(sorted(devices), r)
        if fits is None or fits[0, list(chosen)].all()
    )
    return min((least(0, first, first) for first in firsts), default=math.inf)


def least_busiest_link(costs: StageCosts, problem: DeviceMapping) -> float:
    """Return the least busiest link over all mappings, in seconds per batch."""
    s, r = problem.stages, problem.replicas
    best = math.inf
    matchings = list(itertools.product(itertools.permutations(range(r)), repeat=s - 1))
    for chosen in itertools.permutations(problem.topology.usable.tolist(), s * r):
        slots = np.array(chosen).reshape(s, r)
        for sends_to in matchings:
            at = np.array(sends_to, np.int64).reshape(s - 1, r)
            best = min(best, busiest_link(costs, problem, slots, at)[1])
    return best
