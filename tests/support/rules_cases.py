"""Random placement rules, and the best plans that keep them, by trying all placements."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from itertools import permutations, product
from typing import Any

import numpy as np
from brute_iteration import placements

from stagecut import Cluster, Latency, PlacementRules, Throughput, Workload, evaluate
from stagecut.instances import CallPlacement, Placement, Solution, is_iteration
from stagecut.instances.model.problem import names_stages


def random_rules(
    rng: np.random.Generator, workload: Workload, cluster: Cluster, problem: Any
) -> PlacementRules:
    """Return rules that some plan keeps more often than not: they follow a placement at random."""
    ids, size = [str(node) for node in workload.ids], cluster.size
    chain = names_stages(problem)
    at = rng.integers(0, size, workload.n)
    if chain or rng.random() < 0.5:  # in a topological order, so that a chain can keep them
        rank = np.empty(workload.n, np.int64)
        rank[list(workload.order)] = np.arange(workload.n)
        half = np.where(workload.backward, workload.n - 1 - rank, rank)
        at = np.minimum(half * size // max(1, int(half.max()) + 1), size - 1)
    for members in workload.colour_classes:
        at[list(members)] = at[list(members)[:1]]

    def drawn(count: int) -> list[int]:
        return rng.choice(workload.n, min(count, workload.n), replace=False).tolist()

    pins, together, apart = [], [], []
    for v in drawn(int(rng.integers(0, 3))):
        number = int(at[v]) if rng.random() < 0.95 else int(rng.integers(0, size))
        pins.append((ids[v], number - size if rng.random() < 0.3 else number))
    if rng.random() < 0.4:
        u, *others = drawn(3)
        same = [v for v in others if at[v] == at[u] or rng.random() < 0.07]
        together.append(tuple(ids[v] for v in (u, *same)))
    if rng.random() < 0.6:
        u, *others = drawn(3)
        other = [v for v in others if at[v] != at[u] or rng.random() < 0.07]
        apart.append(tuple(ids[v] for v in (u, *other)))
    return PlacementRules(
        tuple(pins),
        tuple(together),
        tuple(apart),
        int(rng.integers(1, size + 1)) if rng.random() < 0.3 else None,
    )


def best_under_rules(workload: Workload, cluster: Cluster, problem: Any) -> float:
    """Return the least objective of all placements that keep all rules; `inf` if none does."""
    best = math.inf
    for solution in solutions(workload, cluster, problem):
        report = evaluate(workload, cluster, problem, solution)
        if not report.violations:
            best = min(best, report.objective)
    return best


def solutions(workload: Workload, cluster: Cluster, problem: Any) -> Iterator[Solution]:
    n, size = workload.n, cluster.size
    if is_iteration(problem):
        yield from placements(workload, cluster, problem, named=True)
    elif isinstance(problem, Throughput):
        for where in product(range(size), repeat=n):
            used = sorted(set(where))
            for order in permutations(used) if problem.relayed else [()]:
                yield Placement(np.array(where), order)
    elif isinstance(problem, Latency):
        host = [cluster.kinds[device.kind].host for device in cluster.devices]
        kinds = [device.kind for device in cluster.devices]
        slots = [(d, c) for d in range(size) if not host[d] for c in range(problem.calls)]
        slots += [(d, -1) for d in range(size) if host[d] and kinds.index(kinds[d]) == d]
        for chosen in product(slots, repeat=n):
            device, call = zip(*chosen, strict=True)
            yield CallPlacement(np.array(device), np.array(call))


def with_rules(seed: int, workload: Workload, cluster: Cluster, problem: Any) -> Any:
    """Return the problem with rules drawn for the seed."""
    rng = np.random.default_rng([seed, 21])
    return replace(problem, placement_rules=random_rules(rng, workload, cluster, problem))
