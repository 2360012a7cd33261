"""Topologies by name: grids, rings, trees, dragonflies, islands, and random ones.

Bandwidths and latencies are round numbers of today's hardware: a fast link (NVLink) carries
300 GB/s, a network link 25 GB/s (200 Gbit/s), a grid link 50 GB/s.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from itertools import combinations

import numpy as np

from ..common.arrays import Floats, Ints
from ..common.errors import InputError
from ..model.network.routing import grid_links
from ..model.network.topology import Topology, check_links, check_size

FAST, NETWORK, GRID = 300e9, 25e9, 50e9
FAST_LATENCY_S, NETWORK_LATENCY_S, GRID_LATENCY_S = 2e-6, 5e-6, 1e-6


def grid(name: str, sides: tuple[int, ...], wraps: bool) -> Topology:
    """A mesh, or a torus if it wraps; devices in row-major order, links between neighbours."""
    check_size(name, math.prod(sides))
    names = tuple(",".join(map(str, place)) for place in np.ndindex(*sides))
    links = grid_links(sides, wraps)
    plain = _alike(name, names, links, GRID, GRID_LATENCY_S)
    return replace(plain, shape=sides, wraps=wraps)


def fat_tree(name: str, sides: tuple[int, ...]) -> Topology:
    """A k-ary fat tree: k pods of k/2 edge and k/2 aggregation switches, k³/4 devices."""
    (k,) = sides
    if k < 2 or k % 2:
        raise InputError(f"{name}: a fat tree needs an even number of ports, such as fattree:4")
    half = k // 2
    size = k * half * half
    check_size(name, size)
    edge, aggregation, core = size, size + k * half, size + k * k
    links = []
    for pod in range(k):
        for e in range(half):
            switch = edge + pod * half + e
            links += [((pod * half + e) * half + d, switch) for d in range(half)]
            links += [(switch, aggregation + pod * half + a) for a in range(half)]
        for a in range(half):
            up = aggregation + pod * half + a
            links += [(up, core + a * half + c) for c in range(half)]
    island = np.arange(size) // (half * half)
    return _alike(
        name,
        _numbered(size),
        np.array(links),
        NETWORK,
        NETWORK_LATENCY_S,
        switches=k * k + half * half,
        island=island,
    )


def dragonfly(name: str, sides: tuple[int, ...]) -> Topology:
    """Groups × routers × devices: routers of a group all joined, one link per pair of groups."""
    groups, routers, each = sides
    size = groups * routers * each
    check_size(name, size)
    check_links(name, size + groups * routers * (routers - 1) // 2 + groups * (groups - 1) // 2)
    links = [(d, size + d // each) for d in range(size)]
    for g in range(groups):
        links += [
            (size + g * routers + a, size + g * routers + b)
            for a, b in combinations(range(routers), 2)
        ]
    for a, b in combinations(range(groups), 2):
        links.append((size + a * routers + b % routers, size + b * routers + a % routers))
    return _alike(
        name,
        _numbered(size),
        np.array(links),
        NETWORK,
        NETWORK_LATENCY_S,
        switches=groups * routers,
        island=np.arange(size) // (routers * each),
    )


def islands(name: str, sides: tuple[int, ...]) -> Topology:
    """Nodes × devices: a fast switch inside each node, one network card per node."""
    nodes, each = sides
    size = nodes * each
    check_size(name, size)
    inside = np.stack([np.arange(size), size + np.arange(size) // each], axis=1)
    across = np.stack([size + np.arange(nodes), np.full(nodes, size + nodes)], axis=1)
    links = np.concatenate([inside, across])
    fast = np.arange(len(links)) < size
    return Topology(
        name=name,
        devices=tuple(f"node {d // each} gpu {d % each}" for d in range(size)),
        links=links,
        latency_s=np.where(fast, FAST_LATENCY_S / 2, NETWORK_LATENCY_S / 2),
        bytes_per_s=np.where(fast, FAST, NETWORK),
        switches=nodes + 1,
        island=np.arange(size) // each,
    )


def random_blocks(name: str, size: int, block: Ints, rng: np.random.Generator) -> Topology:
    """Blocks of fast links (200 to 300 GB/s), joined by random slow ones (1 to 16 GB/s).

    Every pair of devices has a link of its own; bandwidths across are drawn log-uniformly.
    """
    links, a, b = _all_pairs(name, size)
    inside = block[a] == block[b]
    slow = np.exp(rng.uniform(np.log(1e9), np.log(16e9), len(links)))
    fast = rng.uniform(200e9, 300e9, len(links))
    return Topology(
        name=name,
        devices=tuple(f"block {k} gpu {d}" for d, k in enumerate(block.tolist())),
        links=links,
        latency_s=np.where(inside, FAST_LATENCY_S, NETWORK_LATENCY_S),
        bytes_per_s=np.where(inside, fast, slow),
        island=block,
    )


def random_blk_1(name: str, size: int, rng: np.random.Generator) -> Topology:
    """Random blocks of eight devices."""
    check_size(name, size)
    return random_blocks(name, size, np.arange(size) // 8, rng)


def random_blk_2(name: str, size: int, rng: np.random.Generator) -> Topology:
    """Random blocks of two to sixteen devices."""
    check_size(name, size)
    sizes: list[int] = []
    while sum(sizes) < size:
        sizes.append(int(rng.integers(2, 17)))
    return random_blocks(name, size, np.repeat(np.arange(len(sizes)), sizes)[:size], rng)


def uniform_dist(name: str, size: int, rng: np.random.Generator) -> Topology:
    """A link per pair of devices, its bandwidth uniform between 1 and 50 GB/s."""
    check_size(name, size)
    links, _, _ = _all_pairs(name, size)
    bandwidth = rng.uniform(1e9, 50e9, len(links))
    return _alike(name, _numbered(size), links, bandwidth, NETWORK_LATENCY_S)


#: Name → number of sides, generator from name and sides.
REGULAR: dict[str, tuple[int, Callable[[str, tuple[int, ...]], Topology]]] = {
    "ring": (1, lambda name, sides: grid(name, sides, True)),
    "mesh2d": (2, lambda name, sides: grid(name, sides, False)),
    "torus2d": (2, lambda name, sides: grid(name, sides, True)),
    "mesh3d": (3, lambda name, sides: grid(name, sides, False)),
    "torus3d": (3, lambda name, sides: grid(name, sides, True)),
    "fattree": (1, fat_tree),
    "dragonfly": (3, dragonfly),
    "islands": (2, islands),
}
#: Name → generator from name, number of devices and random numbers.
RANDOM: dict[str, Callable[[str, int, np.random.Generator], Topology]] = {
    "random_blk_1": random_blk_1,
    "random_blk_2": random_blk_2,
    "uniform_dist": uniform_dist,
}


def _all_pairs(name: str, size: int) -> tuple[Ints, Ints, Ints]:
    check_links(name, size * (size - 1) // 2)
    a, b = np.triu_indices(size, 1)
    return np.stack([a, b], axis=1), a, b


def _numbered(size: int) -> tuple[str, ...]:
    return tuple(f"gpu {d}" for d in range(size))


def _alike(
    name: str,
    devices: tuple[str, ...],
    links: Ints,
    bandwidth: float | Floats,
    latency: float,
    *,
    switches: int = 0,
    island: Ints | None = None,
) -> Topology:
    return Topology(
        name=name,
        devices=devices,
        links=links,
        latency_s=np.full(len(links), latency),
        bytes_per_s=np.broadcast_to(np.asarray(bandwidth), (len(links),)),
        switches=switches,
        island=np.zeros(len(devices), np.int64) if island is None else island,
    )
