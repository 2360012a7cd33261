"""Small cases of cutting and mapping together, and brute force over both."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
from brute_mapping import least_stage_time

from stagecut import Workload
from stagecut.instances import DeviceMapping, Topology, stage_costs, topology

#: Stages, replicas, and devices of each block.
BLOCKS = [(2, 2, [2, 2]), (3, 2, [4, 3]), (3, 1, [2, 2]), (2, 3, [3, 2, 2]), (4, 1, [2, 3])]


def network(rng: np.random.Generator, n: int, *, backward: bool) -> Workload:
    """A random graph of n nodes; with `backward`, each has a mirror image of the same colour."""
    pairs = list(itertools.combinations(range(n), 2))
    edges = [pair for pair in pairs if rng.random() < 0.5] or [(0, 1)]
    size = n
    mirrored = {}
    if backward:
        edges += [(2 * n - 1 - v, 2 * n - 1 - u) for u, v in edges]
        edges += [(v, 2 * n - 1 - v) for v in range(n)]
        size = 2 * n
        mirrored = {
            "backward": np.arange(size) >= n,
            "colours": np.array([*range(n), *range(n - 1, -1, -1)]),
        }
    return Workload(
        name="network",
        ids=tuple(range(size)),
        edges=np.array(edges),
        times={"accelerator": rng.lognormal(0.0, 1.0, size)},
        memory_bytes=np.zeros(size),
        transfer=None,
        output_bytes=rng.lognormal(16.0, 1.0, size) * (rng.random(size) < 0.8),
        time_unit="ms",
        extra={"weight_bytes": rng.lognormal(17.0, 1.0, size) * (np.arange(size) < n)},
        **mirrored,
    )


def blocks(sizes: list[int], rng: np.random.Generator) -> Topology:
    """Fast blocks of these sizes, with slow links of unlike bandwidth between all devices."""
    block = np.repeat(np.arange(len(sizes)), sizes)
    links = np.array(np.triu_indices(len(block), 1)).T
    near = block[links[:, 0]] == block[links[:, 1]]
    fast, slow = rng.uniform(200e9, 300e9, len(links)), rng.uniform(1e9, 9e9, len(links))
    return Topology(
        name="blocks",
        devices=tuple(f"gpu {d}" for d in range(len(block))),
        links=links,
        latency_s=np.where(near, 1e-6, 5e-6),
        bytes_per_s=np.where(near, fast, slow),
        island=block,
    )


def drawn_joint(
    seed: int, mode: str, collective: str, *, unlike: bool = False
) -> tuple[Workload, DeviceMapping]:
    """A random graph of five nodes, and stages to cut it into, on blocks or a ring.

    With `unlike` on blocks of unlike speed.
    """
    rng = np.random.default_rng(seed)
    stages, replicas, sizes = BLOCKS[seed % len(BLOCKS)]
    workload = network(rng, 5, backward=seed % 2 == 1)
    place = topology(f"ring:{stages * replicas}")
    if unlike:
        slow = rng.choice([1.0, 1.5, 3.0], len(sizes))
        place = replace(blocks(sizes, rng), slowdown=np.repeat(slow, sizes))
    elif seed % 3:
        place = blocks(sizes, rng)
    return workload, DeviceMapping(
        place,
        stages,
        replicas,
        mode,  # type: ignore[arg-type]
        microbatches=1 + seed % 3,
        collective=collective,  # type: ignore[arg-type]
        gradients=seed % 4 != 1,
        overlap=seed % 5 == 4,
    )


def least_of_all_cuts(workload: Workload, n: int, problem: DeviceMapping) -> float:
    """Return the least max stage time over all partitions and their mappings, in ms."""
    best = math.inf
    for stage in itertools.product(range(problem.stages), repeat=n):
        whole = np.array([*stage, *stage[::-1]][: workload.n])
        forward = [(u, v) for u, v in workload.edges.tolist() if max(u, v) < n]
        if len(set(stage)) < problem.stages or any(whole[u] > whole[v] for u, v in forward):
            continue
        costs = stage_costs(workload, whole, problem.stages)
        fastest = problem.topology.slowdown.min() * costs.compute_s.max()
        if problem.microbatches * fastest < best:
            best = min(best, least_stage_time(costs, problem))
    return 1e3 * best
