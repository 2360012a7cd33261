"""Random graphs of families similar to networks: the training set of the learned policy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from ..common.errors import InputError, quote
from ..model.cluster import ACCELERATOR, Cluster, DeviceKind, Link, accelerators_and_cpus
from ..model.workload import Workload

#: Nodes of a graph, forward ones alone, and accelerators of its cluster.
NODES = (20, 100)
ACCELERATORS = (2, 8)
#: Memory of a device over its even share, at least and at most; every second one has no limit.
ROOM = (1.3, 3.0)
#: Slowdown of the slower half of unlike devices, and of their links, at least and at most; least
#: fraction of the other devices' memory that they have.
SLOWER, LINK_SLOWER, LEAST_ROOM = (1.3, 4.0), (1.0, 4.0), 0.5

Edges = list[tuple[int, int]]


def _chain(n: int, _rng: np.random.Generator) -> Edges:
    return [(v, v + 1) for v in range(n - 1)]


def _residual(n: int, rng: np.random.Generator) -> Edges:
    edges, at = _chain(n, rng), 0
    while at < n - 1:
        to = min(at + int(rng.integers(2, 5)), n - 1)
        edges.append((at, to))
        at = to
    return edges


def _branches(n: int, rng: np.random.Generator) -> Edges:
    """Blocks of 2 to 5 parallel chains, between nodes that fork and join."""
    edges, fork = [], 0
    while fork < n - 1:
        ways = int(rng.integers(2, 6))
        longest = int(rng.integers(1, 5))
        node, ends = fork + 1, []
        for _ in range(ways):
            length = min(int(rng.integers(1, longest + 1)), n - 1 - node)
            if length > 0:
                edges.append((fork, node))
                edges += [(node + i, node + i + 1) for i in range(length - 1)]
                ends.append(node + length - 1)
                node += length
        join = min(node, n - 1)
        edges += [(end, join) for end in ends or [fork]]
        fork = join
    return edges


def _transformer(n: int, rng: np.random.Generator) -> Edges:
    """Blocks of operators: norm, three projections, scores, mix, output, sum, norm, two layers."""
    block = [(0, 1), (1, 2), (1, 3), (1, 4), (2, 5), (3, 5), (5, 6), (4, 6), (6, 7), (7, 8),
             (0, 8), (8, 9), (9, 10), (10, 11), (11, 12), (8, 12)]  # fmt: skip
    shared = bool(rng.integers(2))
    edges: Edges = []
    for first in range(0, n - 1, 12):
        own = [(first + u, first + v) for u, v in block]
        edges += [(u, v) for u, v in own if v < n]
        edges += [(0, first + 5)] if shared and 0 < first < n - 5 else []
    reached = {v for _, v in edges}
    return edges + [(v - 1, v) for v in range(1, n) if v not in reached]


def _encoder_decoder(n: int, rng: np.random.Generator) -> Edges:
    """An encoder chain, a decoder chain, and edges between them: mirrored, or from one node."""
    half = n // 2
    edges = _chain(n, rng)
    mirrored = bool(rng.integers(2))
    for v in range(half, n - 1, int(rng.integers(2, 5))):
        edges.append((max(n - 1 - v - 1, 0) if mirrored else half - 1, v))
    return [(u, v) for u, v in edges if u < v]


def _random(n: int, rng: np.random.Generator) -> Edges:
    reach = int(rng.integers(2, 12))
    edges: Edges = []
    for v in range(1, n):
        before = np.arange(max(0, v - reach), v)
        some = rng.choice(before, min(len(before), int(rng.integers(1, 4))), replace=False)
        edges += [(int(u), v) for u in some]
    return edges


#: Generators of edges by the name of the family.
FAMILIES: dict[str, Callable[[int, np.random.Generator], Edges]] = {
    "chain": _chain,
    "residual": _residual,
    "branches": _branches,
    "transformer": _transformer,
    "encoder-decoder": _encoder_decoder,
    "random": _random,
}


def family_graph(family: str, seed: int, *, unlike: bool = False) -> Workload:
    """Return a random graph of a family, determined by the seed.

    Every second one has a backward pass, whose nodes share the colours of their forward nodes. Of
    unlike devices one half is slower, has slower links and less memory. InputError if the family is
    none of `FAMILIES`.

    Examples
    --------
    >>> graph = family_graph("residual", 3)
    >>> graph.n == family_graph("residual", 3).n
    True
    """
    if family not in FAMILIES:
        raise InputError(f"family: no {quote(family)}; use one of {', '.join(FAMILIES)}")
    rng = np.random.default_rng([list(FAMILIES).index(family), seed])
    n = int(rng.integers(NODES[0], NODES[1] + 1))
    edges = np.array(FAMILIES[family](n, rng), np.int64).reshape(-1, 2)
    spread = rng.uniform(0.2, 1.5)
    kinds = rng.lognormal(0, spread, 6)  # operators of few kinds, as in networks
    time = kinds[rng.integers(6, size=n)] * rng.lognormal(0, 0.2, n)
    moved = rng.choice(rng.lognormal(0, 1, 4), n) * time.mean() * 10 ** rng.uniform(-2.0, 0.3)
    memory = time * rng.lognormal(0, 0.5, n)
    devices = int(rng.integers(ACCELERATORS[0], ACCELERATORS[1] + 1))
    trains = bool(rng.integers(2))
    room = memory.sum() * (1 + trains) / devices * rng.uniform(*ROOM)
    slower = rng.uniform(5, 20)
    if trains:
        own = np.stack((np.arange(n), np.arange(n) + n), axis=1)
        edges = np.concatenate((edges, own, edges[:, ::-1] + n))
        time = np.concatenate((time, time * rng.uniform(1.5, 2.2)))
        moved, memory = np.tile(moved, 2), np.tile(memory, 2)
    total = len(time)
    graph = Workload(
        name=f"{family}-{seed}",
        ids=tuple(range(total)),
        edges=edges,
        times={"accelerator": time, "cpu": time * slower},
        memory_bytes=memory,
        transfer=moved,
        backward=np.arange(total) >= n,
        colours=np.arange(total) % n if trains else np.full(total, -1),
        cluster=accelerators_and_cpus(devices, 0, room if rng.integers(2) else np.inf),
        provenance={"generator": "graph_family", "seed": str(seed)},
    )
    return _with_unlike_devices(graph, rng) if unlike else graph


def _with_unlike_devices(graph: Workload, rng: np.random.Generator) -> Workload:
    """Return a graph with bytes, which fast links move in its former transfer times."""
    assert graph.cluster is not None
    assert graph.transfer is not None
    fast = graph.cluster.kinds[0]
    slow = fast.count // 2
    link = Link(0.0, 1e9)
    kinds = (
        replace(fast, count=fast.count - slow, link=link),
        DeviceKind(
            "slower",
            slow,
            fast.memory_bytes * rng.uniform(LEAST_ROOM, 1.0),
            times=ACCELERATOR,
            slowdown=rng.uniform(*SLOWER),
            link=replace(link, bytes_per_s=link.bytes_per_s / rng.uniform(*LINK_SLOWER)),
        ),
    )
    return replace(
        graph,
        name=f"{graph.name}-unlike",
        transfer=None,
        output_bytes=graph.transfer * link.bytes_per_s / 1e3,
        time_unit="ms",
        cluster=Cluster(kinds),
    )
