"""Packings of sizes into rooms against brute force, and what a task makes of them."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from stagecut import Cluster, DeviceKind, Throughput, Workload, solve
from stagecut.formulations.task import Task, pose
from stagecut.formulations.throughput.hypergraph import hypergraph
from stagecut.formulations.throughput.whole_bytes import whole_bytes
from stagecut.instances import Solution
from stagecut.solvers import Limits, Search
from stagecut.solvers.throughput.packing import Packed, RoomClass, pack, packing


def fits(sizes: list[int], rooms: list[int], kind: list[int], able: list[list[int]]) -> bool:
    """Whether some assignment of items to rooms works: tries all."""
    for places in itertools.product(range(len(rooms)), repeat=len(sizes)):
        if all(kind[d] in able[i] for i, d in enumerate(places)):
            used = [0] * len(rooms)
            for size, d in zip(sizes, places, strict=True):
                used[d] += size
            if all(a <= b for a, b in zip(used, rooms, strict=True)):
                return True
    return False


@pytest.mark.parametrize("seed", range(250))
def test_packings_and_proofs_are_right(seed: int) -> None:
    rng = np.random.default_rng(seed)
    n, k = int(rng.integers(0, 8)), int(rng.integers(1, 4))
    count = rng.integers(0, 3, k).tolist()
    scale = int(rng.choice([1, 1, 1000, 10**15]))
    sizes = [int(size) * scale for size in rng.integers(0, 8, n)]
    sizes = [size + int(scale > 1 and rng.random() < 0.15) for size in sizes]
    share = sum(sizes) // max(1, sum(count))
    likely = [share, share + scale // 2, share * 6 // 5, 8 * scale, sum(sizes[:2])]
    classes = [RoomClass(int(rng.choice(np.array(likely, object))), c) for c in count]
    able = [[c for c in range(k) if rng.random() < 0.8] for _ in range(n)]
    kind = [c for c in range(k) for _ in range(count[c])]
    packed = pack(sizes, classes, able)
    assert packed.proved != fits(sizes, [classes[c].room for c in kind], kind, able)
    assert packed.proved == (packed.place is None)
    used: dict[tuple[int, int], int] = {}
    for i, place in enumerate(packed.place or ()):
        assert place[0] in able[i]
        assert place[1] < count[place[0]]
        used[place] = used.get(place, 0) + sizes[i]
    assert all(total <= classes[c].room for (c, _), total in used.items())


def test_it_gives_up_at_its_limit_and_when_told() -> None:
    rng = np.random.default_rng(0)
    sizes = [int(size) for size in rng.integers(10**8, 10**9, 40)]
    classes, able = [RoomClass(sum(sizes) // 4 + 1, 4)], [[0]] * 40
    for packed in (
        pack(sizes, classes, able, states=100),
        pack(sizes, classes, able, lambda: True),
    ):
        assert packed == Packed(None, proved=False)


def sized(sizes: list[float], room: float, devices: int = 2) -> Task:
    """A task of nodes without edges that differ by their bytes."""
    n = len(sizes)
    workload = Workload(
        name="sizes", ids=tuple(range(n)), edges=np.zeros((0, 2), int),
        times={"accelerator": np.ones(n)}, memory_bytes=np.array(sizes), transfer=np.zeros(n),
    )  # fmt: skip
    cluster = Cluster((DeviceKind("gpu", devices, memory_bytes=room, times="accelerator"),))
    return pose(workload, cluster, Throughput(split="noncontiguous"))


@pytest.mark.parametrize(
    ("sizes", "room", "there_is_one"),
    [
        ([4.0, 4.0, 4.0], 8.0, True),
        ([5.0, 5.0, 4.0], 8.0, False),
        ([1e15, 1e15, 1e15 - 1, 1.0], 2e15, True),
        ([0.1] * 6, 0.1 + 0.1 + 0.1, True),
        ([3.0, 3.0, 3.0], math.inf, True),
        ([1e9 + 0.4, 1e9, 1e9, 1e9], 2e9, True),  # sizes that are not whole may round
        ([1e9 + 1, 1e9, 1e9, 1e9], 2e9, False),
        ([1e15] * 10, 5e15, True),  # sums that rounding may touch
    ],
)
def test_rooms_are_what_the_verifier_accepts(
    sizes: list[float], room: float, there_is_one: bool
) -> None:
    task = sized(sizes, room)
    graph = hypergraph(task)
    search: Search[Solution] = Search(Limits(), lambda _: 1.0)
    packing(task, graph, search)
    assert (search.infeasible_because is None) == there_is_one
    if search.best is not None:
        used = np.bincount(search.best.device, graph.memory_bytes, 2)
        assert (used <= room * (1 + 1e-9)).all()
    status = solve(task.workload, task.cluster, task.problem, method="column-generation").status
    assert (status == "infeasible") != there_is_one


def test_fractions_of_bytes_are_whole_numbers_of_their_unit() -> None:
    task = sized([0.5, 0.25, 3.0], 4.0)
    assert whole_bytes(task, hypergraph(task)).units == (2, 1, 12)
    assert whole_bytes(task, hypergraph(task)).rooms == (16,)
