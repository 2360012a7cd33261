"""The least makespan of an iteration by trying all placements, each judged by the simulator."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from itertools import permutations, product

import numpy as np

from stagecut import Cluster, PipelineJob, Workload, accelerators_and_cpus, evaluate
from stagecut.instances import PipelinePlacement

#: Every schedule of an iteration that has a name; see `given_orders` for those that are given.
SCHEDULES = ("1f1b", "gpipe", "interleaved", "zb-h1", "zb-h2")


def least_makespan(workload: Workload, cluster: Cluster, problem: PipelineJob) -> float:
    """Return the least makespan, `inf` if no placement keeps the rules.

    Of chains that differ by the names of devices of one kind one is tried. Other splits are list
    schedules, which settle ties by the numbers of devices: there all are.
    """
    best, named = math.inf, problem.split != "contiguous"
    for solution in placements(workload, cluster, problem, named=named):
        report = evaluate(workload, cluster, problem, solution)
        if not report.violations:
            best = min(best, report.objective)
    return best


def placements(
    workload: Workload, cluster: Cluster, problem: PipelineJob, *, named: bool = False
) -> Iterator[PipelinePlacement]:
    """Yield the placements of all units on all devices that may keep the rules.

    Parameters
    ----------
    named
        Whether the names of devices of one kind matter.
    """
    classes = [list(members) for members in workload.colour_classes if members]
    alone = [[v] for v in np.flatnonzero(workload.colours < 0).tolist()]
    units = classes + alone
    if problem.split != "contiguous":
        for where in product(range(cluster.size), repeat=len(units)):
            if named or _first_of_kind(cluster, where):
                yield _placement(workload.n, units, where, ())
        return
    chunks, sizes = problem.chunks_per_device, range(1, cluster.size + 1)
    if problem.order:
        sizes = range(len(problem.order.rows), min(len(problem.order.rows), cluster.size) + 1)
    for size in sizes:
        if not problem.order and chunks > 1 and problem.microbatches % size:
            continue
        row = problem.order.device if problem.order else (*range(size),) * chunks
        for devices in permutations(range(cluster.size), size):
            if not (named or _first_of_kind(cluster, devices)):
                continue
            for stage in product(range(len(row)), repeat=len(units)):
                if len(set(stage)) == len(row) and _ascends(workload, units, stage):
                    yield _placement(workload.n, units, stage, tuple(devices[p] for p in row))


def _first_of_kind(cluster: Cluster, devices: tuple[int, ...]) -> bool:
    """Whether devices of each kind are used in the order of their numbers."""
    kinds = [device.kind for device in cluster.devices]
    seen: dict[int, list[int]] = {}
    for d in dict.fromkeys(devices):
        seen.setdefault(kinds[d], []).append(d)
    return all(
        used == [d for d in range(cluster.size) if kinds[d] == kind][: len(used)]
        for kind, used in seen.items()
    )


def _ascends(workload: Workload, units: list[list[int]], stage: tuple[int, ...]) -> bool:
    of = {v: s for unit, s in zip(units, stage, strict=True) for v in unit}
    return all(
        (of[u] >= of[v]) if workload.backward[u] else (workload.backward[v] or of[u] <= of[v])
        for u, v in workload.edges.tolist()
    )


def _placement(
    n: int, units: list[list[int]], where: tuple[int, ...], devices: tuple[int, ...]
) -> PipelinePlacement:
    stage = np.zeros(n, np.int64)
    for unit, s in zip(units, where, strict=True):
        stage[unit] = s
    if devices:
        return PipelinePlacement(stage, devices)
    used = tuple(sorted(set(where)))
    return PipelinePlacement(np.searchsorted(used, stage), used)


def training_case(
    rng: np.random.Generator, *, inference: bool = False, tight: bool = False, kinds: int = 2
) -> tuple[Workload, Cluster]:
    """Return a random graph of forward nodes, with mirrored backward nodes, and a cluster.

    With activations and weights in bytes.

    Parameters
    ----------
    tight
        Whether memory may bind.
    kinds
        Of accelerators, at most: 1 or 2.
    """
    n = int(rng.integers(3, 6))
    pairs = [(u, v) for u in range(n) for v in range(u + 1, n) if rng.random() < 0.5]
    total = n if inference else 2 * n
    edges = list(pairs)
    if not inference:
        edges += [(2 * n - 1 - v, 2 * n - 1 - u) for u, v in pairs]
        edges += [(v, 2 * n - 1 - v) for v in range(n)]
    backward = np.arange(total) >= n
    colour = np.minimum(np.arange(total), 2 * n - 1 - np.arange(total)) if not inference else None
    if colour is not None and rng.random() < 0.3:
        a, b = rng.choice(n, 2, replace=False)
        colour = np.where(colour == a, b, colour)
        _, colour = np.unique(colour, return_inverse=True)
    activation = np.where(backward, 0, rng.integers(1, 6, total)).astype(float)
    resident = rng.integers(0, 6, total).astype(float)
    times = {"accelerator": rng.integers(1, 10, total).astype(float)}
    workload = Workload(
        name="small",
        ids=tuple(range(total)),
        edges=np.array(edges, np.int64).reshape(-1, 2),
        times=times,
        memory_bytes=resident + activation,
        transfer=rng.integers(0, 4, total).astype(float),
        backward=backward,
        colours=np.full(total, -1) if colour is None else colour,
        extra={"activation_bytes": activation},
    )
    devices = int(rng.integers(1, 4))
    room = float(rng.integers(10, 40)) if tight else math.inf
    cluster = accelerators_and_cpus(devices, memory_bytes=room)
    if rng.random() < 0.25 and devices > 1 and kinds > 1:
        (kind, *others) = cluster.kinds
        slow = replace(kind, name="slow", count=1, slowdown=2.0)
        cluster = Cluster((replace(kind, count=devices - 1), slow, *others))
    return workload, cluster
