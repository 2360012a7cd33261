"""What `test_mapping_joint` shares with other tests."""

from __future__ import annotations

import itertools
import math

import numpy as np
from brute_mapping import least_stage_time

from stagecut import Workload
from stagecut.instances import DeviceMapping, stage_costs


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


def least_of_all_cuts(workload: Workload, n: int, problem: DeviceMapping) -> float:
    """Return the least max stage time over all partitions and their mappings, in ms."""
    best = math.inf
    for stage in itertools.product(range(problem.stages), repeat=n):
        whole = np.array([*stage, *stage[::-1]][: workload.n])
        forward = [(u, v) for u, v in workload.edges.tolist() if max(u, v) < n]
        if len(set(stage)) < problem.stages or any(whole[u] > whole[v] for u, v in forward):
            continue
        costs = stage_costs(workload, whole, problem.stages)
        if problem.microbatches * costs.compute_s.max() < best:
            best = min(best, least_stage_time(costs, problem))
    return 1e3 * best
