"""Random workloads that are a series of segments, some with branches that are alike."""

from __future__ import annotations

import numpy as np

from stagecut import Cluster, DeviceKind, Workload


def series_case(seed: int, *, segments: int = 4, most_alike: int = 3) -> tuple[Workload, Cluster]:
    """Return a workload and its cluster; the same for the same seed.

    Edges skip segments, backward passes mirror the nodes, nodes cost nothing or run on CPUs alone,
    and nodes are numbered in any order.
    """
    rng = np.random.default_rng(seed)
    edges: list[tuple[int, int]] = []
    like: list[int] = []  # nodes with the same number cost the same
    ends: list[int] = []
    earlier: list[list[int]] = []
    for _ in range(int(rng.integers(1, segments + 1))):
        units: list[int] = []
        starts: list[int] = []
        stops: list[int] = []
        for _ in range(int(rng.choice([1, 1, 2]))):  # classes of branches
            size, alike = int(rng.integers(1, 4)), int(rng.integers(1, most_alike + 1))
            inner = [(i, j) for j in range(size) for i in range(j) if rng.random() < 0.6]
            skips = [
                (
                    tuple(rng.permutation(nodes).tolist()[: rng.integers(1, 3)]),
                    int(rng.integers(size)),
                )
                for nodes in earlier
                if rng.random() < 0.3
            ]
            cost = max(like, default=-1) + 1
            for _ in range(alike):
                first = len(like)
                like += [cost + i for i in range(size)]
                edges += [(first + i, first + j) for i, j in inner]
                edges += [(u, first + i) for nodes, i in skips for u in nodes]
                starts += [first + j for j in range(size) if j not in {b for _, b in inner}]
                stops += [first + i for i in range(size) if i not in {a for a, _ in inner}]
                units += range(first, first + size)
        edges += [(u, v) for u in ends for v in starts]
        ends, earlier = stops, [*earlier, units]
    number = len(like)
    cost = np.array(like)
    whole = rng.random() < 0.5
    draw = (lambda n: rng.integers(0, 6, n).astype(float)) if whole else rng.random
    time = (draw(number) * (rng.random(number) < 0.9))[cost]
    slow = np.where(rng.random(number)[cost] < 0.05, np.inf, time)
    transfer = (draw(number) * rng.choice([0.1, 0.5]))[cost]
    colours, backward = np.full(number, -1), np.zeros(number, np.bool_)
    if rng.random() < 0.5:  # a backward node for each
        edges += [(number + v, number + u) for u, v in edges]
        edges += [(u, number + u) for u in range(number)]
        time, slow, transfer = (np.tile(one, 2) for one in (time, slow, transfer))
        colours, backward = np.tile(np.arange(number), 2), np.repeat([False, True], number)
    place = rng.permutation(len(time))
    order = np.argsort(place)
    workload = Workload(
        name=f"series {seed}",
        ids=tuple(range(len(time))),
        edges=np.unique(place[np.array(edges, np.int64).reshape(-1, 2)], axis=0),
        times={"accelerator": slow[order], "cpu": 2 * time[order]},
        memory_bytes=np.ones(len(time)),
        transfer=transfer[order],
        backward=backward[order],
        colours=colours[order],
        colour_labels=tuple(f"colour {c}" for c in range(colours.max() + 1)),
    )
    accelerators, cores = int(rng.integers(1, 4)), int(rng.integers(0, 3))
    room = np.inf if rng.random() < 0.7 else 0.6 * len(time)
    kinds = [DeviceKind("acc", accelerators, memory_bytes=room, times="accelerator")]
    if rng.random() < 0.3:
        kinds.append(DeviceKind("old", 1, times="accelerator", slowdown=1.5))
    return workload, Cluster((*kinds, DeviceKind("cpu", cores, host=True)))
