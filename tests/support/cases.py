"""Small random workloads and clusters with everything that can go wrong in them."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from stagecut import Cluster, DeviceKind, Link, Throughput, Workload, accelerators_and_cpus
from stagecut.instances import PairLink

#: Every combination of a throughput problem's rules.
THROUGHPUT_PROBLEMS = [
    Throughput(split=split, cpu_split=cpu, pipeline=pipeline, overlap=overlap)
    for split in ("noncontiguous", "contiguous", "per-device")
    for cpu in ("contiguous", "free")
    for pipeline in ("pipedream", "gpipe")
    for overlap in (False, True)
]


def random_case(
    seed: int,
    *,
    max_nodes: int = 8,
    max_accelerators: int = 3,
    max_cores: int = 1,
    max_kinds: int = 1,
) -> tuple[Workload, Cluster]:
    """Return a random DAG and cluster: colours, memory limits, CPU-only nodes, backward passes,
    zero costs, several components; the same for the same seed.

    Parameters
    ----------
    max_accelerators, max_cores
        Devices in all; at least one device.
    max_kinds
        Kinds of accelerators, of different speed and memory.
    """
    rng = np.random.default_rng(seed)
    n = int(rng.integers(1, max_nodes + 1))
    training = rng.random() < 0.4 and n >= 2
    rank = rng.permutation(n)
    density = rng.choice([0.15, 0.35, 0.6])
    backward = np.zeros(n, bool)
    if training:
        backward[np.argsort(rank)[n - n // 2 :]] = True
    edges = [
        (u, v) for u in range(n) for v in range(n) if rank[u] < rank[v] and rng.random() < density
    ]
    whole = rng.random() < 0.5  # whole numbers make ties
    draw = (lambda size: rng.integers(0, 6, size).astype(float)) if whole else rng.random
    compute = draw(n) * (rng.random(n) < 0.85)
    accelerator = np.where(rng.random(n) < 0.1, math.inf, compute)
    cpu = compute * rng.choice([1.0, 3.0, 10.0])
    transfer = draw(n) * rng.choice([0.1, 1.0]) * (rng.random(n) < 0.85)
    memory = rng.integers(0, 5, n).astype(float)
    colours = np.full(n, -1)
    if rng.random() < 0.7:
        colours = rng.integers(-1, max(1, n // 2), n)
    if training and rng.random() < 0.7:  # backward nodes mostly share a colour with a forward one
        forward = np.flatnonzero(~backward)
        for v in np.flatnonzero(backward):
            if rng.random() < 0.8:
                mate = int(rng.choice(forward))
                if colours[mate] < 0:
                    colours[mate] = colours.max() + 1
                colours[v] = colours[mate]
    used = np.unique(colours[colours >= 0])
    colours = np.array([-1 if c < 0 else int(np.searchsorted(used, c)) for c in colours])
    workload = Workload(
        name=f"random {seed}",
        ids=tuple(range(10, 10 + n)),
        edges=np.array(edges).reshape(-1, 2),
        times={"accelerator": accelerator, "cpu": cpu},
        memory_bytes=memory,
        transfer=transfer,
        backward=backward,
        colours=colours,
        colour_labels=tuple(f"colour {c}" for c in range(len(used))),
    )
    accelerators = int(rng.integers(0, max_accelerators + 1))
    cores = int(rng.integers(0 if accelerators else 1, max_cores + 1)) if max_cores else 0
    accelerators = accelerators or (0 if cores else 1)
    kinds = []
    left = accelerators
    for k in range(max_kinds):
        count = left if k == max_kinds - 1 else int(rng.integers(0, left + 1))
        left -= count
        room = rng.choice([0.3, 0.6, 1.0, math.inf]) * max(1.0, memory.sum())
        speed = 1.0 if k == 0 else float(rng.choice([0.5, 2.0]))
        kinds.append(
            DeviceKind(
                f"acc{k}", count, memory_bytes=float(room), times="accelerator", slowdown=speed
            )
        )
    kinds.append(DeviceKind("cpu", cores, host=True))
    return workload, Cluster(tuple(kinds))


def hub_case(seed: int) -> tuple[Workload, Cluster]:
    """Return a graph most of whose nodes exchange data with one in the middle; a few devices."""
    rng = np.random.default_rng(seed)
    n = int(rng.integers(5, 8))
    hub = n // 2
    drawn = {(u, v) for v in range(n) for u in range(v) if rng.random() < 0.25}
    beside = {(min(v, hub), max(v, hub)) for v in range(n) if v != hub and rng.random() < 0.8}
    times = rng.uniform(1.0, 3.0, n) * (rng.random(n) < 0.9)
    colours = np.where(rng.random(n) < 0.3, rng.integers(0, 2, n), -1)
    backward = np.arange(n) >= n - n // 3 if rng.random() < 0.3 else np.zeros(n, np.bool_)
    workload = Workload(
        name="with a hub",
        ids=tuple(range(n)),
        edges=np.array(sorted(drawn | beside)).reshape(-1, 2),
        times={
            "accelerator": np.where(rng.random(n) < 0.05, np.inf, times),
            "cpu": times * rng.choice([1.0, 4.0]),
        },
        memory_bytes=np.ones(n),
        transfer=rng.uniform(0.0, 1.0, n),
        colours=colours,
        backward=backward,
    )
    return workload, accelerators_and_cpus(int(rng.integers(2, 4)), int(rng.integers(0, 2)))


def linked_case(seed: int, **sizes: int) -> tuple[Workload, Cluster]:
    """Return a `random_case` with bytes instead of transfer times, and links between devices.

    Links of kinds and of single devices, dear and cheap ones; some devices stay without.
    """
    workload, cluster = random_case(seed, **sizes)
    assert workload.transfer is not None
    rng = np.random.default_rng([seed, 1])

    def link() -> Link:
        latency, bandwidth = rng.choice([0.0, 0.1, 1.0]), rng.choice([0.5, 1.0, 4.0, math.inf])
        return Link(float(latency), float(bandwidth))

    kinds = [kind if kind.host else replace(kind, link=link()) for kind in cluster.kinds]
    names = [kind.name for kind in kinds if not kind.host and kind.count]
    names += [
        device.name
        for device in cluster.devices
        if not kinds[device.kind].host and device.name not in names
    ]
    alone = [kind.name for kind in kinds if kind.count == 1]
    ends = [
        (a, b)
        for i, a in enumerate(names)
        for b in names[i:]
        if (a != b or a not in alone) and (a != b or a in [kind.name for kind in kinds])
    ]
    joined = tuple(PairLink(pair, link()) for pair in ends if rng.random() < 0.6)
    sized = replace(workload, transfer=None, output_bytes=workload.transfer, time_unit="s")
    return sized, Cluster(tuple(kinds), joined)


def beside_a_path() -> tuple[Workload, Cluster]:
    """Four nodes in a row, and one beside them that the first of two stages has; optimum 3.5.

    The node reads what the first one of the row makes, and the last one reads what it makes.
    """
    workload = Workload(
        name="beside",
        ids=(0, 1, 2, 3, 4),
        edges=np.array([(0, 1), (1, 2), (2, 3), (0, 4), (4, 3)]),
        times={"accelerator": np.array([1.0, 1.0, 2.0, 1.0, 1.5])},
        memory_bytes=np.zeros(5),
        transfer=np.array([1.0, 0.0, 0.0, 0.0, 0.0]),
    )
    return workload, accelerators_and_cpus(2, cpus=0)
